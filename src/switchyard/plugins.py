"""Finds what installed packages add to Switchyard: backends, choosers, match engines, selections, attribute kinds.

A package declares a plugin as an entry point of one of our groups. Only a plugin that is asked for is imported.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from operator import attrgetter
from typing import Any, TypeVar

from switchyard.decoder_warmup import warm_loaded_types
from switchyard.errors import Internal, UnknownName

Plugin = TypeVar("Plugin")


@dataclass(frozen=True, slots=True)
class PluginGroup:
    """The plugins of one kind. `noun`: what errors call one of them; `built_in`: names that need no entry point."""

    entry_point_group: str
    noun: str
    built_in: tuple[str, ...] = ()
    unknown_advice: str = "Choose one of these, or install the package that provides it."

    def names(self) -> list[str]:
        """The built-in names, then the names that packages add, sorted."""
        installed = {point.name for point in self._entry_points()}
        return [*self.built_in, *sorted(installed.difference(self.built_in))]

    def load(self, name: str) -> Any:
        """Import what a package registered under this name: a class."""
        return self._load(self._entry_point(name))

    def make(self, name: str) -> Any:
        """Import the class registered under this name and make an instance without arguments."""
        return self._load(self._entry_point(name), is_made=True)

    def make_all(self, kind: type[Plugin]) -> list[Plugin]:
        """Make an instance of every installed plugin, in the order of their names. Each must be a `kind`."""
        plugins = []
        for point in sorted(self._entry_points(), key=attrgetter("name")):
            plugin = self._load(point, is_made=True)
            if not isinstance(plugin, kind):
                raise self._broken(point, f"it is no {kind.__module__}.{kind.__qualname__}")
            plugins.append(plugin)
        return plugins

    def _entry_points(self) -> EntryPoints:
        return read_entry_points(self.entry_point_group, path=tuple(sys.path))

    def _entry_point(self, name: str) -> EntryPoint:
        for point in self._entry_points():
            if point.name == name:
                return point
        raise UnknownName(
            f"There is no {self.noun} {name[:80]!r}. Installed are: {', '.join(self.names()) or 'none'}.",
            next_step=self.unknown_advice,
        )

    def _load(self, point: EntryPoint, *, is_made: bool = False) -> Any:
        try:
            plugin = point.load()
            if is_made:
                plugin = plugin()
        except (ImportError, AttributeError, TypeError) as exc:
            raise self._broken(point, str(exc)) from exc
        warm_loaded_types()  # threads may run already and decode the plugin's types
        return plugin

    def _broken(self, point: EntryPoint, reason: str) -> Internal:
        package = point.dist.name if point.dist is not None else "unknown"
        return Internal(
            f"The {self.noun} {point.name!r} ({point.value}) of the package {package} cannot be loaded: {reason}.",
            next_step=f"Repair the package {package} (`pip check` lists missing dependencies) or uninstall it.",
        )


@cache
def read_entry_points(group: str, *, path: tuple[str, ...]) -> EntryPoints:  # noqa: ARG001 - the key of the cache
    """Return the entry points of this group of all packages on this `sys.path`. It takes milliseconds."""
    return entry_points(group=group)
