"""Executions whose steps fail or kill the server: they are given up with a reason, and hold up nobody."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.errors import Unavailable
from switchyard.features.flyte.service.executions.driving import driver as driver_module
from switchyard.features.flyte.service.executions.driving import unfinished_steps
from switchyard.features.flyte.service.executions.driving.driver import ExecutionDriver
from switchyard.features.flyte.workflow.engine.engine import step
from switchyard.service.upkeep.leadership import Leadership
from tests.service.executions.bed import ExecutionBed
from tests.service.rig import Rig


class Killed(BaseException):
    """The server ends here: nothing after this line is run."""


def fail_steps_of(workflow: str, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail_or_step(graph: Any, *args: Any, **more: Any) -> Any:
        if graph.primary.template.id.name == workflow:
            raise error
        return step(graph, *args, **more)

    monkeypatch.setattr(driver_module, "step", fail_or_step)


def two_executions(rig: Rig) -> ExecutionBed:
    bed = ExecutionBed(rig)
    for name in ("bad", "good"):
        bed.wide(name, 2)
        bed.create(name, name)
    return bed


def wait_and_drive(bed: ExecutionBed) -> None:
    bed.rig.clock.wait(10)
    bed.rig.leader.take(bed.rig.context)
    for agent in bed.agents.values():
        agent.seen()
    bed.drive()


def restart(bed: ExecutionBed) -> None:
    """Another server takes the lead, long after the one before was killed."""
    bed.rig.clock.wait(60)
    bed.rig.leader = Leadership(f"{bed.rig.leader.holder}+")
    assert bed.rig.leader.take(bed.rig.context)
    for agent in bed.agents.values():
        agent.seen()
    bed.driver = ExecutionDriver(bed.rig.submits)


def error_of(bed: ExecutionBed, name: str) -> bytes:
    return bytes(bed.row(name).error or b"")


def test_an_execution_whose_steps_fail_three_times_is_given_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    bed = two_executions(rig)
    fail_steps_of("bad", monkeypatch, MemoryError())
    bed.drive()
    for _ in range(3):
        assert bed.phase("bad") == "QUEUED"
        wait_and_drive(bed)
    assert bed.phase("bad") == "FAILED"
    assert b"3 steps of the execution in a row failed" in error_of(bed, "bad")
    assert bed.run_all() == 2
    assert bed.phase("good") == "SUCCEEDED"


def test_an_execution_that_kills_each_leader_is_given_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    bed = two_executions(rig)
    fail_steps_of("bad", monkeypatch, Killed())
    for number in range(3):
        restart(bed)
        bed.driver.go(rig.context, rig.leader) if number else None  # first the others: this one is suspected
        rig.clock.wait(unfinished_steps.SUSPICION_US * 3 / 1e6)
        with pytest.raises(Killed):
            bed.drive()
        assert bed.row("bad").unfinished_steps == number + 1
    restart(bed)
    bed.drive()
    assert bed.phase("bad") == "FAILED"
    assert bed.run_all() == 2
    assert bed.phase("good") == "SUCCEEDED"


def test_what_a_given_up_execution_had_begun_ends(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    bed = two_executions(rig)
    bed.launches("bad-parent", ["good"])
    bed.create("bad-parent", "parent")
    bed.drive()
    assert bed.nodes("bad") == {"n0": "RUNNING", "n1": "RUNNING"}
    (child,) = {name for name in bed.live_executions() if name not in ("bad", "good", "parent")}
    for name in ("bad", "parent"):
        row = bed.row(name)
        key = (row.project, row.domain, row.name)
        assert unfinished_steps.give_up(rig.context, rig.leader, unfinished_steps.ExecutionKey(*key)) == 1
    assert bed.nodes("bad") == {"n0": "ABORTED", "n1": "ABORTED"}
    assert [one.phase for one in bed.attempts("bad", "n0")] == ["ABORTED"]
    bed.drive()
    assert bed.phase(child) == "ABORTED"
    assert {"bad", "parent", child} & set(bed.live_executions()) == set()
    assert bed.run_all() == 2, "the jobs of the others"
    assert bed.phase("good") == "SUCCEEDED"


def test_a_step_that_may_succeed_later_counts_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    bed = two_executions(rig)
    fail_steps_of("bad", monkeypatch, Unavailable("The store of files is away."))
    for _ in range(5):
        bed.driver.go(rig.context, rig.leader)
        rig.clock.wait(60)
        rig.leader.take(rig.context)
    assert (bed.phase("bad"), bed.row("bad").unfinished_steps) == ("QUEUED", 0)
    monkeypatch.undo()
    bed.agents["c1"].seen()
    bed.drive()
    assert (bed.phase("bad"), bed.row("bad").unfinished_steps) == ("RUNNING", 0)
