"""Our kinds of attributes and Flyte's messages: one table, both ways, losing nothing. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flyteidl.admin import matchable_resource_pb2
from google.protobuf import json_format

from switchyard.errors import Malformed
from switchyard.model.quantity import parse_duration_s

ProtoJson = dict[str, Any]
MatchingAttributes = matchable_resource_pb2.MatchingAttributes
MatchableResource = matchable_resource_pb2.MatchableResource


def _unchanged(plain: ProtoJson) -> ProtoJson:
    return plain


@dataclass(frozen=True)
class FlyteKind:
    """`field`: which of MatchingAttributes holds it. `ours` and `theirs` work on proto3's JSON of that message.

    `ours` only where the kind does not read that form itself, as it does for the files of Flyte's users.
    """

    number: int
    field: str
    ours: Callable[[ProtoJson], ProtoJson] = _unchanged
    theirs: Callable[[ProtoJson], ProtoJson] = _unchanged


def from_matching_attributes(attributes: Any) -> tuple[int, ProtoJson]:
    """The number of the kind, and its value in our words. None of the kinds is set: the caller has said so already."""
    kind = BY_FIELD[attributes.WhichOneof("target")]
    message = getattr(attributes, kind.field)
    return kind.number, kind.ours(json_format.MessageToDict(message, preserving_proto_field_name=True))


def to_matching_attributes(number: int, value: Mapping[str, Any]) -> Any:
    """MatchingAttributes of one of our values."""
    kind = BY_NUMBER[number]
    found = MatchingAttributes()
    message = getattr(found, kind.field)
    message.SetInParent()  # one without content is still of this kind
    json_format.ParseDict(kind.theirs(dict(value)), message)
    return found


def type_name(number: int) -> str:
    """As Flyte prints a resource type: its name, or the number where it has none."""
    return str(MatchableResource.Name(number)) if number in BY_NUMBER else str(number)


def _resources_theirs(value: ProtoJson) -> ProtoJson:
    return {name: amounts for name, amounts in value.items() if amounts}  # one that sets nothing was not sent, either


def _quality_ours(plain: ProtoJson) -> ProtoJson:
    if "spec" not in plain:
        return plain
    budget = plain["spec"].get("queueing_budget", "0s")  # proto3's JSON: seconds, with a fraction if there is one
    if "." in budget:
        raise Malformed(f"A queueing budget is whole seconds, not {budget}.")
    return {"queueing_budget": budget}


def _quality_theirs(value: ProtoJson) -> ProtoJson:
    if value.get("queueing_budget") is None:
        return value
    return {"spec": {"queueing_budget": f"{parse_duration_s(value['queueing_budget'])}s"}}


def _execution_theirs(value: ProtoJson) -> ProtoJson:
    found = {name: inner for name, inner in value.items() if inner is not None}
    for name in ("labels", "annotations"):
        if name in found:
            found[name] = {"values": found[name]}
    if "envs" in found:
        found["envs"] = {"values": [{"key": key, "value": text} for key, text in found["envs"].items()]}
    return found


def _assignment_theirs(value: ProtoJson) -> ProtoJson:
    """Spill rules are ours alone."""
    return {name: inner for name, inner in value.items() if name != "spill"}


KINDS = (
    FlyteKind(0, "task_resource_attributes", theirs=_resources_theirs),
    FlyteKind(1, "cluster_resource_attributes"),
    FlyteKind(2, "execution_queue_attributes"),
    FlyteKind(3, "execution_cluster_label"),
    FlyteKind(4, "quality_of_service", _quality_ours, _quality_theirs),
    FlyteKind(5, "plugin_overrides"),
    FlyteKind(6, "workflow_execution_config", theirs=_execution_theirs),
    FlyteKind(7, "cluster_assignment", theirs=_assignment_theirs),
)
BY_NUMBER = {kind.number: kind for kind in KINDS}
BY_FIELD = {kind.field: kind for kind in KINDS}
