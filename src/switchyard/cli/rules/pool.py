"""`yard pool`: named sets of clusters that bound where jobs may run."""

from __future__ import annotations

from argparse import Namespace

from switchyard.cli.clusters.cluster_sets import ClusterSetCommand, cluster_set_verbs
from switchyard.cli.clusters.layout_verbs import add_domain, unassign_verb
from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import print_result
from switchyard.cli.terminal.parser import Parser, Verb, run_noun

ABOUT = """\
Pools: named, weighted sets of clusters. A pool bounds where a job may run: the one the job names, else the one an
attribute gives its scope (cluster-assignment), else its domain's. They come from the server's file, and can be changed
while it runs; that holds in every server within a second."""


def main(argv: list[str]) -> int:
    return run_noun("pool", ABOUT, VERBS, argv)


def _assign(args: Namespace) -> int:
    with connect(args) as yard:
        etags = [default.etag for default in yard.layout().domain_pools if default.domain == args.domain]
        assigned = yard.put_domain_pool(args.domain, args.pool, etag=etags[0] if etags else None)
    text = f"Jobs of the domain {args.domain} go to the pool {args.pool}, where no attribute names another."
    return print_result(assigned, args.output, text)


def _set_arguments(parser: Parser) -> None:
    stays = parser.add_mutually_exclusive_group()
    stays.add_argument(
        "--sticky",
        action="store_true",
        default=None,
        help="its jobs stay on the cluster they were drawn to, also while others are idle",
    )
    stays.add_argument(
        "--no-sticky", dest="sticky", action="store_false", help="idle members take over jobs that wait on others"
    )


def _assign_arguments(parser: Parser) -> None:
    add_domain(parser)
    parser.add_argument("pool", metavar="POOL", help="the pool of its jobs")


VERBS = (
    *cluster_set_verbs(
        ClusterSetCommand(
            "pool",
            "pool",
            walk=lambda yard: list(yard.pools()),
            get=lambda yard, name: yard.pool(name),
            put=lambda yard, name, members, args, etag: yard.put_pool(name, members, sticky=args.sticky, etag=etag),
            delete=lambda yard, name, reset: yard.delete_pool(name, reset=reset),
            add_arguments=_set_arguments,
        )
    ),
    Verb(
        "assign",
        "Let a domain's jobs go to a pool",
        _assign,
        _assign_arguments,
        examples="  yard pool assign production gpu",
    ),
    unassign_verb(
        "pool",
        "Let a domain have no pool of its own",
        "pool",
        lambda yard, domain, reset: yard.delete_domain_pool(domain, reset=reset),
    ),
)
