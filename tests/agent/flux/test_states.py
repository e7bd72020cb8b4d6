"""What the events and exceptions of a Flux job mean: one table, held against captured event logs."""

from __future__ import annotations

import json

import pytest

from switchyard.features.flux.agent.follow.events import JobEvent
from switchyard.features.flux.agent.follow.states import (
    EXCEPTIONS,
    SEEN_BY_EVENT,
    TEXT_BY_EVENT,
    is_launch_failure,
    status_of,
)
from switchyard.model.job.job import Usage
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause
from tests.agent.flux.builders import facts_of
from tests.agent.flux.captures import CANCELLED_WAIT_STATUS, EVENTLOG

NOW_S = 1794706500.0


def read_eventlog(text: str) -> list[JobEvent]:
    """The events as `flux job eventlog` prints them."""
    events = []
    for line in text.splitlines():
        at, name, *pairs = line.split(" ")
        context = {key: json.loads(value) for key, _, value in (pair.partition("=") for pair in pairs)}
        events.append(JobEvent(name=name, timestamp=float(at), context=context))
    return events


def log_of(*steps: str | tuple[str, dict]) -> list[JobEvent]:
    """Events one second apart; the first is ten seconds before now."""
    named = [(step, {}) if isinstance(step, str) else step for step in steps]
    return [JobEvent(name=name, timestamp=NOW_S - 10 + at, context=context) for at, (name, context) in enumerate(named)]


def exception(kind: str, note: str = "", severity: int = 0) -> tuple[str, dict]:
    return "exception", {"type": kind, "severity": severity, "note": note}


QUEUED = ("submit", "validate", "depend", ("priority", {"priority": 16}))
RUNNING = (*QUEUED, "alloc", "start")


def finished(status: int) -> tuple[str | tuple[str, dict], ...]:
    return (*RUNNING, ("finish", {"status": status}), ("release", {"final": True}), "free", "clean")


def test_a_captured_log_tells_how_the_job_ended() -> None:
    status = status_of(facts_of(read_eventlog(EVENTLOG)), now_s=NOW_S)
    assert (status.seen, status.exit_code, status.reason) == (ObservedState.FAILED, 3, "exit code 3")
    assert status.began_ago_us is not None
    assert status.began_ago_us - status.ago_us == pytest.approx(66_671, abs=2)


def test_every_beginning_of_a_captured_log_has_a_state() -> None:
    events = read_eventlog(EVENTLOG)
    seen = [status_of(facts_of(events[:count]), now_s=NOW_S).seen for count in range(len(events) + 1)]
    waits, runs = ObservedState.SUBMITTED, ObservedState.RUNNING
    assert seen == [ObservedState.UNKNOWN, *[waits] * 5, *[runs] * 4, ObservedState.FAILED]


def test_the_tables_have_the_same_events() -> None:
    assert set(SEEN_BY_EVENT) == set(TEXT_BY_EVENT)


@pytest.mark.parametrize(
    ("wait_status", "task_status", "code", "signal"),
    [
        (0, None, 0, None),
        (3 << 8, 3 << 8, 3, None),
        (137 << 8, 9, None, 9),  # the task was killed, and the shell says 128 + 9
        (137 << 8, 137 << 8, 137, None),  # the task itself ended with this code
        (137 << 8, None, None, 9),
        (9, None, None, 9),  # the shell itself was killed
        (250 << 8, None, 250, None),
    ],
)
def test_codes_and_signals(wait_status: int, task_status: int | None, code: int | None, signal: int | None) -> None:
    events = log_of(*finished(wait_status))
    events[-1] = JobEvent(name="clean", timestamp=NOW_S, nodes="f1n2", task_status=task_status)
    status = status_of(facts_of(events), now_s=NOW_S)
    assert (status.exit_code, status.signal) == (code, signal)
    assert status.seen is (ObservedState.SUCCEEDED if code == 0 else ObservedState.FAILED)
    assert status.usage == Usage(elapsed_s=1, nodes="f1n2")


def test_the_code_of_a_shell_that_started_no_task_is_not_the_commands() -> None:
    events = log_of(*finished(1 << 8))
    events[-1] = JobEvent(name="clean", timestamp=NOW_S, is_taskless=True)
    status = status_of(facts_of(events), now_s=NOW_S)
    assert (status.seen, status.exit_code, status.cause) == (ObservedState.FAILED, None, Cause.CLUSTER)
    assert "before the command began" in status.reason


@pytest.mark.parametrize(
    ("steps", "seen", "reason", "cause"),
    [
        (
            (*QUEUED, exception("alloc", "unsatisfiable request"), "clean"),
            ObservedState.RETURNED,
            "the scheduler refused it: unsatisfiable request",
            Cause.CLUSTER,
        ),
        (
            (*RUNNING, exception("timeout", "resource allocation expired"), ("finish", {"status": 36352}), "clean"),
            ObservedState.FAILED,
            "time limit reached: resource allocation expired",
            Cause.JOB,
        ),
        (
            (*RUNNING, exception("exec", "lost contact with f1n2"), ("finish", {"status": 9}), "clean"),
            ObservedState.FAILED,
            "the cluster could not run it to its end: lost contact with f1n2",
            Cause.CLUSTER,
        ),
        (
            (*RUNNING, exception("exec", "task 0: start failed: nope"), ("finish", {"status": 127 << 8}), "clean"),
            ObservedState.FAILED,
            "its command could not be run: task 0: start failed: nope",
            Cause.JOB,
        ),
        (
            (*RUNNING, exception("brand-new", "who knows"), ("finish", {"status": 0}), "clean"),
            ObservedState.FAILED,
            "the cluster ended it (brand-new): who knows",
            Cause.CLUSTER,
        ),
        (("submit", exception("dependency", "bad scheme"), "clean"), ObservedState.FAILED, None, Cause.CLUSTER),
    ],
)
def test_exceptions_end_a_job_in_their_own_words(
    steps: tuple, seen: ObservedState, reason: str | None, cause: Cause
) -> None:
    status = status_of(facts_of(log_of(*steps)), now_s=NOW_S)
    assert (status.seen, status.cause) == (seen, cause)
    assert reason is None or status.reason == reason


def test_a_cancel_of_ours_and_one_of_the_site() -> None:
    steps = (*RUNNING, exception("cancel", "maintenance"), ("finish", {"status": CANCELLED_WAIT_STATUS}), "clean")
    facts = facts_of(log_of(*steps))
    assert status_of(facts, now_s=NOW_S, is_cancel_asked=True).reason == "cancelled"
    by_site = status_of(facts, now_s=NOW_S)
    assert (by_site.seen, by_site.reason) == (ObservedState.CANCELLED, "cancelled at the cluster: maintenance")


def test_an_exception_that_is_not_fatal_changes_nothing() -> None:
    steps = (*RUNNING, exception("alloc", "hm", severity=1), *finished(0)[len(RUNNING) :])
    assert status_of(facts_of(log_of(*steps)), now_s=NOW_S).seen is ObservedState.SUCCEEDED


def test_a_job_is_not_over_before_its_last_event() -> None:
    steps = (*RUNNING, exception("cancel"), ("finish", {"status": CANCELLED_WAIT_STATUS}))
    assert status_of(facts_of(log_of(*steps)), now_s=NOW_S).seen is ObservedState.RUNNING


def test_a_new_priority_and_notes_of_plugins_do_not_take_a_running_job_back() -> None:
    steps = (*RUNNING, ("priority", {"priority": 20}), ("memo", {"a": 1}), "note-of-a-plugin")
    assert status_of(facts_of(log_of(*steps)), now_s=NOW_S).seen is ObservedState.RUNNING


def test_facts_begin_anew_with_the_first_event() -> None:
    assert facts_of([*log_of(*finished(0)), *log_of("submit")]).phase == "submit"


def test_every_exception_has_a_reason() -> None:
    assert all(reason for reason, _ in EXCEPTIONS.values())


@pytest.mark.parametrize(
    ("kind", "is_launch"), [("exec", True), ("prolog", True), ("validate", False), ("cancel", False)]
)
def test_what_may_have_failed_before_the_command_began(kind: str, is_launch: bool) -> None:
    ended = status_of(facts_of(log_of(*QUEUED, "alloc", exception(kind, "lost a node"), "clean")), now_s=NOW_S)
    assert is_launch_failure(ended) is is_launch
