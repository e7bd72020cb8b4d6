"""Attributes of scopes, their kinds, and the policy that follows from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from switchyard.errors import BadValue, Malformed, NoSuchAttribute
from switchyard.model.rules.attributes import AttributeRow, EffectiveAttribute, KindInfo, PolicyView
from switchyard.model.rules.names import NAME_PATTERN
from switchyard.model.rules.scope import LONG_NAME_PATTERN, Level, Scope
from switchyard.model.wire.api import AuditEntry, Deleted, Page
from switchyard.server.http.bodies.body_bounds import LAYOUT_BODY
from switchyard.server.http.call import Call
from switchyard.server.http.endpoint import Endpoint
from switchyard.server.http.query_parameters import CURSOR, ID_CURSOR, LIMIT, QueryParameter
from switchyard.service.rules import attributes

_SCOPE = (
    QueryParameter("domain", about="a domain's name", pattern=NAME_PATTERN),
    QueryParameter("project", about="a project's name", pattern=NAME_PATTERN),
    QueryParameter("workflow", about="a workflow's name; needs project and domain", pattern=LONG_NAME_PATTERN),
    QueryParameter("launch_plan", about="a launch plan's name; needs the workflow", pattern=LONG_NAME_PATTERN),
)

_ROW_CURSOR = replace(CURSOR, pattern=r"^([0-9]{1,2}(:[^\u0000-\u001f\u007f-\u009f\u2028\u2029]*)?)?(?!\n)$")


def kind_list(call: Call) -> Page[KindInfo]:
    return call.page(attributes.kind_list(call.context), lambda kind: f"{kind.number:010}")


def attribute_get(call: Call) -> AttributeRow:
    return attributes.get_exact(call.context, call.actor, call.path["kind"], scope_of(call))


def attribute_put(call: Call) -> AttributeRow:
    return attributes.put(
        call.context, call.actor, call.path["kind"], scope_of(call), call.body, condition=call.condition
    )


def attribute_check(call: Call) -> dict[str, Any]:
    return attributes.check(call.context, call.actor, call.path["kind"], scope_of(call), call.body)


def attribute_delete(call: Call) -> Deleted:
    kind, scope = attributes.kind_of(call.context, call.path["kind"]).name, scope_of(call)
    if not attributes.delete_exact(call.context, call.actor, kind, scope, condition=call.condition):
        raise NoSuchAttribute(f"There is no {kind} exactly at {scope}.")
    return Deleted(f"{kind} at {scope}")


def attribute_effective(call: Call) -> EffectiveAttribute:
    return attributes.get_effective(call.context, call.actor, call.path["kind"], scope_of(call))


def attribute_list(call: Call) -> Page[AttributeRow]:
    level = call.text("level")
    return attributes.list_rows(
        call.context,
        call.actor,
        call.path["kind"],
        level=None if level is None else Level(level),
        domain=call.text("domain"),
        project=call.text("project"),
        workflow=call.text("workflow"),
        launch_plan=call.text("launch_plan"),
        after=call.text("cursor") or "",
        limit=call.limit,
    )


def attribute_history(call: Call) -> Page[AuditEntry]:
    return attributes.history(
        call.context, call.actor, call.path["kind"], scope_of(call), before=call.id_cursor, limit=call.limit
    )


def policy_get(call: Call) -> PolicyView:
    return attributes.policy_view(call.context, call.actor, scope_of(call))


def scope_of(call: Call) -> Scope:
    """The scope in the query."""
    names = {name: text for name in Scope.__struct_fields__ if (text := call.text(name)) is not None}
    try:
        return msgspec.convert(names, Scope)
    except msgspec.ValidationError as exc:
        message = str(exc)
        invalid = next((name for name in names if f"$.{name}`" in message), None)
        if invalid is None:  # the names are valid, but not together
            raise BadValue(f"{message}.") from exc
        raise Malformed(f"The parameter {invalid!r} is not a valid name.") from exc


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "GET",
        "/v1/attribute-kinds",
        "The kinds of attributes",
        Page[KindInfo],
        kind_list,
        query=(LIMIT, CURSOR),
    ),
    Endpoint(
        "GET",
        "/v1/attributes/{kind}",
        "The attribute exactly at a scope",
        AttributeRow,
        attribute_get,
        query=_SCOPE,
        has_etag=True,
    ),
    Endpoint(
        "PUT",
        "/v1/attributes/{kind}",
        "Set the attribute exactly at a scope; needs If-Match, or If-None-Match: *",
        AttributeRow,
        attribute_put,
        dict[str, Any],
        body_bound=LAYOUT_BODY,
        query=_SCOPE,
        has_etag=True,
        is_conditional=True,
    ),
    Endpoint(
        "DELETE",
        "/v1/attributes/{kind}",
        "Delete the attribute exactly at a scope; needs If-Match",
        Deleted,
        attribute_delete,
        query=_SCOPE,
        is_conditional=True,
    ),
    Endpoint(
        "POST",
        "/v1/attributes/{kind}/check",
        "The value as it would be stored at a scope; nothing is stored",
        dict[str, Any],
        attribute_check,
        dict[str, Any],
        body_bound=LAYOUT_BODY,
        query=_SCOPE,
    ),
    Endpoint(
        "GET",
        "/v1/attributes/{kind}/effective",
        "The effective value at a scope, each field with the level that sets it",
        EffectiveAttribute,
        attribute_effective,
        query=_SCOPE,
    ),
    Endpoint(
        "GET",
        "/v1/attributes/{kind}/list",
        "The attributes of a kind, the most specific first",
        Page[AttributeRow],
        attribute_list,
        query=(*_SCOPE, QueryParameter("level", about="only of this level", words=tuple(Level)), LIMIT, _ROW_CURSOR),
    ),
    Endpoint(
        "GET",
        "/v1/attributes/{kind}/history",
        "The changes of the attribute exactly at a scope, newest first",
        Page[AuditEntry],
        attribute_history,
        query=(*_SCOPE, LIMIT, ID_CURSOR),
    ),
    Endpoint(
        "GET",
        "/v1/policy",
        "The effective values of all kinds at a scope, each with the level that sets it",
        PolicyView,
        policy_get,
        query=_SCOPE,
    ),
)
