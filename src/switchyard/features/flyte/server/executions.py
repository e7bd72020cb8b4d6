"""Flyte's calls about executions: create, get, list, data, terminate, archive."""

from __future__ import annotations

from typing import Any

from flyteidl.admin import common_pb2, execution_pb2
from flyteidl.core import execution_pb2 as core_execution_pb2
from flyteidl.core import identifier_pb2, literals_pb2

from switchyard.features.flyte.server.grpc_status import FlyteInvalid
from switchyard.features.flyte.server.spans import execution_span
from switchyard.features.flyte.service.executions.calls import changes, creation, reads, relaunch
from switchyard.features.flyte.service.executions.calls.reads import ExecutionQuery, ExecutionView, read_key
from switchyard.features.flyte.service.executions.driving.execution_times import execution_times
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
