"""How clusters are laid out, as every server keeps it in memory: the base of the file with what was set over it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from switchyard.model.layout import Layout, LayoutChange, LayoutPart, apply_layout_changes
from switchyard.model.queue import Queue
from switchyard.model.unreadable import UNREADABLE_ERRORS
from switchyard.service.unreadable_rows import log_unreadable
from switchyard.store import layout as layout_store
from switchyard.store.database import Tx

FILE_PART = "file"  # the part under which the base is kept, whole
# What the parts hold that are more than a name.
PART_VALUE_TYPES: dict[LayoutPart, Any] = {
    LayoutPart.POOL: dict[str, float],
    LayoutPart.LABEL: dict[str, float],
    LayoutPart.QUEUE: Queue,
    LayoutPart.DOMAIN_TAGS: list[str],
}


@dataclass(frozen=True, slots=True)
class LayoutOverride:
    """One thing that was set at run time, with who did it."""

    change: LayoutChange
    etag: str
    changed_us: int
    changed_by: str


@dataclass(frozen=True)
class LayoutSnapshot:
    """The layout at one version. `own`: what this server's own file says, which holds until one is stored."""

    own: Layout
    base: Layout
    layout: Layout
    version: int = 0
    rows: dict[tuple[LayoutPart, str], LayoutOverride] = field(default_factory=dict)

    @staticmethod
    def by_file(own: Layout) -> LayoutSnapshot:
        return LayoutSnapshot(own, own, own)


def load_layout_snapshot(tx: Tx, version: int, *, before: LayoutSnapshot) -> LayoutSnapshot:
    rows: dict[tuple[LayoutPart, str], LayoutOverride] = {}
    base = before.own
    for row in layout_store.layout_all(tx):
        try:
            if row.part == FILE_PART:
                base = msgspec.json.decode(row.value, type=Layout)
            else:
                standing = read_layout_row(row)
                rows[standing.change.part, row.name] = standing
        except UNREADABLE_ERRORS as exc:
            log_unreadable("layout", f"{row.part} {row.name}", str(exc))
    layout = apply_layout_changes(base, (standing.change for standing in rows.values()))
    return LayoutSnapshot(before.own, base, layout, version, rows)


def read_layout_row(row: layout_store.Row) -> LayoutOverride:
    part = LayoutPart(row.part)
    value = None if row.value is None else msgspec.json.decode(row.value, type=PART_VALUE_TYPES.get(part, str))
    return LayoutOverride(LayoutChange(part, row.name, value), row.etag, row.changed_us, row.changed_by)
