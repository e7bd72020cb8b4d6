"""Templates of cluster resources: YAML with `{{ name }}` in it. A value fills its place and never becomes structure.

The template is read as YAML first, with a mark in the place of each variable; values are put into the nodes, and the
nodes are written out again. So a value with newlines, quotes or braces is still one text. It knows no file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import yaml

from switchyard.policy.namespace_names import VARIABLE

TEMPLATE_DEPTH_MAX = 64  # as in every YAML we read
LISTED_MAX = 20  # names in one message

# Texts that every version of YAML reads alike without quotes; all others are quoted.
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_FRACTION = re.compile(r"-?(0|[1-9][0-9]{0,14})\.[0-9]{1,15}")
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9]*([-./_][A-Za-z0-9]+)*")
_NOT_TEXT = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
_TEXT = "tag:yaml.org,2002:str"


@dataclass(frozen=True, slots=True)
class FilledTemplate:
    """A template with its values, or its mistakes."""

    text: str = ""
    mistakes: tuple[str, ...] = ()


def fill_template(template: str, values: Mapping[str, str], *, where: str) -> FilledTemplate:
    """Put the values into a template. All mistakes are listed, with file name and line."""
    mark = _unused_marker(template)
    names: list[str] = []

    def hold(match: re.Match[str]) -> str:
        names.append(match[1])
        return f"{mark}{len(names) - 1}x"

    marked = VARIABLE.sub(hold, template)
    odd = [number for number, line in enumerate(marked.splitlines(), start=1) if "{{" in line]
    if odd:
        return FilledTemplate(
            mistakes=tuple(f"{where}: line {line}: what {{{{ }}}} holds is not a name" for line in odd)
        )
    try:
        documents = list(yaml.compose_all(marked, yaml.SafeLoader))
        filler = _Filler(re.compile(rf"{mark}([0-9]+)x"), names, values, where)
        mistakes = tuple(match for document in documents for match in filler.fill(document, 0))
        if mistakes:
            return FilledTemplate(mistakes=mistakes)
        text: str = yaml.serialize_all(documents, Dumper=yaml.SafeDumper, width=2**20, allow_unicode=True)
    except yaml.MarkedYAMLError as exc:
        line = f"line {exc.problem_mark.line + 1}: " if exc.problem_mark else ""
        return FilledTemplate(mistakes=(f"{where}: {line}{exc.problem or exc.context}",))
    except yaml.YAMLError as exc:
        return FilledTemplate(mistakes=(f"{where}: {exc}",))
    except RecursionError:
        return FilledTemplate(mistakes=(f"{where}: nested too deeply",))
    if mark in text:  # in a tag, say
        return FilledTemplate(mistakes=(f"{where}: a variable stands where no value can",))
    return FilledTemplate(text)


def _unused_marker(template: str) -> str:
    """Return letters that the template does not contain, so that only our own marks are found."""
    mark = "yardvariable"
    while mark in template:
        mark += "q"
    return mark


class _Filler:
    """Fills the nodes of one template in place. Nobody else uses these nodes."""

    def __init__(self, marks: re.Pattern[str], names: list[str], values: Mapping[str, str], where: str) -> None:
        self._marks = marks
        self._names = names
        self._values = values
        self._where = where
        self._seen: set[int] = set()

    def fill(self, node: yaml.Node, depth: int, *, is_key: bool = False) -> Iterator[str]:
        """Fill the node and all below it. Yields the mistakes."""
        if depth > TEMPLATE_DEPTH_MAX:
            yield self._at(node, f"nested deeper than {TEMPLATE_DEPTH_MAX}")
        elif id(node) in self._seen:
            yield self._at(node, "aliases are not allowed here")
        elif isinstance(node, yaml.ScalarNode):
            yield from self._fill_scalar(node, is_key=is_key)
        elif isinstance(node, yaml.SequenceNode):
            for child in node.value:
                yield from self.fill(child, depth + 1)
        elif isinstance(node, yaml.MappingNode):
            yield from self._fill_mapping(node, depth)
        self._seen.add(id(node))

    def _fill_mapping(self, node: yaml.MappingNode, depth: int) -> Iterator[str]:
        keys: set[str] = set()
        for key, value in node.value:
            yield from self.fill(key, depth + 1, is_key=True)
            yield from self.fill(value, depth + 1)
            if isinstance(key, yaml.ScalarNode):
                if key.value in keys:
                    yield self._at(key, f"the key {key.value[:80]!r} is there twice")
                keys.add(key.value)

    def _fill_scalar(self, node: yaml.ScalarNode, *, is_key: bool) -> Iterator[str]:
        wanted = [self._names[int(index)] for index in self._marks.findall(node.value)]
        if not wanted:
            return
        for name in dict.fromkeys(wanted):
            if name not in self._values:
                known = ", ".join(sorted(self._values)[:LISTED_MAX])
                yield self._at(node, f"{{{{ {name} }}}} has no value; known here: {known}")
        node.value = self._marks.sub(lambda match: self._values.get(self._names[int(match[1])], ""), node.value)
        if node.style is None:
            node.tag, node.style = _scalar_style(node.value, is_key=is_key)

    def _at(self, node: yaml.Node, mistake: str) -> str:
        return f"{self._where}: line {node.start_mark.line + 1}: {mistake}"


def _scalar_style(text: str, *, is_key: bool) -> tuple[str, str | None]:
    """The style of a variable without quotes: a number, true or false if the value is clearly one; else text."""
    if not is_key:
        if _WHOLE.fullmatch(text):
            return "tag:yaml.org,2002:int", None
        if _FRACTION.fullmatch(text):
            return "tag:yaml.org,2002:float", None
        if text in ("true", "false"):
            return "tag:yaml.org,2002:bool", None
    return _TEXT, None if _WORD.fullmatch(text) and text.lower() not in _NOT_TEXT else '"'
