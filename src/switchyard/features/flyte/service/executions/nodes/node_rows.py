"""Nodes and attempts of executions as rows, and back."""

from __future__ import annotations

from typing import Any

import msgspec
from flyteidl.core import execution_pb2, literals_pb2

from switchyard.features.flyte.service.executions.nodes.node_cache import stored_status
from switchyard.features.flyte.store.executions import execution_nodes
from switchyard.features.flyte.store.executions.execution_nodes import LiveAttemptRow, NodeAttemptRow, NodeRow
from switchyard.features.flyte.store.executions.execution_signals import SignalRow
from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind
from switchyard.features.flyte.workflow.engine.execution_state import (
    AttemptEnd,
    NodePhase,
    NodeProgress,
    SignalRequest,
    TaskStart,
)
from switchyard.features.flyte.workflow.values.content import content_bytes
from switchyard.service.core.writes.batch import Batch

RECOVERED = "RECOVERED"  # the phase of a node that another execution has run. To the engine it has succeeded
QUEUED = "QUEUED"  # the phase of a node that could start, if a limit had room
WAITING = "WAITING_FOR_RESOURCES"  # the phase of its attempt, which has no job


def task_of(row: LiveAttemptRow) -> EntityId:
    return EntityId(EntityKind.TASK, row.task_project, row.task_domain, row.task_name, row.task_version)


def node_state(row: NodeRow) -> NodeProgress:
    return NodeProgress(
        node_id=row.node_id,
        parent_id=row.parent_id,
        spec_id=row.spec_id,
        phase=NodePhase.SUCCEEDED if row.phase == RECOVERED else NodePhase(row.phase),
        is_parent=bool(row.is_parent),
        is_array=bool(row.is_array),
        cache_status=row.cache_status or "",
        cache_key=bytes(row.cache_key or b""),
        cache_source=row.cache_source or "",
        attempts=row.attempts,
        user_failures=row.user_failures,
        system_failures=row.system_failures,
        inputs=read_literals(row.inputs),
        outputs=read_literals(row.outputs),
        error=read_error(row.error),
        wake_us=row.wake_us,
        signal_id=row.signal_id,
    )


def node_row(execution_id: str, node: NodeProgress, now_us: int) -> NodeRow:
    return NodeRow(
        execution_id=execution_id,
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


def attempt_row(execution_id: str, start: TaskStart, *, job_id: str, now_us: int) -> NodeAttemptRow:
    """An attempt whose job is about to be inserted."""
    return NodeAttemptRow(
        execution_id=execution_id,
        node_id=start.node_id,
        attempt=start.attempt,
        job_id=job_id,
        task_project=start.task.project,
        task_domain=start.task.domain,
        task_name=start.task.name,
        task_version=start.task.version,
        phase="QUEUED",
        reason="",
        cluster="",
        error=None,
        created_us=now_us,
        started_us=None,
        ended_us=None,
    )


def waiting_row(execution_id: str, start: TaskStart, *, reason: str, now_us: int) -> NodeAttemptRow:
    """An attempt that waits for room under a limit, for readers. It has no job, and counts as ended."""
    row = attempt_row(execution_id, start, job_id="", now_us=now_us)
    return msgspec.structs.replace(row, phase=WAITING, reason=reason[:2000], ended_us=now_us)


def queued_node_row(execution_id: str, start: TaskStart, *, parent_id: str, now_us: int) -> NodeRow:
    """A node whose first attempt waits."""
    return NodeRow(
        execution_id=execution_id,
        node_id=start.node_id,
        parent_id=parent_id,
        spec_id=start.node.id,
        is_parent=False,
        is_array=False,
        cache_status=None,
        cache_key=None,
        cache_source=None,
        phase=QUEUED,
        attempts=0,
        user_failures=0,
        system_failures=0,
        inputs=None,
        outputs=None,
        error=None,
        created_us=now_us,
        updated_us=now_us,
        ended_us=None,
        wake_us=None,
        signal_id="",
    )


def signal_row(execution_id: str, request: SignalRequest, now_us: int) -> SignalRow:
    return SignalRow(
        execution_id=execution_id,
        signal_id=request.signal_id,
        type=content_bytes(request.type),
        value=None,
        created_us=now_us,
        set_us=None,
        set_by="",
    )


def error_kind(error: Any) -> str:
    """Flyte's word for who made an error."""
    return str(execution_pb2.ExecutionError.ErrorKind.Name(error.kind))


def store_end(batch: Batch, execution_id: str, attempt: LiveAttemptRow, end: AttemptEnd) -> None:
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


def read_literals(body: bytes | None) -> Any:
    return None if body is None else literals_pb2.LiteralMap.FromString(body)


def read_error(body: bytes | None) -> Any:
    return None if body is None else execution_pb2.ExecutionError.FromString(body)
