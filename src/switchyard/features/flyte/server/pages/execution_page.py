"""Executions of Flyte's workflows: the list, and one with its nodes as a graph and over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from markupsafe import Markup

from switchyard.features.flyte.model.workflow_execution import PHASES, ExecutionNode, NodeAttempt, WorkflowNodeKind
from switchyard.features.flyte.server.execution_resource import (
    EXECUTION_FILTERS,
    PLACE_CURSOR,
    execution_key,
    need_flyteidl,
    read_execution_filter,
)
from switchyard.model.rules.access import Role
from switchyard.server.http.call import Call
from switchyard.server.http.query_parameters import ID_CURSOR
from switchyard.server.pages.formats import duration
from switchyard.server.pages.timeline import BAR_WIDTH_MIN, WIDTH, time_ticks
from switchyard.server.pages.web_page import PageValues, WebPage

ROWS = 50
NODES_SHOWN = 300  # on one page; the others follow
VALUE_CHARS_MAX = 2000  # of an input or output; `yard flyte show -o json` has all
FINAL_PHASES = ("SUCCEEDED", "FAILED", "ABORTED")
MORE_FIELDS = ("project", "domain", "owner", "cluster", "pool", "label")
BOX_WIDTH, BOX_HEIGHT = 168, 40  # of a node in the graph
GAP_X, GAP_Y = 44, 14
BOXES_MAX, EDGES_MAX = 300, 2000  # of more nodes or edges no graph is drawn: nobody could read it
DRAWN_DEPTH_MAX = 6
LABEL_CHARS_MAX = 22


def load_list(call: Call) -> PageValues:
    need_flyteidl()
    from switchyard.features.flyte.service.executions.calls.execution_lists import execution_page

    wanted = read_execution_filter(call)
    page = execution_page(call.context, call.actor, wanted, before=call.id_cursor, limit=ROWS)
    filters = {name: value for name, value in call.query if name != "cursor"}
    return {
        "executions": page.items,
        "next": page.next,
        "is_first": call.id_cursor is None,
        "filters": filters,
        "phases": PHASES,
        "more_fields": MORE_FIELDS,
        "has_more_filters": not filters.keys().isdisjoint(MORE_FIELDS),
    }


def load_one(call: Call) -> PageValues:
    need_flyteidl()
    from switchyard.features.flyte.service.executions.calls.execution_lists import execution_details
    from switchyard.features.flyte.service.executions.calls.explanations import explain_execution
    from switchyard.features.flyte.service.executions.nodes.node_outlines import node_page

    context, actor, key = call.context, call.actor, execution_key(call)
    details = execution_details(context, actor, key)
    offset = call.number("cursor", 0)
    nodes = node_page(context, actor, key, offset=offset, limit=NODES_SHOWN)
    execution = details.execution
    may_submit = actor.may_project(Role.SUBMIT, execution.project)
    return {
        "title": execution.name,
        "details": details,
        "execution": execution,
        "address": f"/executions/{execution.project}/{execution.domain}/",
        "told": explain_execution(context, actor, key),
        "graph": draw_graph(nodes.items) if offset == 0 and nodes.next is None else None,
        "gantt": draw_gantt(nodes.items, begin_us=execution.created_us, end_us=execution.ended_us or context.now_us()),
        "offset": offset,
        "next": nodes.next,
        "is_final": execution.phase in FINAL_PHASES,
        "may_submit": may_submit,
        "may_stop": actor.may_project(Role.OPERATE, execution.project)
        or (may_submit and execution.owner == actor.name),
        "value_text": _value_text,
    }


def _value_text(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[:VALUE_CHARS_MAX]}…"


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


FILTERS = {"phase_words": phase_words, "phase_badge": phase_badge}
TEMPLATES = "switchyard.features.flyte.server.pages"
LIST_PAGE = WebPage(
    "/executions",
    "executions.html",
    "Executions",
    load_list,
    (*EXECUTION_FILTERS, ID_CURSOR),
    live=("rows",),
    refresh_s=5.0,
    pause_s=2.0,
    is_heavy=True,
    menu="Executions",
    templates=TEMPLATES,
    filters=FILTERS,
)
ONE_PAGE = WebPage(
    "/executions/{project}/{domain}/{execution}",
    "execution.html",
    "Execution",
    load_one,
    (PLACE_CURSOR,),
    live=("heading", "actions", "graph", "nodes", "placement", "facts"),
    refresh_s=5.0,
    pause_s=2.0,
    is_heavy=True,
    templates=TEMPLATES,
    filters=FILTERS,
)
PAGES = (LIST_PAGE, ONE_PAGE)
