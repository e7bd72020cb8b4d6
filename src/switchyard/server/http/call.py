"""One call of an endpoint, decoded: the caller, the parameters of path and query, the body."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from switchyard.errors import BadValue, ConditionMissing, Malformed
from switchyard.model.rules.names import KEY_PATTERN
from switchyard.model.wire.api import Page
from switchyard.model.wire.ids import LENGTH, is_id
from switchyard.server.http.connections.asgi_messages import AsgiScope, header
from switchyard.server.loops.wakeups import Wakeups
from switchyard.server.services import Services
from switchyard.service.cluster.graphs import GraphCaller
from switchyard.service.core.agents.agent_calls import AgentAttempt
from switchyard.service.core.agents.fleet import AgentEntry
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.core.writes.write_condition import WriteCondition

T = TypeVar("T")
_KEY_BYTES_MAX = 200
QUERY_FIELDS_MAX = 1000  # bounds the work of reading; each parameter has a bound of its own


@dataclass(frozen=True)
class Call:
    """What a handler gets. The query has been checked against the endpoint's parameters."""

    services: Services
    wakeups: Wakeups
    actor: Actor
    path: dict[str, str]
    query: list[tuple[str, str]]
    body: Any = None
    token: str = ""
    agent: AgentEntry | None = None  # the caller, where that is an agent
    incarnation: str | None = None  # of the agent's process, by its header
    attempt: AgentAttempt | None = None  # which the agent calls for
    if_match: str | None = None
    if_none_match: str | None = None
    idempotency_key: str | None = None

    @property
    def context(self) -> Context:
        return self.services.context

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
        """The last id of the page before, in a list that is ordered by ids."""
        cursor = self.text("cursor")
        if cursor is not None and not (len(cursor) == LENGTH and is_id(cursor)):
            raise Malformed("The parameter 'cursor' is the `next` of the page before.")
        return cursor

    @property
    def limit(self) -> int:
        return self.number("limit", self.services.settings.bounds.page_default)

    def page(self, items: Sequence[T], key: Callable[[T], str]) -> Page[T]:
        """A page of items in memory, in the order of their keys."""
        after = self.text("cursor") or ""
        remaining = sorted((item for item in items if key(item) > after), key=key)
        page = remaining[: self.limit]
        return Page(page, key(page[-1]) if len(remaining) > len(page) else None)

    @property
    def condition(self) -> WriteCondition:
        """What the caller has seen of the row it writes: an unseen change is not overwritten."""
        if self.if_match is not None and self.if_none_match is not None:
            raise BadValue("Give If-Match or If-None-Match, not both.")
        if self.if_none_match is not None:
            if self.if_none_match.strip() != "*":
                raise Malformed("If-None-Match can only be * here: there must be no row yet.")
            return WriteCondition(if_none_match=True)
        if self.if_match is None:
            raise ConditionMissing()
        if not re.match(KEY_PATTERN, self.if_match.strip()):
            raise Malformed("If-Match must be an ETag, as it was read: printable ASCII characters without blanks.")
        return WriteCondition(if_match=self.if_match.strip().removeprefix('"').removesuffix('"'))


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


def read_idempotency_key(scope: AsgiScope) -> str | None:
    value = header(scope, b"idempotency-key")
    if value is None:
        return None
    text = value.decode("latin-1")
    if len(value) > _KEY_BYTES_MAX or not re.match(KEY_PATTERN, text):
        raise Malformed("The Idempotency-Key is not 1 to 200 printable ASCII characters.")
    return text
