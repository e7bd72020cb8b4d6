"""The layout snapshot of a server: the layout of the config file with the overrides that were set at run time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.model.rules.layout import Layout, LayoutChange, LayoutPart, apply_layout_changes
from switchyard.model.rules.queue import Queue
from switchyard.service.core.unreadable_rows import log_unreadable
from switchyard.store.clusters import layout as layout_store
from switchyard.store.engine.database import Tx

FILE_PART = "file"  # the row that stores the whole layout of the file
# Types of the values that are not plain text.
PART_VALUE_TYPES: dict[LayoutPart, Any] = {
    LayoutPart.POOL: dict[str, float],
    LayoutPart.LABEL: dict[str, float],
    LayoutPart.QUEUE: Queue,
    LayoutPart.DOMAIN_TAGS: list[str],
}


@dataclass(frozen=True, slots=True)
class LayoutOverride:
    """One layout value that was set at run time, with its author."""

    change: LayoutChange
    etag: str
    changed_us: int
    changed_by: str


@dataclass(frozen=True)
class LayoutSnapshot:
    """The layout at one version."""

    server_file: Layout  # of this server's config file, used while the database stores none
    base: Layout  # the stored layout of a config file, else `server_file`
    layout: Layout  # `base` with the overrides in `rows`
    version: int = 0
    rows: dict[tuple[LayoutPart, str], LayoutOverride] = field(default_factory=dict)

    @staticmethod
    def by_file(layout: Layout) -> LayoutSnapshot:
        return LayoutSnapshot(layout, layout, layout)


def load_layout_snapshot(tx: Tx, version: int, *, before: LayoutSnapshot) -> LayoutSnapshot:
    rows: dict[tuple[LayoutPart, str], LayoutOverride] = {}
    base = before.server_file
    for row in layout_store.layout_all(tx):
        try:
            if row.part == FILE_PART:
                base = msgspec.json.decode(row.value or "", type=Layout)
            else:
                override = read_layout_row(row)
                rows[override.change.part, row.name] = override
        except UNREADABLE_ERRORS as exc:
            log_unreadable("layout", f"{row.part} {row.name}", str(exc))
    layout = apply_layout_changes(base, (override.change for override in rows.values()))
    return LayoutSnapshot(before.server_file, base, layout, version, rows)


def read_layout_row(row: layout_store.LayoutRow) -> LayoutOverride:
    part = LayoutPart(row.part)
    value = None if row.value is None else msgspec.json.decode(row.value, type=PART_VALUE_TYPES.get(part, str))
    return LayoutOverride(LayoutChange(part, row.name, value), row.etag, row.changed_us, row.changed_by)
