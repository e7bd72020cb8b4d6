"""`yard cluster probation`: why a cluster gets few tasks, and what an operator does about it."""

from __future__ import annotations

from argparse import Namespace

from switchyard.cli.clusters.cluster_invites import add_cluster_name
from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import emit
from switchyard.cli.terminal.parser import Parser, Verb
from switchyard.cli.terminal.table import format_timestamp, now_us, print_fields
from switchyard.model.cluster.cluster import Cluster
from switchyard.model.cluster.probation import Probation, ProbationAction

DONE = {
    ProbationAction.CONFIRM: "stays on probation until it is cleared: only what no other cluster takes now goes there",
    ProbationAction.CLEAR: "takes tasks as before, and what was counted is forgotten",
    ProbationAction.OFF: "is never put on probation from now on",
    ProbationAction.ON: "may be put on probation again",
}


def probation_text(cluster: Cluster) -> str:
    """Why the cluster gets few tasks, in a line; empty: it gets all."""
    for probation in cluster.probations:
        if not probation.node:
            return f"on probation{f' for {probation.owner}' if probation.owner else ''}: {probation.reason}"
    return ""


def probation_fields(cluster: Cluster) -> list[tuple[str, str]]:
    """One line for each probation of a cluster."""
    fields = [("probation", _text(one, now_us())) for one in cluster.probations]
    return [("probation", "switched off by an operator"), *fields] if cluster.is_probation_off else fields


def _text(probation: Probation, now: int) -> str:
    who = f"for jobs of {probation.owner}" if probation.owner else "for all jobs"
    what = f"node {probation.node} {who}" if probation.node else who
    after = "until it is cleared"
    if not probation.is_confirmed and probation.node:
        after = f"until {format_timestamp(probation.next_us, now)}"
    elif not probation.is_confirmed:
        due = (
            "next canary now" if probation.next_us <= now else f"next canary {format_timestamp(probation.next_us, now)}"
        )
        after = f"{due}, {probation.passed} of {probation.needed} did well"
    return f"{what}: {probation.reason} (since {format_timestamp(probation.since_us, now)}; {after})"


def _probation(args: Namespace) -> int:
    with connect(args) as yard:
        if args.action is None:
            cluster = yard.cluster(args.name)
        else:
            cluster = yard.change_probation(args.name, args.action, reason=args.reason)
    if emit(cluster, args.output):
        return 0
    if args.action is not None:
        print(f"Cluster {args.name} {DONE[ProbationAction(args.action)]}.")
        return 0
    print_fields(probation_fields(cluster) or [("probation", "none")])
    return 0


def _arguments(parser: Parser) -> None:
    add_cluster_name(parser)
    actions = parser.add_mutually_exclusive_group()
    for action, about in (
        (ProbationAction.CONFIRM, "it is broken: it stays on probation, without canaries, until it is cleared"),
        (ProbationAction.CLEAR, "it works: it takes all tasks, and what was counted is forgotten"),
        (ProbationAction.OFF, "never put it on probation"),
        (ProbationAction.ON, "put it on probation again when jobs fail there"),
    ):
        actions.add_argument(f"--{action.value}", dest="action", action="store_const", const=action.value, help=about)
    parser.add_argument("--reason", default="", metavar="TEXT", help="why; users see it")


VERBS = (
    Verb(
        "probation",
        "Show why a cluster gets few tasks; confirm or clear it",
        _probation,
        _arguments,
        examples="  yard cluster probation alpha\n"
        '  yard cluster probation alpha --confirm --reason "its disk is full"\n'
        "  yard cluster probation alpha --clear",
    ),
)
