"""Finds the attribute kinds: our own, and those that installed packages bring by entry point."""

from __future__ import annotations

from importlib.metadata import entry_points

from switchyard.errors import Conflict
from switchyard.policy.kinds import BUILTIN_KINDS, ENTRY_POINT_GROUP, Kind, Kinds


def load_kinds() -> Kinds:
    """Read once, at the server's start. A package that cannot be loaded stops it: its rules would silently not hold."""
    found: list[Kind] = list(BUILTIN_KINDS)
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name):
        try:
            made = point.load()()
        except (ImportError, AttributeError, TypeError) as exc:
            raise Conflict(
                f"The attribute kind {point.name!r} ({point.value}) cannot be loaded: {exc}.",
                next_step="Repair or uninstall its package.",
            ) from exc
        if not isinstance(made, Kind):
            raise Conflict(
                f"The attribute kind {point.name!r} ({point.value}) is no switchyard.policy.kinds.Kind.",
                next_step="Repair or uninstall its package.",
            )
        found.append(made)
    return Kinds(found)
