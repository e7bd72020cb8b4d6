"""Cluster resources over HTTP: from a Call to a use case. Sync; run on a thread."""

from __future__ import annotations

from switchyard.model.rendering import Rendering, RenderingChange
from switchyard.server.http.call import Call
from switchyard.service.rules import cluster_resources


def rendering_make(call: Call) -> Rendering:
    yard, body = call.yard, call.body
    return cluster_resources.render(
        yard.context, yard.settings.templates, call.actor, project=body.project, domain=body.domain
    )


def rendering_changes(call: Call) -> RenderingChange:
    yard = call.yard
    return cluster_resources.compare_rendering(
        yard.context,
        yard.settings.templates,
        call.actor,
        project=call.text("project") or "",
        domain=call.text("domain") or "",
    )
