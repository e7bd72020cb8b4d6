"""The endpoints of scopes and attributes: from a Call to a use case."""

from __future__ import annotations

from typing import Any

import msgspec

from switchyard.errors import BadValue, ConditionMissing, Malformed, NoSuchAttribute
from switchyard.model.api import AuditEntry, Deleted, Page, Project
from switchyard.model.attributes import AttributeRow, Domain, EffectiveAttribute, KindInfo, PolicyView
from switchyard.model.scope import Level, Scope
from switchyard.server.http.call import Call
from switchyard.server.http.handlers import page_of
from switchyard.service.access import projects
from switchyard.service.rules import attributes


def kind_list(call: Call) -> Page[KindInfo]:
    return page_of(call, attributes.kind_list(call.yard.context), lambda kind: f"{kind.number:010}")


def attribute_get(call: Call) -> AttributeRow:
    return attributes.get_exact(call.yard.context, call.actor, call.path["kind"], scope_of(call))


def attribute_put(call: Call) -> AttributeRow:
    return attributes.put(
        call.yard.context, call.actor, call.path["kind"], scope_of(call), call.body, condition=condition_of(call)
    )


def attribute_check(call: Call) -> dict[str, Any]:
    return attributes.check(call.yard.context, call.actor, call.path["kind"], scope_of(call), call.body)


def attribute_delete(call: Call) -> Deleted:
    kind, scope = attributes.kind_of(call.yard.context, call.path["kind"]).name, scope_of(call)
    if not attributes.delete_exact(call.yard.context, call.actor, kind, scope, condition=condition_of(call)):
        raise NoSuchAttribute(f"There is no {kind} exactly at {scope}.")
    return Deleted(f"{kind} at {scope}")


def attribute_effective(call: Call) -> EffectiveAttribute:
    return attributes.get_effective(call.yard.context, call.actor, call.path["kind"], scope_of(call))


def attribute_list(call: Call) -> Page[AttributeRow]:
    level = call.text("level")
    return attributes.list_rows(
        call.yard.context,
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
        call.yard.context,
        call.actor,
        call.path["kind"],
        scope_of(call),
        before=call.id_cursor,
        limit=call.limit,
    )


def policy_get(call: Call) -> PolicyView:
    return attributes.policy_view(call.yard.context, call.actor, scope_of(call))


def domain_list(call: Call) -> Page[Domain]:
    return page_of(call, attributes.domain_list(call.yard.context), lambda domain: domain.id)


def project_list(call: Call) -> Page[Project]:
    return page_of(call, projects.project_list(call.yard.context, call.actor), lambda project: project.name)


def project_create(call: Call) -> Project:
    return projects.project_create(call.yard.context, call.actor, call.body)


def project_get(call: Call) -> Project:
    return projects.project_get(call.yard.context, call.actor, call.path["project"])


def project_change(call: Call) -> Project:
    return projects.project_change(call.yard.context, call.actor, call.path["project"], call.body)


def scope_of(call: Call) -> Scope:
    """The scope that the parameters name."""
    given = {name: text for name in Scope.__struct_fields__ if (text := call.text(name)) is not None}
    try:
        return msgspec.convert(given, Scope)
    except msgspec.ValidationError as exc:
        said = str(exc)
        wrong = next((name for name in given if f"$.{name}`" in said), None)
        if wrong is None:  # each is a name, but they do not go together
            raise BadValue(f"{said}.") from exc
        raise Malformed(f"The parameter {wrong!r} is not a valid name.") from exc


def condition_of(call: Call) -> attributes.WriteCondition:
    """A write says what it has seen, so that nobody's change is overwritten unseen."""
    match, none_match = call.if_match, call.if_none_match
    if match is not None and none_match is not None:
        raise BadValue("Give If-Match or If-None-Match, not both.")
    if none_match is not None:
        if none_match.strip() != "*":
            raise Malformed("If-None-Match can only be * here: there must be no row yet.")
        return attributes.WriteCondition(if_none_match=True)
    if match is None:
        raise ConditionMissing()
    return attributes.WriteCondition(if_match=match.strip().removeprefix('"').removesuffix('"'))
