"""Sessions of browsers: a cookie instead of a token in each request.

A session is a token of the user, made with the token that they signed in with. So it lives in the database like any
token: it survives a restart, holds at every server, is listed and revoked like others, and ends with its parent. The
cookie is read at the dashboard's addresses alone; the API at `/v1` never reads it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic
from urllib.parse import parse_qsl, urlsplit

from switchyard.errors import Denied, Malformed, Throttled
from switchyard.model.rules.access import TokenRequest
from switchyard.server.http.connections.asgi_messages import AsgiScope, header
from switchyard.service.access import user_tokens
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor

COOKIE = "yard_session"
SECURE_COOKIE = "__Host-yard_session"  # browsers accept this prefix only from this host, over TLS
THEME_COOKIE = "yard_theme"
SESSION_S = 7 * 86_400  # a page on the second screen of an operator lasts for a week
SESSION_NOTE = "dashboard session"
# A page of another origin cannot send this header without asking first, and this server never allows it.
PAGE_HEADER = b"x-yard-page"
FORM_FIELDS_MAX = 10
SAME_ORIGIN = (b"same-origin", b"none")
SIGN_INS_MAX = 30  # of one user on one server in SIGN_INS_S: each makes a token, which every server then reads
SIGN_INS_S = 60.0


def is_secure(scope: AsgiScope) -> bool:
    """Whether the browser came over TLS, here or at a proxy before this server."""
    return scope.get("scheme") == "https" or header(scope, b"x-forwarded-proto") == b"https"


def read_cookies(scope: AsgiScope) -> dict[str, str]:
    """The cookies by name. Other programs on this host set cookies in any form, and those must not hide ours.

    `http.cookies` is not used: it drops all cookies after the first one that it cannot parse.
    """
    pairs = (part.partition("=") for part in (header(scope, b"cookie") or b"").decode("latin-1").split(";"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def session_token(scope: AsgiScope) -> str:
    """The token in the session's cookie; empty: there is none."""
    return read_cookies(scope).get(SECURE_COOKIE if is_secure(scope) else COOKIE, "")


def with_session(scope: AsgiScope) -> AsgiScope:
    """The request as if the token of its cookie stood in its Authorization header."""
    token = session_token(scope)
    return with_token(scope, token) if token and header(scope, b"authorization") is None else dict(scope)


def with_token(scope: AsgiScope, token: str) -> AsgiScope:
    """The request as if this token stood in its Authorization header."""
    others = [(name, value) for name, value in scope["headers"] if name != b"authorization"]
    return {**scope, "headers": [*others, (b"authorization", f"Bearer {token}".encode())]}


def refuse_other_sites(scope: AsgiScope) -> None:
    """Refuse a form that a page of another site has sent. Browsers say where a form comes from."""
    if not _is_from_our_page(scope):
        raise Denied(
            "This request does not come from a page of this server.", next_step="Use the dashboard's own form."
        )


def need_page_header(scope: AsgiScope) -> None:
    """Refuse a call of the API by cookie unless a script of our own pages has made it.

    The header is the proof. A browser need not say where a call comes from: for a GET of the same origin it sends no
    Origin, and over plain HTTP no Sec-Fetch-Site unless the host is loopback. What it says must be right.
    """
    if header(scope, PAGE_HEADER) is None or _is_from_our_page(scope) is False:
        raise Denied("Only the dashboard's own pages use this address.", next_step="Use `/v1` with a token.")


def _is_from_our_page(scope: AsgiScope) -> bool | None:
    """Whether the browser says that a page of this server makes the request; None: it says nothing."""
    site = header(scope, b"sec-fetch-site")
    if site is not None:
        return site in SAME_ORIGIN
    origin = header(scope, b"origin")
    if origin is None:
        return None
    host = (header(scope, b"host") or b"").decode("latin-1")
    try:
        return bool(host) and urlsplit(origin.decode("latin-1")).netloc == host
    except ValueError:
        return False


class SignInLimiter:
    """Counts the sign-ins of each user, also of administrators. Lives on the event loop."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._times: dict[str, deque[float]] = {}  # the user who signed in longest ago is first

    def count(self, actor: Actor) -> None:
        """Count a sign-in. Raises Throttled for one too many."""
        now = self._clock()
        while self._times and (oldest := next(iter(self._times))) and self._times[oldest][-1] <= now - SIGN_INS_S:
            del self._times[oldest]
        times = self._times.pop(actor.id, None) or deque(maxlen=SIGN_INS_MAX)
        self._times[actor.id] = times
        if len(times) == SIGN_INS_MAX and times[0] > now - SIGN_INS_S:
            error = Throttled(
                f"You have signed in {SIGN_INS_MAX} times within {SIGN_INS_S:g} seconds, the most for one user.",
                next_step="Use the session that you have, or `/v1` with a token.",
            )
            error.retry_after_s = max(1, round(times[0] + SIGN_INS_S - now))
            raise error
        times.append(now)


def open_session(context: Context, actor: Actor) -> str:
    """Make a session for the user of a token. Return the value of its cookie."""
    return user_tokens.token_create(context, actor, TokenRequest(note=SESSION_NOTE, expires_s=SESSION_S)).token


def close_session(context: Context, actor: Actor) -> None:
    """End a session: nobody can use a copy of its cookie afterwards."""
    if actor.token_id is not None:
        user_tokens.token_revoke(context, actor, actor.token_id)


def session_cookie(scope: AsgiScope, value: str) -> tuple[bytes, bytes]:
    """The header that sets the cookie. An empty value removes it."""
    is_tls = is_secure(scope)
    name, secure = (SECURE_COOKIE, "; Secure") if is_tls else (COOKIE, "")
    age = SESSION_S if value else 0
    return b"set-cookie", f"{name}={value}; Path=/; HttpOnly; SameSite=Lax; Max-Age={age}{secure}".encode("latin-1")


def read_form(body: bytes) -> dict[str, str]:
    try:
        return dict(parse_qsl(body.decode("ascii"), max_num_fields=FORM_FIELDS_MAX, errors="strict"))
    except ValueError as exc:
        raise Malformed("The form is not well-formed.") from exc


def local_address(address: str) -> str:
    """Where to go after the sign-in: an address of this server, whatever the link says."""
    is_local = address.startswith("/") and not address.startswith(("//", "/\\")) and address.isprintable()
    return address if is_local and "\\" not in address else "/"
