"""Draws the nodes of an execution: as lines with the edges beside them, or as DOT. It knows no command.

Each node is one line. An edge is a lane that begins at a node and ends at the node that waits for it, as `git log
--graph` draws it. Nodes inside another one stand below it, indented.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from switchyard.cli.terminal.output import STATE_STYLES, paint, printable
from switchyard.cli.terminal.table import now_us, shorten
from switchyard.features.flyte.cli.flyte_view import NOT_BEGUN, format_span, node_note, short_id
from switchyard.features.flyte.model.workflow_execution import ExecutionNode

LANES_MAX = 12  # of one workflow; more edges at once are named in words
TEXT_WIDTH_MIN = 30  # beside the lanes, however narrow the screen
MARKS = {"": "○", "SUCCEEDED": "✔", "RECOVERED": "✔", "FAILED": "✖", "SKIPPED": "⊘", "ABORTED": "◌"}
RUNNING_MARK = "●"
DOT_COLOURS = {
    "SUCCEEDED": "palegreen",
    "RECOVERED": "palegreen",
    "FAILED": "lightcoral",
    "RUNNING": "lightblue",
    "DYNAMIC_RUNNING": "lightblue",
    "QUEUED": "khaki",
    "SKIPPED": "lightgrey",
    "ABORTED": "lightgrey",
}


def draw_nodes(nodes: Sequence[ExecutionNode], *, width: int | None, coloured: bool) -> Iterator[str]:
    """Yield the lines of the drawing. `width` None: nothing is shortened."""
    inside: dict[str, list[ExecutionNode]] = {}
    for node in nodes:
        inside.setdefault(node.parent, []).append(node)
    yield from _Drawing(inside, width, coloured, now_us()).lines("", "")


@dataclass(frozen=True, slots=True)
class _Drawing:
    inside: Mapping[str, list[ExecutionNode]]  # the nodes inside each node, in the order of their dependencies
    width: int | None
    coloured: bool
    now: int

    def lines(self, parent: str, indent: str) -> Iterator[str]:
        """The nodes inside a node, each with the nodes inside it below."""
        nodes = self.inside.get(parent, [])
        ids = {node.id for node in nodes}
        followers: dict[str, list[str]] = {}
        for node in nodes:
            for before in node.after:
                if before in ids:
                    followers.setdefault(before, []).append(node.id)
        lanes = _Lanes() if _widest(nodes, followers) <= LANES_MAX else None
        for node in nodes:
            if lanes is None:
                yield self._line(indent, node, after=[one for one in node.after if one in ids])
                yield from self.lines(node.id, f"{indent}  ")
                continue
            if merged := lanes.arrive(node.id):
                yield indent + merged
            yield self._line(indent + lanes.row(_mark(node)), node)
            opened = lanes.leave(followers.get(node.id, []))
            yield from self.lines(node.id, f"{indent}{lanes.bars(without=lanes.new)}  ")
            if opened:
                yield indent + opened

    def _line(self, head: str, node: ExecutionNode, *, after: Sequence[str] | None = None) -> str:
        if after is not None:
            head = f"{head}{_mark(node)} "
        phase = node.phase or NOT_BEGUN
        took = format_span(node.created_us, node.ended_us, self.now)
        title = printable("  ".join(filter(None, [short_id(node), node.runs or node.kind.value])))
        behind = f"after {', '.join(after)}" if after else ""
        note = printable("  ".join(filter(None, [took, node_note(node), behind])))
        if self.width is not None:
            room = max(self.width - len(head) - len(phase) - 4, TEXT_WIDTH_MIN)
            title = shorten(title, room)
            note = shorten(note, max(room - len(title), 0)) if room - len(title) > 1 else ""
        style = STATE_STYLES.get(phase, "")
        shown = paint(phase, style) if self.coloured and style else phase
        return f"{head}{title}  {shown}  {note}".rstrip()


def _widest(nodes: Sequence[ExecutionNode], followers: Mapping[str, Sequence[str]]) -> int:
    """How many lanes the drawing takes at most."""
    lanes, widest = _Lanes(), 0
    for node in nodes:
        lanes.arrive(node.id)
        lanes.leave(followers.get(node.id, []))
        widest = max(widest, len(lanes.targets))
        if widest > LANES_MAX:
            break
    return widest


@dataclass(slots=True)
class _Lanes:
    """The edges that have begun and not ended, by lane: the node that each leads to."""

    targets: list[str | None] = field(default_factory=list)
    place: int = 0  # the lane of the node that was drawn last
    new: list[int] = field(default_factory=list)  # the lanes that it opened

    def arrive(self, node_id: str) -> str:
        """Join the lanes that lead to a node. Returns the line that shows it; empty: there is at most one."""
        mine = [lane for lane, target in enumerate(self.targets) if target == node_id]
        if not mine:
            self.place = next((lane for lane, target in enumerate(self.targets) if target is None), len(self.targets))
            self._set(self.place, node_id)
            return ""
        self.place, *others = mine
        line = self._connection(others, end="╯", middle="┴") if others else ""
        for lane in others:
            self.targets[lane] = None
        self._trim()
        return line

    def row(self, mark: str) -> str:
        return "".join(
            f"{mark} " if lane == self.place else "│ " if target is not None else "  "
            for lane, target in enumerate(self.targets)
        )

    def leave(self, followers: Sequence[str]) -> str:
        """Open a lane for each node that waits for this one. Returns the line that shows it; empty: one goes on."""
        self.new = []
        self.targets[self.place] = followers[0] if followers else None
        for follower in followers[1:]:
            free = (lane for lane, target in enumerate(self.targets) if target is None and lane > self.place)
            lane = next(free, len(self.targets))
            self._set(lane, follower)
            self.new.append(lane)
        line = self._connection(self.new, end="╮", middle="┬") if self.new else ""
        self._trim()
        return line

    def bars(self, without: Sequence[int] = ()) -> str:
        """The lanes beside the lines of nodes inside a node. Lanes that the node opens begin below them."""
        return "".join(
            "│ " if target is not None and lane not in without else "  " for lane, target in enumerate(self.targets)
        )

    def _connection(self, lanes: Sequence[int], *, end: str, middle: str) -> str:
        """A line from the node's lane to lanes on its right."""
        parts, last = [], max(lanes)
        for lane, target in enumerate(self.targets):
            if lane < self.place or lane > last:
                parts.append("│ " if target is not None else "  ")
            elif lane == self.place:
                parts.append("├─")
            elif lane in lanes:
                parts.append(f"{end} " if lane == last else f"{middle}─")
            else:
                parts.append("┼─" if target is not None else "──")
        return "".join(parts).rstrip()

    def _set(self, lane: int, target: str) -> None:
        if lane == len(self.targets):
            self.targets.append(target)
        else:
            self.targets[lane] = target

    def _trim(self) -> None:
        while self.targets and self.targets[-1] is None:
            self.targets.pop()


def _mark(node: ExecutionNode) -> str:
    return MARKS.get(node.phase, RUNNING_MARK)


def format_dot(nodes: Sequence[ExecutionNode], *, title: str) -> str:
    """The nodes as a graph in DOT. A node with nodes inside it is drawn in a box with them."""
    inside: dict[str, list[ExecutionNode]] = {}
    for node in nodes:
        inside.setdefault(node.parent, []).append(node)
    lines = [f"digraph {_quoted(title)} {{", "  rankdir=LR;", "  node [shape=box, style=filled, fillcolor=white];"]
    lines += _dot_nodes(inside, "", "  ")
    lines += [f"  {_quoted(before)} -> {_quoted(node.id)};" for node in nodes for before in node.after]
    return "\n".join([*lines, "}"])


def _dot_nodes(inside: Mapping[str, list[ExecutionNode]], parent: str, indent: str) -> Iterator[str]:
    for node in inside.get(parent, []):
        has_inner = node.id in inside
        if has_inner:
            yield f"{indent}subgraph {_quoted(f'cluster_{node.id}')} {{"
        deeper = indent + "  " * has_inner
        label = "\n".join(filter(None, [short_id(node), node.runs or node.kind.value, node.phase or NOT_BEGUN]))
        colour = DOT_COLOURS.get(node.phase, "white")
        yield f"{deeper}{_quoted(node.id)} [label={_quoted(label)}, fillcolor={colour}];"
        if has_inner:
            yield from _dot_nodes(inside, node.id, deeper)
            yield f"{indent}}}"


def _quoted(text: str) -> str:
    lines = [printable(line).replace("\\", "\\\\").replace('"', '\\"') for line in text.split("\n")]
    return '"' + "\\n".join(lines) + '"'
