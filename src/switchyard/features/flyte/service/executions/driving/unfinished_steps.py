"""Gives up executions whose steps fail, or kill the server, three times in a row.

A step that takes too much memory kills the server before it can store that it failed. The next leader would begin the
same step, and so on. So a leader stores that a step begins, for the first step of each execution that is older than its
term: a leader that was killed before may have been killed by that step. The step itself sets the count back, in its
transaction. After a count, a new leader lets some seconds pass, so that the other executions go on meanwhile, and so
that servers that are killed for another reason count nothing.
"""

from __future__ import annotations

from functools import partial

import structlog
from flyteidl.core import execution_pb2
from msgspec.structs import replace

from switchyard.errors import LimitReached, YardError
from switchyard.features.flyte.service.executions.calls.execution_counts import count_phase
from switchyard.features.flyte.service.executions.nodes.child_executions import stop_children
from switchyard.features.flyte.service.executions.nodes.node_rows import error_kind
from switchyard.features.flyte.store.executions import (
    child_executions,
    execution_maps,
    execution_nodes,
    executions,
    task_cache,
)
from switchyard.features.flyte.store.executions.execution_due import DueExecution
from switchyard.features.flyte.store.executions.executions import ExecutionKey, ExecutionRow, ExecutionUpdate
from switchyard.features.flyte.workflow.engine.execution_state import ExecutionPhase
from switchyard.features.flyte.workflow.values.content import content_bytes
from switchyard.service.core.context import Context
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.service.job.jobs import request_cancel
from switchyard.service.upkeep.leadership import Leadership
from switchyard.store.jobs import jobs

log = structlog.get_logger()
UNFINISHED_MAX = 3  # steps in a row
SUSPICION_US = 2_000_000  # from the begin of a term until a step of an execution with one such step; two: twice as long
CODE = "StepFailed"
REASON = (
    f"{UNFINISHED_MAX} steps of the execution in a row failed, or the server was killed during them, as for lack of "
    "memory. The server's log has more. Make the values that its nodes hand on smaller, or hand them on as files"
)


class UnfinishedSteps:
    """What one leader knows of steps that did not end. It belongs to the driver, which has one thread."""

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._began_us = self._began_steady_us = 0  # of the term: by the database's clock, and by the steady one
        self._first_done: set[str] = set()  # older executions that a step was tried for in this term
        self._is_counted = False  # the step that runs now

    def follow(self, context: Context, leadership: Leadership) -> None:
        """Notice a new term."""
        if leadership.epoch != self._epoch:
            self._epoch, self._first_done = leadership.epoch, set()
            self._began_us, self._began_steady_us = context.now_us(), context.steady_us()

    def is_suspended(self, row: DueExecution, steady_us: int) -> bool:
        """Whether an execution waits, because the leaders before this one may have been killed by its steps."""
        return (
            0 < row.unfinished_steps < UNFINISHED_MAX
            and row.id not in self._first_done
            and steady_us - self._began_steady_us < SUSPICION_US * row.unfinished_steps
        )

    def begin(self, context: Context, leadership: Leadership, row: DueExecution) -> bool:
        """Store that a step begins, if the leaders before this one may have been killed by it. Returns whether so."""
        self._is_counted = False
        if row.created_us > self._began_us or row.id in self._first_done:
            return False
        self._first_done.add(row.id)
        self._store(context, leadership, row, row.unfinished_steps + 1)
        self._is_counted = True
        return True

    def end(self, context: Context, leadership: Leadership, row: DueExecution) -> None:
        """A step ended that stored nothing: it had nothing to do, or what it needs is away."""
        self._store(context, leadership, row, 0)

    def fail(self, context: Context, leadership: Leadership, row: DueExecution, error: Exception) -> None:
        """Count a step that failed, unless it may succeed later. `begin` may have counted it already."""
        may_succeed = isinstance(error, OSError | LimitReached) or (isinstance(error, YardError) and error.transient)
        if may_succeed and self._is_counted:
            self._store(context, leadership, row, row.unfinished_steps)
            self._first_done.discard(row.id)  # the next try is the first one
        elif not may_succeed and not self._is_counted:
            self._store(context, leadership, row, row.unfinished_steps + 1)

    def _store(self, context: Context, leadership: Leadership, row: DueExecution, count: int) -> None:
        def apply(batch: Batch) -> int:
            executions.unfinished_put(batch.tx, row.id, count, steps=row.steps)
            return 1

        leadership.commit(context, apply)


def give_up(context: Context, leadership: Leadership, key: ExecutionKey) -> int:
    """End an execution without its engine: cancel its jobs, stop its children, and fail it with the reason."""
    with context.database.read() as tx:
        row = executions.execution_get(tx, key)
        live = [one.job_id for one in execution_nodes.live_attempts(tx, row.id)] if row is not None else []
    if row is None:
        return 0
    log.error("execution given up", execution=str(key), unfinished_steps=row.unfinished_steps)
    return leadership.commit(context, partial(_store_end, context=context, row=row, live=live), locks=live)


def _store_end(batch: Batch, *, context: Context, row: ExecutionRow, live: list[str]) -> int:
    locked = executions.execution_lock(batch.tx, row.key)
    if locked is None or locked.steps != row.steps or ExecutionPhase(locked.phase).is_final:
        return 0
    tx, now_us = batch.tx, batch.now_us
    request_cancel(batch, list(jobs.job_lock(tx, live).values()), f"execution {row.name} stops")
    stop_children(batch, row, ("",))
    child_executions.children_abandon(tx, row.id)
    execution_maps.maps_close(tx, row.id, now_us=now_us)
    execution_nodes.live_end(tx, row.id, reason="the execution was given up", now_us=now_us)
    execution_nodes.waiting_end(tx, row.id, now_us=now_us)
    task_cache.release_all(tx, row.id)
    phase = ExecutionPhase.ABORTED if locked.phase == ExecutionPhase.ABORTING else ExecutionPhase.FAILED
    error = execution_pb2.ExecutionError(code=CODE, message=REASON, kind=execution_pb2.ExecutionError.SYSTEM)
    update = ExecutionUpdate(
        phase=phase.value,
        is_due=False,
        is_stopping=True,
        steps=locked.steps + 1,
        updated_us=now_us,
        ended_us=now_us,
        error_kind=error_kind(error),
        error_code=error.code,
    )
    executions.execution_update(tx, row.id, update, error=content_bytes(error))
    count_phase(batch, context, replace(locked, phase=phase.value))
    batch.topics.add(Topic.EXECUTIONS)
    return 1
