"""Flyte's REST addresses, from the description of its service: each method and path belongs to one call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flyteidl.service import admin_pb2, dataproxy_pb2, signal_pb2
from google.api import annotations_pb2
from google.protobuf import json_format, message_factory

from switchyard.errors import Malformed
from switchyard.features.flyte.server.grpc_status import FlyteInvalid

ADMIN = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]
DATA_PROXY = dataproxy_pb2.DESCRIPTOR.services_by_name["DataProxyService"]
SIGNAL = signal_pb2.DESCRIPTOR.services_by_name["SignalService"]
SERVICES = (ADMIN, DATA_PROXY, SIGNAL)
METHODS = {method.name: method for service in SERVICES for method in service.methods}
VERBS = ("get", "put", "post", "delete", "patch")
MESSAGE_DEPTH_MAX = 100  # as protobuf reads: nested types, branches and conditions of a workflow


@dataclass(frozen=True)
class Binding:
    """One address of one call. A part in braces is a field of the request."""

    verb: str
    parts: tuple[str, ...]
    call: str
    has_body: bool

    def fields(self, parts: Sequence[str]) -> dict[str, str] | None:
        """The request fields in a path. None: the path does not match."""
        if len(parts) != len(self.parts):
            return None
        fields: dict[str, str] = {}
        for pattern, part in zip(self.parts, parts, strict=True):
            if pattern.startswith("{"):
                fields[pattern[1:-1]] = part
            elif pattern != part:
                return None
        return fields


def bindings() -> tuple[Binding, ...]:
    """Every address of the services, those with fewer fields first: `{id}` must not hide a fixed word."""
    all_bindings = [binding for method in METHODS.values() for binding in _bindings_of(method)]
    return tuple(sorted(all_bindings, key=lambda binding: sum(part.startswith("{") for part in binding.parts)))


def _bindings_of(method: Any) -> Iterator[Binding]:
    rule = method.GetOptions().Extensions[annotations_pb2.http]
    for address in (rule, *rule.additional_bindings):
        verb = address.WhichOneof("pattern")
        if verb in VERBS:
            yield Binding(verb.upper(), tuple(getattr(address, verb).split("/")), method.name, bool(address.body))


def request_class(call: str) -> Any:
    return message_factory.GetMessageClass(METHODS[call].input_type)


def answer_class(call: str) -> Any:
    return message_factory.GetMessageClass(METHODS[call].output_type)


def read_request(
    binding: Binding, *, path: Mapping[str, str], query: Iterable[tuple[str, str]], body: bytes, is_proto: bool
) -> Any:
    """Build the request message. Fields in the path win over the body, as in Flyte."""
    parameters = list(query)
    if binding.has_body and body and parameters:
        raise Malformed("Fields are given in the body or in the query, not in both.")
    try:
        request = request_class(binding.call)()
        if binding.has_body and body:
            _read_body(body, request, is_proto=is_proto)
        json_format.ParseDict(_nested([*parameters, *path.items()]), request, max_recursion_depth=MESSAGE_DEPTH_MAX)
    except RecursionError as exc:
        raise Malformed("The body is nested too deeply.") from exc
    except (json_format.Error, ValueError) as exc:
        raise Malformed(f"The request is not well-formed: {str(exc)[:500]}") from exc
    return request


def _read_body(body: bytes, request: Any, *, is_proto: bool) -> None:
    from google.protobuf.message import DecodeError

    if not is_proto:
        text = body.decode("utf-8")
        if not text.lstrip().startswith("{"):  # json_format would accept an empty list as an empty message
            raise Malformed("The body is not a JSON object.")
        json_format.Parse(text, request, max_recursion_depth=MESSAGE_DEPTH_MAX)
        return
    try:
        request.ParseFromString(body)
    except DecodeError as exc:
        raise Malformed("The body is not a message of this call.") from exc


def _nested(fields: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Nest dotted fields: `sort_by.key=name` sets `key` of the message `sort_by`."""
    nested: dict[str, Any] = {}
    for name, value in fields:
        inner = nested
        *outer, last = name.split(".")
        for word in outer:
            inner = inner.setdefault(word, {})
            if not isinstance(inner, dict):
                raise Malformed(f"The field {name[:80]!r} is given twice.")
        if last in inner:
            raise Malformed(f"The field {name[:80]!r} is given twice.")
        inner[last] = value
    return nested


def as_dict(message: Any, *, is_snake: bool) -> dict[str, Any]:
    """proto3's JSON including unset fields, as grpc-gateway writes it."""
    try:
        fields: dict[str, Any] = json_format.MessageToDict(
            message, preserving_proto_field_name=is_snake, always_print_fields_with_no_presence=True
        )
    except (json_format.Error, TypeError, ValueError) as exc:
        raise FlyteInvalid(
            "The answer has values that JSON has not, such as NaN, a time out of range or an Any of unknown type. "
            "Read it over gRPC, or with `Accept: application/octet-stream`."
        ) from exc
    return fields
