"""Flyte's attribute calls on our stored rows. A get returns the most specific row; rows are not merged.

Values are converted between our kinds and Flyte's messages without loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from flyteidl.admin import matchable_resource_pb2
from flyteidl.admin import matchable_resource_pb2 as matchable
from google.protobuf import json_format

from switchyard.errors import Malformed, NoSuchAttribute
from switchyard.features.flyte.server.bindings import answer_class
from switchyard.features.flyte.server.grpc_status import FlyteInvalid, FlyteNotFound
from switchyard.model.jobspec.quantity import parse_duration_s
from switchyard.model.rules.access import Role
from switchyard.model.rules.attributes import AttributeRow
from switchyard.model.rules.scope import Scope
from switchyard.model.wire.decode import convert
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.rules import attributes

PLUGIN_OVERRIDE, EXECUTION_CONFIG = 5, 6
ROWS_PER_PAGE = 500


@dataclass(frozen=True)
class FlyteLevel:
    """A level of Flyte's. `word`: its part in the names of calls. `fields`: the request fields that name a row."""

    word: str
    fields: tuple[str, ...]

    def named(self, message: Any) -> dict[str, str]:
        return {field: getattr(message, field) for field in self.fields}


PROJECT = FlyteLevel("Project", ("project",))
PROJECT_DOMAIN = FlyteLevel("ProjectDomain", ("project", "domain"))
WORKFLOW = FlyteLevel("Workflow", ("project", "domain", "workflow"))


def update(level: FlyteLevel, context: Context, actor: Actor, request: Any) -> Any:
    """Create or replace the row; the last writer wins. Plugin overrides are added to the row's, as in Flyte."""
    if not request.HasField("attributes"):
        raise FlyteInvalid("missing attributes")
    named = level.named(request.attributes)
    scope = _scope(context, actor, named, for_write=True)
    if not request.attributes.HasField("matching_attributes"):
        raise FlyteInvalid("missing matching_attributes")
    given = request.attributes.matching_attributes
    if given.WhichOneof("target") is None:
        raise FlyteInvalid(f"Unrecognized matching attributes type for request {'-'.join(named.values())}")
    number, value = from_matching_attributes(given)
    attributes.put(context, actor, number, scope, value, is_merged=number == PLUGIN_OVERRIDE)
    return answer_class(f"Update{level.word}Attributes")()


def get(level: FlyteLevel, context: Context, actor: Actor, request: Any) -> Any:
    """Return the most specific row for the scope; at the project level only the project's row."""
    named, number = level.named(request), request.resource_type
    scope = _scope(context, actor, named, for_write=False)
    if number not in BY_NUMBER:
        row = None
    elif level is PROJECT:
        row = _project_row(context, actor, number, scope)
    else:
        row = attributes.get_nearest(context, actor, number, scope)
    if row is None:
        at = " ".join(f"{word}:{named.get(word.lower(), '')}" for word in ("Project", "Domain", "Workflow"))
        raise FlyteNotFound(f"Resource [{{{at} LaunchPlan: ResourceType:{type_name(number)}}}] not found")
    fields: dict[str, Any] = {field: getattr(row.scope, field) or "" for field in level.fields}
    fields["matching_attributes"] = to_matching_attributes(row.number, row.value)
    return answer_class(f"Get{level.word}Attributes")(attributes=fields)


def delete(level: FlyteLevel, context: Context, actor: Actor, request: Any) -> Any:
    """Delete exactly that row. It is no error if there is none."""
    scope = _scope(context, actor, level.named(request), for_write=True)
    if request.resource_type not in BY_NUMBER:
        raise FlyteInvalid("invalid value for resource_type")
    attributes.delete_exact(context, actor, request.resource_type, scope)
    return answer_class(f"Delete{level.word}Attributes")()


def list_all(context: Context, actor: Actor, request: Any) -> Any:
    """List the visible rows of a kind at all levels, the most specific first. Flyte's list has no pages."""
    if request.resource_type not in BY_NUMBER:
        raise FlyteInvalid("invalid value for resource_type")
    configurations = [
        matchable.MatchableAttributesConfiguration(
            attributes=to_matching_attributes(row.number, row.value),
            domain=row.scope.domain or "",
            project=row.scope.project or "",
            workflow=row.scope.workflow or "",
            launch_plan=row.scope.launch_plan or "",
        )
        for row in _rows(context, actor, request.resource_type)
    ]
    return matchable.ListMatchableAttributesResponse(configurations=configurations)


def _rows(context: Context, actor: Actor, number: int) -> Iterator[AttributeRow]:
    after: str | None = ""
    while after is not None:
        page = attributes.list_rows(context, actor, number, after=after, limit=ROWS_PER_PAGE)
        yield from page.items
        after = page.next


def _project_row(context: Context, actor: Actor, number: int, scope: Scope) -> AttributeRow | None:
    """The project's row. Missing fields of the execution config come from the platform, as in Flyte."""
    try:
        row = attributes.get_exact(context, actor, number, scope)
    except NoSuchAttribute:
        row = None
    if number != EXECUTION_CONFIG:
        return row
    policy = context.snapshots.policy
    kind = attributes.kind_of(context, number)
    platform = policy.platform.values.get(kind.name)
    fields = {} if platform is None else kind.flatten(platform)
    fields |= {} if row is None else kind.flatten(kind.read(row.value))
    value = msgspec.to_builtins(kind.assemble(fields))
    if row is not None:
        return msgspec.structs.replace(row, value=value)
    return AttributeRow(id="", kind=kind.name, number=number, level=scope.level, scope=scope, value=value, etag="")


def _scope(context: Context, actor: Actor, named: dict[str, str], *, for_write: bool) -> Scope:
    """The scope of a request. Checks have Flyte's order, and refusals its words."""
    project, domain = named["project"], named.get("domain")
    actor.need_project(Role.VIEW, project)  # first: whether a project exists is not for everyone to know
    is_active = _is_active(context, project)
    if is_active is None:
        raise FlyteInvalid(_unregistered(project, domain, for_write=for_write))
    if not is_active and (for_write or domain is not None):
        raise FlyteInvalid(f"project [{project}] is not active")
    if domain is not None and domain not in context.snapshots.policy.platform.domains:
        raise FlyteInvalid(f"domain [{domain}] is unrecognized by system")
    if named.get("workflow") == "":
        raise FlyteInvalid("missing name")
    return convert(named, Scope, where="scope")


def _is_active(context: Context, project: str) -> bool | None:
    """None: there is no such project."""
    snapshots = context.snapshots
    entry = snapshots.access.projects.get(project)
    if entry is None or entry.is_archived:
        snapshots.refresh()  # another server may just have changed it
        entry = snapshots.access.projects.get(project)
    return None if entry is None else not entry.is_archived


def _unregistered(project: str, domain: str | None, *, for_write: bool) -> str:
    why = f"err: [project [{project}] not found]"
    if domain is not None:
        return f"failed to validate that project [{project}] and domain [{domain}] are registered, {why}"
    return f"failed to validate that project [{project}] {'is registered' if for_write else 'exists'}, {why}"


ProtoJson = dict[str, Any]
MatchingAttributes = matchable_resource_pb2.MatchingAttributes
MatchableResource = matchable_resource_pb2.MatchableResource


def _unchanged(plain: ProtoJson) -> ProtoJson:
    return plain


@dataclass(frozen=True)
class FlyteKind:
    """`field`: its field of MatchingAttributes. `from_flyte` and `to_flyte` convert proto3's JSON of that message.

    `ours` only where the kind does not read that form itself, as it does for the files of Flyte's users.
    """

    number: int
    field: str
    from_flyte: Callable[[ProtoJson], ProtoJson] = _unchanged
    to_flyte: Callable[[ProtoJson], ProtoJson] = _unchanged


def from_matching_attributes(attributes: Any) -> tuple[int, ProtoJson]:
    """Return the number of the kind and its value in our form. The caller has checked that a kind is set."""
    kind = BY_FIELD[attributes.WhichOneof("target")]
    message = getattr(attributes, kind.field)
    return kind.number, kind.from_flyte(json_format.MessageToDict(message, preserving_proto_field_name=True))


def to_matching_attributes(number: int, value: Mapping[str, Any]) -> Any:
    """Make MatchingAttributes from one of our values."""
    kind = BY_NUMBER[number]
    attributes = MatchingAttributes()
    message = getattr(attributes, kind.field)
    message.SetInParent()  # an empty message is still of this kind
    json_format.ParseDict(kind.to_flyte(dict(value)), message)
    return attributes


def type_name(number: int) -> str:
    """A resource type as Flyte prints it: its name, or the number if it has none."""
    return str(MatchableResource.Name(number)) if number in BY_NUMBER else str(number)


def _resources_to_flyte(value: ProtoJson) -> ProtoJson:
    return {name: amounts for name, amounts in value.items() if amounts}  # an empty one was not sent, either


def _quality_from_flyte(plain: ProtoJson) -> ProtoJson:
    if "spec" not in plain:
        return plain
    budget = plain["spec"].get("queueing_budget", "0s")  # proto3's JSON: seconds, with a fraction if there is one
    if "." in budget:
        raise Malformed(f"A queueing budget is whole seconds, not {budget}.")
    return {"queueing_budget": budget}


def _quality_to_flyte(value: ProtoJson) -> ProtoJson:
    if value.get("queueing_budget") is None:
        return value
    return {"spec": {"queueing_budget": f"{parse_duration_s(value['queueing_budget'])}s"}}


def _execution_to_flyte(value: ProtoJson) -> ProtoJson:
    fields = {name: inner for name, inner in value.items() if inner is not None}
    for name in ("labels", "annotations"):
        if name in fields:
            fields[name] = {"values": fields[name]}
    if "envs" in fields:
        fields["envs"] = {"values": [{"key": key, "value": text} for key, text in fields["envs"].items()]}
    return fields


def _assignment_to_flyte(value: ProtoJson) -> ProtoJson:
    """Flyte has no spill rules."""
    return {name: inner for name, inner in value.items() if name != "spill"}


KINDS = (
    FlyteKind(0, "task_resource_attributes", to_flyte=_resources_to_flyte),
    FlyteKind(1, "cluster_resource_attributes"),
    FlyteKind(2, "execution_queue_attributes"),
    FlyteKind(3, "execution_cluster_label"),
    FlyteKind(4, "quality_of_service", _quality_from_flyte, _quality_to_flyte),
    FlyteKind(5, "plugin_overrides"),
    FlyteKind(6, "workflow_execution_config", to_flyte=_execution_to_flyte),
    FlyteKind(7, "cluster_assignment", to_flyte=_assignment_to_flyte),
)
BY_NUMBER = {kind.number: kind for kind in KINDS}
BY_FIELD = {kind.field: kind for kind in KINDS}
