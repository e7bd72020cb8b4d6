"""`yard stats`: where jobs went, drawn as bars, and what fails."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass

from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import emit, has_colour, paint, print_notice, printable
from switchyard.cli.terminal.parser import Parser, Verb, duration_s, run_noun
from switchyard.cli.terminal.table import Column, display_width, format_duration, print_table, screen_width, shorten
from switchyard.model.failures.failure_stats import FAILURE_DIMENSIONS, FailureStats
from switchyard.model.wire.stats import STATS_DIMENSIONS, OutcomeCounts, RouteStats

ABOUT = """\
Count what is stored about jobs: the same from every server, and after any restart. `/metrics` has what a server itself
counted, for Prometheus."""
SINCE_S = 3600
FAILURES_SINCE_S = 86_400
OUTCOME_STYLES = (
    ("assigned", "green", "█"),
    ("pending", "yellow", "▒"),
    ("rejected", "red", "x"),
    ("ended", "dim", "·"),
)
WIDTH_DEFAULT = 80  # where there is no terminal
NAME_MAX = 32
BAR_MIN = 10


def main(argv: list[str]) -> int:
    return run_noun("stats", ABOUT, VERBS, argv)


def _routes(args: Namespace) -> int:
    with connect(args) as yard:
        stats = yard.route_stats(since_s=args.since)
    if emit(stats, args.output, key="jobs"):
        return 0
    print(_heading(stats, args.since))
    for by in args.by or STATS_DIMENSIONS:
        if bars := stats.by.get(by, []):
            print(paint(f"\nBy {by}", "bold"))
            print_bars([(bar.name, _segments(bar)) for bar in bars])
    if stats.jobs:
        print(f"\n{_legend()}")
    if not stats.is_whole:
        print_notice(f"Of the last {stats.looked_at:,} jobs only: there were more in that time.")
    return 0


def _heading(stats: RouteStats, since_s: int) -> str:
    period = format_duration(since_s * 1_000_000)
    return f"{stats.jobs:,} job{'' if stats.jobs == 1 else 's'} submitted in the last {period}"


def _segments(bar: OutcomeCounts) -> list[BarSegment]:
    return [BarSegment(getattr(bar, word), style, sign) for word, style, sign in OUTCOME_STYLES]


def _legend() -> str:
    coloured = has_colour()
    return "   ".join(f"{paint('█', style) if coloured else sign} {word}" for word, style, sign in OUTCOME_STYLES)


def _routes_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--since", type=duration_s, default=SINCE_S, metavar="T", help="jobs made within this time (default 1h)"
    )
    parser.add_argument(
        "--by", action="append", choices=STATS_DIMENSIONS, help=f"only this: {', '.join(STATS_DIMENSIONS)}; repeatable"
    )


def _failures(args: Namespace) -> int:
    with connect(args) as yard:
        stats = yard.failure_stats(by=args.by, since_s=args.since, project=args.project)
    if emit(stats, args.output, key="rows"):
        return 0
    period = format_duration(args.since * 1_000_000)
    print(f"{stats.failures:,} attempt{'' if stats.failures == 1 else 's'} failed in the last {period}")
    if stats.rows:
        columns = (Column(stats.by.upper(), flexible=True), Column("FAILED", right=True), Column("SHARE", right=True))
        print_table((*columns, Column("KINDS", flexible=True)), _failure_rows(stats))
    if not stats.is_whole:
        print_notice(f"Of the last {stats.looked_at:,} failures only: there were more in that time.")
    return 0


def _failure_rows(stats: FailureStats) -> list[list[str]]:
    rows = []
    for row in stats.rows:
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in row.kinds.items())
        share = f"{100 * row.count / stats.failures:.0f}%"
        rows.append([row.name, f"{row.count:,}", share, "" if stats.by == "kind" else kinds])
    return rows


def _failures_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--by", choices=FAILURE_DIMENSIONS, default="cluster", help="what to count by (default cluster)"
    )
    parser.add_argument(
        "--since",
        type=duration_s,
        default=FAILURES_SINCE_S,
        metavar="T",
        help="attempts that ended within this time (default 1d)",
    )
    parser.add_argument("--project", metavar="NAME", help="only those of this project")


VERBS = (
    Verb(
        "routes",
        "Draw where jobs went: by cluster, pool, label, queue and outcome, and why they wait or were rejected",
        _routes,
        _routes_arguments,
        examples="  yard stats routes\n  yard stats routes --since 1d --by cluster --by reason\n"
        "  yard stats routes -o json | jq '.by.cluster[]'",
        outputs=("json", "yaml"),
    ),
    Verb(
        "failures",
        "Count the attempts that failed, by cluster, kind, node or owner",
        _failures,
        _failures_arguments,
        examples="  yard stats failures\n  yard stats failures --by node --since 2h\n"
        "  yard stats failures --by kind -o json | jq '.rows[]'",
        outputs=("json", "yaml"),
    ),
)


@dataclass(frozen=True, slots=True)
class BarSegment:
    """One part of a bar: its count, its colour, and the character that stands for it without colour."""

    count: int
    style: str
    sign: str


def print_bars(rows: Sequence[tuple[str, Sequence[BarSegment]]], *, indent: str = "  ") -> None:
    """Print a bar for each row, all on one scale, with its count and its share of the total."""
    for line in format_bars(rows, width=(screen_width() or WIDTH_DEFAULT) - len(indent), coloured=has_colour()):
        print(indent + line)


def format_bars(rows: Sequence[tuple[str, Sequence[BarSegment]]], *, width: int, coloured: bool) -> list[str]:
    totals = [sum(part.count for part in parts) for _, parts in rows]
    grand_total, most = sum(totals), max(totals, default=0)
    names = [shorten(printable(name), NAME_MAX) for name, _ in rows]
    name_width = max((display_width(name) for name in names), default=0)
    count_width = len(f"{most:,}")
    room = max(width - name_width - count_width - len("  100%") - 4, BAR_MIN)
    lines = []
    for name, (_, parts), total in zip(names, rows, totals, strict=True):
        length = max(round(room * total / most), 1) if total else 0  # a count above zero is always visible
        bar, space = _bar(parts, length, coloured=coloured), " " * (room - length)
        share = f"{100 * total / grand_total:.0f}%" if grand_total else ""
        lines.append(
            f"{name}{' ' * (name_width - display_width(name))}  {bar}{space}  {total:>{count_width},}  {share:>4}"
        )
    return lines


def _bar(parts: Sequence[BarSegment], length: int, *, coloured: bool) -> str:
    """Draw a bar with its segments in proportion."""
    total = sum(part.count for part in parts)
    drawn, done, text = 0, 0, ""
    for part in parts:
        done += part.count
        until = round(length * done / total) if total else 0
        size, drawn = until - drawn, until
        text += paint("█" * size, part.style) if coloured else part.sign * size
    return text
