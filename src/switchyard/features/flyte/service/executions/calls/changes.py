"""Stop an execution, or put it into the archive."""

from __future__ import annotations

from collections.abc import Callable

from switchyard.errors import BadRequest, Conflict
from switchyard.features.flyte.service.executions.calls.graphs import missing_execution
from switchyard.features.flyte.service.executions.calls.reads import find_execution
from switchyard.features.flyte.store.executions import executions as store
from switchyard.features.flyte.workflow.engine.execution_state import ExecutionPhase
from switchyard.model.rules.access import Role
from switchyard.model.rules.names import printable_line
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.core.writes.audit import record_audit
from switchyard.service.core.writes.batch import Batch, Topic

CAUSE_CHARS_MAX = 1000


def terminate(context: Context, actor: Actor, key: store.ExecutionKey, cause: str) -> None:
    """Ask for the end of an execution. It is ABORTED once all of its jobs have ended."""

    def change(batch: Batch, row: store.ExecutionRow) -> store.ExecutionUpdate:
        phase = ExecutionPhase(row.phase)
        if phase.is_final:
            raise Conflict(f"The execution {key} is over: {row.phase}.")
        if phase is ExecutionPhase.ABORTING:
            return store.ExecutionUpdate()
        batch.topics.add(Topic.EXECUTIONS)
        record_audit(batch, context, actor, "execution.terminate", str(key), after={"cause": words})
        return store.ExecutionUpdate(
            phase=ExecutionPhase.ABORTING.value,
            is_due=True,
            is_stopping=False,
            steps=row.steps + 1,
            abort_cause=words,
            abort_by=actor.name,
            updated_us=batch.now_us,
        )

    words = printable_line(cause[:CAUSE_CHARS_MAX])
    _change(context, actor, key, change)


def set_archived(context: Context, actor: Actor, key: store.ExecutionKey, state: int) -> None:
    """Flyte's states: 0 is active, 1 is archived."""
    if state not in (0, 1):
        raise BadRequest(f"{state} is no state of an execution")

    def change(batch: Batch, row: store.ExecutionRow) -> store.ExecutionUpdate:
        if bool(row.is_archived) == bool(state):
            return store.ExecutionUpdate()
        record_audit(batch, context, actor, "execution.archive" if state else "execution.activate", str(key))
        return store.ExecutionUpdate(is_archived=bool(state), updated_us=batch.now_us)

    _change(context, actor, key, change)


def _change(
    context: Context,
    actor: Actor,
    key: store.ExecutionKey,
    change: Callable[[Batch, store.ExecutionRow], store.ExecutionUpdate],
) -> None:
    with context.database.read() as tx:
        row = find_execution(tx, actor, key)
    require_change(actor, row)

    def apply(batch: Batch) -> None:
        locked = store.execution_lock(batch.tx, key)
        if locked is None:
            raise missing_execution(key)
        if update := change(batch, locked):
            store.execution_update(batch.tx, locked.id, update)

    context.committer.call(apply)


def require_change(actor: Actor, row: store.ExecutionRow) -> None:
    """One's own executions may be changed with the role `submit`, those of others with `operate`."""
    if row.owner_id != actor.id or not actor.may_project(Role.SUBMIT, row.project):
        actor.need_project(Role.OPERATE, row.project)
