"""`yard pool`: named sets of clusters that bound where jobs may run."""

from __future__ import annotations

from argparse import Namespace

from switchyard.cli.cluster_sets import ClusterSetCommand, cluster_set_verbs
from switchyard.cli.connect import connect
from switchyard.cli.output import emit
from switchyard.cli.parser import Parser, Verb, run_noun

ABOUT = """\
Pools: named, weighted sets of clusters. A pool bounds where a job may run: the one the job names, else the one an
attribute gives its scope (cluster-assignment), else its domain's. They come from the server's file, and can be changed
while it runs; that holds in every server within a second."""


def main(argv: list[str]) -> int:
    return run_noun("pool", ABOUT, VERBS, argv)


def _assign(args: Namespace) -> int:
    with connect(args) as yard:
        there = [each for each in yard.layout().domain_pools if each.domain == args.domain]
        found = yard.put_domain_pool(args.domain, args.pool, etag=there[0].etag if there else None)
    if args.output:
        emit(found, args.output, name=lambda each: each.name)
        return 0
    print(f"Jobs of the domain {args.domain} go to the pool {args.pool}, where no attribute names another.")
    return 0


def _unassign(args: Namespace) -> int:
    with connect(args) as yard:
        yard.delete_domain_pool(args.domain, reset=args.reset)
    print(f"The domain {args.domain} " + ("has what the file gives it." if args.reset else "has no pool."))
    return 0


def _set_arguments(parser: Parser) -> None:
    stays = parser.add_mutually_exclusive_group()
    stays.add_argument(
        "--sticky", action="store_true", default=None, help="its jobs stay where they were drawn to; idle members wait"
    )
    stays.add_argument(
        "--no-sticky", dest="sticky", action="store_false", help="idle members take over what waits elsewhere in it"
    )


def _assign_arguments(parser: Parser) -> None:
    parser.add_argument("domain", metavar="DOMAIN", help="the domain")
    parser.add_argument("pool", metavar="POOL", help="the pool of its jobs")


def _unassign_arguments(parser: Parser) -> None:
    parser.add_argument("domain", metavar="DOMAIN", help="the domain")
    parser.add_argument("--reset", action="store_true", help="forget what was set at run time: the file holds again")


VERBS = (
    *cluster_set_verbs(
        ClusterSetCommand(
            "pool",
            "pool",
            lambda yard: list(yard.pools()),
            lambda yard, name: yard.pool(name),
            lambda yard, name, members, args, etag: yard.put_pool(name, members, sticky=args.sticky, etag=etag),
            lambda yard, name, reset: yard.delete_pool(name, reset=reset),
            _set_arguments,
        )
    ),
    Verb(
        "assign",
        "Let a domain's jobs go to a pool",
        _assign,
        _assign_arguments,
        examples="  yard pool assign production gpu",
    ),
    Verb(
        "unassign",
        "Let a domain have no pool of its own",
        _unassign,
        _unassign_arguments,
        examples="  yard pool unassign production",
        outputs=(),
    ),
)
