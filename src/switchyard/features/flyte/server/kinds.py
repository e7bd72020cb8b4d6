"""Converts values between our kinds of attributes and Flyte's messages, without loss. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flyteidl.admin import matchable_resource_pb2
from google.protobuf import json_format

from switchyard.errors import Malformed
from switchyard.model.jobspec.quantity import parse_duration_s

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
