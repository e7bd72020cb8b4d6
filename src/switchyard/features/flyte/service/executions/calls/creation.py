"""Create an execution: check everything that can be checked, then store it. The leader's engine starts its nodes.

The same request under the same name is the same execution; another request under a name that is taken is a conflict.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from typing import Any

import msgspec

from switchyard.errors import BadRequest, Conflict, Malformed, MethodNotAllowed, TooLarge, YardError
from switchyard.features.flyte.service.entities.node_limit import refuse_many_nodes
from switchyard.features.flyte.service.entities.scope import require_active_project, require_write
from switchyard.features.flyte.service.executions.calls.data_places import settle_data_place
from switchyard.features.flyte.service.executions.calls.execution_counts import count_phase
from switchyard.features.flyte.service.executions.calls.execution_switch import require_executions
from switchyard.features.flyte.service.executions.calls.launch_targets import LaunchTarget, fill_from_plan, find_target
from switchyard.features.flyte.service.executions.driving.live_limits import (
    lock_policy,
    refuse_over_limits,
    refuse_over_policy,
)
from switchyard.features.flyte.service.executions.nodes.child_placement import child_fits
from switchyard.features.flyte.service.executions.nodes.node_jobs import check_uploads, read_spec, uploaded_entry
from switchyard.features.flyte.service.executions.nodes.placement import (
    ClusterChoice,
    choose_cluster,
    has_tasks,
    try_first_task,
)
from switchyard.features.flyte.store.executions import execution_tags
from switchyard.features.flyte.store.executions import executions as store
from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind
from switchyard.features.flyte.workflow.compile.launch_plan_checks import label_mistakes, notification_mistakes
from switchyard.features.flyte.workflow.engine.execution_checks import (
    complete_inputs,
    data_of_tasks,
    name_mistake,
    unserved_parts,
)
from switchyard.features.flyte.workflow.engine.execution_graph import ExecutionGraph, count_nodes_to_run, read_graph
from switchyard.features.flyte.workflow.engine.execution_state import ExecutionPhase
from switchyard.features.flyte.workflow.engine.run_ids import NODE_ID_BYTES_MAX, longest_node_id, run_id_mistakes
from switchyard.features.flyte.workflow.values.content import content_bytes
from switchyard.features.flyte.workflow.values.nesting import check_inputs_depth
from switchyard.model.cluster.verdict import Plan
from switchyard.model.rules.names import printable_line
from switchyard.policy.namespace_names import namespace_of
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.core.writes.audit import record_audit
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.service.submit.submit import Submit

REQUEST_BYTES_MAX = 4 * 2**20
MISTAKES_SHOWN = 20
NAME_CHARS = 20
TAGS_MAX, TAG_CHARS_MAX = 64, 256
LABELS_FOUND_MAX = 64  # labels of one execution that lists are filtered by
SCHEDULED_MODE, SCHEDULED_PREFIX = "SCHEDULED", "sched-"
LARGE_BYTES_MIN = 64 * 2**10  # such an execution is written in the queue of large writes


@dataclass(frozen=True, slots=True)
class ExecutionOrigin:
    """What a new execution comes from. `mode`: Flyte's word. `digest`: of the request that was sent.

    `take_over`: stores nodes of another execution as nodes of the new one, in the transaction that inserts it.
    """

    mode: str = "MANUAL"
    digest: bytes = b""
    reference: Any = None
    scheduled_us: int | None = None
    take_over: Callable[[Batch, str], None] | None = None
    home: str = ""  # the cluster of the parent of a child, or of the execution that this one recovers
    data_cluster: str = ""  # the cluster that has data of nodes that are taken over: the execution stays there


MANUAL = ExecutionOrigin()


@dataclass(frozen=True, slots=True)
class PreparedExecution:
    """An execution that was checked. `live_max`: live executions that the launch plan allows; 0: any number."""

    row: store.ExecutionRow
    entity: EntityId
    live_max: int


def create_execution(
    context: Context, actor: Actor, request: Any, origin: ExecutionOrigin = MANUAL
) -> store.ExecutionKey:
    require_write(context, actor, request.project, request.domain)
    require_executions(context)
    if (size := request.ByteSize()) > REQUEST_BYTES_MAX:
        raise TooLarge(f"The execution has {size} bytes; the most is {REQUEST_BYTES_MAX}.")
    name = request.name or _random_name()
    if mistake := name_mistake(name):
        raise BadRequest(mistake)
    requested_inputs = request.inputs if request.inputs.literals else request.spec.inputs
    check_inputs_depth(requested_inputs)
    key = store.ExecutionKey(request.project, request.domain, name)
    digest = origin.digest or request_digest(request)
    if request.name and is_same(context, actor, key, digest):
        return key
    if origin.mode != SCHEDULED_MODE and name.startswith(SCHEDULED_PREFIX):
        raise BadRequest(f"name: names that begin with {SCHEDULED_PREFIX} are those of scheduled executions")
    _refuse_fields(request.spec)
    prepared = prepare_execution(context, actor, key, request.spec, requested_inputs, digest=digest, origin=origin)

    def apply(batch: Batch) -> bool:
        require_active_project(batch.tx, key.project, key.domain)
        refuse_over_limits(batch, context, actor, key.project)
        if not insert_execution(batch, context, actor, prepared):
            return False
        if origin.take_over is not None:
            origin.take_over(batch, prepared.row.id)
        return True

    committer = context.committer
    is_large = len(prepared.row.inputs) + len(prepared.row.spec) > LARGE_BYTES_MIN or origin.take_over is not None
    is_new = committer.call_large(apply, locks=(), user=actor.name) if is_large else committer.call(apply)
    if not is_new and not is_same(context, actor, key, digest):  # somebody else was faster, and has ended since
        raise Conflict(f"The execution {key} was created by another request meanwhile.")
    return key


def prepare_execution(
    context: Context,
    actor: Actor,
    key: store.ExecutionKey,
    requested_spec: Any,
    requested_inputs: Any,
    *,
    digest: bytes,
    origin: ExecutionOrigin = MANUAL,
) -> PreparedExecution:
    """Check an execution with the spec and the inputs that were requested, and return what to insert."""
    target = find_target(context, actor, requested_spec)
    _refuse_unserved(target)
    live_max = int(target.plan.concurrency_policy.max)
    if live_max:
        with context.database.read() as tx:  # most refusals come from here; `insert_execution` decides
            refuse_over_policy(tx, target.entity, live_max)
    inputs, mistakes = complete_inputs(target.expected, target.plan.fixed_inputs.literals, requested_inputs.literals)
    notices = notification_mistakes(requested_spec.notifications.notifications)
    _refuse_mistakes(
        [*run_id_mistakes(target.closure), *label_mistakes(requested_spec.labels.values), *notices, *mistakes]
    )
    for address in check_uploads(key.project, key.domain, inputs):
        uploaded_entry(context, address)
    spec = _effective_spec(requested_spec, target, actor, origin)
    spec.metadata.system_metadata.namespace = _namespace(context, key)
    spec.metadata.system_metadata.execution_cluster = origin.data_cluster
    row = _row(context, actor, key, target, spec=spec, inputs=inputs, digest=digest)
    graph = read_graph(target.closure)
    refuse_many_nodes(context, count_nodes_to_run(graph))
    if longest_node_id(graph) > NODE_ID_BYTES_MAX:
        raise BadRequest("The workflows are nested so deeply that the ids of the inner nodes become too long.")
    row = msgspec.structs.replace(row, mode=origin.mode, cluster=origin.home)
    try:
        row = _place(context, actor, row, target, graph)
    except YardError:
        context.snapshots.refresh()  # a refusal must not come from an old snapshot
        row = _place(context, actor, row, target, graph)
    return PreparedExecution(row, target.entity, live_max)


def insert_execution(batch: Batch, context: Context, actor: Actor, prepared: PreparedExecution) -> bool:
    """Insert an execution. Returns False if its name is taken. Raises LimitReached."""
    row = prepared.row
    if prepared.live_max:
        lock_policy(batch.tx, prepared.entity)
        if store.execution_get(batch.tx, row.key) is not None:  # the same request, sent twice, is not refused
            return False
        refuse_over_policy(batch.tx, prepared.entity, prepared.live_max)
    if not store.execution_insert(batch.tx, row):
        return False
    spec = read_spec(row)
    labels = dict(islice(sorted(spec.labels.values.items()), LABELS_FOUND_MAX))
    execution_tags.tags_insert(batch.tx, row.id, tags=spec.tags, labels=labels)
    batch.topics.add(Topic.EXECUTIONS)
    count_phase(batch, context, row)
    record_audit(batch, context, actor, "execution.create", str(row.key), after={"launches": launched_text(row)})
    return True


def _place(
    context: Context, actor: Actor, row: store.ExecutionRow, target: LaunchTarget, graph: ExecutionGraph
) -> store.ExecutionRow:
    """Choose the cluster and the place for data. Refuses tasks that the rules forbid, or that fit nowhere."""
    submit, spec = Submit(context), read_spec(row)

    def choose(spec: Any) -> ClusterChoice:
        children = child_fits(submit, actor, row, spec, graph, context=context)
        return choose_cluster(submit, actor, row, spec, graph, children=children)

    def plan_of(spec: Any) -> Plan:
        """How the first task would be decided, on a cluster where all tasks fit."""
        plan = try_first_task(submit, actor, row, spec, graph)
        return msgspec.structs.replace(plan, chosen=choose(spec).cluster or None)

    if has_tasks(graph):
        needs = next(data_of_tasks(target.closure), "")
        settle_data_place(context, row, spec, target.plan, needs=needs, try_plan=plan_of)
    choice = choose(spec)
    return msgspec.structs.replace(
        row, spec=content_bytes(spec), cluster=choice.cluster, pool=choice.pool, label=choice.label
    )


def launched_text(row: store.ExecutionRow) -> str:
    """What was launched, for the audit."""
    kind = EntityKind(row.entity_kind)
    return str(EntityId(kind, row.entity_project, row.entity_domain, row.entity_name, row.entity_version))


def request_digest(request: Any) -> bytes:
    """The digest of a request to create or repeat an execution. Equal digests: the same request.

    The order of environment variables does not count: flytectl sends those of a file in another order each time.
    """
    canonical = request
    if "spec" in request.DESCRIPTOR.fields_by_name and len(request.spec.envs.values) > 1:
        canonical = type(request)()
        canonical.CopyFrom(request)
        canonical.spec.envs.values.sort(key=lambda pair: pair.key)
    return sha256(type(request).DESCRIPTOR.name.encode() + content_bytes(canonical)).digest()


def is_same(context: Context, actor: Actor, key: store.ExecutionKey, digest: bytes) -> bool:
    """Whether this very request of this user has made the execution. Raises Conflict if another one has.

    An equal request of another user is another one: the answer would confirm what this one has guessed.
    """
    with context.database.read() as tx:
        row = store.execution_get(tx, key)
    if row is None:
        return False
    if bytes(row.digest) != digest or (row.owner_id, row.owner) != (actor.id, actor.name):
        raise Conflict(
            f"There is an execution {key} already, made by another request.",
            next_step="Give another name. The same request under the same name is answered with the same execution.",
        )
    return True


def _refuse_fields(spec: Any) -> None:
    """Fields that would be ignored are refused instead."""
    if spec.execution_env_assignments:
        raise _not_served(["execution_env_assignments"])
    if spec.metadata.HasField("parent_node_execution"):
        raise BadRequest("parent_node_execution is set by the server alone")
    if len(spec.tags) > TAGS_MAX or any(len(tag) > TAG_CHARS_MAX or printable_line(tag) != tag for tag in spec.tags):
        raise BadRequest(
            f"tags: an execution has at most {TAGS_MAX}, of {TAG_CHARS_MAX} characters each, without control characters"
        )
    if spec.max_parallelism < 0:
        raise BadRequest("max_parallelism is below 0")


def _refuse_unserved(target: LaunchTarget) -> None:
    parts = list(islice(unserved_parts(target.closure), MISTAKES_SHOWN))
    if parts:
        raise _not_served(parts)


def _not_served(parts: list[str]) -> YardError:
    return MethodNotAllowed(
        f"This cannot be executed here yet: {'; '.join(parts)}.",
        next_step="docs/how-to/run-flyte-workflows.md lists what runs.",
    )


def _refuse_mistakes(mistakes: list[str]) -> None:
    if mistakes:
        more = ["and more"] if len(mistakes) > MISTAKES_SHOWN else []
        raise Malformed("; ".join([*mistakes[:MISTAKES_SHOWN], *more]))


def _effective_spec(requested: Any, target: LaunchTarget, actor: Actor, origin: ExecutionOrigin) -> Any:
    """The spec with what the launch plan says where the request says nothing; maps are replaced whole."""
    spec = type(requested)()
    spec.CopyFrom(requested)
    spec.ClearField("inputs")
    spec.metadata.principal = actor.name
    cleared = ["system_metadata", "mode", "reference_execution", "scheduled_at"]
    for field in (*cleared, *([] if origin.mode == store.CHILD_MODE else ["nesting"])):
        spec.metadata.ClearField(field)
    spec.metadata.mode = spec.metadata.ExecutionMode.Value(origin.mode)
    if origin.reference is not None:
        spec.metadata.reference_execution.CopyFrom(origin.reference)
    if origin.scheduled_us is not None:
        spec.metadata.scheduled_at.FromMicroseconds(origin.scheduled_us)
    spec.launch_plan.resource_type = target.entity.kind.number
    fill_from_plan(spec, target.plan)
    return spec


def _namespace(context: Context, key: store.ExecutionKey) -> str:
    """The namespace that jobs of this project and domain have on Kubernetes. Empty: the name would be none."""
    try:
        return namespace_of(context.namespace_template, project=key.project, domain=key.domain)
    except ValueError:
        return ""


def _row(
    context: Context,
    actor: Actor,
    key: store.ExecutionKey,
    target: LaunchTarget,
    *,
    spec: Any,
    inputs: Any,
    digest: bytes,
) -> store.ExecutionRow:
    entity, workflow, now_us = target.entity, target.workflow, context.now_us()
    return store.ExecutionRow(
        id=context.new_id(),
        project=key.project,
        domain=key.domain,
        name=key.name,
        owner=actor.name,
        owner_id=actor.id,
        digest=digest,
        spec=content_bytes(spec),
        inputs=content_bytes(inputs),
        outputs=None,
        error=None,
        phase=ExecutionPhase.QUEUED.value,
        is_archived=False,
        is_due=True,
        is_stopping=False,
        steps=0,
        entity_kind=entity.kind.value,
        entity_project=entity.project,
        entity_domain=entity.domain,
        entity_name=entity.name,
        entity_version=entity.version,
        workflow_project=workflow.project,
        workflow_domain=workflow.domain,
        workflow_name=workflow.name,
        workflow_version=workflow.version,
        abort_cause="",
        abort_by="",
        created_us=now_us,
        updated_us=now_us,
        started_us=None,
        ended_us=None,
    )


def _random_name() -> str:
    """As in Flyte: `a`, then letters and digits."""
    return "a" + "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(NAME_CHARS - 1))
