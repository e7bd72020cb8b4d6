"""Finds a backend by its kind among the installed plugins, and imports only that one."""

from __future__ import annotations

from types import new_class
from typing import Any

from switchyard.agent.backends import Backend, BackendClass, OptionalCalls
from switchyard.errors import Internal
from switchyard.plugins import PluginGroup

BACKENDS = PluginGroup("switchyard.backends", "backend")
CLASS_FACTS = ("kind", "is_submit_repeatable", "has_queue", "finds_graph", "submits_at_once", "jobs_max")


def load_backend(kind: str) -> BackendClass:
    """The class of this kind. A backend that is not derived from `OptionalCalls` gets the defaults of these calls."""
    loaded: Any = BACKENDS.load(kind)
    calls = [name for name in vars(Backend) if not name.startswith("_") and callable(vars(Backend)[name])]
    needed = [*CLASS_FACTS, *(name for name in calls if name not in vars(OptionalCalls))]
    if missing := [name for name in needed if not hasattr(loaded, name)]:
        raise Internal(
            f"The backend {kind} ({loaded.__module__}.{loaded.__qualname__}) lacks {', '.join(missing)}.",
            next_step="Update its package; docs/how-to/write-a-backend.md has what a backend must answer.",
        )
    if OptionalCalls not in loaded.__mro__:
        loaded = new_class(loaded.__name__, (loaded, OptionalCalls))
    backend_class: BackendClass = loaded
    return backend_class
