"""One call of an endpoint, decoded: who, the path's words, the query's values, the body."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from switchyard.errors import Malformed
from switchyard.model.ids import LENGTH, is_id
from switchyard.server.http.answer import Scope
from switchyard.server.yard import Yard
from switchyard.service.cluster.graphs import Caller
from switchyard.service.fleet import AgentEntry
from switchyard.service.rights import Actor

TEXT_CHARS_MAX = 512  # a label's key and value
QUERY_FIELDS_MAX = 100


@dataclass(frozen=True)
class Call:
    """What a handler is handed."""

    yard: Yard
    actor: Actor
    path: dict[str, str]
    query: list[tuple[str, str]]
    body: Any = None
    token: str = ""
    agent: AgentEntry | None = None  # who calls, where that is an agent
    if_match: str | None = None
    if_none_match: str | None = None

    @property
    def caller(self) -> Caller:
        return Caller(self.actor, self.agent)

    def text(self, name: str) -> str | None:
        return next(iter(self.texts(name)), None)

    def texts(self, name: str) -> list[str]:
        found = [value for key, value in self.query if key == name]
        for value in found:
            if len(value) > TEXT_CHARS_MAX or not value.isprintable():
                raise Malformed(f"The parameter {name!r} is too long or has control characters.")
        return found

    def number(self, name: str, default: int, *, most: int, least: int = 0) -> int:
        value = self.text(name)
        if value is None:
            return default
        if not (value.isascii() and value.isdigit() and len(value) <= 19) or not least <= int(value) <= most:
            raise Malformed(f"The parameter {name!r} is a number from {least} to {most}.")
        return int(value)

    def seconds(self, name: str, default: float, *, most: float) -> float:
        value = self.text(name)
        if value is None:
            return default
        try:
            found = float(value)
        except ValueError:
            found = -1
        if not 0 <= found <= 10**6:
            raise Malformed(f"The parameter {name!r} is a number of seconds.")
        return min(found, most)

    def flag(self, name: str) -> bool:
        value = self.text(name)
        if value not in (None, "true", "false"):
            raise Malformed(f"The parameter {name!r} is true or false.")
        return value == "true"

    @property
    def id_cursor(self) -> str | None:
        """Where the page before ended, in a list that goes by ids."""
        cursor = self.text("cursor")
        if cursor is not None and not (len(cursor) == LENGTH and is_id(cursor)):
            raise Malformed("The parameter 'cursor' is the `next` of the page before.")
        return cursor

    @property
    def limit(self) -> int:
        bounds = self.yard.settings.bounds
        return self.number("limit", bounds.page_default, most=bounds.page, least=1)


def read_query(scope: Scope) -> list[tuple[str, str]]:
    try:
        return parse_qsl(
            scope["query_string"].decode("latin-1"),
            keep_blank_values=True,
            max_num_fields=QUERY_FIELDS_MAX,
            errors="strict",
        )
    except ValueError as exc:
        raise Malformed("The query is not well-formed.") from exc
