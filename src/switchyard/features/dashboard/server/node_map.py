"""The nodes of a cluster as a map: one square per node, grouped by kind, coloured by use. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from switchyard.model.cluster.cluster import Load
from switchyard.model.graph.graph import COUNTED_TYPES, Graph, NodeKind, Shape, vertex_amount
from switchyard.model.jobspec.quantity import show_bytes

COLUMNS = 60
STEP, SQUARE = 10, 9  # units: a square and the space beside it
SQUARES_MAX = 3000  # of more nodes a square stands for several
KINDS_MAX = 24
LEVELS = ("u0", "u1", "u2", "u3", "u4")  # free, up to a third, two thirds, almost full, full
UNKNOWN = "ux"
TREE_MAX = 40  # lines of the tree


@dataclass(frozen=True, slots=True)
class NodeKindDrawing:
    """Nodes of one kind. `paths`: squares by level of use."""

    title: str
    count: int
    per_square: int
    width: int
    height: int
    paths: dict[str, str]


@dataclass(frozen=True, slots=True)
class TreeLine:
    """A line of the graph as a tree: so many of a type, below the line above."""

    depth: int
    count: int
    type: str
    about: str


def draw_nodes(graph: Graph, load: Load | None) -> list[NodeKindDrawing]:
    kinds = sorted(graph.kinds, key=lambda kind: -kind.count)
    return [_draw_kind(kind, _levels(graph, kind, load)) for kind in kinds[:KINDS_MAX]]


def _levels(graph: Graph, kind: NodeKind, load: Load | None) -> list[tuple[str, int]]:
    """How many nodes of a kind are at each level, the fullest first."""
    if load is None or load.free is None or load.signature != graph.signature:
        return [(UNKNOWN, kind.count)]
    counts: dict[str, int] = {}
    for rest in load.free:
        if rest.shape == kind.shape:
            level = _level(kind, rest.core, rest.gpu)
            counts[level] = counts.get(level, 0) + rest.count
    known = sum(counts.values())
    missing = [(UNKNOWN, kind.count - known)] if known < kind.count else []
    return [(level, counts[level]) for level in reversed(LEVELS) if level in counts] + missing


def _level(kind: NodeKind, free_cores: int, free_gpus: int) -> str:
    """The use of what is fuller, cores or GPUs."""
    shares = [1 - free / total for free, total in ((free_cores, kind.cores), (free_gpus, kind.gpus)) if total]
    used = max(shares, default=0.0)
    if used <= 0:
        return LEVELS[0]
    return LEVELS[4] if used >= 1 else LEVELS[1] if used <= 1 / 3 else LEVELS[2] if used <= 2 / 3 else LEVELS[3]


def _draw_kind(kind: NodeKind, levels: Sequence[tuple[str, int]]) -> NodeKindDrawing:
    per_square = -(-kind.count // SQUARES_MAX) or 1
    parts: dict[str, list[str]] = {}
    number = 0
    for level, count in levels:
        for _ in range(-(-count // per_square)):
            y, x = divmod(number, COLUMNS)
            parts.setdefault(level, []).append(f"M{x * STEP} {y * STEP}h{SQUARE}v{SQUARE}h-{SQUARE}z")
            number += 1
    has = [f"{kind.cores} cores"]
    has += [f"{kind.gpus} GPUs"] if kind.gpus else []
    has += [f"{kind.memory_bytes / 2**30:g} GiB"] if kind.memory_bytes else []
    return NodeKindDrawing(
        ", ".join(has),
        kind.count,
        per_square=per_square,
        width=COLUMNS * STEP,
        height=-(-number // COLUMNS) * STEP,
        paths={level: "".join(squares) for level, squares in parts.items()},
    )


def draw_tree(graph: Graph) -> list[TreeLine]:
    """The graph from the cluster down; equal parts are one line with a count."""
    lines: list[TreeLine] = []
    todo = [(graph.root, 0, 1)]
    while todo and len(lines) < TREE_MAX:
        index, depth, count = todo.pop()
        shape = graph.shapes[index]
        lines.append(TreeLine(depth, count, shape.type, _about(shape)))
        todo += [(child, depth + 1, size) for child, size in reversed(shape.children)]
    return lines


def _about(shape: Shape) -> str:
    amount = vertex_amount(shape)
    is_counted = shape.type in COUNTED_TYPES or not shape.unit
    size = "" if shape.size == 1 and not shape.unit else str(shape.size) if is_counted else show_bytes(amount)
    properties = ", ".join(f"{name}={value}" for name, value in list(shape.properties.items())[:6])
    return "; ".join(part for part in (size, properties) if part)
