"""Find the attribute kinds: the built-in kinds and the entry points of installed packages."""

from __future__ import annotations

from switchyard.plugins import PluginGroup
from switchyard.policy.kinds import BUILTIN_KINDS, ENTRY_POINT_GROUP, Kind, Kinds

ATTRIBUTE_KINDS = PluginGroup(ENTRY_POINT_GROUP, "attribute kind")


def load_kinds() -> Kinds:
    """Load all kinds at server start. A broken package stops the server: its rules would silently not apply."""
    return Kinds([*BUILTIN_KINDS, *ATTRIBUTE_KINDS.make_all(Kind)])
