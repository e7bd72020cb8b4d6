"""What the dashboard adds to a server: its own pages, and those that other features have for it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from switchyard.errors import NotFound
from switchyard.server.feature import AsgiApp, HttpRoute, ServerFeature
from switchyard.server.http.connections.asgi_messages import AsgiReceive, AsgiScope, AsgiSend, send_problem
from switchyard.server.loops.runtime import ServerRuntime


class DashboardFeature(ServerFeature):
    def routes(self, server: ServerRuntime, api: AsgiApp) -> Sequence[HttpRoute]:
        if find_spec("jinja2") is None:
            return (HttpRoute("dashboard", lambda path: path == "/", _refuse),)
        from switchyard.features.dashboard.server.app import DashboardApp

        dashboard = DashboardApp(server, api)
        return (HttpRoute("dashboard", dashboard.serves, dashboard),)


async def _refuse(_scope: AsgiScope, _receive: AsgiReceive, send: AsgiSend) -> None:
    error = NotFound(
        "The dashboard is not served here: the package jinja2 is not installed.",
        next_step="Install it beside the server: `pip install 'switchyard[dashboard]'`.",
    )
    await send_problem(send, error)
