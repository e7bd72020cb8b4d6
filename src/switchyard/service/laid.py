"""How clusters are laid out, as every server keeps it in memory: the base of the file with what was set over it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from switchyard.model.layout import Change, Layout, Part, lay_over
from switchyard.model.queue import Queue
from switchyard.model.unreadable import UNREADABLE
from switchyard.service.unreadable import tell
from switchyard.store import layout as layout_store
from switchyard.store.database import Tx

FILE = "file"  # the part under which the base is kept, whole
# What the parts hold that are more than a name.
KINDS: dict[Part, Any] = {
    Part.POOL: dict[str, float],
    Part.LABEL: dict[str, float],
    Part.QUEUE: Queue,
    Part.DOMAIN_TAGS: list[str],
}


@dataclass(frozen=True, slots=True)
class Standing:
    """One thing that was set at run time, with who did it."""

    change: Change
    etag: str
    changed_us: int
    changed_by: str


@dataclass(frozen=True)
class Laid:
    """The layout at one version. `own`: what this server's own file says, which holds until one is stored."""

    own: Layout
    base: Layout
    layout: Layout
    version: int = 0
    rows: dict[tuple[Part, str], Standing] = field(default_factory=dict)

    @staticmethod
    def by_file(own: Layout) -> Laid:
        return Laid(own, own, own)


def load_laid(tx: Tx, version: int, *, before: Laid) -> Laid:
    rows: dict[tuple[Part, str], Standing] = {}
    base = before.own
    for row in layout_store.layout_all(tx):
        try:
            if row.part == FILE:
                base = msgspec.json.decode(row.value, type=Layout)
            else:
                standing = read_standing(row)
                rows[standing.change.part, row.name] = standing
        except UNREADABLE as exc:
            tell("layout", f"{row.part} {row.name}", str(exc))
    layout = lay_over(base, (standing.change for standing in rows.values()))
    return Laid(before.own, base, layout, version, rows)


def read_standing(row: layout_store.Row) -> Standing:
    part = Part(row.part)
    value = None if row.value is None else msgspec.json.decode(row.value, type=KINDS.get(part, str))
    return Standing(Change(part, row.name, value), row.etag, row.changed_us, row.changed_by)
