"""`yard cluster-label`: named sets of clusters that narrow where jobs go."""

from __future__ import annotations

from argparse import Namespace

from switchyard.cli.clusters.cluster_sets import ClusterSetCommand, cluster_set_verbs
from switchyard.cli.clusters.layout_verbs import add_reset
from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import print_result
from switchyard.cli.terminal.parser import Parser, Verb, run_noun
from switchyard.errors import BadRequest

ABOUT = """\
Cluster labels: named, weighted sets of clusters. A label narrows where a job goes: the one the job names, else the one
an attribute gives its scope (execution-cluster-label), else the default, which is for jobs without a pool. They come
from the server's file, and can be changed while it runs; that holds in every server within a second."""


def main(argv: list[str]) -> int:
    return run_noun("cluster-label", ABOUT, VERBS, argv)


def _default(args: Namespace) -> int:
    if (args.name is not None) + args.none + args.reset != 1:
        raise BadRequest("Give a label, --none or --reset.", next_step="`yard cluster-label ls` lists the labels.")
    with connect(args) as yard:
        if args.name is None:
            yard.delete_default_label(reset=args.reset)
            print("The default label is what the file says." if args.reset else "There is no default label.")
            return 0
        before = yard.layout().default_label
        changed = yard.put_default_label(args.name, etag=None if before is None else before.etag)
    return print_result(changed, args.output, f"Jobs that have neither a label nor a pool go to the label {args.name}.")


def _default_arguments(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="the label")
    parser.add_argument("--none", action="store_true", help="no default label")
    add_reset(parser)


VERBS = (
    *cluster_set_verbs(
        ClusterSetCommand(
            "cluster-label",
            "cluster label",
            walk=lambda yard: list(yard.cluster_labels()),
            get=lambda yard, name: yard.cluster_label(name),
            put=lambda yard, name, members, _args, etag: yard.put_cluster_label(name, members, etag=etag),
            delete=lambda yard, name, reset: yard.delete_cluster_label(name, reset=reset),
        )
    ),
    Verb(
        "default",
        "Set the label of jobs that have neither a label nor a pool",
        _default,
        _default_arguments,
        examples="  yard cluster-label default everywhere\n  yard cluster-label default --none",
    ),
)
