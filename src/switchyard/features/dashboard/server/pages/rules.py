"""The effective rules at a scope: each value with the level that sets it, what it hides, and who changed it."""

from __future__ import annotations

from typing import Any

import msgspec

from switchyard.features.dashboard.service import scope_rules
from switchyard.model.rules.names import escape_hidden
from switchyard.model.rules.scope import Scope
from switchyard.server.http.call import Call
from switchyard.server.http.query_parameters import QueryParameter
from switchyard.server.http.resources.rules.attributes import scope_of
from switchyard.server.pages.web_page import PageValues, WebPage
from switchyard.service.access import projects
from switchyard.service.rules import attributes

PROJECTS_MAX = 200
SCOPE_WORDS = ("project", "domain", "workflow", "launch_plan")
QUERY = tuple(QueryParameter(name) for name in SCOPE_WORDS)


def load(call: Call) -> PageValues:
    scope = scope_of(call)
    rules = scope_rules.scope_rules(call.context, call.actor, scope)
    listed = sorted(projects.project_list(call.context, call.actor), key=lambda project: project.name)
    return {
        "scope": scope,
        "scope_query": scope_query(scope),
        "held": [rule for rule in rules if rule.fields],
        "unset": [rule for rule in rules if not rule.fields],
        "projects": listed[:PROJECTS_MAX],
        "projects_left": max(0, len(listed) - PROJECTS_MAX),
        "domains": attributes.domain_list(call.context),
        "workflows": scope_rules.workflow_scopes(call.context, call.actor, scope.project) if scope.project else [],
        "scope_query_of": scope_query,
        "value_text": value_text,
        "json_text": json_text,
    }


def scope_query(scope: Scope) -> dict[str, str]:
    """The parameters that name a scope, as the API and this page take them."""
    return {name: text for name in SCOPE_WORDS if (text := getattr(scope, name)) is not None}


def value_text(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value)


def json_text(value: Any) -> str:
    return escape_hidden(msgspec.json.encode(value).decode())


PAGE = WebPage(
    "/rules", "rules.html", title="Rules", load=load, query=QUERY, live=("effective",), refresh_s=15.0, menu="Rules"
)
