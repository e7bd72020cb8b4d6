"""A config file as it is read: features may have words of other systems for our sections, and put them into ours.

The file is read as written. Each mistake in it is told with the path that the file has, and with line and column.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from switchyard.errors import Malformed
from switchyard.feature import import_place, installed_features
from switchyard.model.wire.decode import load_yaml

KeyPath = tuple[str, ...]
ABSENT: Any = object()
INDEX_PATTERN = re.compile(r"\[(\d+)\]")


@dataclass
class ConfigReading:
    """`value`: the file in our words. `unused`: keys that it has and nothing here uses, each with the reason."""

    value: Any
    mistakes: list[str] = field(default_factory=list)
    unused: dict[str, str] = field(default_factory=dict)
    _theirs: dict[str, str] = field(default_factory=dict)  # a path of ours, and where the file has it

    def in_file(self, mistake: str) -> str:
        """A mistake with the path that the file has."""
        for ours in sorted(self._theirs, key=len, reverse=True):
            if mistake.startswith(ours) and mistake[len(ours) : len(ours) + 1] in (".", "[", ":", " "):
                return self._theirs[ours] + mistake[len(ours) :]
        return mistake

    def add(self, theirs: str, ours: KeyPath, value: Any) -> None:
        """Put a value of another system into our place. A value that is there already is a mistake."""
        place = path_text(ours)
        if value_at(self.value, ours) is not ABSENT:
            both = self._theirs.get(place, place)
            self.mistakes.append(f"{theirs}: says the same as {both}, which the file has too; keep one of them")
            return
        if _put(self.value, ours, value):
            self._theirs[place] = theirs


def read_keys(written: Any) -> ConfigReading:
    """Return the file in our words. A file that has only our keys is the same as before."""
    reading = ConfigReading(copy.deepcopy(written))
    if isinstance(written, dict):
        for feature in installed_features():
            if feature.config_keys:
                import_place(feature.config_keys)(reading)
    return reading


def config_reading(text: str) -> ConfigReading:
    """What the file has of others' keys; nothing for a file that is no YAML."""
    try:
        return read_keys(load_yaml(text, where=""))
    except Malformed:
        return ConfigReading(None)


def path_text(path: KeyPath) -> str:
    return ".".join(path)


def value_at(value: Any, path: KeyPath) -> Any:
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return ABSENT
        value = value[name]
    return value


def _put(value: Any, path: KeyPath, item: Any) -> bool:
    """Whether the value could be put there: a section of the wrong shape is a mistake of its own."""
    for name in path[:-1]:
        if value.get(name) is None:
            value[name] = {}
        value = value[name]
        if not isinstance(value, dict):
            return False
    value[path[-1]] = item
    return True


def with_positions(mistakes: list[str], text: str) -> list[str]:
    """Add line and column to each mistake. The text is known to be valid YAML of bounded size."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    return [f"{mistake} ({position(root, mistake.partition(': ')[0])})" for mistake in mistakes]


def position(node: yaml.Node, path: str) -> str:
    """The position of the innermost part of a path that exists."""
    mark = node.start_mark
    while path:
        if isinstance(node, yaml.SequenceNode) and (index := INDEX_PATTERN.match(path)) is not None:
            node, path = node.value[int(index[1])], path[index.end() :]
            mark = node.start_mark
            continue
        path = path.removeprefix(".")
        inside = node.value if isinstance(node, yaml.MappingNode) else []
        named = [(key, value) for key, value in inside if _begins(path, str(key.value))]
        if not named:
            break
        key, node = max(named, key=lambda pair: len(str(pair[0].value)))  # a name may contain a dot
        mark, path = key.start_mark, path[len(str(key.value)) :]
    return f"line {mark.line + 1}, column {mark.column + 1}"


def _begins(path: str, name: str) -> bool:
    return path.startswith(name) and path[len(name) : len(name) + 1] in ("", ".", "[")
