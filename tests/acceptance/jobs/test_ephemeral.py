"""Ephemeral clusters: they take jobs that fit before their end, and disappear with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from switchyard.errors import EXIT_CONFLICT, EXIT_OK, EXIT_REJECTED
from switchyard.model.job.job import State
from tests.acceptance.stage import Stage, graph, processes_in, staged
from tests.pace import slowness
from tests.processes import PATIENCE_S, until
from tests.programs import Agent, start_agent


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("ephemeral")) as made:
        yield made


def clusters(stage: Stage) -> set[str]:
    return {cluster["name"] for cluster in stage.get("/v1/clusters")["items"]}


def health(stage: Stage, name: str) -> str:
    return next((found["health"] for found in stage.get("/v1/clusters")["items"] if found["name"] == name), "")


def test_it_takes_what_fits_and_is_gone_at_its_end(stage: Stage) -> None:
    """It waits for the real end of a cluster's life, which is as short as a job with its margin allows."""
    extra = ["--ephemeral", "--ends-after", f"{min(int(10 + 4 * slowness()), 90)}s"]
    with (
        stage.brief_agent("stays"),
        start_agent(stage.folder, stage.url, "brief", graph=graph(4), extra=extra) as agent,
    ):
        fits = stage.submit("true", cluster="brief", spec={"resources": {"time_limit": 1}})
        assert stage.ended(fits)["state"] == State.SUCCEEDED
        too_long = stage.submit("true", cluster="brief", spec={"resources": {"time_limit": "1h"}})
        refused = stage.ended(too_long)
        assert refused["state"] == State.REJECTED, "the router knows the end"
        assert "does not fit before the end" in refused["reason"]
        without = stage.ended(stage.submit("true", cluster="brief"))
        assert (without["state"], "only jobs with a time limit" in without["reason"]) == (State.REJECTED, True)
        elsewhere = stage.submit("true", spec={"resources": {"time_limit": "1h"}})
        verdicts = {verdict["cluster"]: verdict for verdict in stage.get(f"/v1/jobs/{elsewhere}/explain")["now"]}
        assert (verdicts["brief"]["say"], verdicts["brief"]["step"]) == ("no", "end"), verdicts
        assert stage.ended(elsewhere)["cluster"] == "stays"
        until(lambda: clusters(stage) == {"stays"}, PATIENCE_S, "the cluster has left")
        assert agent.wait() == 0


def test_an_ephemeral_agent_that_is_stopped_takes_its_cluster_with_it(stage: Stage) -> None:
    extra = ["--ephemeral", "--ends-after", "1h"]
    with start_agent(stage.folder, stage.url, "stopped", graph=graph(4), extra=extra) as agent:
        assert agent.terminate() == 0
        until(lambda: "stopped" not in clusters(stage), PATIENCE_S, "the cluster has left")


def test_of_two_agents_of_a_cluster_only_the_one_that_lives_long_enough_gets_a_job(stage: Stage) -> None:
    """The verdict goes by the longer life. All jobs come at once, and they are more than one agent has room for."""
    agents: dict[str, Agent] = {}
    with ExitStack() as stack:
        for name, life in (("short", "2m"), ("long", "10m")):
            data, extra = stage.folder / f"duo-{name}", ["--name", name, "--ephemeral", "--ends-after", life]
            agents[name] = start_agent(stage.folder, stage.url, "duo", graph=graph(2), data=data, extra=extra)
            stack.enter_context(agents[name])

        def have_joined() -> bool:
            return all("synced" in agent.log_file.read_text() for agent in agents.values())

        until(have_joined, PATIENCE_S, "both have joined")
        stage.yard("cluster", "cordon", "duo", check=True)
        jobs = {
            limit: [
                stage.submit("sleep", "0.2", cluster="duo", spec={"resources": {"time_limit": limit}}) for _ in range(8)
            ]
            for limit in ("4m", "10s")
        }
        stage.yard("cluster", "uncordon", "duo", check=True)
        ended = [stage.ended(job) for several in jobs.values() for job in several]
        assert {(job["state"], job["attempt"]) for job in ended} == {(State.SUCCEEDED, 1)}, ended
        logs = {name: agent.log_file.read_text() for name, agent in agents.items()}
        assert not [job for job in jobs["4m"] if job in logs["short"]], "it was given none that it would return"
        assert [job for job in jobs["10s"] if job in logs["short"]], "it takes what fits before its end"


def test_a_job_of_a_cluster_that_ends_is_over_before_its_next_attempt(stage: Stage, tmp_path: Path) -> None:
    """The first attempt ignores TERM. The next one starts as soon as the server knows that the cluster is over."""
    pids, overlap = tmp_path / "pids", tmp_path / "overlap"
    script = f"for pid in $(cat {pids}); do grep -q 'State:.[^ZX]' /proc/$pid/status && touch {overlap}; done; "
    script += f"[ -s {pids} ] && exit 0; "
    script += f"trap '' TERM; echo $$ > {pids}; while :; do sleep 0.1; done"
    pids.touch()
    extra, in_job = ["--ephemeral", "--ends-after", "1h"], {"SWITCHYARD_JOB_ID": "around"}
    with start_agent(stage.folder, stage.url, "leaving", graph=graph(4), extra=extra, env=in_job) as agent:
        spec = {"resources": {"time_limit": "5m"}, "on_lost": "requeue"}
        job = stage.submit("sh", "-c", script, spec=spec)
        processes_in(pids, 1)
        with stage.agent("next"):
            assert agent.terminate() == 0
            ended = stage.ended(job)
    assert (ended["state"], ended["cluster"]) == (State.SUCCEEDED, "next"), ended
    assert not overlap.exists(), "both attempts ran at once"


def test_a_cluster_that_stays_takes_no_ephemeral_agent(stage: Stage, tmp_path: Path) -> None:
    with stage.agent("lasting"):
        again = start_agent(
            tmp_path, stage.url, "lasting", graph=graph(4), extra=["--ephemeral", "--ends-after", "1h"], wait=False
        )
        with again:
            assert again.wait() != 0
            assert "is not ephemeral" in again.log_file.read_text()
    assert "lasting" in clusters(stage)


def test_a_pilot_that_fails_removes_only_what_it_registered(stage: Stage) -> None:
    """A pilot with the name of a cluster that stays is refused. One that joins other ephemeral agents leaves them."""
    with stage.agent("host"), stage.agent("lasting"):
        assert stage.yard("cluster", "invite", "joint", "--ephemeral").returncode == 0
        fits_nowhere = ["pilot", "--cluster", "host", "--time", "1h", "--nodes", "99", "--backend", "flux", "--name"]
        refused = stage.yard(*fits_nowhere, "lasting")
        assert (refused.returncode, "is not ephemeral" in refused.stderr) == (EXIT_CONFLICT, True), refused
        for name in ("joint", "new"):
            rejected = stage.yard(*fits_nowhere, name)
            assert (rejected.returncode, "No pilot" in rejected.stderr) == (EXIT_REJECTED, True), rejected
        far_too_many = ["--nodes", str(10**12), "--backend", "flux", "--name", "newer"]
        broken = stage.yard("pilot", "--cluster", "host", "--time", "1h", *far_too_many)
        assert broken.returncode not in (EXIT_OK, EXIT_REJECTED), broken
        assert clusters(stage) >= {"host", "lasting", "joint"}
        assert not clusters(stage) & {"new", "newer"}
        invites = stage.get("/v1/clusters/joint/invites")["items"]
        assert [invite.get("is_revoked", False) for invite in invites] == [False, True]
        assert stage.yard("cluster", "rm", "joint", "--force").returncode == 0


def test_a_pilot_and_its_join_token_wait_for_a_bounded_time(stage: Stage) -> None:
    with stage.agent("asleep"):
        assert stage.yard("cluster", "cordon", "asleep").returncode == 0
        words = ["--time", "1h", "--name", "late", "--start-within", "20m", "-o", "name"]
        made = stage.yard("pilot", "--cluster", "asleep", *words)
        assert made.returncode == 0, made
        job = stage.get(f"/v1/jobs/{made.stdout.strip()}")
        (invite,) = stage.get("/v1/clusters/late/invites")["items"]
        waits_s = [(item["expires_us"] - item["created_us"]) / 1e6 for item in (job, invite)]
        assert waits_s == [1200, 1200]
        assert invite["job"] == job["id"]


def test_agents_of_a_group_join_by_one_token_until_it_is_used_up_or_revoked(stage: Stage) -> None:
    made = stage.read("cluster", "invite-group", "pilots", "--agents", "3", "--expires", "1h", "--ephemeral")
    extra = ["--ephemeral", "--ends-after", "1h"]
    names = ["burst-0", "burst-1"]

    def start(name: str, **rest: Any) -> Agent:
        return start_agent(stage.folder, stage.url, name, graph=graph(4), token=made["token"], extra=extra, **rest)

    with ExitStack() as stack:
        agents = [stack.enter_context(start(name)) for name in names]
        until(lambda: all(health(stage, name) == "up" for name in names), PATIENCE_S, "both have joined")
        job = stage.submit("true", cluster="burst-1", spec={"resources": {"time_limit": 1}})
        assert stage.ended(job)["state"] == State.SUCCEEDED
        assert stage.get("/v1/clusters/burst-0")["groups"] == ["pilots"]
        listed = stage.yard("cluster", "invites", "pilots", "--group").stdout.splitlines()[-1].split()
        assert (listed[0], listed[1:3], listed[-1]) == (made["info"]["id"], ["2", "3"], "valid")
        revoked = stage.yard("cluster", "revoke-invite", made["info"]["id"], "--group", "pilots")
        assert revoked.returncode == EXIT_OK, revoked
        late = stack.enter_context(start("burst-2", wait=False))
        assert late.wait() != 0
        assert "The join token was revoked" in late.log_file.read_text()
        for agent in agents:
            assert agent.terminate() == 0
        until(lambda: not clusters(stage) & {*names, "burst-2"}, PATIENCE_S, "the clusters have left")


def test_without_an_end_it_does_not_start(stage: Stage, tmp_path: Path) -> None:
    with start_agent(tmp_path, stage.url, "endless", graph=graph(4), extra=["--ephemeral"], wait=False) as agent:
        assert agent.wait() != 0
        assert "--ends-after" in agent.log_file.read_text()
    assert "endless" not in clusters(stage)
