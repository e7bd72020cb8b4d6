"""The part of the table of endpoints that is about scopes and attributes."""

from __future__ import annotations

from typing import Any

from switchyard.model.api import AuditEntry, Deleted, Page, Project, ProjectChange, ProjectRequest
from switchyard.model.attributes import AttributeRow, Domain, EffectiveAttribute, KindInfo, PolicyView
from switchyard.server.http import handlers_rules
from switchyard.server.http.body_bounds import LAYOUT
from switchyard.server.http.endpoint import CURSOR, LIMIT, Endpoint, Query

_SCOPE = (Query("domain"), Query("project"), Query("workflow"), Query("launch_plan"))

RULES: tuple[Endpoint, ...] = (
    Endpoint("GET", "/v1/projects", "Projects", Page[Project], handlers_rules.project_list, query=(LIMIT, CURSOR)),
    Endpoint("POST", "/v1/projects", "Make a project", Project, handlers_rules.project_create, ProjectRequest, 201),
    Endpoint("GET", "/v1/projects/{project}", "One project", Project, handlers_rules.project_get),
    Endpoint(
        "PATCH",
        "/v1/projects/{project}",
        "Change a project, archive it or bring it back",
        Project,
        handlers_rules.project_change,
        ProjectChange,
    ),
    Endpoint("GET", "/v1/domains", "Domains", Page[Domain], handlers_rules.domain_list, query=(LIMIT, CURSOR)),
    Endpoint(
        "GET",
        "/v1/attribute-kinds",
        "The kinds of attributes there are",
        Page[KindInfo],
        handlers_rules.kind_list,
        query=(LIMIT, CURSOR),
    ),
    Endpoint(
        "GET",
        "/v1/attributes/{kind}",
        "The attribute exactly at a scope",
        AttributeRow,
        handlers_rules.attribute_get,
        query=_SCOPE,
    ),
    Endpoint(
        "PUT",
        "/v1/attributes/{kind}",
        "Set the attribute exactly at a scope; needs If-Match, or If-None-Match: *",
        AttributeRow,
        handlers_rules.attribute_put,
        dict[str, Any],
        bound=LAYOUT,
        query=_SCOPE,
    ),
    Endpoint(
        "DELETE",
        "/v1/attributes/{kind}",
        "Delete the attribute exactly at a scope; needs If-Match",
        Deleted,
        handlers_rules.attribute_delete,
        query=_SCOPE,
    ),
    Endpoint(
        "POST",
        "/v1/attributes/{kind}/check",
        "The value as it would be stored at a scope; nothing is stored",
        dict[str, Any],
        handlers_rules.attribute_check,
        dict[str, Any],
        bound=LAYOUT,
        query=_SCOPE,
    ),
    Endpoint(
        "GET",
        "/v1/attributes/{kind}/effective",
        "What holds at a scope, each field with the level that gave it",
        EffectiveAttribute,
        handlers_rules.attribute_effective,
        query=_SCOPE,
    ),
    Endpoint(
        "GET",
        "/v1/attributes/{kind}/list",
        "The attributes of a kind, the most specific first",
        Page[AttributeRow],
        handlers_rules.attribute_list,
        query=(*_SCOPE, Query("level", about="only of this level"), LIMIT, CURSOR),
    ),
    Endpoint(
        "GET",
        "/v1/attributes/{kind}/history",
        "Who changed the attribute exactly at a scope, from what to what; the newest first",
        Page[AuditEntry],
        handlers_rules.attribute_history,
        query=(*_SCOPE, LIMIT, CURSOR),
    ),
    Endpoint(
        "GET",
        "/v1/policy",
        "Everything that holds at a scope, each value with the level that gave it",
        PolicyView,
        handlers_rules.policy,
        query=_SCOPE,
    ),
)
