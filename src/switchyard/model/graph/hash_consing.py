"""Hash-consing: equal subtrees get one number, and a finished set of them one canonical order. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from switchyard.errors import Malformed
from switchyard.model.graph.graph import SHAPES_MAX, AttachedVertex, FieldValue, Shape, digest_of

ChildCounts = tuple[tuple[int, int], ...]
ShapeKey = tuple[str, int, str, bytes, tuple[bytes, ...], ChildCounts]


@dataclass(slots=True)
class ShapeTable:
    """Shapes as they are met. A child has its number before its parent asks for one."""

    where: str
    _numbers: dict[ShapeKey, int] = field(default_factory=dict)
    _shapes: list[Shape] = field(default_factory=list)

    def shape(
        self,
        kind: str,
        *,
        size: int = 1,
        unit: str = "",
        properties: Mapping[str, FieldValue] | None = None,
        attached: Sequence[AttachedVertex] = (),
        children: Mapping[int, int] | None = None,
    ) -> int:
        """The number of this subtree; the same for an equal one."""
        ordered = tuple(sorted(children.items())) if children else ()
        marks = tuple(sorted(msgspec.json.encode(vertex, order="deterministic") for vertex in attached))
        named = msgspec.json.encode(properties, order="deterministic") if properties else b""
        key = (kind, size, unit, named, marks, ordered)
        number = self._numbers.get(key)
        if number is None:
            number = len(self._shapes)
            if number >= SHAPES_MAX:
                raise Malformed(
                    f"{self.where}: over {SHAPES_MAX:,} different subtrees; leave out what tells them apart."
                )
            self._numbers[key] = number
            sorted_vertices = [msgspec.json.decode(mark, type=AttachedVertex) for mark in marks]
            self._shapes.append(
                Shape(kind, size, unit, dict(sorted((properties or {}).items())), sorted_vertices, list(ordered))
            )
        return number

    def finish(self, root: int) -> CanonicalShapes:
        """All below the root in canonical order: the same for every order in which the source named them."""
        needed = _reachable(self._shapes, root)
        digests: dict[int, bytes] = {}
        heights: dict[int, int] = {}
        for number in needed:
            shape = self._shapes[number]
            digests[number] = digest_of(shape, [(digests[child], count) for child, count in shape.children])
            heights[number] = 1 + max((heights[child] for child, _ in shape.children), default=0)
        order = sorted(needed, key=lambda number: (heights[number], digests[number]))
        place = {number: index for index, number in enumerate(order)}
        shapes = [
            msgspec.structs.replace(
                self._shapes[number],
                children=sorted((place[child], count) for child, count in self._shapes[number].children),
            )
            for number in order
        ]
        return CanonicalShapes(shapes, place)


@dataclass(frozen=True, slots=True)
class CanonicalShapes:
    """The shapes of a graph, and where each number of the cons went."""

    shapes: list[Shape]
    place: dict[int, int]


def _reachable(shapes: list[Shape], root: int) -> list[int]:
    """Numbers below the root, children first; numbers only ever name smaller ones."""
    needed = [False] * (root + 1)
    needed[root] = True
    for number in range(root, -1, -1):
        if needed[number]:
            for child, _ in shapes[number].children:
                needed[child] = True
    return [number for number in range(root + 1) if needed[number]]
