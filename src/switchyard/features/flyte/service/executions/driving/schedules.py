"""The schedules of active launch plans: the leader creates an execution for each time that is due.

The name of such an execution comes from the plan and the time. So a server that is killed between the creation and the
next time, or a second one that believes to lead, creates none twice.
"""

from __future__ import annotations

from base64 import b32encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from hashlib import sha256
from time import monotonic
from typing import Any
from zoneinfo import ZoneInfo

import structlog
from flyteidl.admin import execution_pb2, launch_plan_pb2
from flyteidl.core import literals_pb2

from switchyard.errors import BadRequest, Conflict, LimitReached, YardError
from switchyard.features.flyte.service.executions.calls.creation import (
    SCHEDULED_MODE,
    SCHEDULED_PREFIX,
    ExecutionOrigin,
    create_execution,
)
from switchyard.features.flyte.service.executions.calls.graphs import find_entity
from switchyard.features.flyte.store.executions import schedules as store
from switchyard.features.flyte.store.executions.schedules import ScheduleRow
from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind, to_message
from switchyard.features.flyte.workflow.compile.launch_plan_checks import RATE_DAYS_MAX, RATE_US_MAX, rate_us
from switchyard.features.flyte.workflow.lists.cron import CronTimes, cron_mistake, next_of_rate, split_zone
from switchyard.features.flyte.workflow.values.limits import WorkflowLimits
from switchyard.log_pace import LogPace
from switchyard.service.core.context import Context
from switchyard.service.core.snapshots.snapshots import owner_of
from switchyard.service.upkeep.leadership import Leadership

log = structlog.get_logger()
ZONE_ANNOTATION, MISSED_ANNOTATION = "switchyard/time-zone", "switchyard/missed-runs"
POLICIES = ("skip", "last", "all")
DUE_MAX = 100  # schedules of one round
ROUND_S = 1.0
PARK_US = 60_000_000  # before a schedule that failed is looked at again
RECENT_US = 600_000_000
GRACE_US = 60_000_000  # a time that is due for longer was missed; until then a refusal by a limit is tried again
RUNS_MAX = 20  # of one schedule and round
TIMES_MAX = 10_000  # that are counted to find the last one; beyond, the schedule begins anew from now
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NextTime = Callable[[int], int | None]  # the first time after another one, in µs


class ScheduleChore:
    """The leader's chore for schedules."""

    def __init__(self) -> None:
        self._paces: dict[tuple[str, str, str], LogPace] = {}

    def go(self, context: Context, leadership: Leadership) -> bool:
        """Create the executions that are due. Returns whether more is due now."""
        with context.database.read() as tx:
            due = store.schedules_due(tx, context.now_us(), limit=DUE_MAX)
        until = monotonic() + ROUND_S
        for row in due:
            try:
                self._run(context, leadership, row)
            except YardError as exc:  # one that cannot go on now must not hold up the others
                self._warn(row, exc.inner)
                if not exc.transient:
                    self._park(context, leadership, row, exc.detail)
            except Exception:  # a defect, or a damaged row
                log.exception("schedule not run", launch_plan=_shown(row))
                self._park(context, leadership, row, "an internal error; the server's log has more")
            if monotonic() > until:
                return True
        return len(due) == DUE_MAX

    def _park(self, context: Context, leadership: Leadership, row: ScheduleRow, error: str) -> None:
        """Look at a schedule again later. If that cannot be stored either, the others still have their turns."""
        next_us = context.now_us() + PARK_US
        try:
            _advance(context, leadership, row, last_us=row.last_us, next_us=next_us, error=error)
        except Exception:
            log.exception("schedule not parked", launch_plan=_shown(row))

    def _warn(self, row: ScheduleRow, error: str) -> None:
        if self._paces.setdefault((row.project, row.domain, row.name), LogPace()).note(error):
            log.warning("scheduled execution not created", launch_plan=_shown(row), error=error)

    def _run(self, context: Context, leadership: Leadership, row: ScheduleRow) -> None:
        plan = EntityId(EntityKind.LAUNCH_PLAN, row.project, row.domain, row.name, row.version)
        spec = launch_plan_pb2.LaunchPlanSpec.FromString(find_entity(context, plan).body)
        try:
            next_time, policy = _times_of(spec, row.since_us), _policy(context, spec)
        except BadRequest as exc:
            self._warn(row, exc.detail)
            _advance(context, leadership, row, last_us=row.last_us, next_us=store.NEVER_US, error=exc.detail)
            return
        now_us, last_us, error = context.now_us(), row.last_us, ""
        # `last_us` may lie in the future, if the clock was set back.
        known_us = row.next_us - 1 if row.next_us != store.COMPUTE else min(row.last_us or row.since_us, now_us)
        times, next_us = due_times(next_time, known_us, now_us, is_last_enough=policy != "all")
        runs = _times_to_run(times, policy, now_us)
        for at_us in runs[:RUNS_MAX]:
            try:
                self._create(context, row, plan, spec, at_us)
            except YardError as exc:
                context.tally.refusals.add(exc.code, "schedule")
                self._warn(row, exc.inner)
                if (exc.transient or isinstance(exc, LimitReached)) and now_us - at_us <= GRACE_US:
                    next_us = at_us  # the next round tries it again
                    error = exc.detail
                    break
                error = exc.detail
            last_us = at_us
        else:
            if len(runs) > RUNS_MAX:
                next_us = runs[RUNS_MAX]
            elif times:
                last_us = times[-1]
        _advance(
            context,
            leadership,
            row,
            last_us=last_us,
            next_us=min(next_us or store.NEVER_US, store.NEVER_US),
            error=error,
        )

    def _create(self, context: Context, row: ScheduleRow, plan: EntityId, spec: Any, at_us: int) -> None:
        actor = owner_of(context.snapshots.access, row.owner_id, row.owner)
        request = execution_pb2.ExecutionCreateRequest(
            project=row.project, domain=row.domain, name=execution_name(row, at_us)
        )
        request.spec.launch_plan.CopyFrom(to_message(plan))
        kickoff = spec.entity_metadata.schedule.kickoff_time_input_arg
        if kickoff:
            literal = literals_pb2.Literal()
            literal.scalar.primitive.datetime.FromMicroseconds(at_us)
            request.inputs.literals[kickoff].CopyFrom(literal)
        digest = sha256(f"schedule {_shown(row)} {at_us}".encode()).digest()
        try:
            create_execution(context, actor, request, ExecutionOrigin(SCHEDULED_MODE, digest, scheduled_us=at_us))
        except Conflict as exc:  # another owner of the plan has run it at this time
            raise BadRequest(exc.detail) from exc


def due_times(
    next_time: NextTime, after_us: int, now_us: int, *, is_last_enough: bool = False
) -> tuple[list[int], int | None]:
    """The times after one and until now, and the next one after now. `is_last_enough`: older ones may be left out."""
    if is_last_enough and now_us - after_us > 2 * RECENT_US:  # a week of minutes takes seconds to count
        recent, next_us = due_times(next_time, now_us - RECENT_US, now_us)
        if recent:
            return recent, next_us
    times: list[int] = []
    at_us = next_time(after_us)
    while at_us is not None and at_us <= now_us:
        times.append(at_us)
        if len(times) > TIMES_MAX:  # years of minutes: only the newest count
            return [], next_time(now_us)
        at_us = next_time(at_us)
    return times, at_us


def execution_name(row: ScheduleRow, at_us: int) -> str:
    digest = sha256(f"{row.project}\0{row.domain}\0{row.name}\0{at_us}".encode()).digest()
    return SCHEDULED_PREFIX + b32encode(digest).decode().lower()[:14]


def _times_to_run(times: list[int], policy: str, now_us: int) -> list[int]:
    """The times that are run. Those within the grace were not missed."""
    if policy == "all":
        return times
    fresh = [at_us for at_us in times if now_us - at_us < GRACE_US]
    return fresh or (times[-1:] if policy == "last" else [])


def _policy(context: Context, spec: Any) -> str:
    policy = spec.annotations.values.get(MISSED_ANNOTATION) or context.setting(WorkflowLimits).missed_runs
    if policy not in POLICIES:
        raise BadRequest(f"the annotation {MISSED_ANNOTATION} is {policy[:40]!r}; known: {', '.join(POLICIES)}")
    return str(policy)


def _times_of(spec: Any, since_us: int) -> NextTime:
    schedule = spec.entity_metadata.schedule
    if schedule.WhichOneof("ScheduleExpression") == "rate":
        every_us = rate_us(schedule.rate)
        if not 0 < every_us <= RATE_US_MAX:  # it was registered before there was a bound
            raise BadRequest(f"its rate is not between a minute and {RATE_DAYS_MAX} days")
        return lambda after_us: next_of_rate(since_us, every_us, after_us)
    text = schedule.cron_schedule.schedule or schedule.cron_expression
    if mistake := cron_mistake(text):
        raise BadRequest(mistake)
    cron = CronTimes.of(text)
    zone = _zone(split_zone(text)[0] or spec.annotations.values.get(ZONE_ANNOTATION, ""))

    def next_time(after_us: int) -> int | None:
        moment = cron.next_after(EPOCH + timedelta(microseconds=after_us), zone)
        return None if moment is None else (moment - EPOCH) // timedelta(microseconds=1)

    return next_time


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name) if name else UTC
    except (KeyError, ValueError, OSError) as exc:
        raise BadRequest(f"{name[:64]!r} is no time zone") from exc


def _advance(
    context: Context, leadership: Leadership, row: ScheduleRow, *, last_us: int | None, next_us: int, error: str = ""
) -> None:
    leadership.commit(
        context,
        lambda batch: store.schedule_advance(batch.tx, row, last_us=last_us, next_us=next_us, error=error[:2000]),
    )


def _shown(row: ScheduleRow) -> str:
    return f"{row.project}:{row.domain}:{row.name}"
