"""Addresses of Flyte's console, as its clients print and open them, and where they lead here."""

from __future__ import annotations

import re
from urllib.parse import quote, urlencode

from switchyard.server.http.connections.asgi_messages import (
    AsgiReceive,
    AsgiScope,
    AsgiSend,
    send_body,
    send_not_allowed,
)

CONSOLE = "console"
AUTHORIZE_PATH = f"/{CONSOLE}/oauth2/authorize"
CLIENT_ID = "switchyard"
SIGN_IN_CALLBACK = "http://localhost:53593/callback"  # where flytectl and flytekit listen after they opened a browser
NO_SIGN_IN = "no sign-in by browser here; set authType: ExternalCommand"
NO_SIGN_IN_ADVICE = (
    "Switchyard has no OAuth2 server. Make a token (yard token create -o name > token), and write "
    "`authType: ExternalCommand` and `command: [cat, token]` into the client's configuration."
)
_SCOPE = re.compile(r"/console/projects/([^/]+)(?:/domains/([^/]+))?(?:/executions/([^/]+))?")


def console_target(path: str) -> str:
    """The page for an address of Flyte's console: the execution that it names, or executions of its project."""
    if path == AUTHORIZE_PATH:
        return f"{SIGN_IN_CALLBACK}?{urlencode({'error': NO_SIGN_IN, 'error_description': NO_SIGN_IN_ADVICE})}"
    found = _SCOPE.match(path)
    project, domain, name = found.groups() if found else (None, None, None)
    if project and domain and name:
        return f"/executions/{quote(project, safe='')}/{quote(domain, safe='')}/{quote(name, safe='')}"
    filters = {key: value for key, value in (("project", project), ("domain", domain)) if value}
    return f"/executions?{urlencode(filters)}" if filters else "/executions"


def is_console(path: str) -> bool:
    return path == f"/{CONSOLE}" or path.startswith(f"/{CONSOLE}/")


async def serve_console(scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:  # noqa: ARG001 - the form of an ASGI application
    if scope["method"] not in ("GET", "HEAD"):
        await send_not_allowed(scope, send, ("GET", "HEAD"))
        return
    await send_body(
        send, 303, b"", (b"location", console_target(scope["path"]).encode()), (b"cache-control", b"no-store")
    )
