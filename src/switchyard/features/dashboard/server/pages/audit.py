"""The audit log, for those who may read it by the API."""

from __future__ import annotations

from typing import Any

import msgspec

from switchyard.server.http.call import Call
from switchyard.server.http.query_parameters import ID_CURSOR
from switchyard.server.pages.web_page import PageValues, WebPage
from switchyard.service.access import users

ROWS = 50
VALUE_CHARS_MAX = 600  # of one change on the page; `yard audit -o json` has all


def load(call: Call) -> PageValues:
    page = users.audit_list(call.context, call.actor, before=call.id_cursor, limit=ROWS)
    return {"entries": page.items, "next": page.next, "is_first": call.id_cursor is None, "values": _values}


def _values(values: dict[str, Any] | None) -> str:
    """The values of a change in one line: `quota=3, by=ada`."""
    if not values:
        return ""
    parts = (f"{name}={_value(value)}" for name, value in values.items())
    text = ", ".join(parts)
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[:VALUE_CHARS_MAX]}…"


def _value(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


PAGE = WebPage("/audit", "audit.html", title="Audit", load=load, query=(ID_CURSOR,))
