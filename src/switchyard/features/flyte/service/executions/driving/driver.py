"""Drives executions: the leader reads what has happened, asks the engine for a step, and stores it.

A step is one transaction: nodes, new jobs with their files, cancels and the execution's phase. So a server that is
killed at any line leaves the execution before a step or after it, and no job is started twice or forgotten.

Owners take turns by the time that their steps take, and the work of one step is bounded (`loading.py`,
`step_plan.py`). So neither a user with a thousand executions nor an execution of ten thousand nodes holds up others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from dataclasses import replace as replace_answer
from itertools import islice
from time import monotonic

import structlog
from msgspec.structs import replace

from switchyard.errors import YardError
from switchyard.features.flyte.service.executions.calls.execution_counts import count_phase
from switchyard.features.flyte.service.executions.driving.loading import ExecutionLoader, LoadedExecution
from switchyard.features.flyte.service.executions.driving.step_plan import (
    StartPlanner,
    StepPlan,
    full_plans,
    note_refusal,
    plan_starts,
    postponed_ends,
)
from switchyard.features.flyte.service.executions.driving.unfinished_steps import (
    UNFINISHED_MAX,
    UnfinishedSteps,
    give_up,
)
from switchyard.features.flyte.service.executions.maps.map_driver import MapDriver
from switchyard.features.flyte.service.executions.maps.map_progress import close_map, new_map
from switchyard.features.flyte.service.executions.nodes.child_executions import insert_children, stop_children
from switchyard.features.flyte.service.executions.nodes.job_starts import JobStarter, StartsRefused
from switchyard.features.flyte.service.executions.nodes.node_cache import (
    LOOKS_MAX,
    Answers,
    ask_later,
    is_map_cached,
    look_up,
    store_cache,
)
from switchyard.features.flyte.service.executions.nodes.node_rows import (
    error_kind,
    node_row,
    queued_node_row,
    signal_row,
    store_end,
    waiting_row,
)
from switchyard.features.flyte.store.executions import (
    child_executions,
    execution_due,
    execution_dynamics,
    execution_maps,
    execution_nodes,
    execution_signals,
    executions,
    task_cache,
)
from switchyard.features.flyte.store.executions.execution_due import DueExecution
from switchyard.features.flyte.store.executions.execution_dynamics import DynamicRow
from switchyard.features.flyte.store.executions.executions import ExecutionKey, ExecutionUpdate
from switchyard.features.flyte.workflow.engine.engine import step
from switchyard.features.flyte.workflow.engine.execution_state import AttemptEnd, AttemptFailure, EngineStep
from switchyard.features.flyte.workflow.engine.start_choice import AttemptKey, WaitingStart
from switchyard.features.flyte.workflow.values.content import content_bytes
from switchyard.log_pace import LogPace
from switchyard.service.core.context import Context
from switchyard.service.core.writes.batch import Batch
from switchyard.service.job.jobs import request_cancel
from switchyard.service.submit.submit import Submit
from switchyard.service.upkeep.leadership import Leadership
from switchyard.store.jobs import jobs
from switchyard.store.jobs.events import counters_read

log = structlog.get_logger()
IDLE_PAUSE_S, MAPS_PAUSE_S = 1.0, 0.2  # between two rounds that nothing wakes; with live maps: as often as they look
ROUND_S = 1.0  # then what is due is read again: a new owner waits for this, and for one step
TURN_S_MAX = 1.0  # then a step that asks its engine again and again goes on in the next turn of its owner
LIMIT_PAUSE_US = 2_000_000  # before an execution that waits for room under a limit is tried again
FAULT_PAUSE_US = 1_000_000  # before an execution that cannot go on is tried again; doubled each time
FAULT_PAUSE_US_MAX = 30_000_000
WAITS_STORED_MAX = 100  # nodes of one step that are stored because they wait; the others just have not begun


@dataclass(slots=True)
class Pause:
    """An execution that cannot go on now. `steps`: its number then; a stop raises it, and ends the pause."""

    steps: int
    until_us: int  # on the steady clock
    length_us: int
    waits: frozenset[tuple[str, int]] = frozenset()  # attempts that wait for room under a limit, as stored
    pace: LogPace = field(default_factory=LogPace)


@dataclass(slots=True)
class StepTrial:
    """What is known of a step that is not decided yet. Its engine is asked again with each answer, in several turns.

    `steps`: the number of the execution's steps then; another step or a stop makes this one void.
    """

    steps: int
    refusals: dict[AttemptKey, AttemptFailure] = field(default_factory=dict)
    waits: dict[AttemptKey, WaitingStart] = field(default_factory=dict)
    answers: Answers = field(default_factory=dict)
    looks: int = 0

    def go_on(self, context: Context) -> None:
        """Begin the next turn. Others may have taken the key of a serialized task meanwhile."""
        free = {place: answer for place, answer in self.answers.items() if answer.is_serial and not answer.must_wait}
        if not free:
            return
        with context.database.read() as tx:
            reserved = task_cache.reserved_keys(tx, [answer.key for answer in free.values()])
        for place, answer in free.items():
            if answer.key in reserved:
                self.answers[place] = replace_answer(answer, must_wait=True)


class ExecutionDriver:
    """The leader's chore for executions."""

    def __init__(self, submit: Submit) -> None:
        self._submit = submit
        self._starter = JobStarter(submit)
        self._maps = MapDriver(self._starter)
        self._loader = ExecutionLoader()
        self._due = DueExecutions()
        self._turns = OwnerTurns()
        self._pauses: dict[str, Pause] = {}
        self._trials: dict[str, StepTrial] = {}  # steps that go on in the next turn
        self._unfinished = UnfinishedSteps()
        self._is_more_due = False

    @property
    def pause_s(self) -> float:
        """How long the loop may rest, if nothing wakes it."""
        return MAPS_PAUSE_S if self._due.mapped else IDLE_PAUSE_S

    def go(self, context: Context, leadership: Leadership) -> bool:
        """Step executions that something has happened to, for a bounded time. Returns whether more may be due now."""
        self._unfinished.follow(context, leadership)
        due = self._due.read(context, leadership.epoch)
        ids = {row.id for row in due}
        self._pauses = {key: pause for key, pause in self._pauses.items() if key in ids}
        self._trials = {key: trial for key, trial in self._trials.items() if key in ids}
        now_us, until, self._is_more_due = context.steady_us(), monotonic() + ROUND_S, False
        for row in self._turns.order(row for row in due if not self._is_paused(row, now_us)):
            began = monotonic()
            self._take_turn(context, leadership, row)
            self._turns.spend(row.owner_id, monotonic() - began)
            if monotonic() > until:
                return True
        return self._is_more_due

    def _is_paused(self, row: DueExecution, now_us: int) -> bool:
        pause = self._pauses.get(row.id)
        if pause is not None and pause.steps == row.steps and pause.until_us > now_us:
            return True
        return self._unfinished.is_suspended(row, now_us)

    def _take_turn(self, context: Context, leadership: Leadership, row: DueExecution) -> None:
        """Drive one execution. One that cannot go on now must not hold up the others."""
        self._due.forget(row.id)  # first: an end from here on is noticed again
        earlier = self._pauses.get(row.id)
        try:
            stored = self._begin_and_drive(context, leadership, row)
        except YardError as exc:
            if self._pause(context, row).pace.note(exc.inner):
                log.warning("execution not driven", execution=_key(row), error=exc.inner)
            self._count_failure(context, leadership, row, exc)
            return
        except Exception as exc:  # a defect, a damaged row, or no memory
            if self._pause(context, row).pace.note(str(exc)):
                log.exception("execution not driven", execution=_key(row))
            self._count_failure(context, leadership, row, exc)
            return
        if stored and self._pauses.get(row.id) is earlier:
            self._pauses.pop(row.id, None)

    def _begin_and_drive(self, context: Context, leadership: Leadership, row: DueExecution) -> int:
        if row.unfinished_steps >= UNFINISHED_MAX:
            self._is_more_due = True
            self._loader.forget(row.id)
            return give_up(context, leadership, ExecutionKey(row.project, row.domain, row.name))
        is_counted = self._unfinished.begin(context, leadership, row)
        stored, mapped = self._drive(context, leadership, row)
        is_cut = row.id in self._trials  # the step still runs: it may kill the server in its next turn
        if not stored and not is_cut and (is_counted or row.unfinished_steps):
            self._unfinished.end(context, leadership, row)
        return stored + mapped

    def _count_failure(self, context: Context, leadership: Leadership, row: DueExecution, error: Exception) -> None:
        """Store that a step failed. If the database is away, the step is tried again, and so is this."""
        try:
            self._unfinished.fail(context, leadership, row, error)
        except YardError as exc:
            log.warning("execution not driven", execution=_key(row), error=exc.inner)

    def _pause(self, context: Context, row: DueExecution, waits: Iterable[tuple[str, int]] = ()) -> Pause:
        """Look at an execution again after a while. `waits`: attempts that a limit holds up."""
        self._due.note(row.id)
        earlier = self._pauses.get(row.id)
        length_us = min(FAULT_PAUSE_US_MAX, 2 * earlier.length_us) if earlier is not None else FAULT_PAUSE_US
        pause = Pause(row.steps, context.steady_us() + length_us, length_us)
        if waiting := frozenset(waits):
            pause = Pause(row.steps, context.steady_us() + LIMIT_PAUSE_US, FAULT_PAUSE_US, waiting)
        pause.pace = earlier.pace if earlier is not None else pause.pace
        self._pauses[row.id] = pause
        return pause

    def _drive(self, context: Context, leadership: Leadership, due: DueExecution) -> tuple[int, int]:
        """Returns how many steps of the execution, and how many of its maps, were stored."""
        key = ExecutionKey(due.project, due.domain, due.name)
        mapped, trouble = self._maps.go(context, leadership, key) if due.id in self._due.mapped else (0, None)
        stored = self._step(context, leadership, due, key)
        self._is_more_due |= mapped > 0
        if trouble is not None:
            raise trouble  # now: a map that cannot start holds up no other node, nor the end of the execution
        return stored, mapped

    def _step(self, context: Context, leadership: Leadership, due: DueExecution, key: ExecutionKey) -> int:
        has_maps, has_news = due.id in self._due.mapped, due.id in self._due.news
        loaded = self._loader.load(context, key, has_maps=has_maps, has_news=has_news)
        if loaded is None:
            return 0
        if loaded.has_more_ends:
            self._due.note(due.id)
            self._is_more_due = True
        others = [*loaded.ended_maps, *loaded.child_ends]
        if not loaded.is_due and not loaded.job_ends and not others:
            return 0  # a job has ended, and its files are on their way
        return self._decide(context, leadership, due, loaded, others)

    def _decide(
        self,
        context: Context,
        leadership: Leadership,
        due: DueExecution,
        loaded: LoadedExecution,
        others: list[AttemptEnd],
    ) -> int:
        """Ask the engine until its step can be stored, or until the turn is over."""
        trial = self._trials.pop(due.id, None)
        if trial is None or trial.steps != loaded.row.steps:
            trial = StepTrial(loaded.row.steps)
        trial.go_on(context)
        refusals, waits = trial.refusals, trial.waits
        planner = StartPlanner(self._submit, self._starter, trial.answers)
        until, is_asked = monotonic() + TURN_S_MAX, False
        while True:
            if is_asked and monotonic() > until:
                self._trials[due.id] = trial
                self._due.note(due.id)
                self._is_more_due = True
                return 0
            is_asked = True
            postponed = postponed_ends(waits)
            events = [*(end for key, end in loaded.job_ends.items() if key not in postponed), *others]
            full = full_plans(waits.values())
            engine_step = step(loaded.graph, loaded.state, events, refusals, trial.answers, full_plans=full)
            trial.looks += 1
            if answers := self._look_up(context, loaded, engine_step, trial.answers, is_last=trial.looks > LOOKS_MAX):
                trial.answers |= answers  # the engine is asked again: nodes may end at once, or wait
                continue
            try:
                plan = plan_starts(context, planner, loaded, engine_step.starts, waits)
                if plan.refusals or plan.has_new_waits(waits):
                    # The engine is asked again: it learns that these nodes cannot begin, or not yet.
                    refusals |= plan.refusals
                    waits |= plan.waits
                    continue
                if self._are_waits_stored(due, loaded, engine_step, plan, has_events=bool(events)):
                    self._pause(context, due, waits=plan.waits)
                    return 0
                planner.store_files(context, plan.jobs)
                stored = self._carry_out(context, leadership, loaded, engine_step, plan)
            except StartsRefused as exc:
                for refusal in exc.refusals:
                    note_refusal(refusal, refusals, waits)
                continue
            if plan.waits:
                self._pause(context, due, waits=plan.waits).steps += stored
            return stored

    def _look_up(
        self, context: Context, loaded: LoadedExecution, engine_step: EngineStep, answers: Answers, *, is_last: bool
    ) -> Answers:
        if is_last:
            return ask_later(engine_step.starts, answers)
        return look_up(context, loaded.row, loaded.spec, engine_step, answers, before=loaded.state.nodes)

    def _are_waits_stored(
        self, due: DueExecution, loaded: LoadedExecution, engine_step: EngineStep, plan: StepPlan, *, has_events: bool
    ) -> bool:
        """Whether all that a step would store is that nodes wait, and that is stored."""
        pause = self._pauses.get(due.id)
        if not plan.waits or plan.jobs or has_events or pause is None or pause.steps != loaded.row.steps:
            return False
        is_same_phase = (
            engine_step.phase.value == loaded.row.phase and engine_step.is_stopping == loaded.row.is_stopping
        )
        waiting = {wait.start.node_id for wait in plan.waits.values()}
        return (
            is_same_phase
            and plan.waits.keys() == pause.waits
            and {node.node_id for node in engine_step.nodes} <= waiting
        )

    def _carry_out(
        self, context: Context, leadership: Leadership, loaded: LoadedExecution, engine_step: EngineStep, plan: StepPlan
    ) -> int:
        stored = leadership.commit(
            context,
            lambda batch: self._store(batch, context, loaded, engine_step, plan),
            locks=[row.job_id for row in loaded.live] if engine_step.is_stopping or engine_step.stopped_scopes else [],
        )
        if stored and not engine_step.phase.is_final:
            self._loader.keep(loaded, engine_step, plan.changes(engine_step))
        else:
            self._loader.forget(loaded.row.id)
        return stored

    def _store(
        self, batch: Batch, context: Context, loaded: LoadedExecution, engine_step: EngineStep, plan: StepPlan
    ) -> int:
        execution_id = loaded.row.id
        if plan.children and loaded.row.root_id is not None:  # locks go from an execution to those inside it
            child_executions.descendants_count(batch.tx, loaded.row.root_id, is_locked=True)
        row = executions.execution_lock(batch.tx, loaded.row.key)
        if row is None or row.steps != loaded.row.steps:
            return 0  # another step or a stop came between: the next round reads again
        # First: the jobs, maps and children that this step begins are to clean up, and go on.
        if engine_step.is_stopping and not row.is_stopping:
            self._stop(batch, loaded, ("",))
        elif engine_step.stopped_scopes:
            self._stop(batch, loaded, engine_step.stopped_scopes)
        execution_nodes.waiting_delete(batch.tx, execution_id, sorted(job.start.node_id for job in plan.jobs))
        self._insert_starts(batch, context, loaded, plan)
        self._store_others(batch, loaded, engine_step, plan)
        postponed = plan.postponed_ends
        for attempt in loaded.live:
            end = loaded.job_ends.get((attempt.node_id, attempt.attempt))
            if end is not None and (attempt.node_id, attempt.attempt) not in postponed:
                store_end(batch, execution_id, attempt, end)
        changed = plan.changes(engine_step)
        execution_nodes.node_put(batch.tx, [node_row(execution_id, node, batch.now_us) for node in changed])
        execution_signals.signal_put(
            batch.tx, [signal_row(execution_id, one, batch.now_us) for one in engine_step.signals]
        )
        execution_dynamics.dynamic_insert(
            batch.tx,
            [
                DynamicRow(execution_id, node_id, attempt, content_bytes(dynamic.closure))
                for node_id, attempt, dynamic in engine_step.dynamics
            ],
        )
        self._store_waits(batch, loaded, engine_step, plan)
        store_cache(batch, loaded.row, changed, plan.answers)
        # A job that was rejected on arrival has no event of its own.
        is_rejected = any(job.write.row.ended_us is not None for job in plan.jobs)
        is_due = plan.is_more_due(engine_step) or is_rejected or engine_step.is_due
        self._store_execution(batch, loaded, engine_step, is_due=is_due, cluster=plan.cluster)
        if engine_step.phase.value != loaded.row.phase:
            count_phase(batch, context, replace(loaded.row, phase=engine_step.phase.value, cluster=plan.cluster))
        # Others may wait: for the end of this execution, for a key of the cache, or for their beginning. Jobs that no
        # cluster has end as soon as they are cancelled.
        is_stopped = engine_step.is_stopping or bool(engine_step.stopped_scopes)
        is_awaited = engine_step.phase.is_final or is_stopped or any(node.cache_key for node in changed)
        self._is_more_due |= is_due or is_awaited or bool(plan.children or plan.maps)
        return 1

    def _insert_starts(self, batch: Batch, context: Context, loaded: LoadedExecution, plan: StepPlan) -> None:
        """Insert the jobs and children of a step. Raises StartsRefused with all that cannot be inserted."""
        self._starter.insert(batch, context, loaded.row, plan.jobs)
        if refusals := insert_children(batch, context, loaded.row, plan.children):
            raise StartsRefused(refusals)

    def _store_others(self, batch: Batch, loaded: LoadedExecution, engine_step: EngineStep, plan: StepPlan) -> None:
        """Store the maps that begin, the ends of children and maps, and the ends of waits for the cache."""
        if engine_step.phase.is_final or loaded.waits_over:
            task_cache.wait_delete(batch.tx, loaded.row.id, None if engine_step.phase.is_final else loaded.waits_over)
        child_executions.children_close(batch.tx, [one.id for one in loaded.ended_children])
        for start in plan.maps:
            is_cached, overwrites = is_map_cached(start), bool(loaded.spec.overwrite_cache)
            rows = new_map(loaded.row.id, start, batch.now_us, is_cached=is_cached, overwrites=overwrites)
            execution_maps.map_insert(batch.tx, *rows)
        for end in loaded.ended_maps:
            close_map(batch, loaded.row.id, end.node_id)

    def _store_waits(self, batch: Batch, loaded: LoadedExecution, engine_step: EngineStep, plan: StepPlan) -> None:
        """Store nodes that wait for room under a limit, with the reason, for their readers."""
        parents = {node.node_id: node.parent_id for node in engine_step.nodes}
        for wait in islice(plan.waits.values(), WAITS_STORED_MAX):
            start = wait.start
            if not start.is_job:
                continue
            row = waiting_row(loaded.row.id, start, reason=wait.reason, now_us=batch.now_us)
            execution_nodes.waiting_put(batch.tx, row)
            if not start.attempt:
                parent_id = parents.get(start.node_id, "")
                queued = queued_node_row(loaded.row.id, start, parent_id=parent_id, now_us=batch.now_us)
                execution_nodes.node_put(batch.tx, [queued])
        if engine_step.phase.is_final:
            execution_nodes.waiting_end(batch.tx, loaded.row.id, now_us=batch.now_us)

    def _stop(self, batch: Batch, loaded: LoadedExecution, scopes: tuple[str, ...]) -> None:
        """Cancel the jobs of an execution that have not ended and whose node ids begin with one of `scopes`."""
        running = [
            row.job_id
            for row in loaded.live
            if (row.node_id, row.attempt) not in loaded.job_ends and row.node_id.startswith(scopes)
        ]
        why = f"execution {loaded.row.name} stops"
        request_cancel(batch, list(jobs.job_lock(batch.tx, running).values()), why)
        execution_maps.maps_stop(batch.tx, loaded.row.id, scopes)
        stop_children(batch, loaded.row, scopes)

    def _store_execution(
        self, batch: Batch, loaded: LoadedExecution, engine_step: EngineStep, *, is_due: bool, cluster: str
    ) -> None:
        row, now_us = loaded.row, batch.now_us
        update = ExecutionUpdate(
            phase=engine_step.phase.value,
            is_due=is_due and not engine_step.phase.is_final,
            is_stopping=engine_step.is_stopping,
            steps=row.steps + 1,
            cluster=cluster,
            updated_us=now_us,
            started_us=row.started_us or now_us,
            unfinished_steps=0,
            ended_us=now_us if engine_step.phase.is_final else None,
        )
        if engine_step.error is not None:
            update = replace(update, error_kind=error_kind(engine_step.error), error_code=engine_step.error.code)
        executions.execution_update(
            batch.tx,
            row.id,
            update,
            outputs=content_bytes(engine_step.outputs) if engine_step.outputs is not None else None,
            error=content_bytes(engine_step.error) if engine_step.error is not None else None,
        )


def _key(row: DueExecution) -> str:
    return f"{row.project}:{row.domain}:{row.name}"


DUE_MAX = 50_000  # executions of one round; the limits of users and projects bound how many there are
EVENTS_MAX = 10_000  # that one round reads
FULL_LOOK_US = 60_000_000  # between two reads of all live attempts, in case an event was missed


@dataclass
class DueExecutions:
    """What is due, and a cursor of the events."""

    epoch: int | None = None  # the term in which the cursor was set
    cursor: int = 0
    looked_us: int = 0  # when all live attempts were read, on the steady clock
    candidates: dict[str, None] = field(default_factory=dict)  # executions with an ended job that no step has stored
    news: frozenset[str] = frozenset()  # executions with news of children, of the cache or of the clock
    mapped: dict[str, bool] = field(default_factory=dict)  # executions with live maps: whether these have news

    def read(self, context: Context, epoch: int | None) -> list[DueExecution]:
        now_us = context.steady_us()
        with context.database.read() as tx:
            if epoch != self.epoch or now_us - self.looked_us > FULL_LOOK_US:
                self.cursor = counters_read(tx).get("events", 0)  # first: an end from here on has a higher number
                self.candidates = dict.fromkeys(execution_due.executions_with_ended_jobs(tx))
                self.epoch, self.looked_us = epoch, now_us
            else:
                jobs, self.cursor = execution_due.jobs_ended_after(tx, self.cursor, limit=EVENTS_MAX)
                self.candidates |= dict.fromkeys(execution_due.executions_of_jobs(tx, jobs))
            due = {row.id: row for row in execution_due.marked_due(tx, limit=DUE_MAX)}
            news = execution_due.executions_with_news(tx, context.now_us())
            self.news = frozenset(news)
            self.mapped = execution_due.executions_with_maps(tx)
            news += [one for one, has_news in self.mapped.items() if has_news]
            rest = [one for one in dict.fromkeys([*self.candidates, *news]) if one not in due][:DUE_MAX]
            due |= {row.id: row for row in execution_due.executions_by_id(tx, rest)}
        return list(due.values())

    def note(self, execution_id: str) -> None:
        """An execution has to be looked at again."""
        self.candidates[execution_id] = None

    def forget(self, execution_id: str) -> None:
        """A step has stored all ends of this execution that there are."""
        self.candidates.pop(execution_id, None)


class OwnerTurns:
    """Gives turns to owners by the time that their executions took, and to the executions of an owner in a circle.

    A new owner begins with as much as the owner that used least, so that neither old nor new owners wait for long.
    """

    def __init__(self) -> None:
        self._spent_s: dict[str, float] = {}
        self._last: dict[str, int] = {}  # execution → number of its last turn
        self._turn = 0

    def order(self, due: Iterable[DueExecution]) -> Iterator[DueExecution]:
        """Yield executions, each once. Call `spend` after each."""
        waiting: dict[str, deque[DueExecution]] = {}
        rows = sorted(due, key=lambda row: (self._last.get(row.id, 0), row.id))
        for row in rows:
            waiting.setdefault(row.owner_id, deque()).append(row)
        least = min((self._spent_s[owner] for owner in waiting if owner in self._spent_s), default=0.0)
        # Owners without anything due start again at `least` when they come back: time is not saved up.
        self._spent_s = {owner: max(least, self._spent_s.get(owner, least)) for owner in waiting}
        self._last = {row.id: self._last[row.id] for row in rows if row.id in self._last}
        while waiting:
            owner = min(waiting, key=lambda one: (self._spent_s[one], one))
            row = waiting[owner].popleft()
            if not waiting[owner]:
                del waiting[owner]
            self._turn += 1
            self._last[row.id] = self._turn
            yield row

    def spend(self, owner_id: str, seconds: float) -> None:
        self._spent_s[owner_id] = self._spent_s.get(owner_id, 0.0) + seconds
