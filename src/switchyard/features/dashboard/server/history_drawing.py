"""The health and the load of a cluster over time, as a step chart with a band of health below it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from switchyard.model.cluster.cluster import Health
from switchyard.server.pages.formats import duration
from switchyard.store.clusters.cluster_samples import ClusterSample

WIDTH, HEIGHT = 1000, 100


@dataclass(frozen=True, slots=True)
class LoadLine:
    """The use of one resource in percent over time. Times without a value are left out of the path."""

    name: str
    area: str
    now: int | None
    most: int


@dataclass(frozen=True, slots=True)
class HealthSpan:
    """A time with one health. `x` and `width` are of WIDTH."""

    health: str
    text: str
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class HistoryDrawing:
    lines: list[LoadLine]
    healths: list[HealthSpan]
    text: str
    known_s: float  # how far back the samples go


def draw_history(samples: Sequence[ClusterSample], *, begin_us: int, end_us: int) -> HistoryDrawing:
    """Draw samples, oldest first. The last one is the cluster as it is at `end_us`."""
    spans = _spans(samples, begin_us, end_us)
    scale = WIDTH / (end_us - begin_us)
    last = samples[-1]

    def x_of(at_us: int) -> float:
        return round((at_us - begin_us) * scale, 1)

    lines = [_line("Cores", "cores", spans=spans, last=last, x_of=x_of)]
    if any(sample.gpus for sample in samples):
        lines.append(_line("GPUs", "gpus", spans=spans, last=last, x_of=x_of))
    healths = _health_spans(spans, begin_us, scale)
    known_s = (end_us - spans[0][0]) / 1_000_000 if spans else 0.0
    return HistoryDrawing([line for line in lines if line.area], healths, _text(spans, lines), known_s)


Span = tuple[int, int, ClusterSample]  # from, until, what held


def _spans(samples: Sequence[ClusterSample], begin_us: int, end_us: int) -> list[Span]:
    ends = [sample.at_us for sample in samples[1:]] + [end_us]
    cut = [(max(one.at_us, begin_us), min(until, end_us), one) for one, until in zip(samples, ends, strict=True)]
    return [span for span in cut if span[1] > span[0]]


def _line(name: str, field: str, spans: Sequence[Span], last: ClusterSample, x_of: Callable[[int], float]) -> LoadLine:
    """Steps from the floor up to each value and down to the floor before a time without one."""
    now = _use(last, field)
    parts, is_open, most = [], False, now or 0
    for since_us, until_us, sample in spans:
        use = _use(sample, field)
        if use is None:
            parts.append(f"V{HEIGHT}Z" if is_open else "")
            is_open = False
            continue
        most = max(most, use)
        parts.append(f"{'' if is_open else f'M{x_of(since_us)} {HEIGHT}'}V{HEIGHT - use}H{x_of(until_us)}")
        is_open = True
    return LoadLine(name, "".join(parts) + (f"V{HEIGHT}Z" if is_open else ""), now, most)


def _use(sample: ClusterSample, field: str) -> int | None:
    """The percent in use. None: nobody says, or the cluster is down and nobody knows."""
    total, used = (sample.cores, sample.cores_used) if field == "cores" else (sample.gpus, sample.gpus_used)
    if not total or used is None or sample.health == Health.DOWN.value:
        return None
    return round(100 * used / total)


def _health_spans(spans: Sequence[Span], begin_us: int, scale: float) -> list[HealthSpan]:
    merged: list[Span] = []
    for since_us, until_us, sample in spans:
        if merged and merged[-1][2].health == sample.health:
            merged[-1] = (merged[-1][0], until_us, sample)
        else:
            merged.append((since_us, until_us, sample))
    return [
        HealthSpan(
            sample.health,
            f"{sample.health} for {duration((until_us - since_us) / 1_000_000)}",
            round((since_us - begin_us) * scale, 1),
            round((until_us - since_us) * scale, 1),
        )
        for since_us, until_us, sample in merged
    ]


def _text(spans: Sequence[Span], lines: Sequence[LoadLine]) -> str:
    """The drawing in words: `Cores: 40 % in use, at most 90 %. Up for 95 % of the time, down for 5 %.`"""
    if not spans:
        return "Nothing is recorded yet: the first values come within seconds."
    known_us = sum(until_us - since_us for since_us, until_us, _ in spans) or 1
    shares = {
        health.value: sum(until_us - since_us for since_us, until_us, one in spans if one.health == health.value)
        for health in Health
    }
    words = [f"{name} for {_percent(us / known_us)} of the time" for name, us in shares.items() if us]
    uses = [
        f"{line.name}: {'unknown' if line.now is None else f'{line.now} % in use'}, at most {line.most} %. "
        for line in lines
        if line.area
    ]
    return "".join(uses) + ", ".join(words).capitalize() + "."


def _percent(share: float) -> str:
    return "under 1 %" if share < 0.01 else f"{100 * share:.0f} %"
