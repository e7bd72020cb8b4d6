"""Single tasks of an array at the command line, and what hold and cancel say of an array; with a real agent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard import Client, State
from switchyard.errors import BadRequest
from switchyard.model.job.job import Job, TaskCounts
from tests.processes import PATIENCE_S, until
from tests.programs import Server, isolated_env, start_agent, start_server, yard

NODES = {"nodes": 1, "each": {"core": 2, "memory": "1GiB"}}
# Task 1 fails with 3 at its first attempt, task 2 with 7 at each; the others succeed.
FLAKY = """
case $SWITCHYARD_ARRAY_INDEX in
1) [ -e {mark} ] || { touch {mark}; exit 3; } ;;
2) exit 7 ;;
esac
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("tasks")
    with start_server(folder) as running, start_agent(folder, running.url, "alpha", graph=NODES):
        yield running


@pytest.fixture(scope="module")
def env(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return isolated_env(tmp_path_factory.mktemp("user"), url=server.url)


@pytest.fixture(scope="module")
def flaky(server: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An array of four tasks that has ended."""
    mark = tmp_path_factory.mktemp("marks") / "seen"
    script = FLAKY.replace("{mark}", str(mark))
    with Client(server.url) as client:
        job = client.submit(["sh", "-c", script], array="0-3", retry={"limit": 1, "backoff": 1})
        job.wait(timeout_s=PATIENCE_S)
    return job.id


def plain(text: str) -> str:
    return " ".join(text.split())


def test_show_has_the_earlier_attempts_of_a_task(flaky: str, env: dict[str, str]) -> None:
    shown = plain(yard("show", f"{flaky}[1]", env=env, check=True).stdout)
    assert f"id {flaky}[1]" in shown
    for words in ("state SUCCEEDED", "cluster alpha", "attempts 2", "attempt 1 failed on alpha, exit 3"):
        assert words in shown
    task = json.loads(yard("show", f"{flaky}[2]", "-o", "json", env=env, check=True).stdout)
    assert (task["state"], task["exit_code"], task["attempts"]) == ("FAILED", 7, 2)
    assert [(earlier["ended"], earlier["exit_code"]) for earlier in task["earlier"]] == [("failed", 7)]
    assert yard("show", f"{flaky}[1]", "-o", "name", env=env, check=True).stdout == f"{flaky}[1]\n"


def test_tasks_have_a_column_of_attempts(flaky: str, env: dict[str, str]) -> None:
    heading, zero, one, *_ = yard("tasks", flaky, env={**env, "COLUMNS": "200"}, check=True).stdout.splitlines()
    assert "ATTEMPTS" in heading
    assert zero.split()[:5] == ["0", "SUCCEEDED", "0", "alpha", "1"]
    assert one.split()[:5] == ["1", "SUCCEEDED", "0", "alpha", "2"]
    assert "1: failed on alpha, exit 3" in one


def test_explain_wait_and_events_take_a_task(flaky: str, env: dict[str, str]) -> None:
    explained = plain(yard("explain", f"{flaky}[2]", env=env, check=True).stdout)
    assert f"id {flaky}[2]" in explained
    assert "attempt 1 failed on alpha, exit 7" in explained
    assert f"Job {flaky}" in explained
    failed, succeeded = (yard("wait", f"{flaky}[{index}]", env=env) for index in (2, 1))
    assert (failed.returncode, succeeded.returncode) == (7, 0)
    assert f"{flaky}[2] FAILED on alpha, attempt 2, exit 7" in plain(failed.stdout)
    events = json.loads(yard("events", f"{flaky}[2]", "-o", "json", env=env, check=True).stdout)
    assert [event["kind"] for event in events] == ["task-retrying", "task-failed"]
    quiet = yard("events", f"{flaky}[0]", env=env, check=True)
    assert "No event is about task 0 alone" in quiet.stderr


@pytest.mark.parametrize("command", ["show", "explain", "wait", "events"])
def test_a_task_that_is_not_there_is_refused(flaky: str, env: dict[str, str], command: str) -> None:
    missing = yard(command, f"{flaky}[9]", env=env)
    assert missing.returncode != 0
    assert "has no task 9" in missing.stderr
    several = yard(command, f"{flaky}[1-2]", env=env)
    assert "names several tasks" in several.stderr


def test_the_sdk_has_one_task(flaky: str, server: Server) -> None:
    with Client(server.url) as client:
        task = client.task(flaky, 1)
        assert (task.state, task.attempts, task.earlier[0].exit_code) == (State.SUCCEEDED, 2, 3)
        with pytest.raises(BadRequest, match="has no task 9"):
            client.task(flaky, 9)


def begun(client: Client, gate: Path, array: str = "0-5") -> str:
    """An array of which two tasks run until the gate is there."""
    job = client.submit(["sh", "-c", f"until [ -e {gate} ]; do sleep 0.05; done"], array=array).id
    until(lambda: len(list(client.tasks(job, state=State.RUNNING))) == 2, PATIENCE_S, "two tasks run")
    return job


def counts(job: Job) -> TaskCounts:
    assert job.tasks is not None
    return job.tasks


def test_a_hold_keeps_the_waiting_tasks_of_an_array(server: Server, env: dict[str, str], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with Client(server.url) as client:
        job = begun(client, gate)
        held = plain(yard("hold", job, env=env, check=True).stdout)
        assert "tasks: 4 held, 2 go on" in held
        gate.touch()
        until(lambda: counts(client.job(job)).ok == 2, PATIENCE_S, "the tasks that ran have ended")
        seen = client.job(job)
        assert (seen.state, seen.is_held, counts(seen).waiting) == (State.PENDING, True, 4)
        yard("release", job, env=env, check=True)
        ended = client.wait(job, timeout_s=PATIENCE_S)
        assert (ended.state, counts(ended).ok) == (State.SUCCEEDED, 6)


def test_a_hold_of_an_array_without_waiting_tasks_is_refused(
    server: Server, env: dict[str, str], tmp_path: Path
) -> None:
    with Client(server.url) as client:
        job = begun(client, tmp_path / "gate", "0-1")
        refused = yard("hold", job, env=env)
        assert "No task of" in refused.stderr
        assert "clusters have 2 of 2, and 0 have ended" in refused.stderr
        assert "tasks: 2 running asked to end" in plain(yard("cancel", job, "--wait", env=env, check=True).stdout)


def test_cancel_says_what_became_of_the_tasks(server: Server, env: dict[str, str], tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with Client(server.url) as client:
        job = begun(client, gate)
        some = plain(yard("cancel", f"{job}[0,4-5]", "--wait", env=env, check=True).stdout)
        assert "tasks: 2 waiting cancelled, 1 running asked to end" in some
        assert client.task(job, 0).state is State.CANCELLED
        until(lambda: len(list(client.tasks(job, state=State.RUNNING))) == 2, PATIENCE_S, "the next task runs")
        every = plain(yard("cancel", job, "--wait", env=env, check=True).stdout)
        assert "tasks: 1 waiting cancelled, 2 running asked to end, 3 had ended before" in every
        again = plain(yard("cancel", job, env=env, check=True).stdout)
        assert "tasks: 6 had ended before" in again
