"""The part of the table of endpoints that is about scopes and attributes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from switchyard.model.api import AuditEntry, Deleted, Page, Project, ProjectChange, ProjectRequest
from switchyard.model.attributes import AttributeRow, Domain, EffectiveAttribute, KindInfo, PolicyView
from switchyard.model.names import NAME_PATTERN
from switchyard.model.scope import LONG_NAME_PATTERN, Level
from switchyard.server.http import handlers_attributes
from switchyard.server.http.body_bounds import LAYOUT_BODY
from switchyard.server.http.endpoint import Endpoint
from switchyard.server.http.query_parameters import CURSOR, ID_CURSOR, LIMIT, QueryParameter

_SCOPE = (
    QueryParameter("domain", about="a domain's name", pattern=NAME_PATTERN),
    QueryParameter("project", about="a project's name", pattern=NAME_PATTERN),
    QueryParameter("workflow", about="a workflow's name; needs project and domain", pattern=LONG_NAME_PATTERN),
    QueryParameter("launch_plan", about="a launch plan's name; needs the workflow", pattern=LONG_NAME_PATTERN),
)
# The rank of a level, and the last scope that was shown.
_ROW_CURSOR = replace(CURSOR, pattern=r"^([0-9]{1,2}(:[^\u0000-\u001f\u007f-\u009f\u2028\u2029]*)?)?(?!\n)$")

ATTRIBUTE_ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/v1/projects", "Projects", Page[Project], handlers_attributes.project_list, query=(LIMIT, CURSOR)),
    Endpoint(
        "POST", "/v1/projects", "Make a project", Project, handlers_attributes.project_create, ProjectRequest, 201
    ),
    Endpoint("GET", "/v1/projects/{project}", "One project", Project, handlers_attributes.project_get),
    Endpoint(
        "PATCH",
        "/v1/projects/{project}",
        "Change a project, archive it or bring it back",
        Project,
        handlers_attributes.project_change,
        ProjectChange,
    ),
    Endpoint("GET", "/v1/domains", "Domains", Page[Domain], handlers_attributes.domain_list, query=(LIMIT, CURSOR)),
    Endpoint(
        "GET",
        "/v1/attribute-kinds",
        "The kinds of attributes there are",
        Page[KindInfo],
        handlers_attributes.kind_list,
        query=(LIMIT, CURSOR),
    ),
    Endpoint(
        "GET",
        "/v1/attributes/{kind}",
        "The attribute exactly at a scope",
        AttributeRow,
        handlers_attributes.attribute_get,
        query=_SCOPE,
    ),
    Endpoint(
        "PUT",
        "/v1/attributes/{kind}",
        "Set the attribute exactly at a scope; needs If-Match, or If-None-Match: *",
        AttributeRow,
        handlers_attributes.attribute_put,
        dict[str, Any],
        bound=LAYOUT_BODY,
        query=_SCOPE,
        is_conditional=True,
    ),
    Endpoint(
        "DELETE",
        "/v1/attributes/{kind}",
        "Delete the attribute exactly at a scope; needs If-Match",
        Deleted,
        handlers_attributes.attribute_delete,
        query=_SCOPE,
        is_conditional=True,
    ),
    Endpoint(
        "POST",
        "/v1/attributes/{kind}/check",
        "The value as it would be stored at a scope; nothing is stored",
        dict[str, Any],
        handlers_attributes.attribute_check,
        dict[str, Any],
        bound=LAYOUT_BODY,
        query=_SCOPE,
    ),
    Endpoint(
        "GET",
        "/v1/attributes/{kind}/effective",
        "What holds at a scope, each field with the level that gave it",
        EffectiveAttribute,
        handlers_attributes.attribute_effective,
        query=_SCOPE,
    ),
    Endpoint(
        "GET",
        "/v1/attributes/{kind}/list",
        "The attributes of a kind, the most specific first",
        Page[AttributeRow],
        handlers_attributes.attribute_list,
        query=(*_SCOPE, QueryParameter("level", about="only of this level", words=tuple(Level)), LIMIT, _ROW_CURSOR),
    ),
    Endpoint(
        "GET",
        "/v1/attributes/{kind}/history",
        "Who changed the attribute exactly at a scope, from what to what; the newest first",
        Page[AuditEntry],
        handlers_attributes.attribute_history,
        query=(*_SCOPE, LIMIT, ID_CURSOR),
    ),
    Endpoint(
        "GET",
        "/v1/policy",
        "Everything that holds at a scope, each value with the level that gave it",
        PolicyView,
        handlers_attributes.policy_get,
        query=_SCOPE,
    ),
)
