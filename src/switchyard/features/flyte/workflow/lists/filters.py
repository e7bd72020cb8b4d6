"""The grammar of Flyte's lists: `eq(version,v1)+contains(name,train)`, and the column to sort by. Knows no SQL."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from switchyard.errors import BadRequest, ImpossibleValue
from switchyard.features.flyte.workflow.compile.entity_id import EntityKind
from switchyard.features.flyte.workflow.lists.list_query import ListFilter, ListOrder
from switchyard.model.jobspec.quantity import parse_duration_s
from switchyard.model.rules.names import SHOWN_TEXT_PATTERN

FILTER = re.compile(r"(\w{1,40})\(([\w.]{1,80}),\s?(.*)\)\Z", re.DOTALL)
JOINT = re.compile(r"(?<=\))\+")  # a + elsewhere belongs to a value: to a time zone, for example
FILTERS_MAX = 50
VALUES_MAX = 100  # of one filter
TEXT_CHARS_MAX = 20_000
OFFSET = re.compile(r"[0-9]{1,9}\Z")
SINGLE_VALUE = frozenset({"eq", "ne", "gt", "gte", "lt", "lte", "contains", "not_like"})
MANY_VALUES = frozenset({"value_in", "value_not_in"})
NEGATIVE = frozenset({"ne", "not_like", "value_not_in"})
CLUSTER_COLUMN = "cluster"  # of executions. Readers may ask for clusters that they see
# Modes of executions, in the order of Flyte's numbers.
MODES = ("MANUAL", "SCHEDULED", "SYSTEM", "RELAUNCH", "CHILD_WORKFLOW", "RECOVERED")
_SHOWN = re.compile(SHOWN_TEXT_PATTERN)


class ColumnType(StrEnum):
    TEXT = "text"
    NUMBER = "number"
    TIME = "time"  # stored in microseconds
    DURATION = "duration"  # seconds, or with a unit: 90, 90s, 5m; stored in microseconds
    MODE = "mode"  # of an execution: Flyte's number or word; the word is stored


@dataclass(frozen=True, slots=True)
class ListColumn:
    """A column that lists can be filtered and sorted by. `name`: the store's word for it.

    `is_one_of_many`: of tags and labels, of which an execution has several. Such a filter finds those that have one;
    nothing is sorted by it.
    """

    name: str
    type: ColumnType = ColumnType.TEXT
    is_one_of_many: bool = False


def _columns(*names: str, **others: ListColumn) -> dict[str, ListColumn]:
    return {name: ListColumn(name) for name in names} | others


_TIMES = {
    "created_at": ListColumn("created_us", ColumnType.TIME),
    "updated_at": ListColumn("updated_us", ColumnType.TIME),
}
_ID = _columns("project", "domain", "name", "version")
_OF_NAME = {
    "named_entity_metadata.state": ListColumn("name_state", ColumnType.NUMBER),
    "named_entity_metadata.description": ListColumn("name_description"),
}
_OF_WORKFLOW = {f"workflow.{part}": ListColumn(f"workflow_{part}") for part in _ID}
ENTITY_COLUMNS: dict[EntityKind, dict[str, ListColumn]] = {
    EntityKind.TASK: _ID | _TIMES | _OF_NAME | _columns("type", short_description=ListColumn("description")),
    EntityKind.WORKFLOW: _ID | _TIMES | _OF_NAME | _columns(short_description=ListColumn("description")),
    EntityKind.LAUNCH_PLAN: _ID
    | _TIMES
    | _OF_NAME
    | _OF_WORKFLOW
    | {"state": ListColumn("state", ColumnType.NUMBER), "schedule_type": ListColumn("schedule_type")},
}
EXECUTION_COLUMNS: dict[str, ListColumn] = (
    _columns("project", "domain", "name", "phase", user=ListColumn("owner"), cluster=ListColumn(CLUSTER_COLUMN))
    | _TIMES
    | _OF_WORKFLOW
    | {"started_at": ListColumn("started_us", ColumnType.TIME), "state": ListColumn("state", ColumnType.NUMBER)}
    | {"duration": ListColumn("duration_us", ColumnType.DURATION), "mode": ListColumn("mode", ColumnType.MODE)}
    | {f"{kind}.{part}": ListColumn(f"{kind}_{part}") for kind in ("launch_plan", "task") for part in _ID}
    | _columns("error_kind", "error_code")
    # Flyte's words for the tags of an execution, and for its labels.
    | {"admin_tag.name": ListColumn("tag_name", is_one_of_many=True)}
    | {f"execution_tag.{part}": ListColumn(f"label_{part}", is_one_of_many=True) for part in ("key", "value")}
)
NODE_COLUMNS: dict[str, ListColumn] = (
    _columns("node_id", "phase")
    | _TIMES
    | {"started_at": ListColumn("created_us", ColumnType.TIME)}
    | {"duration": ListColumn("duration_us", ColumnType.DURATION)}
)
NAME_COLUMNS: dict[str, ListColumn] = _columns("project", "domain", "name") | {
    "state": ListColumn("name_state", ColumnType.NUMBER),
    "description": ListColumn("name_description"),
    **_OF_NAME,
}


def read_filters(text: str, columns: Mapping[str, ListColumn], *prefixes: str) -> tuple[ListFilter, ...]:
    """Read filters that must all hold. `prefixes`: words for the listed entity, which may stand before its columns."""
    if not text:
        return ()
    parts = JOINT.split(text)
    if len(parts) > FILTERS_MAX or len(text) > TEXT_CHARS_MAX:
        raise _refusal(f"the filters have more than {FILTERS_MAX} parts or {TEXT_CHARS_MAX} characters")
    return tuple(_read_filter(part, columns, prefixes) for part in parts)


def read_order(key: str, columns: Mapping[str, ListColumn], *prefixes: str, is_descending: bool) -> ListOrder | None:
    """The order of a list. None: none is asked for."""
    if not key:
        return None
    column = _column(key, columns, prefixes)
    if column is None or column.is_one_of_many:
        known = (name for name, one in columns.items() if not one.is_one_of_many)
        raise _refusal(f"invalid sort key '{key[:80]}'; known: {', '.join(known)}")
    return ListOrder(column.name, is_descending)


def read_page(limit: int, token: str) -> tuple[int, int]:
    """The limit and the offset of a page."""
    if limit <= 0:
        raise _refusal("invalid value for limit: give how many rows a page has")
    if token and not OFFSET.match(token):
        raise _refusal(f"invalid pagination token {token[:80]!r}")
    return limit, int(token or 0)


def _read_filter(text: str, columns: Mapping[str, ListColumn], prefixes: Iterable[str]) -> ListFilter:
    match = FILTER.match(text)
    if match is None:
        raise _refusal(f"the filter {text[:80]!r} has not the form function(field,value)")
    function, field, value = match.groups()
    if function not in SINGLE_VALUE | MANY_VALUES:
        raise _refusal(f"unrecognized filter function: {function}")
    column = _column(field, columns, prefixes)
    if column is None:
        raise _refusal(f"'{field}' is invalid filter; known: {', '.join(columns)}")
    if column.is_one_of_many and function in NEGATIVE:
        raise _refusal(f"{function} is not served for '{field}', of which an execution has many")
    texts = value.split(";") if function in MANY_VALUES else [value]
    if len(texts) > VALUES_MAX:
        raise _refusal(f"a filter has {len(texts)} values; the most is {VALUES_MAX}")
    if function in ("contains", "not_like") and column.type is not ColumnType.TEXT:
        raise _refusal(f"{function} is for text, and '{field}' is none")
    return ListFilter(column.name, function, tuple(_value(one, column.type, field) for one in texts))


def _column(field: str, columns: Mapping[str, ListColumn], prefixes: Iterable[str]) -> ListColumn | None:
    words = (field, *(field.removeprefix(f"{prefix}.") for prefix in prefixes))
    return next((columns[word] for word in words if word in columns), None)


def _value(text: str, kind: ColumnType, field: str) -> str | int:
    if not _SHOWN.match(text):
        raise _refusal(f"the value for '{field}' has control characters or invisible ones")
    if kind is ColumnType.NUMBER:
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise _refusal(f"'{field}' is a number, not {text[:80]!r}")
        return int(text)
    if kind is ColumnType.MODE:
        return _mode(text, field)
    if kind is ColumnType.DURATION:
        return _duration_us(text, field)
    return _microseconds(text, field) if kind is ColumnType.TIME else text


def _mode(text: str, field: str) -> str:
    word = MODES[int(text)] if text.isascii() and text.isdigit() and int(text[:3]) < len(MODES) else text.upper()
    if word not in MODES:
        raise _refusal(f"'{field}' is one of {', '.join(MODES)} or its number, not {text[:80]!r}")
    return word


def _duration_us(text: str, field: str) -> int:
    if text.strip("0") in ("", "s"):
        return 0
    try:
        return int(parse_duration_s(int(text) if text.isascii() and text.isdigit() else text) * 1_000_000)
    except (ValueError, ImpossibleValue) as exc:
        raise _refusal(f"'{field}' is a number of seconds or a duration such as 10s, not {text[:80]!r}") from exc


def _microseconds(text: str, field: str) -> int:
    try:
        at = datetime.fromisoformat(text)
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        return int(at.timestamp() * 1_000_000)
    except (ValueError, OverflowError) as exc:
        raise _refusal(f"'{field}' is a time as in RFC 3339, not {text[:80]!r}") from exc


def _refusal(text: str) -> BadRequest:
    return BadRequest(text, next_step="See docs/how-to/use-flyte-clients.md for filters and sort keys.")
