"""Finds a backend by its kind among the installed plugins, and imports only that one."""

from __future__ import annotations

from switchyard.agent.backends import Backend
from switchyard.plugins import PluginGroup

BACKENDS = PluginGroup("switchyard.backends", "backend")


def load_backend(kind: str) -> type[Backend]:
    backend_class: type[Backend] = BACKENDS.load(kind)
    return backend_class
