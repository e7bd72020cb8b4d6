"""What an endpoint is: its address, who may call it, what goes in, what comes out, and how it is served."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import Any

from switchyard.errors import Malformed
from switchyard.model.graph.subsystem import SUBSYSTEM_NAME_PATTERN
from switchyard.model.rules.names import NAME_PATTERN
from switchyard.model.rules.tokens import NAMESPACE_PATTERN
from switchyard.model.wire.ids import ID_PATTERN
from switchyard.server.http.bodies.body_bounds import SMALL_BODY, BodyBound
from switchyard.server.http.call import Call
from switchyard.server.http.connections.asgi_messages import AsgiReceive, AsgiScope, AsgiSend
from switchyard.server.http.job_wait import JobWait
from switchyard.server.http.query_parameters import REPEATS_MAX, QueryParameter
from switchyard.server.loops.runtime import ServerRuntime

AsgiHandler = Callable[[ServerRuntime, AsgiScope, AsgiReceive, AsgiSend], Awaitable[None]]

# The pattern of each parameter of a path, for the OpenAPI document.
PATH_PATTERNS = {
    **dict.fromkeys(("cluster", "project", "user", "group", "domain", "kind", "name"), NAME_PATTERN),
    **dict.fromkeys(("agent", "invite", "token", "grant"), ID_PATTERN),
    "job": r"^[0-9A-Za-z]{1,26}(?!\n)$",
    "namespace": NAMESPACE_PATTERN,
    "subsystem": SUBSYSTEM_NAME_PATTERN,
}


class Caller(StrEnum):
    """Whose credential a call needs."""

    ANYBODY = "open"
    USER = "user"
    AGENT = "agent"
    USER_OR_AGENT = "user or agent"
    JOINER = "joiner"  # an agent that is not registered yet: it shows a join token


class BodyForm(Enum):
    """How a body is read. An endpoint without a `body` accepts none, whatever its form."""

    JSON = auto()
    OPTIONAL_JSON = auto()  # no body means `{}`
    FRAMES = auto()  # many objects, read by the `serve` function (`bodies/object_bodies.py`)
    UPLOAD = auto()  # large: read in pieces, compressed or not, and handed to the handler undecoded


@dataclass(frozen=True)
class Endpoint:
    """One method of one path. It has either a `handler` or a `serve` function."""

    method: str
    path: str
    summary: str
    answer: Any
    handler: Callable[[Call], Any] | None = None  # sync; runs on a thread, and its result is encoded
    body: Any = None
    status: int = 200
    caller: Caller = Caller.USER
    query: tuple[QueryParameter, ...] = ()
    serve: AsgiHandler | None = None  # does everything itself: authenticates, reads, answers
    wait: JobWait | None = None  # the request may wait until the answer is complete
    body_form: BodyForm = BodyForm.JSON
    body_bound: BodyBound = SMALL_BODY
    has_etag: bool = False  # the answer has an `etag`, which is also sent as a header
    is_conditional: bool = False  # needs If-Match or If-None-Match, so that no unseen change is overwritten
    has_idempotency_key: bool = False
    is_ruled: bool = False  # the rules of a project may refuse it
    is_heavy: bool = False  # reads many rows: runs on threads of its own, one call of a user at a time
    is_about_files: bool = False  # may take long in the object store: runs on threads of its own
    media: str = "application/json"
    has_text: bool = False  # may also answer with a text as it was uploaded
    patterns: Mapping[str, str] = field(default_factory=dict)  # of parameters of the path that PATH_PATTERNS has not


def check_query(parameters: tuple[QueryParameter, ...], query: list[tuple[str, str]]) -> None:
    """Refuse unknown and repeated parameters: a misspelt filter must not list everything."""
    known = {parameter.name: parameter for parameter in parameters}
    counts: dict[str, int] = {}
    for name, value in query:
        parameter = known.get(name)
        if parameter is None:
            listed = ", ".join(known) or "none"
            raise Malformed(f"There is no parameter {name[:80]!r} here; known: {listed}.")
        counts[name] = counts.get(name, 0) + 1
        if counts[name] > 1 and not parameter.is_repeatable:
            raise Malformed(f"The parameter {name!r} is given twice.")
        if counts[name] > REPEATS_MAX:
            raise Malformed(f"The parameter {name!r} is given more than {REPEATS_MAX} times.")
        parameter.check(value)
    for parameter in parameters:
        if parameter.is_required and parameter.name not in counts:
            raise Malformed(f"The parameter {parameter.name!r} is missing.")
