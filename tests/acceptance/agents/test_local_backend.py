"""The local backend from outside: every way a process can end, and everything it may try to leave behind."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard.model.job.job import State
from tests.acceptance.bed import Ledger
from tests.acceptance.stage import SOON_S, Fields, Stage, processes_in, waiting_for
from tests.processes import until
from tests.programs import Agent

pytestmark = pytest.mark.xdist_group("local_backend")

GRACE_S = 5.0  # the supervisor's own: from TERM to KILL


@pytest.fixture(scope="module", autouse=True)
def alpha(stage: Stage) -> Iterator[Agent]:
    with stage.agent("alpha", cores=8) as agent:
        yield agent


def run(stage: Stage, *command: str, **fields: Fields) -> Fields:
    return stage.ended(stage.submit(*command, **fields))


@pytest.mark.parametrize("code", [0, 1, 3, 255])
def test_the_exit_code_is_the_commands(stage: Stage, code: int) -> None:
    job = run(stage, "sh", "-c", f"exit {code}")
    assert (job["state"], job["exit_code"], job.get("signal")) == ("FAILED" if code else "SUCCEEDED", code, None)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGTERM])
def test_a_signal_is_told_apart_from_an_exit_code(stage: Stage, number: signal.Signals) -> None:
    job = run(stage, "sh", "-c", f"kill -{number.value} $$")
    assert (job["state"], job.get("exit_code"), job["signal"]) == ("FAILED", None, number.value)
    assert number.name in job["reason"]
    assert stage.yard("wait", job["id"]).returncode == 128 + number.value


@pytest.mark.parametrize(
    ("command", "code", "word"),
    [
        ("no-such-command", 127, "command not found: no-such-command"),
        ("/no/such/file", 127, "command not found: /no/such/file"),
        ("/etc/passwd", 126, "not executable: /etc/passwd"),
        ("/tmp", 126, "/tmp"),
    ],
)
def test_what_cannot_be_started_fails_with_the_reason(stage: Stage, command: str, code: int, word: str) -> None:
    job = run(stage, command)
    assert (job["state"], job["exit_code"]) == ("FAILED", code)
    assert word in job["reason"]
    assert word in stage.raw("logs", job["id"], "--stderr")[0].decode()


def test_a_missing_working_directory_is_a_reason_too(stage: Stage) -> None:
    job = run(stage, "true", spec={"cwd": "/no/such/folder"})
    assert (job["state"], job["exit_code"]) == ("FAILED", 126)
    assert "/no/such/folder" in job["reason"]


def escaping(folder: Path) -> tuple[str, Path]:
    """Shell words that start a child with a session of its own, which ignores TERM; and the file with its pid."""
    child, pids = folder / "child", folder / "pids"
    child.write_text(f"trap '' TERM HUP; echo $$ > {pids}; while :; do sleep 0.1; done\n")
    return f"setsid sh {child} &", pids


def test_a_child_that_escaped_its_session_goes_with_a_cancel(stage: Stage, tmp_path: Path) -> None:
    escape, pids = escaping(tmp_path)
    job = stage.submit("sh", "-c", f"{escape} wait")
    (child,) = processes_in(pids, 1)
    stage.post(f"/v1/jobs/{job}/cancel", {})
    assert stage.ended(job)["state"] == "CANCELLED"
    assert not child.is_alive


def test_a_child_that_escaped_does_not_outlive_a_command_that_ends(stage: Stage, tmp_path: Path) -> None:
    escape, pids = escaping(tmp_path)
    gate = tmp_path / "gate"
    job = stage.submit("sh", "-c", f"{escape} until [ -e {gate} ]; do sleep 0.05; done")
    (child,) = processes_in(pids, 1)
    gate.touch()
    assert stage.ended(job)["state"] == "SUCCEEDED"
    assert not child.is_alive


def test_a_command_that_ignores_term_is_killed_after_its_grace(stage: Stage, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    job = stage.submit("sh", "-c", f"trap '' TERM; echo $$ > {pids}; while :; do sleep 0.1; done")
    (stubborn,) = processes_in(pids, 1)
    begun = time.monotonic()
    stage.post(f"/v1/jobs/{job}/cancel", {})
    ended = stage.ended(job)
    assert time.monotonic() - begun > GRACE_S - 0.5
    assert (ended["state"], ended["signal"]) == ("CANCELLED", signal.SIGKILL)
    assert not stubborn.is_alive


def test_an_exit_while_the_agent_is_dead_is_not_lost(stage: Stage, alpha: Agent, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    gate = tmp_path / "gate"
    wait = f"until [ -e {gate} ]; do sleep 0.05; done; echo last words; "
    ends = {"exit 0": (0, None), "exit 42": (42, None), "kill -9 $$": (None, 9)}
    jobs = [stage.submit(*ledger.command(wait + end), spec={"env": ledger.env}) for end in ends]
    for job in jobs:
        stage.until_state(job, State.RUNNING)
    alpha.kill()
    gate.touch()
    for job in jobs:
        until(lambda job=job: list(alpha.data.glob(f"jobs/*{job}*/exit")), SOON_S, "it ended unseen")
    alpha.start()
    ended = [stage.ended(job) for job in jobs]
    assert [(job.get("exit_code"), job.get("signal")) for job in ended] == list(ends.values())
    assert [stage.raw("logs", job)[0] for job in jobs] == [b"last words\n"] * 3
    assert ledger.runs() == dict.fromkeys(jobs, 1)


def test_only_bound_jobs_end_with_an_agent_that_is_killed(stage: Stage, alpha: Agent, tmp_path: Path) -> None:
    families, gate = {}, tmp_path / "gate"
    with stage.agent("bound", extra=["--jobs-end-with-agent"]) as bound:
        for name in ("alpha", "bound"):
            (tmp_path / name).mkdir()
            escape, pids = escaping(tmp_path / name)
            script = f"trap '' TERM; {escape} until [ -s {pids} ]; do sleep 0.05; done; echo $$ >> {pids}; "
            job = stage.submit("sh", "-c", f"{script} {waiting_for(gate)}", cluster=name)
            families[name] = (job, processes_in(pids, 2))
        bound.kill()
        alpha.kill()
        lost, gone = families["bound"]
        until(lambda: not any(process.is_alive for process in gone), SOON_S, "no process of the bound job is left")
        bound.start()
        alpha.start()
        ended = stage.ended(lost)
        assert (ended["state"], "its agent ended" in ended["reason"]) == ("FAILED", True), ended
        other, living = families["alpha"]
        assert all(process.is_alive for process in living)
        gate.touch()
        assert stage.ended(other)["state"] == "SUCCEEDED"
    assert stage.yard("cluster", "rm", "bound", "--force").returncode == 0


def test_a_job_whose_supervisor_is_killed_is_lost_and_leaves_nothing(stage: Stage, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    job = stage.submit("sh", "-c", f"setsid sleep 600 & echo $$ $! $PPID > {pids}; wait")
    *family, supervisor = processes_in(pids, 3)
    stage.until_state(job, State.RUNNING)
    supervisor.kill()
    ended = stage.ended(job)
    assert (ended["state"], "supervisor" in ended["reason"]) == ("FAILED", True)
    assert not any(process.is_alive for process in family), "the job is over, so nothing of it runs"


def test_memory_over_the_limit_is_refused_to_the_process(stage: Stage) -> None:
    grab = [sys.executable, "-c", "import sys; got = bytearray(int(sys.argv[1]) << 20); print(len(got) >> 20)"]
    bounded = {"resources": {"memory": "256MiB"}}
    fits, bursts = (stage.submit(*grab, str(size), spec=bounded) for size in (32, 512))
    assert stage.ended(fits)["state"] == "SUCCEEDED"
    assert stage.ended(bursts)["state"] == "FAILED"
    assert b"MemoryError" in stage.raw("logs", bursts, "--stderr")[0]
    # A limit over the request is what counts.
    roomier = {"resources": {"memory": "256MiB", "limits": {"memory": "1GiB"}}}
    assert run(stage, *grab, "512", spec=roomier)["state"] == "SUCCEEDED"


def test_a_job_sees_no_secret_of_the_agent(stage: Stage) -> None:
    job = run(stage, "env")
    seen = stage.raw("logs", job["id"])[0].decode()
    assert f"SWITCHYARD_JOB_ID={job['id']}" in seen
    assert not [line for line in seen.splitlines() if line.startswith("YARD_") or "agent_0" in line]
