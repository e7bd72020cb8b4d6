"""Drawings of counts: columns over time, and flows between two sides. Pure; the templates put them into SVG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CHART_HEIGHT = 100
FLOW_WIDTH, FLOW_HEIGHT = 560, 200
FLOW_GAP = 10  # between two names of one side
FLOW_MIN = 12  # a thinner band could not be read beside its name
FLOW_EDGE = 150  # room for the names on each side
SERIES_MAX = 6  # the largest get a colour each; the others share one
OTHER = "other"


@dataclass(frozen=True, slots=True)
class ChartPart:
    """One part of a column. `y` and `height` are of CHART_HEIGHT."""

    series: int
    name: str
    size: int
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class ChartColumn:
    begin_us: int
    total: int
    parts: list[ChartPart]


@dataclass(frozen=True, slots=True)
class Chart:
    """`series`: names and totals, in the order of their colours."""

    columns: list[ChartColumn]
    series: list[tuple[str, int]]
    most: int


@dataclass(frozen=True, slots=True)
class FlowEnd:
    name: str
    size: int
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class FlowBand:
    source: str
    target: str
    size: int
    path: str
    series: int


@dataclass(frozen=True, slots=True)
class FlowDrawing:
    height: float
    sources: list[FlowEnd]
    targets: list[FlowEnd]
    bands: list[FlowBand]


def draw_columns(spans: Sequence[tuple[int, Mapping[str, int]]], order: Sequence[str] = ()) -> Chart:
    """Stack the counts of each span. `order`: the names to begin with; without, the largest come first."""
    totals: Counter[str] = Counter()
    for _, counts in spans:
        totals.update(counts)
    names = [name for name in order if totals[name]] or [name for name, _ in totals.most_common(SERIES_MAX)]
    rest = sum(totals.values()) - sum(totals[name] for name in names)
    series = [(name, totals[name]) for name in names] + ([(OTHER, rest)] if rest else [])
    most = max((sum(counts.values()) for _, counts in spans), default=0)
    columns = [
        ChartColumn(begin_us, sum(counts.values()), _parts(counts, series, most or 1)) for begin_us, counts in spans
    ]
    return Chart(columns, series, most)


def _parts(counts: Mapping[str, int], series: Sequence[tuple[str, int]], most: int) -> list[ChartPart]:
    parts, below = [], 0.0
    named = sum(counts.get(name, 0) for name, _ in series)
    for number, (name, _) in enumerate(series):
        size = counts.get(name, 0) if name != OTHER else sum(counts.values()) - named + counts.get(OTHER, 0)
        if size:
            height = CHART_HEIGHT * size / most
            below += height
            parts.append(ChartPart(number, name, size=size, y=round(CHART_HEIGHT - below, 2), height=round(height, 2)))
    return parts


def draw_flows(flows: Mapping[tuple[str, str], int]) -> FlowDrawing:
    """Draw bands from sources on the left to targets on the right; their width is the count."""
    flows = _largest(flows)
    total = sum(flows.values()) or 1
    sources = _ends(flows, 0, total)
    targets = _ends(flows, 1, total)
    left = {end.name: end.y for end in sources}
    right = {end.name: end.y for end in targets}
    heights = {end.name: end.height / end.size for end in (*sources, *targets)}
    bands = []
    places = {end.name: number for number, end in enumerate(targets)}
    for (source, target), size in sorted(
        flows.items(), key=lambda item: (list(left).index(item[0][0]), places[item[0][1]])
    ):
        here, there = size * heights[source], size * heights[target]
        bands.append(
            FlowBand(
                source, target, size=size, path=_band(left[source], here, right[target], there), series=places[target]
            )
        )
        left[source] += here
        right[target] += there
    height = max((end.y + end.height for end in (*sources, *targets)), default=0.0)
    return FlowDrawing(round(height, 1), sources, targets, bands)


def _largest(flows: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    """Name the largest ends of both sides; the others become one."""
    sides: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for (source, target), size in flows.items():
        sides[0][source] += size
        sides[1][target] += size
    named = [{name for name, _ in side.most_common(SERIES_MAX)} for side in sides]
    merged: Counter[tuple[str, str]] = Counter()
    for (source, target), size in flows.items():
        ends = (source if source in named[0] else "other pools", target if target in named[1] else "other clusters")
        merged[ends] += size
    return dict(merged)


def _ends(flows: Mapping[tuple[str, str], int], side: int, total: int) -> list[FlowEnd]:
    sizes: Counter[str] = Counter()
    for ends, size in flows.items():
        sizes[ends[side]] += size
    placed, y = [], 0.0
    for name, size in sizes.most_common():
        height = max(FLOW_MIN, FLOW_HEIGHT * size / total)
        placed.append(FlowEnd(name, size, round(y, 1), round(height, 1)))
        y += height + FLOW_GAP
    return placed


def _band(y: float, height: float, there: float, height_there: float) -> str:
    x, far, middle = FLOW_EDGE, FLOW_WIDTH - FLOW_EDGE, FLOW_WIDTH / 2
    numbers = (
        round(number, 1)
        for number in (y, y, there, there, there + height_there, there + height_there, y + height, y + height)
    )
    a, b, c, d, e, f, g, h = numbers
    return f"M{x} {a}C{middle} {b} {middle} {c} {far} {d}V{e}C{middle} {f} {middle} {g} {x} {h}Z"
