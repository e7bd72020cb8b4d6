"""Where uploads and downloads of Flyte's clients are served. The rest is imported at the first one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from switchyard.features.flyte.server.flyteidl_check import is_flyteidl_installed, not_installed_error
from switchyard.server.http.connections.asgi_messages import AsgiReceive, AsgiScope, AsgiSend, send_problem
from switchyard.server.loops.runtime import ServerRuntime

if TYPE_CHECKING:
    from switchyard.features.flyte.server.data.data_app import FlyteDataApp


class FlyteDataRoute:
    def __init__(self, server: ServerRuntime) -> None:
        self._server = server
        self._app: FlyteDataApp | None = None

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        if not is_flyteidl_installed():
            await send_problem(send, not_installed_error())
            return
        if self._app is None:
            from switchyard.features.flyte.server.data.data_app import FlyteDataApp

            self._app = FlyteDataApp(self._server)
        await self._app(scope, receive, send)
