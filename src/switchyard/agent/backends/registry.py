"""Finds a backend by its kind among the installed entry points, and imports only that one."""

from __future__ import annotations

from importlib.metadata import entry_points

from switchyard.agent.backends import Backend
from switchyard.errors import Unavailable, UnknownName

GROUP = "switchyard.backends"


def backend_kinds() -> list[str]:
    return sorted({point.name for point in entry_points(group=GROUP)})


def load_backend(kind: str) -> type[Backend]:
    points = [point for point in entry_points(group=GROUP) if point.name == kind]
    if not points:
        raise UnknownName(
            f"There is no backend {kind[:80]!r} installed. Installed are: {', '.join(backend_kinds()) or 'none'}.",
            next_step="Choose one of these with --backend, or install the package that brings the other.",
        )
    try:
        found: type[Backend] = points[0].load()
    except ImportError as exc:
        raise Unavailable(
            f"The backend {kind!r} cannot be loaded: {exc}.",
            next_step=f"Install what it needs, e.g. pip install 'switchyard[{kind}]'.",
        ) from exc
    return found
