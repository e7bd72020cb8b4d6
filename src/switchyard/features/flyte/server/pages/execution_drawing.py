"""An execution of a workflow as a drawing: its nodes as a graph, and each node's attempts over time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from switchyard.features.flyte.model.workflow_execution import ExecutionNode, NodeAttempt, WorkflowNodeKind
from switchyard.server.pages.formats import duration
from switchyard.server.pages.timeline import BAR_WIDTH_MIN, WIDTH, time_ticks

BOX_WIDTH, BOX_HEIGHT = 168, 40
GAP_X, GAP_Y = 44, 14
BOXES_MAX, EDGES_MAX = 300, 2000  # of more nodes or edges no graph is drawn: nobody could read it
DRAWN_DEPTH_MAX = 6
LABEL_CHARS_MAX = 22


@dataclass(frozen=True, slots=True)
class GraphBox:
    """A node at the top of the workflow. `look`: the class of its colour."""

    id: str
    label: str
    words: str
    look: str
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class GraphDrawing:
    width: int
    height: int
    boxes: list[GraphBox]
    edges: list[str]  # paths of SVG


@dataclass(frozen=True, slots=True)
class GanttBar:
    """What a node did for a time. `x` and `width` are of WIDTH."""

    look: str
    text: str
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class GanttRow:
    node: ExecutionNode
    depth: int
    bars: list[GanttBar]


@dataclass(frozen=True, slots=True)
class Gantt:
    rows: list[GanttRow]
    ticks: list[tuple[float, str]]
    total_s: float


def draw_graph(nodes: Sequence[ExecutionNode]) -> GraphDrawing | None:
    """Draw the nodes at the top from left to right: each is right of all nodes that come before it."""
    top = [node for node in nodes if not node.parent]
    if not 1 < len(top) <= BOXES_MAX or sum(len(node.after) for node in top) > EDGES_MAX:
        return None
    layers = _layers(top)
    columns: dict[int, list[ExecutionNode]] = {}
    for node in top:
        columns.setdefault(layers[node.id], []).append(node)
    places: dict[str, tuple[int, int]] = {}
    for number in sorted(columns):
        column = sorted(columns[number], key=lambda node: _middle_before(node, places))
        for row, node in enumerate(column):
            places[node.id] = (number * (BOX_WIDTH + GAP_X), row * (BOX_HEIGHT + GAP_Y))
    boxes = [
        GraphBox(node.id, _label(node), phase_words(node.phase), phase_look(node.phase), *places[node.id])
        for node in top
    ]
    edges = [_edge(places[before], places[node.id]) for node in top for before in node.after if before in places]
    width = max(x for x, _ in places.values()) + BOX_WIDTH
    height = max(y for _, y in places.values()) + BOX_HEIGHT
    return GraphDrawing(width, height, boxes, edges)


def _layers(top: Sequence[ExecutionNode]) -> dict[str, int]:
    """The column of each node: one more than that of the furthest node before it. Failure nodes come last."""
    layers = {node.id: 0 for node in top}
    for _ in top:
        is_changed = False
        for node in top:
            layer = max((layers[before] + 1 for before in node.after if before in layers), default=0)
            if layer > layers[node.id]:
                layers[node.id], is_changed = layer, True
        if not is_changed:
            break
    last = max(layers.values())
    return {node.id: last + 1 if node.is_failure_node else layers[node.id] for node in top}


def _middle_before(node: ExecutionNode, places: dict[str, tuple[int, int]]) -> float:
    """The mean height of the nodes before a node: beside them its lines are short."""
    heights = [places[before][1] for before in node.after if before in places]
    return sum(heights) / len(heights) if heights else 0.0


def _label(node: ExecutionNode) -> str:
    runs = node.runs.rpartition(".")[2]
    text = f"{node.id} · {runs}" if runs else node.id
    return text if len(text) <= LABEL_CHARS_MAX else f"{text[: LABEL_CHARS_MAX - 1]}…"


def _edge(start: tuple[int, int], end: tuple[int, int]) -> str:
    x, y = start[0] + BOX_WIDTH, start[1] + BOX_HEIGHT // 2
    far, there = end[0], end[1] + BOX_HEIGHT // 2
    middle = (x + far) // 2
    return f"M{x} {y}C{middle} {y} {middle} {there} {far} {there}"


def draw_gantt(nodes: Sequence[ExecutionNode], *, begin_us: int, end_us: int) -> Gantt:
    """Draw when each node waited and ran. `end_us`: the end of the execution, or now."""
    end_us = max(end_us, begin_us + 1)
    depths: dict[str, int] = {}
    rows = []
    for node in nodes:
        depth = depths[node.id] = min(depths.get(node.parent, -1) + 1, DRAWN_DEPTH_MAX)
        rows.append(GanttRow(node, depth, _bars(node, begin_us, end_us)))
    total_s = (end_us - begin_us) / 1_000_000
    return Gantt(rows, time_ticks(total_s), total_s)


def _bars(node: ExecutionNode, begin_us: int, end_us: int) -> list[GanttBar]:
    spans = [span for attempt in node.attempts for span in _attempt_spans(node, attempt, end_us)]
    if not node.attempts and node.created_us is not None:
        look = "waiting" if node.kind is WorkflowNodeKind.GATE and not node.ended_us else _bar_look(node.phase)
        spans = [(look, phase_words(node.phase), node.created_us, node.ended_us or end_us)]
    scale = WIDTH / (end_us - begin_us)
    bars = []
    for look, words, start_us, stop_us in spans:
        width = max((stop_us - start_us) * scale, BAR_WIDTH_MIN)
        x = min(max((start_us - begin_us) * scale, 0), WIDTH - BAR_WIDTH_MIN)
        text = f"{words} for {duration((stop_us - start_us) / 1_000_000)}"
        bars.append(GanttBar(look, text, round(x, 1), round(min(width, WIDTH - x), 1)))
    return bars


def _attempt_spans(node: ExecutionNode, attempt: NodeAttempt, now_us: int) -> list[tuple[str, str, int, int]]:
    name = f"attempt {attempt.number + 1} " if len(node.attempts) > 1 else ""
    end_us = attempt.ended_us or now_us
    start_us = attempt.started_us if attempt.started_us is not None else end_us
    spans = [("waiting", f"{name}waiting", attempt.created_us, start_us)] if start_us > attempt.created_us else []
    if attempt.started_us is not None:
        place = f" on {attempt.cluster}" if attempt.cluster else ""
        spans.append((_bar_look(attempt.phase), f"{name}{phase_words(attempt.phase)}{place}", start_us, end_us))
    return spans


def _bar_look(phase: str) -> str:
    look = phase_look(phase)
    return "waiting" if look in ("pending", "none") else look


_PHASE_LOOKS = {
    "SUCCEEDED": "succeeded",
    "RECOVERED": "succeeded",
    "RUNNING": "running",
    "DYNAMIC_RUNNING": "running",
    "SUCCEEDING": "running",
    "FAILING": "failed",
    "FAILED": "failed",
    "TIMED_OUT": "failed",
    "ABORTING": "cancelled",
    "ABORTED": "cancelled",
    "SKIPPED": "cancelled",
    "": "none",
}


def phase_look(phase: str) -> str:
    """The class of a phase of Flyte's, of an execution, a node or an attempt: our states have the same colours."""
    return _PHASE_LOOKS.get(phase, "pending")


def phase_words(phase: str) -> str:
    return phase.lower().replace("_", " ") if phase else "not begun"


def phase_badge(phase: str) -> Markup:
    return Markup('<span class="state s-{}">{}</span>').format(phase_look(phase), phase_words(phase))
