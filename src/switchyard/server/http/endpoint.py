"""What an endpoint is: method, path, who may, what goes in, what comes out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from switchyard.server.http.body_bounds import SMALL, BodyBound
from switchyard.server.http.call import Call

OPEN, USER, AGENT, JOINER = "open", "user", "agent", "joiner"
EITHER = "user or agent"


@dataclass(frozen=True)
class Query:
    """A query parameter, as the schema shows it."""

    name: str
    kind: str = "string"
    about: str = ""
    is_repeatable: bool = False


LIMIT = Query("limit", "integer", "items on a page")
CURSOR = Query("cursor", "string", "the `next` of the page before")
ABANDON = Query("abandon", "boolean", "also while jobs run there: they end as FAILED")


@dataclass(frozen=True)
class Endpoint:
    """One route. `handler` is none for the hot ones, which `hot.py` serves."""

    method: str
    path: str
    summary: str
    answer: Any
    handler: Callable[[Call], Any] | None = None
    body: Any = None
    status: int = 200
    who: str = USER
    query: tuple[Query, ...] = ()
    errors: tuple[str, ...] = field(default=())
    is_waiting: bool = False
    media: str = "application/json"
    has_text: bool = False  # it may also answer with a text, as it was given
    bound: BodyBound = SMALL
    is_upload: bool = False  # the body is large: taken piece by piece, packed or not, and not decoded here
