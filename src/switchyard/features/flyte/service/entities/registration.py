"""Register a task, a workflow or a launch plan. A version has one content for ever; the same content twice is told so.

A workflow is compiled before anything is written, on the caller's thread. What it refers to is never deleted, so that
nothing can change between the compilation and the write.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from flyteidl.admin import launch_plan_pb2
from msgspec.structs import replace

from switchyard.errors import BadRequest, LimitReached, Malformed, NameTaken, TooLarge
from switchyard.features.flyte.service.entities.known_signatures import (
    find_signatures,
    task_sizes,
    workflow_interface,
)
from switchyard.features.flyte.service.entities.node_limit import refuse_many_nodes
from switchyard.features.flyte.service.entities.scope import require_active_project, require_write, stored_key
from switchyard.features.flyte.store.entities import entities as store
from switchyard.features.flyte.workflow.compile.compiler import WorkflowSource, compile_workflow, count_nodes
from switchyard.features.flyte.workflow.compile.difference import describe_difference
from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind, id_mistakes, read_id
from switchyard.features.flyte.workflow.compile.launch_plan_checks import expected_inputs, launch_plan_mistakes
from switchyard.features.flyte.workflow.compile.references import references
from switchyard.features.flyte.workflow.compile.task_checks import task_mistakes
from switchyard.features.flyte.workflow.values.content import content_bytes, content_digest, is_same
from switchyard.features.flyte.workflow.values.limits import CONFIG_SECTION, WorkflowLimits
from switchyard.features.flyte.workflow.values.nesting import (
    check_launch_plan_depth,
    check_task_depth,
    check_workflow_depth,
)
from switchyard.model.jobspec.quantity import show_bytes
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.core.writes.audit import record_audit
from switchyard.service.core.writes.batch import Batch

ENTITY_BYTES_MAX = 4 * 2**20  # of a request; over HTTP it comes as JSON, which is longer
CLOSURE_BYTES_MAX = 16 * 2**20  # of a compiled workflow with its tasks: flytekit reads 20 MiB
LARGE_BYTES_MIN = 64 * 2**10  # such a content is written in the queue of large writes
DESCRIPTION_CHARS_MAX = 1000
MISTAKES_SHOWN = 20


@dataclass(frozen=True)
class NewEntity:
    """An entity that passed all checks. `content` is stored without the entity's own id."""

    id: EntityId
    content: Any
    signature: Any
    description: str = ""
    type: str = ""
    workflow: EntityId | None = None
    schedule_type: str = ""


def create_task(context: Context, actor: Actor, request: Any) -> None:
    task_id = _checked_id(context, actor, request, EntityKind.TASK)
    template = _required(request.spec, "template")
    check_task_depth(template)
    _refuse_mistakes(task_mistakes(template, task_limits(context, task_id)))
    content = type(template)()
    content.CopyFrom(template)
    content.ClearField("id")
    description = request.spec.description.short_description
    _register(
        context, actor, NewEntity(task_id, content, template.interface, _short(description), type=template.type[:255])
    )


def create_workflow(context: Context, actor: Actor, request: Any) -> None:
    workflow_id = _checked_id(context, actor, request, EntityKind.WORKFLOW)
    template = _required(request.spec, "template")
    template.id.CopyFrom(request.id)
    subs = tuple(request.spec.sub_workflows)
    check_workflow_depth(template, subs)
    refuse_many_nodes(context, count_nodes(template, subs))
    known = find_signatures(context, actor, references([template, *subs]))
    closure, mistakes = compile_workflow(WorkflowSource(template, subs, known))
    if closure is None:
        raise BadRequest(f"failed to compile workflow for [{workflow_id}] with err {mistakes.as_text()}")
    size = closure.ByteSize() + task_sizes(context, closure)
    if size > CLOSURE_BYTES_MAX:
        raise BadRequest(
            f"The compiled workflow has {size} bytes with its tasks; the most is {CLOSURE_BYTES_MAX}.",
            next_step="Split it into workflows that call each other by launch plans.",
        )
    interface = closure.primary.template.interface
    closure.primary.template.ClearField("id")
    description = request.spec.description.short_description
    _register(context, actor, NewEntity(workflow_id, closure, interface, _short(description)))


def create_launch_plan(context: Context, actor: Actor, request: Any) -> None:
    plan_id = _checked_id(context, actor, request, EntityKind.LAUNCH_PLAN)
    check_launch_plan_depth(request.spec)
    _refuse_mistakes(id_mistakes(request.spec.workflow_id, EntityKind.WORKFLOW), "workflow_id: ")
    workflow_id = read_id(request.spec.workflow_id, EntityKind.WORKFLOW)
    interface = workflow_interface(context, actor, workflow_id)
    inputs = interface.inputs.variables
    _refuse_mistakes(launch_plan_mistakes(request.spec, inputs))
    spec = launch_plan_pb2.LaunchPlanSpec()
    spec.CopyFrom(request.spec)
    spec.default_inputs.CopyFrom(expected_inputs(request.spec, inputs))  # as Flyte answers it
    spec.workflow_id.resource_type = EntityKind.WORKFLOW.number
    closure = launch_plan_pb2.LaunchPlanClosure(expected_inputs=spec.default_inputs, expected_outputs=interface.outputs)
    schedule = spec.entity_metadata.schedule.WhichOneof("ScheduleExpression")
    kind = "NONE" if schedule is None else "RATE" if schedule == "rate" else "CRON"
    _register(context, actor, NewEntity(plan_id, spec, closure, workflow=workflow_id, schedule_type=kind))


def _register(context: Context, actor: Actor, new: NewEntity) -> None:
    body = content_bytes(new.content)
    row = _row(new, body, created_by=actor.name)
    refuse_taken(context, new.id, type(new.content), row.digest, body)

    def apply(batch: Batch) -> bool:
        require_active_project(batch.tx, row.project, row.domain)
        stamped = _stamped(row, batch.now_us)
        if not store.entity_insert(batch.tx, stamped):
            return False
        store.content_put(batch.tx, row.digest, body)
        _refuse_over_limits(context, store.usage_add(batch.tx, row.project, row.size))
        after = {"digest": row.digest.hex(), "bytes": row.size}
        record_audit(batch, context, actor, f"{new.id.kind.value}.register", str(new.id), after=after)
        return True

    committer = context.committer
    if row.size > LARGE_BYTES_MIN:
        is_new = committer.call_large(apply, locks=(), user=actor.name)
    else:
        is_new = committer.call(apply)
    if not is_new:  # somebody else was faster
        refuse_taken(context, new.id, type(new.content), row.digest, body)


def _row(new: NewEntity, body: bytes, *, created_by: str) -> store.EntityRow:
    key, workflow = stored_key(new.id), new.workflow
    return store.EntityRow(
        kind=key.kind,
        project=key.project,
        domain=key.domain,
        name=key.name,
        version=key.version,
        digest=content_digest(body),
        size=len(body),
        signature=content_bytes(new.signature),
        type=new.type,
        description=new.description,
        workflow_project=workflow.project if workflow else "",
        workflow_domain=workflow.domain if workflow else "",
        workflow_name=workflow.name if workflow else "",
        workflow_version=workflow.version if workflow else "",
        schedule_type=new.schedule_type,
        is_active=False,
        created_us=0,
        updated_us=0,
        created_by=created_by,
    )


def _stamped(row: store.EntityRow, now_us: int) -> store.EntityRow:
    return replace(row, created_us=now_us, updated_us=now_us)


def _checked_id(context: Context, actor: Actor, request: Any, kind: EntityKind) -> EntityId:
    """The id of a new entity, whose project takes it from this user."""
    if not request.HasField("id"):
        raise BadRequest("missing id")
    require_write(context, actor, request.id.project, request.id.domain)
    if (size := request.ByteSize()) > ENTITY_BYTES_MAX:
        raise TooLarge(f"The {kind.words} has {size} bytes; the most is {ENTITY_BYTES_MAX}.")
    _refuse_mistakes(id_mistakes(request.id, kind))
    _required(request, "spec")
    return read_id(request.id, kind)


def _required(message: Any, field: str) -> Any:
    if not message.HasField(field):
        raise BadRequest(f"missing {field}")
    return getattr(message, field)


def _refuse_mistakes(mistakes: Iterable[str], prefix: str = "") -> None:
    given = list(islice(mistakes, MISTAKES_SHOWN + 1))
    if len(given) > MISTAKES_SHOWN:
        given[MISTAKES_SHOWN:] = ["and more"]
    if given:
        raise Malformed(prefix + "; ".join(given) + ".")


def _refuse_over_limits(context: Context, usage: store.EntityUsageRow) -> None:
    """Raised in the write's transaction, which is then undone."""
    limits = context.setting(WorkflowLimits)
    for name, most, used, shown in (
        ("project_entities", limits.project_entities, usage.entities, str),
        ("project_bytes", limits.project_bytes, usage.bytes, show_bytes),
    ):
        if 0 < most < used:
            error = LimitReached(
                f"The limit `{CONFIG_SECTION}.{name}` of {shown(most)} is reached: with this one, project "
                f"{usage.project} would have {shown(used)}. The section `{CONFIG_SECTION}` of the server's config "
                "file sets it.",
                next_step="Register in another project, or ask an administrator to raise the limit.",
            )
            error.limit = f"{CONFIG_SECTION}.{name}"
            raise error


def task_limits(context: Context, task: EntityId) -> dict[str, str]:
    """The most of each resource that the rules of the project and domain allow."""
    policy = context.snapshots.policy
    fields = policy.effective((task.domain, task.project, "", "")).fields(policy.kinds.get("task-resource-attribute"))
    return {
        path.removeprefix("limits."): str(entry.value)
        for path, entry in fields.items()
        if path.startswith("limits.") and entry.value not in (None, "")
    }


def _short(text: str) -> str:
    return text.replace("\0", " ")[:DESCRIPTION_CHARS_MAX]


def refuse_taken(context: Context, entity: EntityId, kind: type[Any], digest: bytes, body: bytes) -> None:
    """Raise if the entity is registered. Takes long for large ones: never call it in the committer."""
    with context.database.read() as tx:
        row = store.entity_get(tx, stored_key(entity))
        if row is None:
            return
        stored = body if row.digest == digest else store.content_bodies(tx, [row.digest])[bytes(row.digest)]
    if is_same(kind, stored, body):
        raise NameTaken(
            f"{entity.kind.words} with identical structure already exists with id {entity}",
            next_step="Nothing is left to do: it is registered.",
        )
    difference = describe_difference(kind.FromString(stored), kind.FromString(body))
    raise BadRequest(
        f"{entity.kind.words} with different structure already exists with id {entity}; its difference: {difference}",
        next_step="Register it under another version.",
    )
