"""Finds the line and column of a mistake in a config file from its path, such as `queues[0].limits.running`."""

from __future__ import annotations

import re

import yaml

INDEX_PATTERN = re.compile(r"\[(\d+)\]")


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
