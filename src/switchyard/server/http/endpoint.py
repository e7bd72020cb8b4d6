"""What an endpoint is: method, path, who may, what goes in, what comes out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from switchyard.errors import Malformed
from switchyard.model.graph.subsystem import SUBSYSTEM_NAME_PATTERN as SUBSYSTEM_PATTERN
from switchyard.model.ids import ID_PATTERN
from switchyard.model.names import NAME_PATTERN
from switchyard.model.tokens import NAMESPACE_PATTERN
from switchyard.server.http.body_bounds import SMALL_BODY, BodyBound
from switchyard.server.http.call import Call
from switchyard.server.http.query_parameters import REPEATS_MAX, QueryParameter

OPEN, USER, AGENT, JOINER = "open", "user", "agent", "joiner"
USER_OR_AGENT = "user or agent"

# What a word of a path is. Where a word is not listed, anything names something or nothing.
PATH_PATTERNS = {
    **dict.fromkeys(("cluster", "project", "user", "group", "domain", "kind", "name"), NAME_PATTERN),
    **dict.fromkeys(("agent", "invite", "token", "grant"), ID_PATTERN),
    "job": r"^[0-9A-Za-z]{1,26}(?!\n)$",
    "namespace": NAMESPACE_PATTERN,
    "subsystem": SUBSYSTEM_PATTERN,
}


@dataclass(frozen=True)
class Endpoint:
    """One route. `handler` is none for the hot ones, which `hot_routes.py` serves."""

    method: str
    path: str
    summary: str
    answer: Any
    handler: Callable[[Call], Any] | None = None
    body: Any = None
    status: int = 200
    who: str = USER
    query: tuple[QueryParameter, ...] = ()
    is_body_optional: bool = False  # no body means the same as `{}`
    is_conditional: bool = False  # the write says what it has seen: If-Match or If-None-Match
    is_keyed: bool = False  # it takes an idempotency key
    is_ruled: bool = False  # the rules of a project may refuse it
    is_waiting: bool = False
    is_heavy: bool = False  # it reads many rows: on threads of its own, one call of a user at a time
    media: str = "application/json"
    has_text: bool = False  # it may also answer with a text, as it was given
    bound: BodyBound = SMALL_BODY
    is_upload: bool = False  # the body is large: taken piece by piece, packed or not, and not decoded here


def check_query(endpoint: Endpoint, given: list[tuple[str, str]]) -> None:
    """Unknown and repeated parameters are mistakes: a misspelt filter must not list everything."""
    known = {query.name: query for query in endpoint.query}
    seen: dict[str, int] = {}
    for name, value in given:
        query = known.get(name)
        if query is None:
            listed = ", ".join(known) or "none"
            raise Malformed(f"There is no parameter {name[:80]!r} here; known: {listed}.")
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1 and not query.is_repeatable:
            raise Malformed(f"The parameter {name!r} is given twice.")
        if seen[name] > REPEATS_MAX:
            raise Malformed(f"The parameter {name!r} is given more than {REPEATS_MAX} times.")
        query.check(value)
    if missing := [query.name for query in endpoint.query if query.is_required and query.name not in seen]:
        raise Malformed(f"The parameter {missing[0]!r} is missing.")
