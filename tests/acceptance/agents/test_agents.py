"""Agents from outside: joining, being refused, dying, being frozen, and never taking more than fits."""

from __future__ import annotations

import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard.errors import EXIT_CONFLICT, EXIT_DENIED, EXIT_OK, EXIT_UNAVAILABLE
from switchyard.model.job.job import State
from tests.acceptance.bed import Ledger
from tests.acceptance.stage import SOON_S, Stage, graph, staged, waiting_for
from tests.pace import Limit
from tests.processes import free_port, until
from tests.programs import Agent, start_agent

pytestmark = pytest.mark.xdist_group("agents")

REFUSED_S_MAX = 50.0  # the promise is 3 s on a quiet machine; a minute of retries would be the fault


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """With authentication: joining needs tokens."""
    with staged(tmp_path_factory.mktemp("stage"), auth=True) as made:
        yield made


@pytest.fixture(scope="module")
def alpha(stage: Stage) -> Iterator[Agent]:
    with stage.agent("alpha") as agent:
        yield agent


def attempt_to_join(stage: Stage, cluster: str, folder: Path, *, token: str | None, url: str | None = None) -> Agent:
    """An agent that is meant to be refused: ended, within the promised time and not with 0."""
    limit = Limit(REFUSED_S_MAX)
    agent = start_agent(folder, url or stage.url, cluster, graph=graph(2), token=token, wait=False)
    with agent:
        assert agent.wait() != EXIT_OK
    assert not limit.is_over()
    assert "Traceback" not in agent.log
    assert "\nnext: " in agent.log, "it says what to do"
    return agent


def test_an_invited_agent_joins_once_and_keeps_its_credential_to_itself(stage: Stage, tmp_path: Path) -> None:
    said = stage.yard("cluster", "invite", "invited", check=True).stdout
    token = said.split()[-1]
    assert token.startswith("join_")
    assert stage.yard("cluster", "invite", "invited", "-o", "name", check=True).stdout.strip().startswith("join_")
    agent = start_agent(tmp_path, stage.url, "invited", graph=graph(2), token=token, reader=stage.token)
    with agent:
        kept = agent.data / "credential.json"
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        assert stat.S_IMODE(agent.data.stat().st_mode) == 0o700
        assert token not in agent.log
        assert stage.ended(stage.submit("true", cluster="invited"))["state"] == "SUCCEEDED"
        again = attempt_to_join(stage, "invited", tmp_path / "again", token=token)
        assert (again.exit_code, "was used" in again.log) == (EXIT_DENIED, True)
    # Later starts need no token.
    with start_agent(tmp_path, stage.url, "invited", graph=graph(2), wait=False) as later:
        later.wait_for(lambda: "event=synced" in later.log, SOON_S, "it is back")


def test_a_reusable_token_lets_several_in(stage: Stage, tmp_path: Path) -> None:
    token = stage.yard("cluster", "invite", "many", "--reusable", check=True).stdout.split()[-1]
    names = ["many-1", "many-2"]
    agents = [
        start_agent(
            tmp_path,
            stage.url,
            "many",
            graph=graph(1),
            token=token,
            reader=stage.token,
            data=tmp_path / name,
            extra=["--name", name],
        )
        for name in names
    ]
    with agents[0], agents[1]:
        until(lambda: live_agents(stage, "many") == names, SOON_S, "both agents are live")
        # Each has one core: two jobs that wait for each other need both.
        meet = f"touch {tmp_path}/$0; until [ -e {tmp_path}/$1 ]; do sleep 0.05; done"
        jobs = [stage.submit("sh", "-c", meet, *pair, cluster="many") for pair in (("a", "b"), ("b", "a"))]
        assert [stage.ended(job)["state"] for job in jobs] == ["SUCCEEDED", "SUCCEEDED"]


def live_agents(stage: Stage, cluster: str) -> list[str]:
    found = stage.get(f"/v1/agents?cluster={cluster}")["items"]
    return sorted(agent["name"] for agent in found if agent.get("is_live"))


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("none", "needs a join token"),
        ("wrong", "unknown"),
        ("garbage", "join token"),
        ("foreign", "another cluster"),
        ("expired", "has expired"),
        ("revoked", "was revoked"),
        ("user's", "join token"),
    ],
)
def test_a_join_token_that_does_not_hold_is_refused_with_the_reason(
    stage: Stage, tmp_path: Path, kind: str, why: str
) -> None:
    invite = stage.post("/v1/clusters/guarded/invites", {"expires_s": 1 if kind == "expired" else 60})
    held = {
        "none": None,
        "wrong": invite["token"][:-4] + "XXXX",
        "garbage": "let-me-in",
        "foreign": stage.invite("elsewhere"),
        "user's": stage.token,
    }
    if kind == "revoked":
        assert stage.call("DELETE", f"/v1/invites/{invite['info']['id']}").status == 200
    if kind == "expired":
        until(lambda: time.time() * 1e6 > invite["info"]["expires_us"], SOON_S, "the token is past")
    refused = attempt_to_join(stage, "guarded", tmp_path, token=held.get(kind, invite["token"]))
    assert (refused.exit_code, why in refused.log) == (EXIT_DENIED, True), refused.log
    assert live_agents(stage, "guarded") == []


@pytest.mark.parametrize("kind", ["nobody there", "never answers", "no such host"])
def test_an_unreachable_server_is_said_within_three_seconds(stage: Stage, tmp_path: Path, kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        urls = {
            "nobody there": f"http://127.0.0.1:{free_port()}",
            "never answers": f"http://127.0.0.1:{mute.getsockname()[1]}",
            "no such host": "https://no-such-host.invalid:8080",
        }
        refused = attempt_to_join(stage, "alpha", tmp_path, token=None, url=urls[kind])
    assert refused.exit_code == EXIT_UNAVAILABLE
    assert urls[kind] in refused.log


def test_a_second_agent_of_the_same_name_is_refused_while_the_first_lives(
    stage: Stage, alpha: Agent, tmp_path: Path
) -> None:
    refused = attempt_to_join(stage, "alpha", tmp_path, token=stage.invite("alpha"))
    assert (refused.exit_code, "alive" in refused.log) == (EXIT_CONFLICT, True)
    assert "--name" in refused.log
    assert alpha.is_running
    assert stage.ended(stage.submit("true", cluster="alpha"))["state"] == "SUCCEEDED"


def test_a_second_agent_on_the_same_folder_is_refused(stage: Stage, alpha: Agent, tmp_path: Path) -> None:
    second = start_agent(tmp_path, stage.url, "alpha", graph=graph(2), data=alpha.data, wait=False)
    with second:
        assert second.wait(REFUSED_S_MAX) == EXIT_CONFLICT
    assert f"Another agent (pid {alpha.pid}) already uses {alpha.data}" in second.log
    assert alpha.is_running


def test_a_killed_agent_finds_its_jobs_again_and_tells_their_true_ends(
    stage: Stage, alpha: Agent, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path)
    gate = tmp_path / "gate"
    away = tmp_path / "away"
    outlives = stage.submit(*ledger.command(f"{waiting_for(gate)}; exit 7"), spec={"env": ledger.env}, cluster="alpha")
    brief = stage.submit(*ledger.command(f"{waiting_for(away)}; exit 5"), spec={"env": ledger.env}, cluster="alpha")
    for job in (outlives, brief):
        stage.until_state(job, State.RUNNING)
    alpha.kill()
    away.touch()
    done = alpha.data / "jobs"
    until(lambda: list(done.glob(f"*{brief}*/exit")), SOON_S, "the short job ended while nobody looked")
    alpha.start()
    ended = stage.ended(brief)
    assert (ended["state"], ended["exit_code"]) == ("FAILED", 5)
    assert stage.job(outlives)["state"] == "RUNNING"
    gate.touch()
    ended = stage.ended(outlives)
    assert (ended["state"], ended["exit_code"], ended["attempt"]) == ("FAILED", 7, 1)
    assert ledger.runs() == {outlives: 1, brief: 1}


def test_an_end_while_the_server_is_away_is_told_afterwards_with_its_true_time(
    stage: Stage, alpha: Agent, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    job = stage.submit("sh", "-c", f"{waiting_for(gate)}; exit 4", cluster="alpha")
    stage.until_state(job, State.RUNNING)
    stage.server.kill()
    begun = time.time()
    gate.touch()
    until(lambda: list((alpha.data / "jobs").glob(f"*{job}*/exit")), SOON_S, "the job ended")
    over = time.time()
    time.sleep(4)  # the time away is the subject: its end is told at least this late
    stage.server.start().wait_ready()
    ended = stage.ended(job)
    assert (ended["state"], ended["exit_code"]) == ("FAILED", 4)
    assert begun - 0.5 < ended["ended_us"] / 1e6 < over + 3, "when it ended, not when it was told"


def test_a_cluster_never_runs_more_than_fits(stage: Stage, tmp_path: Path) -> None:
    here, counts, gate = tmp_path / "here", tmp_path / "counts", tmp_path / "gate"
    here.mkdir()
    # Counts itself in, says how many are in, counts itself out.
    count = f"ls {here} | wc -l >> {counts}"
    script = f"mkdir {here}/$$; {count}; {waiting_for(gate)}; sleep 0.3; {count}; rmdir {here}/$$"
    with stage.agent("pair", cores=2):
        jobs = [stage.submit("sh", "-c", script, cluster="pair") for _ in range(6)]
        until(lambda: len(list(here.iterdir())) == 2, SOON_S, "both cores are used")
        gate.touch()
        assert {stage.ended(job)["state"] for job in jobs} == {"SUCCEEDED"}
    seen = [int(word) for word in counts.read_text().split()]
    assert (len(seen), max(seen)) == (12, 2), f"both cores were used, and never more: {seen}"


@pytest.mark.parametrize("what", ["cluster", "agent"])
def test_an_agent_whose_registration_ends_is_told_and_ends(stage: Stage, what: str) -> None:
    name = f"doomed-{what}"
    with stage.agent(name) as agent:
        removed = name if what == "cluster" else stage.get(f"/v1/agents?cluster={name}")["items"][0]["id"]
        stage.yard(what, "rm", "--force", removed, check=True)
        assert agent.wait(SOON_S) == EXIT_CONFLICT, "it does not sit out its parked poll first"
        assert "refuses this agent" in agent.log
        assert "next: Join again" in agent.log
    if what == "cluster":
        assert stage.call("GET", f"/v1/clusters/{name}").status == 404
