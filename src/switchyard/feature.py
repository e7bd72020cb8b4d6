"""A feature: what a package adds to Switchyard beside the core of jobs on clusters. The core knows none by name.

A package declares its `Feature` as an entry point of the group `switchyard.features`. A feature names its parts as
`module:name`, one for each room that it adds to. A room imports its part when it starts, so `yard ls` imports none.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

from switchyard.errors import Internal

Part = TypeVar("Part")
GROUP = "switchyard.features"
# A command of `yard`: its name, where its function (argv -> exit code) is (`main` unless named), one line about it.
CommandRow = tuple[str, str, str]


class Feature(NamedTuple):
    """All that a feature adds. Empty: nothing to that room."""

    name: str
    commands: Mapping[str, Sequence[CommandRow]] = {}  # by their heading in `yard --help`
    agent_verbs: Mapping[str, str] = {}  # of `yard agent`: where their functions are; these get the verb, too
    config: Mapping[str, str] = {}  # sections of the server's config: where their type is
    config_keys: str = ""  # a function that puts another system's keys of that file into our sections
    site: Mapping[str, str] = {}  # sections of the agent's site file, likewise
    store: str = ""  # a `store.feature.StoreFeature`
    server: str = ""  # a `server.feature.ServerFeature`
    agent: str = ""  # an `agent.feature.AgentFeature`


def installed_features() -> tuple[Feature, ...]:
    """Every installed feature, in the order of their names. The first call takes milliseconds."""
    return _installed_features(tuple(sys.path))


@cache
def _installed_features(_path: tuple[str, ...]) -> tuple[Feature, ...]:
    from importlib.metadata import entry_points

    features = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            feature = point.load()
        except (ImportError, AttributeError) as exc:
            raise _broken(point.name, point.value, str(exc)) from exc
        if not isinstance(feature, Feature):
            raise _broken(point.name, point.value, "it is no switchyard.feature.Feature")
        features.append(feature)
    return tuple(features)


def load_parts(room: str, kind: type[Part]) -> tuple[Part, ...]:
    """Make the parts that features add to a room: one of the kind for each feature that has one."""
    parts = []
    for feature in installed_features():
        if place := getattr(feature, room):
            try:
                part = import_place(place)()
            except (ImportError, AttributeError) as exc:
                raise _broken(feature.name, place, str(exc)) from exc
            if not isinstance(part, kind):
                raise _broken(feature.name, place, f"it is no {kind.__module__}.{kind.__qualname__}")
            parts.append(part)
    return tuple(parts)


def import_place(place: str) -> Any:
    """Import what is at `module:name`, or `main` of `module`."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name or "main")


def _broken(name: str, place: str, reason: str) -> Internal:
    return Internal(
        f"The feature {name!r} ({place}) cannot be loaded: {reason}.",
        next_step="Repair or uninstall the package that has it (`pip check` lists missing dependencies).",
    )
