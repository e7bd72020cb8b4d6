"""`yard cluster drain`: cordon clusters, and wait until their jobs have ended and their output files are sent."""

from __future__ import annotations

import time
from argparse import Namespace

from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import emit, print_notice
from switchyard.cli.terminal.parser import Parser, Verb, duration_s
from switchyard.cli.terminal.progress import ProgressBar
from switchyard.errors import TimedOut
from switchyard.model.cluster.cluster import Cluster
from switchyard.sdk.client import CoreClient


def _drain(args: Namespace) -> int:
    """Cordon all clusters first, then wait for all of them within one deadline."""
    names = list(dict.fromkeys(args.name))
    with connect(args) as yard:
        for name in names:
            yard.change_cluster(name, cordoned=True, reason=args.reason)
        if args.wait or args.deadline is not None:
            clusters = _wait_until_empty(yard, names, args.deadline)
        else:
            clusters = [yard.cluster(name) for name in names]
    if emit(clusters, args.output):
        return 0
    for cluster in clusters:
        print(_drain_text(cluster))
    return 0


def _wait_until_empty(yard: CoreClient, names: list[str], deadline_s: float | None) -> list[Cluster]:
    end = None if deadline_s is None else time.monotonic() + deadline_s
    seen: dict[str, Cluster] = {}
    first: dict[str, int] = {}
    with ProgressBar(f"draining {', '.join(names)}") as progress:

        def show(cluster: Cluster) -> None:
            seen[cluster.name] = cluster
            first.setdefault(cluster.name, cluster.held or 0)
            left, total = sum(drained.held or 0 for drained in seen.values()), sum(first.values())
            unsent = sum(drained.unsent or 0 for drained in seen.values())
            files = f", output files of {unsent} on their way" if unsent else ""
            progress.show(max(total - left, 0), total, f"{left} left{files}")

        for name in names:
            show(yard.cluster(name))
        for name in names:
            left_s = None if end is None else max(0.0, end - time.monotonic())
            try:
                yard.wait_empty(name, timeout_s=left_s, on_progress=show)
            except TimedOut as exc:
                print_notice(
                    f"Not empty after {deadline_s} s. Drained clusters take no new jobs; what runs there goes on."
                )
                raise TimedOut(exc.detail, next_step=exc.next_step) from exc
    return [seen[name] for name in names]


def _drain_text(cluster: Cluster) -> str:
    if not cluster.held and cluster.unsent:
        files = f"output files of {cluster.unsent} ended jobs or tasks are still on their way from it"
        return f"Cluster {cluster.name} gets no new jobs, and has none; {files}. `--wait` waits for that."
    if not cluster.held:
        return f"Cluster {cluster.name} is drained: it gets no new jobs, and has none."
    going = "1 job there goes on" if cluster.held == 1 else f"{cluster.held} jobs there go on"
    return f"Cluster {cluster.name} gets no new jobs; {going}. `--wait` waits for that."


def _arguments(parser: Parser) -> None:
    parser.add_argument("name", nargs="+", metavar="NAME", help="the cluster's name")
    parser.add_argument("--reason", default="", metavar="TEXT", help="why; users see it")
    parser.add_argument(
        "-w",
        "--wait",
        action="store_true",
        help="wait until no job runs there and output files are sent",
    )
    parser.add_argument("--deadline", type=duration_s, metavar="T", help="wait at most this long; exits 7 after that")


VERBS = (
    Verb(
        "drain",
        "Give clusters no new jobs; wait until what runs there is over",
        _drain,
        _arguments,
        examples='  yard cluster drain alpha --reason "new disks" --wait\n'
        "  yard cluster drain alpha beta --deadline 2h || yard ls --cluster alpha",
    ),
)
