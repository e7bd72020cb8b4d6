"""Flyte's calls about the nodes of executions and the attempts of their tasks."""

from __future__ import annotations

from typing import Any

from flyteidl.admin import common_pb2, node_execution_pb2, task_execution_pb2
from flyteidl.core import catalog_pb2, execution_pb2, identifier_pb2, literals_pb2

from switchyard.features.flyte.server.grpc_status import FlyteInvalid, FlyteNotFound
from switchyard.features.flyte.service.executions.calls import reads
from switchyard.features.flyte.service.executions.calls.reads import AttemptView, NodeView, read_key
from switchyard.features.flyte.store.executions.executions import ExecutionKey
from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind, to_message
from switchyard.features.flyte.workflow.lists.filters import NODE_COLUMNS, read_filters, read_page
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor

SORT_KEYS = ("", "created_at")
NODE_PREFIX = "node_execution"


def list_nodes(context: Context, actor: Actor, request: Any) -> Any:
    limit, offset = read_page(request.limit, request.token)
    refuse_sort_key(request)
    key = read_key(request.workflow_execution_id)
    views, token = reads.list_nodes(
        context,
        actor,
        key,
        parent_id=request.unique_parent_id,
        filters=read_filters(request.filters, NODE_COLUMNS, NODE_PREFIX),
        is_descending=bool(request.sort_by.key) and request.sort_by.direction == common_pb2.Sort.DESCENDING,
        offset=offset,
        limit=limit,
    )
    return node_execution_pb2.NodeExecutionList(node_executions=[_node(key, view) for view in views], token=token)


def get_node(context: Context, actor: Actor, request: Any) -> Any:
    key = read_key(request.id.execution_id)
    return _node(key, reads.get_node(context, actor, key, request.id.node_id))


def get_node_data(context: Context, actor: Actor, request: Any) -> Any:
    key, node_id = read_key(request.id.execution_id), request.id.node_id
    row = reads.get_node(context, actor, key, node_id).row
    answer = node_execution_pb2.NodeExecutionGetDataResponse()
    answer.full_inputs.CopyFrom(literals_pb2.LiteralMap.FromString(row.inputs or b""))
    answer.full_outputs.CopyFrom(literals_pb2.LiteralMap.FromString(row.outputs or b""))
    closure = reads.get_dynamic_workflow(context, actor, key, node_id)
    if closure is not None:
        answer.dynamic_workflow.compiled_workflow.ParseFromString(closure)
        answer.dynamic_workflow.id.CopyFrom(answer.dynamic_workflow.compiled_workflow.primary.template.id)
    return answer


def get_dynamic_workflow(context: Context, actor: Actor, request: Any) -> Any:
    key, node_id = read_key(request.id.execution_id), request.id.node_id
    closure = reads.get_dynamic_workflow(context, actor, key, node_id)
    if closure is None:
        raise FlyteNotFound(f"missing entity of type dynamic workflow with identifier {key}:{node_id[:200]}")
    answer = node_execution_pb2.DynamicNodeWorkflowResponse()
    answer.compiled_workflow.ParseFromString(closure)
    return answer


def list_tasks(url: str, context: Context, actor: Actor, request: Any) -> Any:
    limit, offset = read_page(request.limit, request.token)
    refuse_filters(request)
    key, node_id = read_key(request.node_execution_id.execution_id), request.node_execution_id.node_id
    views = reads.list_attempts(context, actor, key, node_id)
    if request.sort_by.key and request.sort_by.direction == common_pb2.Sort.DESCENDING:
        views.reverse()
    shown = views[offset : offset + limit]
    token = str(offset + len(shown)) if len(shown) == limit else ""
    return task_execution_pb2.TaskExecutionList(task_executions=[_task(url, key, view) for view in shown], token=token)


def get_task(url: str, context: Context, actor: Actor, request: Any) -> Any:
    key, node_id, number = _attempt_of(request)
    return _task(url, key, reads.get_attempt(context, actor, key, node_id, number))


def get_task_data(context: Context, actor: Actor, request: Any) -> Any:
    """An attempt has the inputs of its node, and its outputs if it made them."""
    key, node_id, number = _attempt_of(request)
    view = reads.get_attempt(context, actor, key, node_id, number)
    node = reads.get_node(context, actor, key, node_id).row
    answer = task_execution_pb2.TaskExecutionGetDataResponse()
    answer.full_inputs.CopyFrom(literals_pb2.LiteralMap.FromString(node.inputs or b""))
    if view.phase == "SUCCEEDED":
        answer.full_outputs.CopyFrom(literals_pb2.LiteralMap.FromString(node.outputs or b""))
    return answer


def _attempt_of(request: Any) -> tuple[ExecutionKey, str, int]:
    node = request.id.node_execution_id
    return read_key(node.execution_id), node.node_id, request.id.retry_attempt


def refuse_filters(request: Any) -> None:
    if request.filters:
        raise FlyteInvalid("filters are not served for the tasks of a node, nor for signals: there are few of them")
    refuse_sort_key(request)


def refuse_sort_key(request: Any) -> None:
    if request.sort_by.key not in SORT_KEYS:
        raise FlyteInvalid(f"invalid sort key '{request.sort_by.key[:80]}'; known: created_at")


def _node_id(key: ExecutionKey, node_id: str) -> Any:
    execution = identifier_pb2.WorkflowExecutionIdentifier(project=key.project, domain=key.domain, name=key.name)
    return identifier_pb2.NodeExecutionIdentifier(node_id=node_id, execution_id=execution)


def _url(key: ExecutionKey, node_id: str, kind: str) -> str:
    return f"flyte://v1/{key.project}/{key.domain}/{key.name}/{node_id}/{kind}"


def _node(key: ExecutionKey, view: NodeView) -> Any:
    row = view.row
    answer = node_execution_pb2.NodeExecution(
        id=_node_id(key, row.node_id), input_uri=_url(key, row.node_id, "i") if row.inputs is not None else ""
    )
    answer.metadata.spec_node_id = row.spec_id
    answer.metadata.is_parent_node = bool(row.is_parent)
    answer.metadata.is_dynamic = view.is_dynamic
    answer.metadata.is_array = bool(row.is_array)
    closure = answer.closure
    closure.phase = execution_pb2.NodeExecution.Phase.Value(row.phase)
    for moment in (closure.created_at, closure.started_at):
        moment.FromMicroseconds(row.created_us)
    closure.updated_at.FromMicroseconds(row.updated_us)
    if row.ended_us is not None:
        closure.duration.FromMicroseconds(max(0, row.ended_us - row.created_us))
    if row.cache_status:
        closure.task_node_metadata.cache_status = catalog_pb2.CatalogCacheStatus.Value(row.cache_status)
        if row.cache_source:
            _set_source(closure.task_node_metadata.catalog_key, key, row.cache_source)
    if view.child:
        child = closure.workflow_node_metadata.executionId
        child.project, child.domain, child.name = key.project, key.domain, view.child
    if view.has_deck:
        closure.deck_uri = _url(key, row.node_id, "d")
    if row.error is not None:
        closure.error.CopyFrom(execution_pb2.ExecutionError.FromString(row.error))
    elif row.outputs is not None:
        closure.output_uri = _url(key, row.node_id, "o")
    return answer


def _set_source(catalog: Any, key: ExecutionKey, source: str) -> None:
    """Say which attempt made outputs that came from the cache: execution, node and attempt."""
    name, _, rest = source.partition("/")
    node_id, _, attempt = rest.rpartition("/")
    made_by = catalog.source_task_execution
    made_by.node_execution_id.CopyFrom(_node_id(ExecutionKey(key.project, key.domain, name), node_id))
    made_by.retry_attempt = int(attempt) if attempt.isdigit() else 0


def _task(url: str, key: ExecutionKey, view: AttemptView) -> Any:
    """`url`: the address of this server, for links; empty: it is not known."""
    row = view.row
    task = EntityId(EntityKind.TASK, row.task_project, row.task_domain, row.task_name, row.task_version)
    answer = task_execution_pb2.TaskExecution(input_uri=_url(key, row.node_id, "i"))
    answer.id.task_id.CopyFrom(to_message(task))
    answer.id.node_execution_id.CopyFrom(_node_id(key, row.node_id))
    answer.id.retry_attempt = row.attempt
    closure = answer.closure
    closure.phase = execution_pb2.TaskExecution.Phase.Value(view.phase)
    closure.reason = view.reason
    closure.task_type = view.task_type
    closure.created_at.FromMicroseconds(row.created_us)
    closure.updated_at.FromMicroseconds(row.ended_us or view.started_us or row.created_us)
    if view.started_us is not None:
        closure.started_at.FromMicroseconds(view.started_us)
        if row.ended_us is not None:
            closure.duration.FromMicroseconds(max(0, row.ended_us - view.started_us))
    closure.metadata.generated_name = row.job_id
    closure.metadata.plugin_identifier = "switchyard"
    for element in view.elements:
        closure.metadata.external_resources.add(
            external_id=f"{row.job_id}.{element.index}",
            index=element.index,
            retry_attempt=element.attempt,
            phase=execution_pb2.TaskExecution.Phase.Value(element.phase),
            cache_status=catalog_pb2.CACHE_HIT if element.is_cached else catalog_pb2.CACHE_DISABLED,
        )
    if row.job_id:  # an attempt that waits for room under a limit has none
        where = f" on {view.cluster}" if view.cluster else ""
        closure.logs.add(
            name=f"yard logs {row.job_id}{where}",
            uri=f"{url}/v1/jobs/{row.job_id}/logs",
            message_format=execution_pb2.TaskLog.UNKNOWN,
        )
    if row.error is not None:
        closure.error.CopyFrom(execution_pb2.ExecutionError.FromString(row.error))
    return answer
