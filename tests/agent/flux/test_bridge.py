"""The bridge to Flux against what a job can write into its own log: no job ends the bridge or stops its reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from switchyard.errors import Unavailable
from switchyard.features.flux.agent.broker.bridge_program import Bridge, first_task_status, has_no_tasks
from switchyard.features.flux.agent.broker.connection import BridgeMessage, BrokerConnection
from switchyard.features.flux.agent.flux_site import FluxSite
from switchyard.features.flux.agent.follow.events import JobEvent
from switchyard.features.flux.agent.follow.job_ids import handle_of
from switchyard.features.flux.agent.follow.job_tracker import FluxJobTracker
from switchyard.features.flux.agent.follow.states import status_of
from switchyard.model.cluster.allocation import GivenResources
from switchyard.model.job.job import Usage
from switchyard.model.job.lifecycle import ObservedState
from tests.agent.flux.builders import facts_of
from tests.agent.flux.captures import R_OF_JOB
from tests.processes import PATIENCE_S, started_of, until

GOOD = {"timestamp": 1.0, "name": "shell.task-exit", "context": {"wait_status": 9}}
FORGED = [
    '{"timestamp": 1.0, "name": "shell.task-exit"}',
    '{"timestamp": 1.0, "name": "shell.task-exit", "context": null}',
    '{"timestamp": 1.0, "name": "shell.task-exit", "context": {"wait_status": "x"}}',
    '{"timestamp": 1.0, "name": "shell.task-exit", "context": {"wait_status": true}}',
    '{"timestamp": 1.0, "name": "shell.task-exit", "context": {"wait_status": 1000000000000000000000000}}',
    '{"timestamp": 1.0}',
    "[1]",
    "no JSON",
    "[" * 100_000,
]


class AnsweredBridge(Bridge):
    """A bridge whose broker has given these answers."""

    def __init__(self, answers: list[Any]) -> None:
        super().__init__(None, None)
        self.answers = answers

    def rpc(self, topic: str, payload: Any, done: Any, nodeid: Any = None) -> None:
        done(self.answers.pop(0))


@pytest.mark.parametrize("line", FORGED)
def test_a_forged_entry_is_skipped(line: str) -> None:
    assert first_task_status({"guest.exec.eventlog": line}) is None
    assert first_task_status({"guest.exec.eventlog": f"{line}\n{json.dumps(GOOD)}\n"}) == 9


@pytest.mark.parametrize(
    ("log", "is_taskless"),
    [
        ('{"timestamp":1.0,"name":"init"}\n{"timestamp":2.0,"name":"shell.init"}\n', True),
        ('{"timestamp":1.0,"name":"init"}\n{"timestamp":2.0,"name":"shell.start"}\n', False),
        (json.dumps(GOOD), False),
        ("", False),
        (None, False),
    ],
)
def test_a_shell_that_started_no_task_is_told_by_its_log(log: object, is_taskless: bool) -> None:
    assert has_no_tasks({"guest.exec.eventlog": log}) is is_taskless


def test_an_end_comes_whatever_the_logs_of_the_job_are(capsys: pytest.CaptureFixture[str]) -> None:
    answers: list[Any] = [{}, {"R": 5}, {"R": "{}"}, {"R": '{"execution": {"nodelist": [1]}}'}, {"R": "["}]
    logs: list[Any] = [{}, {"guest.exec.eventlog": None}, {"guest.exec.eventlog": 5}, None, OSError(2, "gone")]
    for resources, log in zip(answers, logs, strict=True):
        bridge = AnsweredBridge([resources, log])
        bridge.complete_end(7, "yard-a", {"name": "clean", "timestamp": 1.0})
    ends = [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()]
    assert ends == [{"name": "clean", "timestamp": 1.0, "nodes": ""}] * len(answers)


def test_what_a_job_had_comes_with_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    AnsweredBridge([{"R": json.dumps(R_OF_JOB)}, {}]).complete_end(7, "yard-a", {"name": "clean", "timestamp": 9.0})
    end = msgspec.json.decode(capsys.readouterr().out, type=BridgeMessage)
    clean = msgspec.convert(end.event, JobEvent)
    usage = status_of(facts_of([JobEvent("start", 1.0), JobEvent("finish", 7.0), clean]), now_s=9.0).usage
    assert usage == Usage(elapsed_s=6, nodes="f1n2", allocated=GivenResources(cores=4, gpus=0))


@pytest.mark.parametrize("status", [0x7F, 0xFFFF, -1, 1 << 40, "x", True, [9]])
def test_a_status_that_is_no_end_of_a_process_says_nothing(status: object) -> None:
    """137 looks like SIGKILL; only a readable status of the task could say otherwise."""
    finish = JobEvent(name="finish", timestamp=1.0, context={"status": 137 << 8})
    facts = facts_of([finish, JobEvent(name="clean", timestamp=2.0, task_status=status)])
    ended = status_of(facts, now_s=3.0, is_cancel_asked=False)
    assert (ended.seen, ended.signal) == (ObservedState.FAILED, 9)
    unknown = facts_of([JobEvent(name="finish", timestamp=1.0, context={"status": status}), JobEvent("clean", 2.0)])
    assert status_of(unknown, now_s=3.0, is_cancel_asked=False).reason == "the cluster says that it ended, not how"


def test_an_unreadable_event_stops_nobody() -> None:
    tracker = FluxJobTracker(is_ours=lambda name: True, on_news=lambda: None)
    tracker.on_message(BridgeMessage(job=7, name="yard-a", event={"name": 5}))
    tracker.on_message(BridgeMessage(job=7, name="yard-a", event={"name": "start", "timestamp": 1.0}))
    status = tracker.status(handle_of(7, "yard-a"), now_s=2.0, is_cancel_asked=False)
    assert status.seen is ObservedState.RUNNING


def test_jobs_of_a_bridge_that_ended_are_followed_by_the_next_one() -> None:
    """The bridge may end between its answer to a submit and the first event."""
    asked: list[Any] = []

    class Connection:
        def call(self, op: str, **fields: Any) -> None:
            asked.append((op, fields["jobs"]))

    tracker = FluxJobTracker(is_ours=lambda name: True, on_news=lambda: None)
    tracker.on_message(BridgeMessage(job=7, name="yard-a", event={"name": "submit", "timestamp": 1.0}))
    tracker.follow([handle_of(7, "yard-a"), handle_of(8, "yard-b")])
    tracker.refresh(cast(BrokerConnection, Connection()))
    assert asked.pop() == ("follow", [[8, "yard-b"]]), "the events of the other one come by themselves"
    tracker.on_message(None)
    tracker.refresh(cast(BrokerConnection, Connection()))
    op, jobs = asked.pop()
    assert (op, sorted(jobs)) == ("follow", [[7, "yard-a"], [8, "yard-b"]])


def test_a_reader_that_fails_ends_its_bridge(tmp_path: Path) -> None:
    """The next request starts another bridge, instead of waiting for answers that nobody reads."""
    program = tmp_path / "flux"
    program.write_text(
        "#!/bin/sh\n"
        """echo '{"hello": {"version": "1"}}'\n"""
        f"echo x >> {tmp_path}/starts\n"
        """read -r request\n"""
        """echo '{"job": 7, "name": "yard-a", "unknown": "no such job"}'\n"""
        "exec sleep 600\n"
    )
    program.chmod(0o755)
    ends: list[None] = []

    def fail(message: BridgeMessage | None) -> None:
        if message is not None:
            raise RuntimeError("a defect")
        ends.append(None)

    site = FluxSite(bin=str(tmp_path), timeout_s=PATIENCE_S)
    connection = BrokerConnection(site, {}, tmp_path / "log", on_message=fail)
    try:
        for count in (1, 2):
            with pytest.raises(Unavailable, match="The connection to Flux ended"):
                connection.call("cluster")
            until(lambda count=count: len(ends) == count, PATIENCE_S, "the end was told")
        assert (tmp_path / "starts").read_text() == "x\nx\n"
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("greeting", "says"),
    [("", "did not answer within"), ("""echo '{"hello": {"version": "1"}}'\n""", "no answer to cluster within")],
)
def test_a_flux_that_hangs_is_given_up_and_asked_anew(tmp_path: Path, greeting: str, says: str) -> None:
    """Before it greets, and after: each request ends in time, and no hanging process is left behind."""
    program, pids = tmp_path / "flux", tmp_path / "pids"
    program.write_text(f"#!/bin/sh\necho $$ >> {pids}\n{greeting}exec sleep 600\n")
    program.chmod(0o755)
    site = FluxSite(bin=str(tmp_path), timeout_s=0.5)
    connection = BrokerConnection(site, {}, tmp_path / "log", on_message=lambda message: None)
    try:
        for count in (1, 2):
            with pytest.raises(Unavailable, match=says):
                connection.call("cluster")
            started = [int(pid) for pid in pids.read_text().split()]
            assert len(started) == count
            until(lambda pid=started[-1]: started_of(pid) is None, PATIENCE_S, "the hanging process has ended")
    finally:
        connection.close()


def test_a_job_of_an_instance_that_crashed_says_what_happened() -> None:
    tracker = FluxJobTracker(is_ours=lambda _: True, on_news=lambda: None)
    running, waiting, unseen = (handle_of(number, f"yard-{number}") for number in (7, 8, 9))
    tracker.follow([running, waiting])
    for number, names in ((7, ["submit", "alloc", "start"]), (8, ["submit"])):
        for name in names:
            event = {"name": name, "timestamp": 1.0}
            tracker.on_message(BridgeMessage(job=number, name=f"yard-{number}", event=event))
    tracker.on_message(None)
    for number in (7, 8, 9):
        tracker.on_message(BridgeMessage(job=number, name=f"yard-{number}", unknown="Flux does not know it"))
    said = [tracker.status(handle, now_s=2.0, is_cancel_asked=False) for handle in (running, waiting, unseen)]
    assert {status.seen for status in said} == {ObservedState.LOST}
    assert said[0].reason.startswith("the Flux instance ended or crashed while it ran, and was started again")
    assert said[1].reason.startswith("the Flux instance ended or crashed before the agent saw it begin")
    assert said[2].reason.startswith("Flux does not know it: the instance was started again without its jobs")
