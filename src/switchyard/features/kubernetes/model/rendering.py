"""Messages about cluster resources: the templates of a namespace, filled for one project and domain."""

from __future__ import annotations

from msgspec import Struct

from switchyard.model.rules.names import Name


class RenderRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The project and domain to render."""

    project: Name
    domain: Name


class RenderedFile(Struct, frozen=True):
    """One rendered template, as YAML."""

    file: str
    text: str


class Rendering(Struct, frozen=True, omit_defaults=True):
    """All templates, rendered for one project and domain. `values`: the origin of each value, by name."""

    project: str
    domain: str
    namespace: str
    files: list[RenderedFile]
    values: dict[str, str] = {}
    at_us: int | None = None  # when it was kept; none: only shown


class RenderingChange(Struct, frozen=True, omit_defaults=True):
    """A rendering made now, and the last stored rendering."""

    now: Rendering
    last: Rendering | None = None
