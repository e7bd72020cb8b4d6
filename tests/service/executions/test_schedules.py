"""Schedules of active launch plans: each time runs once, missed ones as the policy says, and refusals are told."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

import pytest
from flyteidl.admin import common_pb2, execution_pb2, launch_plan_pb2, schedule_pb2
from flyteidl.core import literals_pb2, types_pb2

from switchyard.errors import BadRequest, NotFound
from switchyard.features.flyte.service.entities import entity_changes, registration
from switchyard.features.flyte.service.executions.calls import reads
from switchyard.features.flyte.service.executions.calls.reads import ExecutionQuery
from switchyard.features.flyte.service.executions.driving import schedules as chore
from switchyard.features.flyte.service.executions.driving.schedules import ScheduleChore, execution_name
from switchyard.features.flyte.store.executions import schedules
from switchyard.features.flyte.store.executions.schedules import ScheduleRow
from switchyard.features.flyte.workflow.compile import launch_plan_checks
from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind
from switchyard.model.rules.access import GrantTarget, Role
from switchyard.service.access import users
from switchyard.service.upkeep.leadership import Leadership
from tests.processes import PATIENCE_S
from tests.service.entities.requests import DOMAIN, PROJECT, plan_request, workflow_request
from tests.service.executions.bed import ExecutionBed
from tests.service.rig import ADMIN, Rig
from tests.workflow.builders import task_node

NOON_US = int(datetime(2026, 11, 17, 12, 0, 30, tzinfo=UTC).timestamp()) * 1_000_000
MINUTELY = schedule_pb2.Schedule(cron_schedule=schedule_pb2.CronSchedule(schedule="* * * * *"))
OFTEN = schedule_pb2.Schedule(rate=schedule_pb2.FixedRate(value=10, unit=schedule_pb2.MINUTE))


@pytest.fixture(autouse=True)
def _long_rounds() -> Iterator[None]:
    """A busy machine cuts no round short: these tests give each only one."""
    with patch.object(chore, "ROUND_S", PATIENCE_S):
        yield


class ScheduleBed:
    def __init__(self, rig: Rig) -> None:
        self.rig, self.chore = rig, ScheduleChore()
        rig.clock.at_us = NOON_US
        rig.leader.take(rig.context)
        self.bed = ExecutionBed(rig)
        self.bed.wide("one", 1)

    def plan(self, name: str, schedule: Any, *, actor: Any = ADMIN, version: str = "v1", **spec: Any) -> EntityId:
        metadata = launch_plan_pb2.LaunchPlanMetadata(schedule=schedule)
        request = plan_request(name, version, workflow="one", entity_metadata=metadata, **spec)
        registration.create_launch_plan(self.rig.context, ADMIN, request)
        plan = EntityId(EntityKind.LAUNCH_PLAN, PROJECT, DOMAIN, name, version)
        entity_changes.set_active(self.rig.context, actor, plan, is_active=True)
        self.go()
        return plan

    def go(self) -> None:
        self.rig.leader.take(self.rig.context)
        for agent in self.bed.agents.values():
            agent.seen()
        self.chore.go(self.rig.context, self.rig.leader)

    def wait(self, seconds: float) -> None:
        self.rig.clock.wait(seconds)
        self.go()

    def runs(self) -> list[str]:
        """The times of the executions, the oldest first."""
        views, _ = reads.list_executions(self.rig.context, ADMIN, ExecutionQuery(PROJECT, DOMAIN))
        specs = [execution_pb2.ExecutionSpec.FromString(view.row.spec) for view in views]
        moments = [spec.metadata.scheduled_at.ToDatetime() for spec in specs]
        assert {spec.metadata.mode for spec in specs} <= {execution_pb2.ExecutionMetadata.SCHEDULED}
        return [moment.strftime("%H:%M") for moment in sorted(moments)]

    def stored(self, name: str) -> Any:
        with self.rig.context.database.read() as tx:
            return schedules.schedule_get(tx, PROJECT, DOMAIN, name)


def test_a_cron_schedule_and_a_rate_run_on_time(rig: Rig) -> None:
    bed = ScheduleBed(rig)
    bed.plan("minutely", MINUTELY)
    bed.plan("often", OFTEN)
    assert bed.runs() == []
    bed.wait(30)
    assert bed.runs() == ["12:01"]
    bed.go()
    assert bed.runs() == ["12:01"], "once"
    bed.wait(60)
    assert bed.runs() == ["12:01", "12:02"]
    bed.wait(9 * 60)  # the rate counts from the activation; of the minutes, the last one
    assert bed.runs() == ["12:01", "12:02", "12:10", "12:11"]


@pytest.mark.parametrize(
    ("policy", "runs"), [("skip", []), ("last", ["12:05"]), ("all", ["12:01", "12:02", "12:03", "12:04", "12:05"])]
)
def test_missed_runs_go_by_the_policy_of_the_plan(rig: Rig, policy: str, runs: list[str]) -> None:
    bed = ScheduleBed(rig)
    weekly = schedule_pb2.Schedule(cron_schedule=schedule_pb2.CronSchedule(schedule="1-5 12 * * *"))
    bed.plan("missed", weekly, annotations=common_pb2.Annotations(values={"switchyard/missed-runs": policy}))
    bed.wait(3600)  # no server was there for an hour
    assert bed.runs() == runs


def test_a_time_never_runs_twice(rig: Rig) -> None:
    """A leader was killed after the creation, and another one believes to lead."""
    bed = ScheduleBed(rig)
    bed.plan("minutely", MINUTELY)
    rig.clock.wait(30)
    gone = Leadership("one")  # without a term: what it would advance is not stored
    bed.chore.go(rig.context, gone)
    assert bed.runs() == ["12:01"]
    bed.go()
    assert (bed.runs(), bed.stored("minutely").next_us) == (["12:01"], NOON_US + 90_000_000)


def test_a_schedule_ends_with_its_plan_and_changes_with_its_version(rig: Rig) -> None:
    bed = ScheduleBed(rig)
    first = bed.plan("often", OFTEN)
    second = bed.plan("often", MINUTELY, version="v2")
    assert bed.stored("often").version == "v2"
    entity_changes.set_active(rig.context, ADMIN, first, is_active=False)  # it is not active
    assert bed.stored("often") is not None
    entity_changes.set_active(rig.context, ADMIN, second, is_active=False)
    bed.wait(600)
    assert (bed.stored("often"), bed.runs()) == (None, [])


def test_the_time_is_the_kickoff_input(rig: Rig) -> None:
    bed = ScheduleBed(rig)
    moment = types_pb2.LiteralType(simple=types_pb2.DATETIME)
    request = workflow_request("timed", nodes=[task_node("n0", a=1, b=1)], when=moment)
    registration.create_workflow(rig.context, ADMIN, request)
    schedule = schedule_pb2.Schedule(kickoff_time_input_arg="when")
    schedule.MergeFrom(MINUTELY)
    metadata = launch_plan_pb2.LaunchPlanMetadata(schedule=schedule)
    registration.create_launch_plan(
        rig.context, ADMIN, plan_request("timed", workflow="timed", entity_metadata=metadata)
    )
    plan = EntityId(EntityKind.LAUNCH_PLAN, PROJECT, DOMAIN, "timed", "v1")
    entity_changes.set_active(rig.context, ADMIN, plan, is_active=True)
    bed.go()
    bed.wait(30)
    assert bed.runs() == ["12:01"]
    views, _ = reads.list_executions(rig.context, ADMIN, ExecutionQuery(PROJECT, DOMAIN))
    execution = reads.get_execution(rig.context, ADMIN, views[0].row.key)
    inputs = literals_pb2.LiteralMap.FromString(execution.row.inputs)
    assert inputs.literals["when"].scalar.primitive.datetime.ToDatetime() == datetime(2026, 11, 17, 12, 1)  # noqa: DTZ001


def test_a_user_without_the_right_is_told_and_holds_up_nobody(rig: Rig) -> None:
    bed = ScheduleBed(rig)
    ann = rig.user("ann", (Role.SUBMIT, GrantTarget.PROJECT, PROJECT))
    bed.plan("hers", MINUTELY, actor=ann)
    users.user_delete(rig.context, ADMIN, "ann")
    rig.context.snapshots.refresh(force=True)
    bed.plan("ours", MINUTELY)
    bed.wait(30)
    assert bed.runs() == ["12:01"]
    assert bed.stored("hers").error != ""
    assert bed.stored("ours").error == ""


def test_nobody_takes_the_name_of_a_scheduled_run(rig: Rig) -> None:
    """The names follow from the plan and the time, so that two servers make the same one."""
    bed = ScheduleBed(rig)
    ann = rig.user("ann", (Role.SUBMIT, GrantTarget.PROJECT, PROJECT))
    bed.plan("ours", MINUTELY)
    name = execution_name(bed.stored("ours"), NOON_US + 30_000_000)
    with pytest.raises(BadRequest, match="those of scheduled executions"):
        bed.bed.create("one", name, actor=ann)
    bed.wait(30)
    assert bed.runs() == ["12:01"]


def test_a_clock_that_is_set_back_stops_no_schedule(rig: Rig) -> None:
    bed = ScheduleBed(rig)
    bed.plan("often", OFTEN)
    bed.plan("minutely", MINUTELY)
    bed.wait(30)
    rig.clock.at_us -= 3_600_000_000
    bed.go()
    bed.wait(60)
    assert bed.runs() == ["11:02", "12:01"]
    assert bed.stored("often").next_us <= rig.clock() + 600_000_000


NEVER = schedule_pb2.Schedule(rate=schedule_pb2.FixedRate(value=2**32 - 1, unit=schedule_pb2.DAY))


def test_schedules_that_fail_hold_up_nobody(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than one round takes, of one user. They were registered before there was a bound on rates."""
    bed = ScheduleBed(rig)
    ann = rig.user("ann", (Role.SUBMIT, GrantTarget.PROJECT, PROJECT))
    monkeypatch.setattr(chore, "DUE_MAX", 3)
    monkeypatch.setattr(launch_plan_checks, "RATE_US_MAX", 2**80)
    for number in range(4):
        bed.plan(f"never{number}", NEVER, actor=ann)
    monkeypatch.undo()
    monkeypatch.setattr(chore, "DUE_MAX", 3)
    assert bed.stored("never0").error == "its rate is not between a minute and 36525 days"
    bed.plan("ours", MINUTELY)
    bed.wait(30)
    assert bed.runs() == ["12:01"]


@pytest.mark.parametrize("error", [OverflowError("too large"), NotFound("gone")], ids=["a defect", "a refusal"])
def test_a_schedule_that_fails_is_parked(rig: Rig, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    bed = ScheduleBed(rig)
    bed.plan("often", OFTEN)
    bed.wait(0)

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(chore, "find_entity", fail)
    bed.wait(600)
    assert bed.stored("often").next_us == rig.clock() + chore.PARK_US
    assert bed.stored("often").error != ""


def test_owners_of_schedules_take_turns(rig: Rig) -> None:
    with rig.context.database.write() as tx:
        for owner, count in (("ann", 50), ("bob", 1), ("eve", 2)):
            for number in range(count):
                since_us = 1 if owner == "ann" else 2
                row = ScheduleRow(PROJECT, DOMAIN, f"{owner}{number}", "v1", owner, owner, since_us, None, since_us, "")
                schedules.schedule_put(tx, row)
        due = schedules.schedules_due(tx, 10, limit=6)
    assert [row.owner for row in due] == ["ann", "bob", "eve", "ann", "eve", "ann"]


def test_missed_times_are_not_all_counted_if_the_last_one_is_enough() -> None:
    asked: list[int] = []

    def minutely(after_us: int) -> int:
        asked.append(after_us)
        return (after_us // 60_000_000 + 1) * 60_000_000

    times, next_us = chore.due_times(minutely, 0, NOON_US, is_last_enough=True)
    assert (times[-1], next_us) == (NOON_US - 30_000_000, NOON_US + 30_000_000)
    assert len(asked) < 20
