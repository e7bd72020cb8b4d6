"""The query parameters of endpoints. OpenAPI shows their schema, and every call is checked against it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from switchyard.errors import Malformed
from switchyard.model.cluster.idset import INDEX_MAX
from switchyard.model.job.job import State
from switchyard.model.jobspec.quantity import DURATION_S_MAX
from switchyard.model.rules.names import TEXT_PATTERN
from switchyard.model.wire.ids import ID_PATTERN
from switchyard.server.config.settings import ServerBounds

SEQ_MAX = 2**63 - 1  # of events
SECONDS_MAX = 10**6  # a longer wait is a mistake; the server itself waits less
REPEATS_MAX = 100  # of one parameter
TEXT_CHARS_MAX = 512  # a label's key and value
_WHOLE = re.compile(r"[0-9]{1,19}\Z")
_NUMBER = re.compile(r"[0-9]{1,20}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?\Z")


@dataclass(frozen=True)
class QueryParameter:
    """A query parameter. `least`, `most`: bounds of a number. `words`: the allowed values, if there is a list."""

    name: str
    kind: str = "string"
    about: str = ""
    is_repeatable: bool = False
    is_required: bool = False
    least: int = 0
    most: int = SEQ_MAX
    pattern: str = TEXT_PATTERN
    words: tuple[str, ...] = ()
    chars_max: int = TEXT_CHARS_MAX  # of a text

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of its values."""
        value_schema: dict[str, Any] = {"type": self.kind}
        if self.words:
            value_schema["enum"] = list(self.words)
        elif self.kind in ("integer", "number"):
            value_schema |= {"minimum": self.least, "maximum": self.most}
        elif self.kind == "string":
            value_schema |= {"pattern": self.pattern, "maxLength": self.chars_max}
        return {"type": "array", "items": value_schema, "maxItems": REPEATS_MAX} if self.is_repeatable else value_schema

    def check(self, value: str) -> None:
        """Raise if the value does not match the schema."""
        if self.kind == "boolean":
            if value not in ("true", "false"):
                raise Malformed(f"The parameter {self.name!r} is true or false.")
        elif self.kind in ("integer", "number"):
            form = _WHOLE if self.kind == "integer" else _NUMBER
            if not form.match(value) or not self._is_within(value):
                raise Malformed(f"The parameter {self.name!r} is a number from {self.least} to {self.most}.")
        elif self.words:
            if value not in self.words:
                known = ", ".join(self.words)
                raise Malformed(f"The parameter {self.name!r} is one of {known}; not {value[:40]!r}.")
        elif len(value) > self.chars_max or not re.match(TEXT_PATTERN, value):
            raise Malformed(f"The parameter {self.name!r} is too long or has control characters.")
        elif not re.match(self.pattern, value):
            raise Malformed(f"The parameter {self.name!r} is not of the right form: {self.about or self.pattern}.")

    def _is_within(self, value: str) -> bool:
        """Compare integers exactly: a float would round them."""
        return self.least <= (int(value) if self.kind == "integer" else float(value)) <= self.most


LIMIT = QueryParameter("limit", "integer", "items on a page", least=1, most=ServerBounds.page)
CURSOR = QueryParameter("cursor", "string", "the `next` of the page before")
ID_CURSOR = QueryParameter("cursor", "string", "the `next` of the page before", pattern=ID_PATTERN)
ABANDON = QueryParameter(
    "abandon",
    "boolean",
    "also while jobs run there, which end as FAILED, or output files are not sent, which are given up",
)
_LABEL_PATTERN = r"^[^=\u0000-\u001f\u007f-\u009f\u2028\u2029]+=[^\u0000-\u001f\u007f-\u009f\u2028\u2029]*(?!\n)$"
ACCOUNT = QueryParameter("account", about="whose jobs they are that show the token and no other credential")
STATE_FILTER = QueryParameter(
    "state", about="only in these states", is_repeatable=True, words=(*State, *(state.lower() for state in State))
)
SINCE = QueryParameter("since_s", "integer", "only what happened within so many seconds", least=1, most=DURATION_S_MAX)
SEQ_CURSOR = replace(CURSOR, kind="integer")
INDEX_CURSOR = replace(CURSOR, kind="integer", most=INDEX_MAX)
JOB_FILTERS = (
    STATE_FILTER,
    QueryParameter("cluster"),
    QueryParameter("project"),
    QueryParameter("domain"),
    QueryParameter("owner"),
    QueryParameter("workflow"),
    QueryParameter("launch_plan"),
    QueryParameter("label", about="key=value", is_repeatable=True, pattern=_LABEL_PATTERN),
    QueryParameter("id", about="only these, by whole ids", is_repeatable=True, pattern=ID_PATTERN),
    replace(SINCE, about="only those made within so many seconds"),
    QueryParameter("spec", "boolean", "with the specs"),
    LIMIT,
    ID_CURSOR,
)
VIEW_FILTERS = (  # JOB_FILTERS that choose jobs, and what the dashboard filters by besides
    *(parameter for parameter in JOB_FILTERS if parameter.name not in ("spec", "limit", "cursor")),
    QueryParameter("queue"),
    QueryParameter("text", about="a part of the name"),
)
