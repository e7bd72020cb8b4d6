"""The calls of Flyte's services for entities, executions, data and signals that we serve, by name, for both doors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

from flyteidl.admin import common_pb2, signal_pb2
from flyteidl.core import literals_pb2, types_pb2
from flyteidl.service import dataproxy_pb2
from google.protobuf.duration_pb2 import Duration

from switchyard.features.flyte.server import attributes, entities, executions, node_executions, projects
from switchyard.features.flyte.server.attributes import PROJECT, PROJECT_DOMAIN, WORKFLOW
from switchyard.features.flyte.server.data_app import FLYTE_DATA_PATH
from switchyard.features.flyte.server.grpc_status import FlyteInvalid, FlyteNotServed
from switchyard.features.flyte.server.node_executions import refuse_filters
from switchyard.features.flyte.service.executions.calls import data_proxy, flyte_urls, signals
from switchyard.features.flyte.service.executions.calls.data_proxy import DataAddress
from switchyard.features.flyte.service.executions.calls.reads import read_key
from switchyard.features.flyte.store.executions.execution_signals import SignalRow
from switchyard.features.flyte.workflow.compile.entity_id import EntityKind
from switchyard.features.flyte.workflow.lists.filters import read_page
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor


def create_upload_location(url: str, context: Context, actor: Actor, request: Any) -> Any:
    address = data_proxy.create_upload_location(context, actor, request)
    answer = dataproxy_pb2.CreateUploadLocationResponse(
        signed_url=_signed_url(url, address), native_url=address.native_url
    )
    answer.expires_at.FromMicroseconds(address.expires_us)
    return answer


def create_download_location(url: str, context: Context, actor: Actor, request: Any) -> Any:
    address = data_proxy.create_download_location(context, actor, request)
    answer = dataproxy_pb2.CreateDownloadLocationResponse(signed_url=_signed_url(url, address))
    answer.expires_at.FromMicroseconds(address.expires_us)
    return answer


def create_download_link(url: str, context: Context, actor: Actor, request: Any) -> Any:
    """A link to the deck of a node: of its last attempt."""
    if request.artifact_type != dataproxy_pb2.ARTIFACT_TYPE_DECK:
        raise FlyteInvalid("artifact_type must be ARTIFACT_TYPE_DECK: there are links to decks alone")
    node = request.node_execution_id
    address = flyte_urls.deck_location(
        context, actor, read_key(node.execution_id), node.node_id, attempt=None, expires_in=request.expires_in
    )
    answer = dataproxy_pb2.CreateDownloadLinkResponse(signed_url=[_signed_url(url, address)])
    answer.pre_signed_urls.signed_url.append(answer.signed_url[0])
    for moment in (answer.expires_at, answer.pre_signed_urls.expires_at):
        moment.FromMicroseconds(address.expires_us)
    return answer


def get_data(url: str, context: Context, actor: Actor, request: Any) -> Any:
    """What an address of Flyte's names: values, or a link to a deck."""
    target = flyte_urls.read_flyte_url(request.flyte_url)
    answer = dataproxy_pb2.GetDataResponse()
    if target.kind == "d":
        address = flyte_urls.deck_location(
            context, actor, target.key, target.node_id, attempt=target.attempt, expires_in=Duration()
        )
        answer.pre_signed_urls.signed_url.append(_signed_url(url, address))
        answer.pre_signed_urls.expires_at.FromMicroseconds(address.expires_us)
        return answer
    values = flyte_urls.read_values(context, actor, target)
    (answer.literal if target.variable else answer.literal_map).CopyFrom(values)
    return answer


def _signed_url(url: str, address: DataAddress) -> str:
    if not url:
        raise FlyteNotServed(
            "This server does not know the address that clients reach its HTTP port by.",
            next_step="Set `workflows.url` in its config file, for example https://yard.example.org.",
        )
    return f"{url}{FLYTE_DATA_PATH}{address.token}/{quote(address.filename)}"


def get_or_create(context: Context, actor: Actor, request: Any) -> Any:
    key = read_key(request.id.execution_id)
    row = signals.get_or_create(context, actor, key, request.id.signal_id, request.type)
    return _signal(request.id.execution_id, row)


def list_matching(context: Context, actor: Actor, request: Any) -> Any:
    limit, offset = read_page(request.limit, request.token)
    refuse_filters(request)
    is_descending = bool(request.sort_by.key) and request.sort_by.direction == common_pb2.Sort.DESCENDING
    key = read_key(request.workflow_execution_id)
    rows, token = signals.list_signals(context, actor, key, is_descending=is_descending, offset=offset, limit=limit)
    found = [_signal(request.workflow_execution_id, row) for row in rows]
    return signal_pb2.SignalList(signals=found, token=token)


def set_value(context: Context, actor: Actor, request: Any) -> Any:
    signals.set_signal(context, actor, read_key(request.id.execution_id), request.id.signal_id, request.value)
    return signal_pb2.SignalSetResponse()


def _signal(execution: Any, row: SignalRow) -> Any:
    answer = signal_pb2.Signal(type=types_pb2.LiteralType.FromString(row.type))
    answer.id.signal_id = row.signal_id
    answer.id.execution_id.CopyFrom(execution)
    if row.value is not None:
        answer.value.CopyFrom(literals_pb2.Literal.FromString(row.value))
    return answer


HEAVY_BYTES_MIN = 16 * 1024  # of a request that is compiled: nearly all workflows are smaller


@dataclass(frozen=True)
class FlyteCall:
    """`serve(context, actor, request)` returns a message or raises a YardError. `is_open`: needs no credential.

    `is_entity`: its request has a whole entity, and takes time that grows with it. `needs_url`: `serve` takes the
    address of this server first.
    """

    serve: Callable[..., Any]
    is_open: bool = False
    is_entity: bool = False
    needs_url: bool = False

    def bound(self, url: str) -> Callable[..., Any]:
        """`serve(context, actor, request)` at a server with this address."""
        return partial(self.serve, url) if self.needs_url else self.serve

    def is_heavy(self, request: Any) -> bool:
        """Whether a request belongs on the threads for long work, of which one user has one at a time."""
        return self.is_entity and request.ByteSize() > HEAVY_BYTES_MIN


CALLS: dict[str, FlyteCall] = {
    "UpdateProjectAttributes": FlyteCall(partial(attributes.update, PROJECT)),
    "GetProjectAttributes": FlyteCall(partial(attributes.get, PROJECT)),
    "DeleteProjectAttributes": FlyteCall(partial(attributes.delete, PROJECT)),
    "UpdateProjectDomainAttributes": FlyteCall(partial(attributes.update, PROJECT_DOMAIN)),
    "GetProjectDomainAttributes": FlyteCall(partial(attributes.get, PROJECT_DOMAIN)),
    "DeleteProjectDomainAttributes": FlyteCall(partial(attributes.delete, PROJECT_DOMAIN)),
    "UpdateWorkflowAttributes": FlyteCall(partial(attributes.update, WORKFLOW)),
    "GetWorkflowAttributes": FlyteCall(partial(attributes.get, WORKFLOW)),
    "DeleteWorkflowAttributes": FlyteCall(partial(attributes.delete, WORKFLOW)),
    "ListMatchableAttributes": FlyteCall(attributes.list_all),
    "RegisterProject": FlyteCall(projects.register),
    "UpdateProject": FlyteCall(projects.update),
    "GetProject": FlyteCall(projects.get),
    "ListProjects": FlyteCall(projects.list_matching),
    "GetDomains": FlyteCall(projects.domains),
    "CreateTask": FlyteCall(entities.create_task, is_entity=True),
    "GetTask": FlyteCall(entities.get_task),
    "ListTasks": FlyteCall(entities.list_tasks),
    "ListTaskIds": FlyteCall(partial(entities.list_ids, EntityKind.TASK)),
    "CreateWorkflow": FlyteCall(entities.create_workflow, is_entity=True),
    "GetWorkflow": FlyteCall(entities.get_workflow),
    "ListWorkflows": FlyteCall(entities.list_workflows),
    "ListWorkflowIds": FlyteCall(partial(entities.list_ids, EntityKind.WORKFLOW)),
    "CreateLaunchPlan": FlyteCall(entities.create_launch_plan, is_entity=True),
    "GetLaunchPlan": FlyteCall(entities.get_launch_plan),
    "GetActiveLaunchPlan": FlyteCall(entities.get_active_launch_plan),
    "ListLaunchPlans": FlyteCall(entities.list_launch_plans),
    "ListActiveLaunchPlans": FlyteCall(entities.list_active_launch_plans),
    "ListLaunchPlanIds": FlyteCall(partial(entities.list_ids, EntityKind.LAUNCH_PLAN)),
    "UpdateLaunchPlan": FlyteCall(entities.update_launch_plan),
    "ListNamedEntities": FlyteCall(entities.list_named),
    "GetNamedEntity": FlyteCall(entities.get_named),
    "UpdateNamedEntity": FlyteCall(entities.update_named),
    "CreateExecution": FlyteCall(executions.create, is_entity=True),
    "RelaunchExecution": FlyteCall(executions.relaunch_execution),
    "RecoverExecution": FlyteCall(executions.recover_execution),
    "GetExecution": FlyteCall(executions.get),
    "GetExecutionData": FlyteCall(executions.get_data),
    "GetExecutionMetrics": FlyteCall(executions.get_metrics),
    "ListExecutions": FlyteCall(executions.list_matching),
    "TerminateExecution": FlyteCall(executions.terminate),
    "UpdateExecution": FlyteCall(executions.update),
    "ListNodeExecutions": FlyteCall(node_executions.list_nodes),
    "GetNodeExecution": FlyteCall(node_executions.get_node),
    "GetNodeExecutionData": FlyteCall(node_executions.get_node_data),
    "GetDynamicNodeWorkflow": FlyteCall(node_executions.get_dynamic_workflow),
    "ListTaskExecutions": FlyteCall(node_executions.list_tasks, needs_url=True),
    "GetTaskExecution": FlyteCall(node_executions.get_task, needs_url=True),
    "GetTaskExecutionData": FlyteCall(node_executions.get_task_data),
    "GetOrCreateSignal": FlyteCall(get_or_create),
    "ListSignals": FlyteCall(list_matching),
    "SetSignal": FlyteCall(set_value),
    "CreateUploadLocation": FlyteCall(create_upload_location, needs_url=True),
    "CreateDownloadLocation": FlyteCall(create_download_location, needs_url=True),
    "CreateDownloadLink": FlyteCall(create_download_link, needs_url=True),
    "GetData": FlyteCall(get_data, needs_url=True),
    "GetVersion": FlyteCall(projects.version, is_open=True),
}
