"""`yard stats failures`: what fails, where, and how often."""

from __future__ import annotations

from argparse import Namespace

from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import emit, print_notice
from switchyard.cli.terminal.parser import Parser, Verb, duration_s
from switchyard.cli.terminal.table import Column, format_duration, print_table
from switchyard.model.failures.failure_stats import FAILURE_DIMENSIONS, FailureStats

SINCE_S = 86_400


def _failures(args: Namespace) -> int:
    with connect(args) as yard:
        stats = yard.failure_stats(by=args.by, since_s=args.since, project=args.project)
    if emit(stats, args.output, key="rows"):
        return 0
    period = format_duration(args.since * 1_000_000)
    print(f"{stats.failures:,} attempt{'' if stats.failures == 1 else 's'} failed in the last {period}")
    if stats.rows:
        columns = (Column(stats.by.upper(), flexible=True), Column("FAILED", right=True), Column("SHARE", right=True))
        print_table((*columns, Column("KINDS", flexible=True)), _rows(stats))
    if not stats.is_whole:
        print_notice(f"Of the last {stats.looked_at:,} failures only: there were more in that time.")
    return 0


def _rows(stats: FailureStats) -> list[list[str]]:
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
        default=SINCE_S,
        metavar="T",
        help="attempts that ended within this time (default 1d)",
    )
    parser.add_argument("--project", metavar="NAME", help="only those of this project")


FAILURES = Verb(
    "failures",
    "Count the attempts that failed, by cluster, kind, node or owner",
    _failures,
    _failures_arguments,
    examples="  yard stats failures\n  yard stats failures --by node --since 2h\n"
    "  yard stats failures --by kind -o json | jq '.rows[]'",
    outputs=("json", "yaml"),
)
