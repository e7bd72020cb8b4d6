"""Signals of executions: what gates wait for, and the values that people give.

Whoever may view the project may read them. The owner of an execution may set them with the role `submit`, others with
`operate`: a value goes into jobs that run as the owner.
"""

from __future__ import annotations

from typing import Any

from flyteidl.core import literals_pb2, types_pb2

from switchyard.errors import BadRequest, Conflict, LimitReached, Malformed, NotFound, TooLarge
from switchyard.features.flyte.service.executions.calls.changes import require_change
from switchyard.features.flyte.service.executions.calls.graphs import missing_execution
from switchyard.features.flyte.service.executions.calls.reads import PAGE_BYTES_MAX, PAGE_ROWS_MAX, find_execution
from switchyard.features.flyte.store.executions import execution_signals, executions
from switchyard.features.flyte.store.executions.execution_signals import SignalRow
from switchyard.features.flyte.store.executions.executions import ExecutionKey, ExecutionRow, ExecutionUpdate
from switchyard.features.flyte.workflow.engine.execution_checks import value_mistake
from switchyard.features.flyte.workflow.engine.execution_state import ExecutionPhase
from switchyard.features.flyte.workflow.engine.run_ids import signal_id_mistake
from switchyard.features.flyte.workflow.values.casting import Caster
from switchyard.features.flyte.workflow.values.content import content_bytes
from switchyard.features.flyte.workflow.values.nesting import check_inputs_depth
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.core.writes.audit import record_audit
from switchyard.service.core.writes.batch import Batch, Topic

VALUE_BYTES_MAX = 2**20
SIGNALS_MAX = 1000  # that clients make of one execution; gates make their own


def get_or_create(context: Context, actor: Actor, key: ExecutionKey, signal_id: str, kind: Any) -> SignalRow:
    """A signal. One that is not there is made, so that a value can be given before its gate waits for it."""
    _check_id(signal_id)
    with context.database.read() as tx:
        execution = find_execution(tx, actor, key)
        row = execution_signals.signal_get(tx, execution.id, signal_id)
    if row is not None:
        return row
    require_change(actor, execution)
    if kind.WhichOneof("type") is None:
        raise BadRequest("missing type")
    if kind.ByteSize() > VALUE_BYTES_MAX:
        raise TooLarge(f"The type has {kind.ByteSize()} bytes; the most is {VALUE_BYTES_MAX}.")

    def apply(batch: Batch) -> SignalRow | None:
        execution = _locked(batch, key)
        if execution_signals.signal_count(batch.tx, execution.id) >= SIGNALS_MAX:
            raise LimitReached(f"The execution {key} has {SIGNALS_MAX} signals; clients may not make more.")
        new = SignalRow(
            execution_id=execution.id,
            signal_id=signal_id,
            type=content_bytes(kind),
            value=None,
            created_us=batch.now_us,
            set_us=None,
            set_by="",
        )
        execution_signals.signal_put(batch.tx, [new])
        return execution_signals.signal_get(batch.tx, execution.id, signal_id)

    made = context.committer.call(apply)
    assert made is not None
    return made


def list_signals(
    context: Context, actor: Actor, key: ExecutionKey, *, is_descending: bool, offset: int, limit: int
) -> tuple[list[SignalRow], str]:
    """A page of signals, and the token of the next page."""
    limit = min(limit, PAGE_ROWS_MAX)
    with context.database.read() as tx:
        execution = find_execution(tx, actor, key)
        rows, has_more = execution_signals.signal_page(
            tx, execution.id, is_descending=is_descending, offset=offset, limit=limit, bytes_max=PAGE_BYTES_MAX
        )
    return rows, str(offset + len(rows)) if has_more else ""


def set_signal(context: Context, actor: Actor, key: ExecutionKey, signal_id: str, value: Any) -> None:
    """Give a value. A second one replaces the first, until a gate has taken it."""
    _check_id(signal_id)
    if (size := value.ByteSize()) > VALUE_BYTES_MAX:
        raise TooLarge(f"The value has {size} bytes; the most is {VALUE_BYTES_MAX}.")
    check_inputs_depth(literals_pb2.LiteralMap(literals={"value": value}))
    with context.database.read() as tx:
        execution = find_execution(tx, actor, key)
        row = execution_signals.signal_get(tx, execution.id, signal_id)
    require_change(actor, execution)
    if row is None:
        raise NotFound(
            f"missing entity of type signal with identifier {key}:{signal_id}",
            next_step="A signal exists from the moment its gate begins to wait for it.",
        )
    mistake = value_mistake(signal_id, value, types_pb2.LiteralType.FromString(row.type), Caster())
    if mistake:
        raise Malformed(mistake)

    body = content_bytes(value)

    def apply(batch: Batch) -> None:
        execution = _locked(batch, key)
        execution_signals.signal_set(batch.tx, execution.id, signal_id, value=body, by=actor.name, now_us=batch.now_us)
        executions.execution_update(batch.tx, execution.id, ExecutionUpdate(is_due=True, steps=execution.steps + 1))
        batch.topics.add(Topic.EXECUTIONS)
        record_audit(batch, context, actor, "execution.signal", str(key), after={"signal": signal_id})

    context.committer.call(apply)


def _locked(batch: Batch, key: ExecutionKey) -> ExecutionRow:
    """The execution, which has not ended."""
    row = executions.execution_lock(batch.tx, key)
    if row is None:
        raise missing_execution(key)
    if ExecutionPhase(row.phase).is_final or row.phase == ExecutionPhase.ABORTING:
        raise Conflict(f"The execution {key} is over or stops: {row.phase}. No gate waits for a signal any more.")
    return row


def _check_id(signal_id: str) -> None:
    if mistake := signal_id_mistake(signal_id):
        raise BadRequest(mistake)
