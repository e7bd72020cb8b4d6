"""Drives executions: the leader reads what has happened, asks the engine for a step, and stores it.

A step is one transaction: nodes, new jobs with their files, cancels and the execution's phase. So a server that is
killed at any line leaves the execution before a step or after it, and no job is started twice or forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import structlog
from flyteidl.core import execution_pb2

from switchyard.errors import LimitReached, YardError
from switchyard.log_pace import LogPace
from switchyard.service.core.batch import Batch, Topic
from switchyard.service.core.context import Context
from switchyard.service.executions.child_executions import (
    CHILDREN_MAX,
    PlannedChild,
    child_end,
    insert_child,
    plan_children,
    stop_children,
)
from switchyard.service.executions.job_starts import JobStarter, PlannedJob, StartRefused
from switchyard.service.executions.loading import ExecutionLoader, LoadedExecution
from switchyard.service.executions.map_driver import MapDriver
from switchyard.service.executions.map_progress import close_map, new_map
from switchyard.service.executions.node_cache import (
    LATER,
    LOOKS_MAX,
    Answers,
    ask_later,
    look_up,
    store_cache,
    stored_status,
)
from switchyard.service.job.jobs import request_cancel
from switchyard.service.submit.submit import Submit
from switchyard.service.upkeep.leadership import Leadership
from switchyard.store import (
    child_executions,
    execution_dynamics,
    execution_maps,
    execution_nodes,
    execution_signals,
    executions,
    jobs,
    task_cache,
)
from switchyard.store.execution_dynamics import DynamicRow
from switchyard.store.execution_nodes import LiveAttemptRow, NodeRow
from switchyard.store.execution_signals import SignalRow
from switchyard.store.executions import ExecutionKey, ExecutionUpdate
from switchyard.workflow.content import content_bytes
from switchyard.workflow.engine import step
from switchyard.workflow.execution_state import (
    AttemptEnd,
    AttemptFailure,
    EngineStep,
    NodeProgress,
    SignalRequest,
    TaskStart,
)

log = structlog.get_logger()
ROUND_MAX = 200  # executions of one round
MAPS_MAX = 20  # that begin in one step
STARTS_MAX = 500  # jobs of one step, which is one transaction; the next step starts the rest


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step with what it inserts. `nodes`: without those that were left out of this step."""

    decided: EngineStep
    jobs: list[PlannedJob]
    children: list[PlannedChild]
    cached: Answers

    @property
    def maps(self) -> list[TaskStart]:
        return [start for start in self.decided.starts if start.shape is not None][:MAPS_MAX]

    @property
    def left_out(self) -> set[str]:
        planned = [*(job.start for job in self.jobs), *(child.start for child in self.children), *self.maps]
        return {start.node_id for start in self.decided.starts} - {start.node_id for start in planned}

    @property
    def is_more_due(self) -> bool:
        """Whether the next step can begin nodes that this one left out. A full family waits for the end of a child."""
        if LATER in self.cached.values():
            return True
        has_room = len(self.children) >= CHILDREN_MAX
        left_out = self.left_out
        return any(start.node_id in left_out and (has_room or not start.is_child) for start in self.decided.starts)

    @property
    def nodes(self) -> list[NodeProgress]:
        left_out = self.left_out
        return [node for node in self.decided.nodes if node.node_id not in left_out]


class ExecutionDriver:
    """The leader's chore for executions."""

    def __init__(self, submit: Submit) -> None:
        self._starter = JobStarter(submit)
        self._maps = MapDriver(self._starter)
        self._loader = ExecutionLoader()
        self._faults: dict[ExecutionKey, LogPace] = {}

    def go(self, context: Context, leadership: Leadership) -> int:
        """Step all executions that something has happened to. Returns how many steps were stored."""
        with context.database.read() as tx:
            due = executions.execution_keys_due(tx, now_us=context.now_us(), limit=ROUND_MAX)
        self._faults = {key: pace for key, pace in self._faults.items() if key in set(due)}
        done = 0
        for key in due:
            try:
                done += self._drive(context, leadership, key)
            except YardError as exc:  # one that cannot go on now must not hold up the others
                if self._pace_of(key).note(exc.inner):
                    log.warning("execution not driven", execution=str(key), error=exc.inner)
            except Exception as exc:  # a defect, or a damaged row: neither must hold up the others
                if self._pace_of(key).note(str(exc)):
                    log.exception("execution not driven", execution=str(key))
        return done

    def _pace_of(self, key: ExecutionKey) -> LogPace:
        return self._faults.setdefault(key, LogPace())

    def _drive(self, context: Context, leadership: Leadership, key: ExecutionKey) -> int:
        mapped = self._maps.go(context, leadership, key)
        loaded = self._loader.load(context, key)
        if loaded is None:
            return mapped
        events = [*loaded.ended.values(), *loaded.ended_maps, *map(child_end, loaded.ended_children)]
        if not loaded.is_due and not events:
            return mapped  # a job has ended, and its files are on their way
        refused: dict[tuple[str, int], AttemptFailure] = {}
        cached: Answers = {}
        looks = 0
        while True:
            decided = step(loaded.graph, loaded.state, events, refused, cached)
            looks += 1
            if answers := (
                look_up(context, loaded.row, loaded.spec, decided, cached)
                if looks <= LOOKS_MAX
                else ask_later(decided.starts, cached)
            ):
                cached |= answers  # the engine is asked again: nodes may end at once, or wait
                continue
            try:
                return self._carry_out(context, leadership, loaded, decided, cached)
            except StartRefused as exc:
                if exc.error.transient or isinstance(exc.error, LimitReached):
                    raise exc.error from exc  # the next round tries again
                # The engine is asked again: it learns that this job cannot begin.
                refused[exc.start.node_id, exc.start.attempt] = AttemptFailure("Refused", exc.error.detail)

    def _carry_out(
        self, context: Context, leadership: Leadership, loaded: LoadedExecution, decided: EngineStep, cached: Answers
    ) -> int:
        children = plan_children(context, loaded.row, loaded.spec, decided.starts)
        planned = PlannedStep(decided, self._plan_starts(context, loaded, decided.starts), children, cached)
        stored = leadership.commit(
            context,
            lambda batch: self._store(batch, context, loaded, planned),
            locks=[row.job_id for row in loaded.live] if decided.is_stopping or decided.stopped_scopes else [],
        )
        if stored and not decided.phase.is_final:
            self._loader.keep(loaded, decided, planned.nodes)
        else:
            self._loader.forget(loaded.row.id)
        return stored

    def _plan_starts(self, context: Context, loaded: LoadedExecution, starts: Sequence[TaskStart]) -> list[PlannedJob]:
        """Plan the jobs of a step, as many as one transaction and the limits of the user take.

        Further attempts come first and all of them, because the end that they follow is stored with them. First
        attempts that are left out are decided again by the next step.
        """
        planned: list[PlannedJob] = []
        for start in sorted((one for one in starts if one.is_job), key=lambda start: start.attempt == 0):
            if start.attempt == 0 and len(planned) >= STARTS_MAX:
                break
            try:
                planned.append(self._starter.plan(context, loaded.row, start, start.template))
            except StartRefused as exc:
                if isinstance(exc.error, LimitReached) and start.attempt == 0 and planned:
                    break
                raise
        return planned

    def _store(self, batch: Batch, context: Context, loaded: LoadedExecution, planned: PlannedStep) -> int:
        decided = planned.decided
        row = executions.execution_lock(batch.tx, loaded.row.key)
        if row is None or row.steps != loaded.row.steps:
            return 0  # another step or a stop came between: the next round reads again
        for job in planned.jobs:
            self._starter.insert(batch, context, loaded.row, job)
        task_cache.wait_delete(batch.tx, loaded.row.id, None if decided.phase.is_final else loaded.waits_over)
        for child in planned.children:
            insert_child(batch, context, child)
        child_executions.children_close(batch.tx, [one.id for one in loaded.ended_children])
        for start in planned.maps:
            execution_maps.map_insert(batch.tx, *new_map(loaded.row.id, start, start.template, batch.now_us))
        for ended in loaded.ended_maps:
            close_map(batch, loaded.row.id, ended.node_id)
        for attempt in loaded.live:
            end = loaded.ended.get((attempt.node_id, attempt.attempt))
            if end is not None:
                _store_end(batch, loaded.row.id, attempt, end)
        if decided.is_stopping and not row.is_stopping:
            self._stop(batch, loaded, ("",))
        elif decided.stopped_scopes:
            self._stop(batch, loaded, decided.stopped_scopes)
        execution_nodes.node_put(batch.tx, [_node_row(loaded, node, batch.now_us) for node in planned.nodes])
        execution_signals.signal_put(batch.tx, [_signal_row(loaded, one, batch.now_us) for one in decided.signals])
        execution_dynamics.dynamic_insert(
            batch.tx,
            [
                DynamicRow(loaded.row.id, node_id, attempt, content_bytes(dynamic.closure))
                for node_id, attempt, dynamic in decided.dynamics
            ],
        )
        store_cache(batch, loaded.row, planned.nodes, planned.cached)
        self._store_execution(batch, loaded, decided, is_due=planned.is_more_due or decided.is_due)
        batch.topics.add(Topic.EXECUTIONS)  # the next step may have something to do at once
        return 1

    def _stop(self, batch: Batch, loaded: LoadedExecution, scopes: tuple[str, ...]) -> None:
        """Cancel the jobs of an execution that have not ended and whose node ids begin with one of `scopes`."""
        running = [
            row.job_id
            for row in loaded.live
            if (row.node_id, row.attempt) not in loaded.ended and row.node_id.startswith(scopes)
        ]
        why = f"execution {loaded.row.name} stops"
        request_cancel(batch, list(jobs.job_lock(batch.tx, running).values()), why)
        execution_maps.maps_stop(batch.tx, loaded.row.id, scopes)
        stop_children(batch, loaded.row, scopes)

    def _store_execution(self, batch: Batch, loaded: LoadedExecution, decided: EngineStep, *, is_due: bool) -> None:
        row, now_us = loaded.row, batch.now_us
        update = ExecutionUpdate(
            phase=decided.phase.value,
            is_due=is_due,
            is_stopping=decided.is_stopping,
            steps=row.steps + 1,
            updated_us=now_us,
            started_us=row.started_us or now_us,
            ended_us=now_us if decided.phase.is_final else None,
        )
        executions.execution_update(
            batch.tx,
            row.id,
            update,
            outputs=content_bytes(decided.outputs) if decided.outputs is not None else None,
            error=content_bytes(decided.error) if decided.error is not None else None,
        )


def _node_row(loaded: LoadedExecution, node: NodeProgress, now_us: int) -> NodeRow:
    return NodeRow(
        execution_id=loaded.row.id,
        node_id=node.node_id,
        parent_id=node.parent_id,
        spec_id=node.spec_id,
        is_parent=node.is_parent,
        is_array=node.is_array,
        cache_status=stored_status(node),
        cache_key=node.cache_key or None,
        cache_source=node.cache_source or None,
        phase=node.phase.value,
        attempts=node.attempts,
        user_failures=node.user_failures,
        system_failures=node.system_failures,
        inputs=content_bytes(node.inputs) if node.inputs is not None else None,
        outputs=content_bytes(node.outputs) if node.outputs is not None else None,
        error=content_bytes(node.error) if node.error is not None else None,
        created_us=now_us,  # counts for a new node only
        updated_us=now_us,
        ended_us=None if node.phase.is_live else now_us,
        wake_us=node.wake_us if node.phase.is_live else None,
        signal_id=node.signal_id,
    )


def _signal_row(loaded: LoadedExecution, request: SignalRequest, now_us: int) -> SignalRow:
    return SignalRow(loaded.row.id, request.signal_id, content_bytes(request.type), None, now_us, None, "")


def _store_end(batch: Batch, execution_id: str, attempt: LiveAttemptRow, end: AttemptEnd) -> None:
    failure, error = end.failure, None
    phase = "SUCCEEDED" if end.outputs is not None or end.dynamic is not None else "ABORTED"
    if failure is not None:
        phase = "RETRYABLE_FAILED" if failure.is_recoverable else "FAILED"
        kind = execution_pb2.ExecutionError.SYSTEM if failure.is_system else execution_pb2.ExecutionError.USER
        error = execution_pb2.ExecutionError(code=failure.code, message=failure.message, kind=kind)
    execution_nodes.attempt_end(
        batch.tx,
        attempt,
        execution_id=execution_id,
        phase=phase,
        reason=attempt.reason or "",
        error=content_bytes(error) if error is not None else None,
        at_us=batch.now_us,
    )
