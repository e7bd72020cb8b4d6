"""The effective rules at a scope: each value with the level that sets it. They are changed with `yard update`."""

from __future__ import annotations

from typing import Any

import msgspec

from switchyard.server.dashboard.page import PageValues, WebPage
from switchyard.server.http.call import Call
from switchyard.server.http.query_parameters import QueryParameter
from switchyard.server.http.resources.attributes import scope_of
from switchyard.service.access import projects
from switchyard.service.rules import attributes

PROJECTS_MAX = 200
QUERY = tuple(QueryParameter(name) for name in ("project", "domain", "workflow", "launch_plan"))


def load(call: Call) -> PageValues:
    scope = scope_of(call)
    view = attributes.policy_view(call.context, call.actor, scope)
    listed = sorted(projects.project_list(call.context, call.actor), key=lambda project: project.name)
    titles = {kind.name: kind.title for kind in attributes.kind_list(call.context)}
    return {
        "scope": scope,
        "attributes": view.attributes,
        "titles": titles,
        "projects": listed[:PROJECTS_MAX],
        "projects_left": max(0, len(listed) - PROJECTS_MAX),
        "domains": attributes.domain_list(call.context),
        "value_text": _value_text,
    }


def _value_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


PAGE = WebPage("/rules", "rules.html", "Rules", load, QUERY, live=("effective",), refresh_s=15.0)
