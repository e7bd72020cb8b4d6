"""Renders pages, and single blocks of them, with Jinja2. Everything that is put into a page is escaped."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from functools import cached_property
from importlib.resources import files
from typing import Any
from urllib.parse import urlencode

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from switchyard.server.http.call import Call
from switchyard.server.pages import formats
from switchyard.server.pages.web_page import PageValues, WebPage

GZIP_LEVEL = 5
PACKAGE = "switchyard.features.dashboard.server"
FILTERS = (
    "moment",
    "elapsed",
    "duration",
    "count",
    "size",
    "percent",
    "exit_text",
    "plural",
    "both_ends",
)
STATIC_TYPES = {
    "dashboard.css": b"text/css; charset=utf-8",
    "live.js": b"text/javascript; charset=utf-8",
    "connections.js": b"text/javascript; charset=utf-8",
    "actions.js": b"text/javascript; charset=utf-8",
    "text.js": b"text/javascript; charset=utf-8",
    "output.js": b"text/javascript; charset=utf-8",
    "matching.js": b"text/javascript; charset=utf-8",
    "changes.js": b"text/javascript; charset=utf-8",
    "icon.svg": b"image/svg+xml",
}


class Renderer:
    """The templates and static files of the package, read once."""

    def __init__(self, pages: Sequence[WebPage]) -> None:
        self._pages = pages
        self.static = {name: files(PACKAGE).joinpath("static", name).read_bytes() for name in STATIC_TYPES}
        digest = hashlib.sha256(b"".join(self.static[name] for name in sorted(self.static)))
        self._packed: dict[str, bytes] = {}
        self.version = digest.hexdigest()[:12]  # in the addresses of static files: a new one is never an old copy

    @cached_property
    def environment(self) -> Environment:
        packages = {page.templates for page in self._pages} - {""}
        environment = Environment(
            loader=ChoiceLoader([PackageLoader(package) for package in (PACKAGE, *sorted(packages))]),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=formats.show_text,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        for name in FILTERS:
            environment.filters[name] = getattr(formats, name)
        for page in self._pages:
            environment.filters.update(page.filters)
        links = [(page.path, page.menu) for page in self._pages if page.menu]
        environment.globals.update(static=self.address_of, navigation=links, version=self.version)
        # Blocks are also rendered alone, so they get the macros from here and not by an import of their page.
        environment.globals["ui"] = environment.get_template("macros.html").module
        return environment

    def address_of(self, name: str) -> str:
        return f"/static/{self.version}/{name}"

    def packed(self, name: str) -> bytes:
        """A static file, compressed once."""
        if name not in self._packed:
            self._packed[name] = compress(self.static[name])
        return self._packed[name]

    def page(self, page: WebPage, call: Call, values: PageValues, *, theme: str) -> bytes:
        """A whole page."""
        template = self.environment.get_template(page.template)
        return template.render(self._values(page, call, values), theme=theme).encode()

    def fragments(self, page: WebPage, call: Call, values: PageValues) -> dict[str, str]:
        """The live blocks of a page, by name."""
        template = self.environment.get_template(page.template)
        context = template.new_context(self._values(page, call, values))
        return {name: self.environment.concat(template.blocks[name](context)) for name in page.live}

    def plain(self, template: str, *, theme: str, **values: Any) -> bytes:
        """A page that reads nothing: the sign-in, an error."""
        return self.environment.get_template(template).render(theme=theme, **values).encode()

    def _values(self, page: WebPage, call: Call, values: PageValues) -> dict[str, Any]:
        return {
            "title": page.title,
            "page_path": page.path,
            "user": call.actor.name,
            "is_open": call.services.settings.is_open,
            "may_audit": call.actor.is_platform_admin,
            "is_live": bool(page.live),
            "here": dict(call.query),
            "link": _link,
            **values,
        }


def _link(path: str, query: dict[str, Any] | None = None, **changes: Any) -> str:
    """An address with parameters; a change to None or an empty value leaves the parameter out."""
    merged = {**(query or {}), **changes}
    pairs = [(name, value) for name, value in merged.items() if value not in (None, "", [])]
    return f"{path}?{urlencode(pairs, doseq=True)}" if pairs else path


def compress(body: bytes) -> bytes:
    packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, 31)  # 31: gzip's own header
    return packer.compress(body) + packer.flush()
