"""Messages about cluster resources: the templates of a namespace, filled for one project and domain."""

from __future__ import annotations

from msgspec import Struct

from switchyard.model.names import Name


class RenderRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Whose templates to fill."""

    project: Name
    domain: Name


class RenderedFile(Struct, frozen=True):
    """One template, filled: YAML."""

    file: str
    text: str


class Rendering(Struct, frozen=True, omit_defaults=True):
    """All templates, filled for one project and domain. `values`: where each value came from, by its name."""

    project: str
    domain: str
    namespace: str
    files: list[RenderedFile]
    values: dict[str, str] = {}
    at_us: int | None = None  # when it was kept; none: only shown


class RenderingChange(Struct, frozen=True, omit_defaults=True):
    """What a rendering would be now, beside the last one that was kept."""

    now: Rendering
    last: Rendering | None = None
