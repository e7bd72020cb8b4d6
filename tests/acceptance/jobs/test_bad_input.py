"""What goes wrong outside: wrong clocks, full disks, a database that goes away, agents that lie, files that are bad."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard import State
from switchyard.errors import EXIT_USAGE
from tests.acceptance.full_disk import fill
from tests.acceptance.scripted import ScriptedAgent
from tests.acceptance.stage import SOON_S, Fields, Stage, graph
from tests.processes import free_port, until
from tests.programs import YARD, Agent, isolated_env, off_clock, start_agent, yard

pytestmark = pytest.mark.xdist_group("bad_input")

DISK_BYTES = 24 * 2**20  # of the small disk: a journal and a few jobs fit well
FREE_BYTES_MIN = 2**20  # what the agent there wants free


def times_of(job: Fields) -> list[int]:
    return [job[name] for name in ("created_us", "assigned_us", "leased_us", "started_us", "ended_us")]


@pytest.mark.parametrize("offset", ["+1h", "-1h"])
def test_a_clock_that_is_an_hour_off_moves_no_time_of_a_job(stage: Stage, offset: str) -> None:
    cluster = f"clock{offset.strip('+')}".replace("-", "-minus-")
    with stage.agent(cluster, env=off_clock(offset)) as agent:
        before_us = time.time_ns() // 1000
        job = stage.submit("sleep", "0.5", cluster=cluster)
        ended = stage.ended(job)
        assert ended["state"] == "SUCCEEDED"
        times = [before_us, *times_of(ended), time.time_ns() // 1000]
        assert times == sorted(times)
        assert 0.4 < (ended["ended_us"] - ended["started_us"]) / 1e6 < 600, "no hour is added"
        # Its own log shows that the clock was really off.
        hour = time.gmtime(time.time() + (3600 if offset == "+1h" else -3600)).tm_hour
        assert f"T{hour:02d}:" in agent.log or time.gmtime().tm_min in (0, 59)
        agent.kill()  # ages are measured across the agent's own life, too
        agent.start()
        assert stage.ended(stage.submit("true", cluster=cluster))["state"] == "SUCCEEDED"


@pytest.fixture
def tiny(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Agent, Path]]:
    """An agent whose data folder is a small disk of its own, in a mount namespace; and that folder as we see it."""
    data = tmp_path / "small-disk"
    data.mkdir()
    room = ["unshare", "-m" if os.getuid() == 0 else "-Urm"]
    mount = f'mount -t tmpfs -o size={DISK_BYTES},mode=700 tmpfs "$0" && exec "$@"'
    with monkeypatch.context() as patch:
        patch.setattr("tests.programs.YARD", [*room, "sh", "-c", mount, str(data), *YARD])
        extra = ["--free-bytes-min", str(FREE_BYTES_MIN)]
        agent = start_agent(stage.folder, stage.url, "tiny", graph=graph(4), data=data, extra=extra)
    with agent:
        yield agent, Path(f"/proc/{agent.pid}/root{data}")


def test_a_full_disk_stops_new_work_and_loses_no_end(stage: Stage, tiny: tuple[Agent, Path], tmp_path: Path) -> None:
    agent, disk = tiny
    gate = tmp_path / "gate"
    runs = stage.submit("sh", "-c", f"until [ -e {gate} ]; do sleep 0.05; done; exit 9", cluster="tiny")
    stage.until_state(runs, State.RUNNING)

    def trouble() -> str:
        return str(stage.get("/v1/clusters/tiny")["load"].get("trouble", ""))

    assert trouble() == ""
    fill(disk / "fill")
    until(lambda: "disk full" in trouble(), SOON_S, "the cluster says that its disk is full")
    assert "disk full" in stage.yard("cluster", "ls", check=True).stdout
    waits = stage.submit("true", cluster="tiny")
    with stage.agent("roomy"):
        stage.yard("pool", "set", "either", "tiny=1", "roomy=1", check=True)
        either = [stage.submit("true", pool="either") for _ in range(8)]
        assert {stage.ended(job)["cluster"] for job in either} == {"roomy"}, "no job is drawn to a full cluster"
    until(lambda: stage.get("/v1/clusters/tiny")["load"].get("files_trouble"), SOON_S, "it has no room for files")
    keeps = stage.submit("sh", "-c", "echo kept >out", cluster="tiny", spec={"files": {"out": ["out"]}})
    assert "takes no jobs with files now: disk full" in stage.job(keeps)["reason"]
    gate.touch()
    ended = stage.ended(runs)
    assert (ended["state"], ended["exit_code"]) == ("FAILED", 9), "its end was kept, and told, on a full disk"
    time.sleep(1)  # that nothing happens is the subject
    assert (stage.job(waits)["state"], stage.job(waits).get("leased_us")) == ("ASSIGNED", None)
    assert agent.is_running
    (disk / "fill").unlink()
    assert stage.ended(waits)["state"] == "SUCCEEDED", "it goes on by itself"
    assert stage.ended(keeps)["state"] == "SUCCEEDED"
    until(lambda: trouble() == "", SOON_S, "the trouble is over")


@pytest.fixture(scope="module")
def scripted(stage: Stage) -> ScriptedAgent:
    return ScriptedAgent(stage, "scripted")


def test_a_fence_that_is_too_low_is_told_to_stop_and_changes_nothing(stage: Stage, scripted: ScriptedAgent) -> None:
    job = stage.submit("true", cluster="scripted")
    (lease,) = scripted.lease()
    assert lease["job"] == job
    low, high = {**lease, "fence": lease["fence"] - 1}, {**lease, "fence": lease["fence"] + 1}
    said = scripted.heard(reports=[{"job": job, "fence": low["fence"], "seen": "SUCCEEDED", "exit_code": 0}])
    assert said["answers"] == ["stop"]
    assert [(stop["job"], stop["fence"]) for stop in said["stops"]] == [(job, low["fence"])]
    assert scripted.report(high, "SUCCEEDED", exit_code=0) == ["stale"], "from a future nobody knows"
    assert stage.job(job)["state"] == "ASSIGNED"
    assert scripted.report(lease, "RUNNING", "SUCCEEDED", exit_code=0) == ["taken", "taken"]
    assert stage.job(job)["state"] == "SUCCEEDED"


def test_late_and_repeated_reports_change_nothing(stage: Stage, scripted: ScriptedAgent) -> None:
    job = stage.submit("true", cluster="scripted")
    (lease,) = scripted.lease()
    assert scripted.report(lease, "FAILED", exit_code=3, reason="exit code 3") == ["taken"]
    before = (stage.job(job), stage.walk(f"/v1/jobs/{job}/events", limit=50))
    assert scripted.report(lease, "FAILED", exit_code=3) == ["stale"]
    assert scripted.report(lease, "SUCCEEDED", "CANCELLED", "LOST", exit_code=0) == ["stale"] * 3
    assert scripted.report(lease, "RUNNING", "SUBMITTED") == ["stop"] * 2
    chunk = {"job": job, "fence": lease["fence"] + 1, "stream": "stdout", "offset": 0, "data": "Zm9yZ2Vk"}
    scripted.heard(output=[chunk])
    assert (stage.job(job), stage.walk(f"/v1/jobs/{job}/events", limit=50)) == before
    assert stage.get(f"/v1/jobs/{job}/output?stream=stdout")["chunks"] == []


def test_one_agent_cannot_speak_for_anothers_job(stage: Stage, scripted: ScriptedAgent) -> None:
    job = stage.submit("true", cluster="scripted")
    (lease,) = scripted.lease()
    other = ScriptedAgent(stage, "elsewhere", name="other")
    assert other.report(lease, "SUCCEEDED", exit_code=0) == ["stop"]
    nobody = {"job": "01ARZ3NDEKTSV4RRFFQ69G5FAV", "fence": 1}
    assert other.report(nobody, "SUCCEEDED") == ["stop"]
    assert stage.job(job)["state"] == "ASSIGNED"
    assert scripted.report(lease, "SUCCEEDED", exit_code=0) == ["taken"]


def test_a_lease_whose_answer_was_lost_comes_again_with_the_next_sync(stage: Stage, scripted: ScriptedAgent) -> None:
    job = stage.submit("true", cluster="scripted")
    (lost,) = scripted.lease()
    old = scripted.session
    (again,) = scripted.sync()["leases"]
    assert (again["job"], again["fence"], again["attempt"]) == (job, lost["fence"], lost["attempt"])
    assert "leases" not in scripted.sync(again), "what is held is not sent twice"
    late = scripted.poll(session=old, want=1, wait_s=0)
    assert (late.status, late.json["code"]) == (409, "resync"), "an older session gets no work any more"
    assert scripted.report(again, "SUCCEEDED", exit_code=0) == ["taken"]
    (stop,) = scripted.sync(again)["stops"]
    assert stop["job"] == job, "what is over is not to be held"


def test_ages_that_cannot_be_are_put_right_by_the_servers_clock(stage: Stage, scripted: ScriptedAgent) -> None:
    job = stage.submit("true", cluster="scripted")
    (lease,) = scripted.lease()
    day_us = 86_400_000_000
    assert scripted.report(lease, "RUNNING") == ["taken"]
    assert scripted.report(lease, "SUCCEEDED", exit_code=0, ago_us=day_us) == ["taken"]
    both = stage.submit("true", cluster="scripted")
    (lease,) = scripted.lease()
    said = {"job": both, "fence": lease["fence"]}
    reports = [{**said, "seen": "RUNNING", "ago_us": 0}, {**said, "seen": "FAILED", "ago_us": day_us}]
    assert scripted.heard(reports=reports)["answers"] == ["taken", "taken"]
    for ended in (stage.job(job), stage.job(both)):
        times = [*times_of(ended), time.time_ns() // 1000]
        assert times == sorted(times)


@pytest.mark.parametrize(
    "fields",
    [
        {"reports": [{"job": "short", "fence": 1, "seen": "RUNNING"}]},
        {"reports": [{"job": "0" * 26, "fence": -1, "seen": "RUNNING"}]},
        {"reports": [{"job": "0" * 26, "fence": 1, "seen": "ASLEEP"}]},
        {"reports": [{"job": "0" * 26, "fence": 2**63, "seen": "RUNNING"}]},
        {"want": -1},
        {"want": 10**9},
        {"wait_s": 1e9},
        {"incarnation": "two words"},
        {"nonsense": True},
        {"inventory": [{"job": "0" * 26}]},
        {"output": [{"job": "0" * 26, "fence": 1, "stream": "stdlog", "offset": 0, "data": ""}]},
    ],
)
def test_a_poll_that_makes_no_sense_is_refused_whole(scripted: ScriptedAgent, fields: dict[str, object]) -> None:
    answer = scripted.poll(**fields)
    assert (answer.status, answer.json["code"]) == (400, "malformed")
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("field", "value", "grammar"),
    [
        ("gpu_type", "a100:8,license:matlab", "the name of a type of GPU"),
        ("account", "physics --uid=0", "a name"),
        ("licenses", ["matlab:2,ansys:9"], "a licence"),
        ("constraint", "a;b", "an expression of features"),
        ("options", ["--nice=5\n#SBATCH --uid=0"], "an option"),
    ],
)
def test_a_hostile_word_for_a_batch_system_is_refused_with_its_grammar(
    stage: Stage, field: str, value: object, grammar: str
) -> None:
    body = {"spec": {"command": ["true"], "native": {field: value}}}
    for path, sent in (("/v1/jobs", body), ("/v1/jobs/bulk", {"jobs": [body]})):
        answer = stage.call("POST", path, sent)
        assert (answer.status, answer.json["code"]) == (400, "malformed"), path
        assert f"native.{field}" in answer.json["detail"]
        assert grammar in answer.json["detail"]


BAD_YAML = "command: [echo]\nlabels: {team: ml\nname: x\n"


def test_a_bad_file_is_named_with_line_and_column(stage: Stage, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    env = isolated_env(tmp_path, url=stage.url)

    def told(*args: str, **more: str) -> str:
        done = yard(*args, env={**env, **more})
        assert done.returncode == EXIT_USAGE, done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr

    file.write_text(BAD_YAML)
    place = f"{file}: line 3, column 5: "
    assert place in told("submit", "-f", str(file))
    assert place in told("server", "--data", str(tmp_path), "--http", f"127.0.0.1:{free_port()}", "--config", str(file))
    assert place in told("ls", YARD_CONFIG=str(file))
    agent = ("--cluster", "alpha", "--backend", "local", "--data", str(tmp_path / "agent"))
    assert place in told("agent", "--server", stage.url, *agent, "--graph", str(file))
    for text, words in (
        ("command: [echo]\ncommand: [ls]\n", "line 2, column 1: the field 'command' is given twice"),
        ("command: [echo]\na: &x [1]\nb: *x\n", "aliases are not allowed"),
        ("command: !!python/object/apply:os.system [ls]\n", "line 1, column 10"),
        ("command: [echo]\nmemory: lots\n", "'lots' is not an amount"),
        ("command: [echo]\nmemroy: 1GiB\n", "memroy"),
        ("[1, 2]\n", "expected fields such as `command:`"),
    ):
        file.write_text(text)
        assert words in told("submit", "-f", str(file)), text
    assert stage.get("/v1/jobs?label=team=ml")["items"] == []
