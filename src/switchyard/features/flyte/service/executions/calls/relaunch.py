"""Relaunch and recover an execution: its spec and inputs again, under another name, perhaps on another pool.

A recovered execution takes over the nodes that have succeeded, with their outputs, and runs the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from flyteidl.admin import execution_pb2, launch_plan_pb2

from switchyard.errors import BadRequest, Conflict, Denied, NotFound
from switchyard.features.flyte.service.entities.scope import require_read
from switchyard.features.flyte.service.executions.calls.creation import (
    ExecutionOrigin,
    create_execution,
    is_same,
    request_digest,
)
from switchyard.features.flyte.service.executions.calls.graphs import find_entity
from switchyard.features.flyte.service.executions.calls.reads import find_execution, read_key
from switchyard.features.flyte.service.executions.calls.visible import ExecutionSight
from switchyard.features.flyte.service.executions.nodes.node_jobs import read_spec
from switchyard.features.flyte.service.executions.nodes.node_rows import read_literals
from switchyard.features.flyte.service.executions.nodes.recovered_nodes import (
    RECOVERED_MODE,
    data_cluster,
    nodes_to_take_over,
)
from switchyard.features.flyte.store.executions import child_executions, execution_recovery
from switchyard.features.flyte.store.executions.execution_recovery import RecoverableNode
from switchyard.features.flyte.store.executions.executions import ExecutionKey, ExecutionRow
from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind
from switchyard.features.flyte.workflow.engine.execution_state import ExecutionPhase
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.core.writes.batch import Batch
from switchyard.service.lifecycle.visibility import Visibility

Mode = execution_pb2.ExecutionMetadata.ExecutionMode
# What a request may say anew; all else is as in the execution before.
OWN_FIELDS = (
    *("cluster_assignment", "execution_cluster_label", "labels", "annotations", "envs", "max_parallelism"),
    *("interruptible", "overwrite_cache", "security_context"),
)


@dataclass(frozen=True, slots=True)
class RunAgain:
    """A request to run an execution again. `mode`: RELAUNCH or RECOVERED. `name`: of the new one."""

    mode: str
    reference: Any  # an identifier of Flyte's
    name: str
    digest: bytes


def relaunch(context: Context, actor: Actor, request: Any) -> ExecutionKey:
    again = RunAgain("RELAUNCH", request.id, request.name, request_digest(request))
    return _run_again(context, actor, again, execution_pb2.ExecutionSpec(overwrite_cache=request.overwrite_cache))


def recover(context: Context, actor: Actor, request: Any) -> ExecutionKey:
    again = RunAgain(RECOVERED_MODE, request.id, request.name, request_digest(request))
    return _run_again(context, actor, again, execution_pb2.ExecutionSpec())


def is_again(request: Any) -> bool:
    """Whether a request to create an execution relaunches or recovers another one, with fields of its own."""
    metadata = request.spec.metadata
    return metadata.mode in (Mode.RELAUNCH, Mode.RECOVERED) and bool(metadata.reference_execution.name)


def create_again(context: Context, actor: Actor, request: Any) -> ExecutionKey:
    """Relaunch or recover by CreateExecution: so pool, label and other fields can change."""
    metadata = request.spec.metadata
    reference, place = metadata.reference_execution, (request.project, request.domain)
    if (reference.project, reference.domain) != place:
        raise BadRequest(f"reference_execution is in another project or domain than {request.project}:{request.domain}")
    if request.inputs.literals or request.spec.inputs.literals:
        raise BadRequest("the inputs are those of reference_execution; leave them out")
    again = RunAgain(Mode.Name(metadata.mode), reference, request.name, request_digest(request))
    return _run_again(context, actor, again, request.spec)


def _run_again(context: Context, actor: Actor, again: RunAgain, changes: Any) -> ExecutionKey:
    """`changes`: a spec with the fields that are not as before."""
    key, mode = read_key(again.reference), again.mode
    require_read(actor, key.project, key.domain)
    # The same request again is the same execution, also when the one before is gone.
    new_key = ExecutionKey(key.project, key.domain, again.name)
    if again.name and "\0" not in again.name and is_same(context, actor, new_key, again.digest):
        return new_key
    row = _find(context, actor, key)
    nodes: list[RecoverableNode] = []
    has_children = False
    if mode == RECOVERED_MODE:
        if not ExecutionPhase(row.phase).is_final:
            raise Conflict(f"The execution {key} is not over: {row.phase}.", next_step="Wait, or terminate it first.")
        with context.database.read() as tx:
            nodes = execution_recovery.recoverable_nodes(tx, row.id)
            has_children = child_executions.descendants_count(tx, row.root_id or row.id) > 0
    made = execution_pb2.ExecutionCreateRequest(
        project=key.project, domain=key.domain, name=again.name, spec=_spec(row, changes), inputs=_inputs(context, row)
    )
    ids = nodes_to_take_over(nodes)
    origin = ExecutionOrigin(
        mode,
        again.digest,
        reference=again.reference,
        take_over=partial(_take_over, source=row.id, node_ids=ids) if ids else None,
        # Its children take over nodes, too, and their data may be there.
        home=row.cluster if (ids or has_children) and row.cluster in context.snapshots.world.by_name else "",
        data_cluster=_data_cluster(context, row) if ids else "",
    )
    return create_execution(context, actor, made, origin)


def _data_cluster(context: Context, row: ExecutionRow) -> str:
    """The cluster whose folder has the data of an execution; empty: the data is in no folder.

    Raises BadRequest if the cluster is gone: the outputs of nodes that have succeeded went with it.
    """
    cluster = data_cluster(read_spec(row))
    if cluster and cluster not in context.snapshots.world.by_name:
        raise BadRequest(
            f"The execution {row.key} has its data in a folder of the cluster {cluster}, which is gone.",
            next_step="Relaunch it: then all nodes run again.",
        )
    return cluster


def _find(context: Context, actor: Actor, key: ExecutionKey) -> ExecutionRow:
    try:
        with context.database.read() as tx:
            row = find_execution(tx, actor, key)
    except NotFound as exc:
        raise NotFound(f"{exc.detail}. One that was removed cannot be relaunched or recovered") from exc
    if ExecutionSight(Visibility(context, actor), row).execution(row).spec != row.spec:
        raise Denied(
            f"The execution {key} has an environment or secrets of its owner.",
            next_step="Its owner and operators of the project may relaunch and recover it.",
        )
    return row


def _spec(row: ExecutionRow, changes: Any) -> Any:
    spec = read_spec(row)
    named = changes.launch_plan
    if named.name and (named.name, named.version) != (spec.launch_plan.name, spec.launch_plan.version):
        raise BadRequest("launch_plan is not that of reference_execution; leave it out")
    for descriptor, _ in changes.ListFields():
        if descriptor.name not in OWN_FIELDS:
            continue
        spec.ClearField(descriptor.name)
        value = getattr(changes, descriptor.name)
        if descriptor.message_type is None:
            setattr(spec, descriptor.name, value)
        else:
            getattr(spec, descriptor.name).CopyFrom(value)
    spec.ClearField("inputs")
    return spec


def _inputs(context: Context, row: ExecutionRow) -> Any:
    """What the user gave, with defaults: all inputs but those that the launch plan fixes."""
    inputs = read_literals(row.inputs)
    if row.entity_kind == EntityKind.LAUNCH_PLAN:
        plan = EntityId(
            EntityKind.LAUNCH_PLAN, row.entity_project, row.entity_domain, row.entity_name, row.entity_version
        )
        spec = launch_plan_pb2.LaunchPlanSpec.FromString(find_entity(context, plan).body)
        for name in spec.fixed_inputs.literals:
            inputs.literals.pop(name, None)
    return inputs


def _take_over(batch: Batch, execution_id: str, *, source: str, node_ids: list[str]) -> None:
    if execution_recovery.is_removed(batch.tx, source):
        raise NotFound("missing entity of type execution: the one to recover was removed meanwhile")
    execution_recovery.nodes_copy(batch.tx, source, execution_id, node_ids, now_us=batch.now_us)
