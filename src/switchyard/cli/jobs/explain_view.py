"""Prints a pending job's position in its queue, and the history of decisions about a job. It knows no command."""

from __future__ import annotations

from collections.abc import Sequence

from switchyard.cli.jobs.verdicts import print_wrapped_table
from switchyard.cli.terminal.output import paint, printable
from switchyard.cli.terminal.table import Column, format_duration, now_us
from switchyard.model.cluster.verdict import Decision
from switchyard.model.rules.queue import QueuePosition

SHARES_SHOWN = 8
DECISION_COLUMNS = (Column("WHEN"), Column("WHAT"), Column("STATE"), Column("CLUSTER"), Column("WHY"))
DECISIONS_SHOWN = 20  # the newest


def print_queue_position(standing: QueuePosition) -> None:
    """Print the job's place, the limits it waits for, and the shares that order jobs of equal priority."""
    ahead = f"{standing.ahead}{'+' * standing.is_more} ahead of it"
    text = f"Queue {standing.queue}: number {standing.position} ({ahead}), priority {standing.priority}"
    print(paint(printable(text), "bold"))
    if standing.limit is not None:
        print(printable(f"  {standing.running or 0} of at most {standing.limit} run in {standing.queue}"))
    if standing.project_limit is not None:
        print(f"  {standing.project_running or 0} of at most {standing.project_limit} of its project run there")
    for share in standing.shares[:SHARES_SHOWN]:
        cores = "1 core" if share.cores == 1 else f"{share.cores} cores"
        print(printable(f"  {share.project}: {cores} at weight {share.weight:g}, share {share.share:g}"))
    if len(standing.shares) > SHARES_SHOWN:
        print(f"  and {len(standing.shares) - SHARES_SHOWN} more projects")
    if standing.shares:
        print("  Of equal priority, the project with the least share comes first.")


def print_decisions(history: Sequence[Decision]) -> None:
    """Print the newest decisions about a job, oldest first. A single decision is in the table of verdicts."""
    if len(history) < 2:
        return
    left_out = len(history) - DECISIONS_SHOWN
    print(paint(f"\nHistory{f', the last {DECISIONS_SHOWN} of {len(history)}' if left_out > 0 else ''}:", "bold"))
    print_wrapped_table(DECISION_COLUMNS, [_decision_cells(decision) for decision in history[-DECISIONS_SHOWN:]])


def _decision_cells(decision: Decision) -> list[str]:
    age = f"{format_duration(now_us() - decision.at_us)} ago"
    return [age, decision.what, decision.state, decision.cluster or "", decision.reason]
