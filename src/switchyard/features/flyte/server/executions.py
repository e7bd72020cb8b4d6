"""Flyte's calls about executions: create, get, list, data, spans, terminate, archive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flyteidl.admin import common_pb2, execution_pb2
from flyteidl.core import execution_pb2 as core_execution_pb2
from flyteidl.core import identifier_pb2, literals_pb2, metrics_pb2

from switchyard.features.flyte.server.grpc_status import FlyteInvalid
from switchyard.features.flyte.service.executions.calls import changes, creation, reads, relaunch
from switchyard.features.flyte.service.executions.calls.reads import ExecutionQuery, ExecutionView, read_key
from switchyard.features.flyte.service.executions.driving.execution_times import ExecutionTimes, execution_times
from switchyard.features.flyte.store.executions.execution_nodes import NodeAttemptRow
from switchyard.features.flyte.store.executions.execution_pages import NodeStateRow
from switchyard.features.flyte.store.executions.executions import ExecutionKey, ExecutionRow
from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind, to_message
from switchyard.features.flyte.workflow.engine.execution_state import ExecutionPhase
from switchyard.features.flyte.workflow.lists.filters import EXECUTION_COLUMNS, read_filters, read_order, read_page
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor

PREFIX = "execution"
_Phase = core_execution_pb2.WorkflowExecution


def create(context: Context, actor: Actor, request: Any) -> Any:
    make = relaunch.create_again if relaunch.is_again(request) else creation.create_execution
    return execution_pb2.ExecutionCreateResponse(id=_id(make(context, actor, request)))


def relaunch_execution(context: Context, actor: Actor, request: Any) -> Any:
    return execution_pb2.ExecutionCreateResponse(id=_id(relaunch.relaunch(context, actor, request)))


def recover_execution(context: Context, actor: Actor, request: Any) -> Any:
    return execution_pb2.ExecutionCreateResponse(id=_id(relaunch.recover(context, actor, request)))


def get(context: Context, actor: Actor, request: Any) -> Any:
    return _execution(reads.get_execution(context, actor, read_key(request.id)))


def get_data(context: Context, actor: Actor, request: Any) -> Any:
    row = reads.get_execution(context, actor, read_key(request.id)).row
    answer = execution_pb2.WorkflowExecutionGetDataResponse()
    answer.full_inputs.CopyFrom(literals_pb2.LiteralMap.FromString(row.inputs))
    answer.full_outputs.CopyFrom(literals_pb2.LiteralMap.FromString(row.outputs or b""))
    return answer


def get_metrics(context: Context, actor: Actor, request: Any) -> Any:
    times = execution_times(context, actor, read_key(request.id))
    return execution_pb2.WorkflowExecutionGetMetricsResponse(span=execution_span(times, request.depth))


def list_matching(context: Context, actor: Actor, request: Any) -> Any:
    limit, offset = read_page(request.limit, request.token)
    is_descending = request.sort_by.direction == common_pb2.Sort.DESCENDING
    query = ExecutionQuery(
        request.id.project,
        request.id.domain,
        filters=read_filters(request.filters, EXECUTION_COLUMNS, PREFIX),
        order=read_order(request.sort_by.key, EXECUTION_COLUMNS, PREFIX, is_descending=is_descending),
        offset=offset,
        limit=limit,
    )
    views, token = reads.list_executions(context, actor, query)
    return execution_pb2.ExecutionList(executions=[_execution(view) for view in views], token=token)


def terminate(context: Context, actor: Actor, request: Any) -> Any:
    changes.terminate(context, actor, read_key(request.id), request.cause)
    return execution_pb2.ExecutionTerminateResponse()


def update(context: Context, actor: Actor, request: Any) -> Any:
    if request.state not in execution_pb2.ExecutionState.values():
        raise FlyteInvalid(f"{request.state} is no state of an execution")
    changes.set_archived(context, actor, read_key(request.id), request.state)
    return execution_pb2.ExecutionUpdateResponse()


def _id(key: ExecutionKey) -> Any:
    return identifier_pb2.WorkflowExecutionIdentifier(project=key.project, domain=key.domain, name=key.name)


def _execution(view: ExecutionView) -> Any:
    row = view.row
    answer = execution_pb2.Execution(id=_id(row.key), spec=execution_pb2.ExecutionSpec.FromString(row.spec))
    system = answer.spec.metadata.system_metadata
    system.execution_cluster = ",".join(view.clusters)
    closure = answer.closure
    closure.phase = _Phase.Phase.Value(row.phase)
    closure.workflow_id.CopyFrom(to_message(_workflow_id(row)))
    closure.created_at.FromMicroseconds(row.created_us)
    closure.updated_at.FromMicroseconds(row.updated_us)
    if row.started_us is not None:
        closure.started_at.FromMicroseconds(row.started_us)
        if row.ended_us is not None:
            closure.duration.FromMicroseconds(max(0, row.ended_us - row.started_us))
    closure.notifications.extend(answer.spec.notifications.notifications)  # stored, and not sent yet
    _set_result(closure, row)
    details = closure.state_change_details
    details.state = execution_pb2.EXECUTION_ARCHIVED if row.is_archived else execution_pb2.EXECUTION_ACTIVE
    details.occurred_at.FromMicroseconds(row.updated_us if row.is_archived else row.created_us)
    details.principal = row.owner
    return answer


def _set_result(closure: Any, row: ExecutionRow) -> None:
    if row.phase in (ExecutionPhase.ABORTING, ExecutionPhase.ABORTED):
        closure.abort_metadata.cause = row.abort_cause
        closure.abort_metadata.principal = row.abort_by
    elif row.error is not None:
        closure.error.CopyFrom(core_execution_pb2.ExecutionError.FromString(row.error))
    elif row.outputs is not None:
        closure.outputs.uri = f"flyte://v1/{row.project}/{row.domain}/{row.name}/end-node/o"


def _workflow_id(row: ExecutionRow) -> EntityId:
    return EntityId(
        EntityKind.WORKFLOW, row.workflow_project, row.workflow_domain, row.workflow_name, row.workflow_version
    )


def execution_span(times: ExecutionTimes, depth: int) -> Any:
    """Where the time of an execution went, as Flyte's spans: what ran, what waited, and for how long.

    `depth`: how many levels below the execution; -1: all. A span without an end goes on.
    """
    row = times.row
    span = _span(row.created_us, row.ended_us)
    span.workflow_id.CopyFrom(_id(times.row.key))
    if depth:
        span.spans.extend(_execution_parts(times, depth))
    return span


def _execution_parts(times: ExecutionTimes, depth: int) -> Iterator[Any]:
    row, nodes = times.row, times.nodes.get("", [])
    first_us = min((node.created_us for node in nodes), default=row.ended_us)
    yield _operation("WORKFLOW_SETUP", row.created_us, first_us)
    yield from (_node_span(times, node, depth - 1) for node in nodes)
    if nodes and row.ended_us is not None:
        yield _operation("WORKFLOW_TEARDOWN", max(node.ended_us or node.created_us for node in nodes), row.ended_us)


def _node_span(times: ExecutionTimes, node: NodeStateRow, depth: int) -> Any:
    span = _span(node.created_us, node.ended_us)
    span.node_id.CopyFrom(_node_id(times, node.node_id))
    if depth:
        span.spans.extend(_node_parts(times, node, depth))
    return span


def _node_parts(times: ExecutionTimes, node: NodeStateRow, depth: int) -> Iterator[Any]:
    attempts, inner = times.attempts.get(node.node_id, []), times.nodes.get(node.node_id, [])
    begun = [attempt.created_us for attempt in attempts] + [one.created_us for one in inner]
    if not begun:
        return
    yield _operation("NODE_SETUP", node.created_us, min(begun))
    yield from (_task_span(times, attempt, depth - 1) for attempt in attempts)
    yield from (_node_span(times, one, depth - 1) for one in inner)
    ended = [attempt.ended_us for attempt in attempts] + [one.ended_us for one in inner]
    if node.ended_us is not None:
        yield _operation("NODE_TEARDOWN", max((end for end in ended if end is not None), default=None), node.ended_us)


def _task_span(times: ExecutionTimes, attempt: NodeAttemptRow, depth: int) -> Any:
    """TASK_SETUP is the time in queues and until the program began."""
    span = _span(attempt.created_us, attempt.ended_us)
    task = EntityId(EntityKind.TASK, attempt.task_project, attempt.task_domain, attempt.task_name, attempt.task_version)
    span.task_id.task_id.CopyFrom(to_message(task))
    span.task_id.node_execution_id.CopyFrom(_node_id(times, attempt.node_id))
    span.task_id.retry_attempt = attempt.attempt
    if depth:
        span.spans.append(_operation("TASK_SETUP", attempt.created_us, attempt.started_us or attempt.ended_us))
        if attempt.started_us is not None:
            span.spans.append(_operation("TASK_RUNTIME", attempt.started_us, attempt.ended_us))
    return span


def _operation(name: str, begin_us: int | None, end_us: int | None) -> Any:
    span = _span(end_us if begin_us is None else begin_us, end_us)
    span.operation_id = name
    return span


def _span(begin_us: int | None, end_us: int | None) -> Any:
    """Clocks of agents may differ from the server's; no span ends before it begins."""
    span = metrics_pb2.Span()
    if begin_us is not None:
        span.start_time.FromMicroseconds(begin_us)
    if end_us is not None:
        span.end_time.FromMicroseconds(max(end_us, begin_us or end_us))
    return span


def _node_id(times: ExecutionTimes, node_id: str) -> Any:
    return identifier_pb2.NodeExecutionIdentifier(node_id=node_id, execution_id=_id(times.row.key))
