"""One call of an endpoint, decoded: who, the path's words, the query's values, the body."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from switchyard.errors import Malformed
from switchyard.model.ids import LENGTH, is_id
from switchyard.server.http.asgi_messages import AsgiScope
from switchyard.server.runtime import ServerRuntime
from switchyard.service.cluster.graphs import GraphCaller
from switchyard.service.fleet import AgentEntry
from switchyard.service.rights import Actor

QUERY_FIELDS_MAX = 1000  # each parameter has a bound of its own; this one is for the work of reading them


@dataclass(frozen=True)
class Call:
    """What a handler is handed. The query was checked against the endpoint's parameters before."""

    yard: ServerRuntime
    actor: Actor
    path: dict[str, str]
    query: list[tuple[str, str]]
    body: Any = None
    token: str = ""
    agent: AgentEntry | None = None  # who calls, where that is an agent
    if_match: str | None = None
    if_none_match: str | None = None

    @property
    def caller(self) -> GraphCaller:
        return GraphCaller(self.actor, self.agent)

    def text(self, name: str) -> str | None:
        return next(iter(self.texts(name)), None)

    def texts(self, name: str) -> list[str]:
        return [value for key, value in self.query if key == name]

    def number(self, name: str, default: int) -> int:
        value = self.text(name)
        return default if value is None else int(value)

    def number_or_none(self, name: str) -> int | None:
        value = self.text(name)
        return None if value is None else int(value)

    def seconds(self, name: str, default: float, *, most: float) -> float:
        value = self.text(name)
        return default if value is None else min(float(value), most)

    def flag(self, name: str) -> bool:
        return self.text(name) == "true"

    @property
    def id_cursor(self) -> str | None:
        """Where the page before ended, in a list that goes by ids."""
        cursor = self.text("cursor")
        if cursor is not None and not (len(cursor) == LENGTH and is_id(cursor)):
            raise Malformed("The parameter 'cursor' is the `next` of the page before.")
        return cursor

    @property
    def limit(self) -> int:
        return self.number("limit", self.yard.settings.bounds.page_default)


def read_query(scope: AsgiScope) -> list[tuple[str, str]]:
    try:
        return parse_qsl(
            scope["query_string"].decode("latin-1"),
            keep_blank_values=True,
            max_num_fields=QUERY_FIELDS_MAX,
            errors="strict",
        )
    except ValueError as exc:
        raise Malformed("The query is not well-formed.") from exc
