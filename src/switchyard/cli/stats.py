"""`yard stats`: where jobs went, drawn as bars."""

from __future__ import annotations

from argparse import Namespace

from switchyard.cli.terminal.bars import BarSegment, print_bars
from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import emit, has_colour, paint, print_notice
from switchyard.cli.terminal.parser import Parser, Verb, duration_s, run_noun
from switchyard.cli.terminal.table import format_duration
from switchyard.model.wire.stats import STATS_DIMENSIONS, OutcomeCounts, RouteStats

ABOUT = """\
Count what is stored about jobs: the same from every server, and after any restart. `/metrics` has what a server itself
counted, for Prometheus."""
SINCE_S = 3600
OUTCOME_STYLES = (
    ("assigned", "green", "█"),
    ("pending", "yellow", "▒"),
    ("rejected", "red", "x"),
    ("ended", "dim", "·"),
)


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
)
