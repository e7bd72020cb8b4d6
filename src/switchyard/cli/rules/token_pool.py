"""`yard token-pool`: quotas on things outside every cluster, and who holds of them."""

from __future__ import annotations

import argparse
from argparse import Namespace

from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import confirm, emit, print_notice
from switchyard.cli.terminal.parser import Parser, Verb, add_force, duration_s, no_arguments, positive_int, run_noun
from switchyard.cli.terminal.table import Column, format_age, now_us, print_list
from switchyard.errors import EXIT_ERROR, EXIT_OK
from switchyard.model.rules.tokens import AllocateRequest, ResourceConstraintsSpec, TokenHolder, TokenPool

ABOUT = """\
Token pools: quotas on things that live outside every cluster, such as licences, a warehouse, a web service. A job or a
caller holds tokens of a pool while it uses the thing: a job from its assignment to its end, a caller for the time of a
lease. What kind of pools a server has is said in its file (resourcemanager): with `noop` everything is granted."""
COLUMNS = (
    Column("NAMESPACE"),
    Column("USED", right=True),
    Column("QUOTA", right=True),
    Column("JOBS", right=True),
    Column("CALLERS", right=True),
    Column("WAITING", right=True),
    Column("REFUSED", right=True, optional=True),
    Column("NOTE", flexible=True),
)
HOLDER_COLUMNS = (
    Column("HOLDER", flexible=True),
    Column("UNITS", right=True),
    Column("PROJECT"),
    Column("DOMAIN"),
    Column("OWNER", optional=True),
    Column("SINCE", right=True),
    Column("EXPIRES", right=True),
)


def main(argv: list[str]) -> int:
    return run_noun("token-pool", ABOUT, VERBS, argv)


def _ls(args: Namespace) -> int:
    with connect(args) as yard:
        pools = list(yard.token_pools())
    return print_list(pools, args.output, COLUMNS, _row, key="namespace")


def _row(pool: TokenPool, _: int) -> list[str]:
    quota = f"{pool.quota}" if pool.per_s is None else f"{pool.quota}/{pool.per_s}s"
    counts = (pool.held_by_jobs, pool.held_by_callers, pool.waiting, pool.refused)
    return [pool.namespace, str(pool.used), quota, *map(str, counts), _pool_note(pool)]


def _pool_note(pool: TokenPool) -> str:
    if not pool.is_enforced:
        return "not enforced"
    if pool.opens_in_s is None:
        return "rebuilding"
    return f"rebuilding, opens in {pool.opens_in_s:.0f} s" if pool.opens_in_s > 0 else ""


def _show(args: Namespace) -> int:
    with connect(args) as yard:
        pool = yard.token_pool(args.namespace)
    if emit(pool, args.output, key="namespace"):
        return EXIT_OK
    per = "" if pool.per_s is None else f" per {pool.per_s} s"
    lines = {
        "namespace": pool.namespace,
        "quota": f"{pool.quota}{per}",
        "used": str(pool.used),
        "held by": f"{pool.held_by_jobs} jobs, {pool.held_by_callers} callers",
        "waiting": f"{pool.waiting} jobs; the longest wait was {pool.waited_s:.0f} s",
        "refused": str(pool.refused),
        "repaired": str(pool.repaired),
        "changed": f"{format_age(pool.changed_us, now_us())} ago by {pool.changed_by}",
        "note": _pool_note(pool),
    }
    for name, value in lines.items():
        if value:
            print(f"{name:<10} {value}")
    return EXIT_OK


def _register(args: Namespace) -> int:
    with connect(args) as yard:
        pool = yard.register_token_pool(args.namespace, args.quota, per_s=args.per)
    return _print_pool(args, pool, f"The token pool {pool.namespace} has a quota of {pool.quota}.")


def _set_quota(args: Namespace) -> int:
    with connect(args) as yard:
        pool = yard.set_token_quota(args.namespace, args.quota)
    code = _print_pool(args, pool, f"The token pool {pool.namespace} has a quota of {pool.quota}.")
    if pool.used > pool.quota and not args.output:
        print_notice(
            f"{pool.used} are held: who holds goes on, and nobody is granted until fewer than {pool.quota} are."
        )
    return code


def _print_pool(args: Namespace, pool: TokenPool, text: str) -> int:
    if not emit(pool, args.output, key="namespace"):
        print(text)
        if not pool.is_enforced:
            print_notice("This server enforces no token pools: its file says noop (resourcemanager.type).")
    return EXIT_OK


def _holders(args: Namespace) -> int:
    with connect(args) as yard:
        holders = list(yard.token_holders(args.namespace, limit=args.limit))
    return print_list(holders, args.output, HOLDER_COLUMNS, _holder_row, key="token")


def _holder_row(holder: TokenHolder, _: int) -> list[str]:
    holder_name = holder.token if holder.job is None else f"job {holder.job}"
    expires = "" if holder.expires_in_s is None else f"{holder.expires_in_s:.0f}s"
    since = f"{holder.held_s:.0f}s"
    return [holder_name, str(holder.units), holder.project, holder.domain, holder.owner, since, expires]


def _allocate(args: Namespace) -> int:
    caps = ResourceConstraintsSpec(args.project_cap, args.namespace_cap)
    claim = AllocateRequest(
        args.token, args.project, domain=args.domain, units=args.units, lease_s=args.lease, constraints=caps
    )
    with connect(args) as yard:
        allocation = yard.resource_manager().allocate(args.namespace, claim)
    if not emit(allocation, args.output, key="status.name"):
        status = allocation.status.name
        print(status if allocation.limited_by is None else f"{status} {allocation.limited_by}")
    return EXIT_OK if allocation.is_granted else EXIT_ERROR


def _release(args: Namespace) -> int:
    if not confirm(f"Give back {args.token} of {args.namespace}, which somebody may use?", force=args.force):
        return EXIT_ERROR
    with connect(args) as yard:
        manager = yard.resource_manager()
        is_released = manager.release_resource(args.namespace, args.token, project=args.project, domain=args.domain)
        per_s = yard.token_pool(args.namespace).per_s if is_released else None
    counted = f" What a rate pool granted counts until its {per_s} s are over." if per_s else ""
    print(f"Given back.{counted}" if is_released else "It was not held.")
    return EXIT_OK


def _rm(args: Namespace) -> int:
    if not confirm(f"Remove the token pool {args.namespace}?", force=args.force):
        return EXIT_ERROR
    with connect(args) as yard:
        yard.delete_token_pool(args.namespace)
    print(f"The token pool {args.namespace} is gone.")
    return EXIT_OK


def parse_quota(text: str) -> int:
    """Parse a whole number. The server checks its range."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def _add_namespace_argument(parser: Parser) -> None:
    parser.add_argument("namespace", metavar="POOL", help="the pool's namespace")


def _register_arguments(parser: Parser) -> None:
    _add_namespace_argument(parser)
    parser.add_argument("quota", metavar="QUOTA", type=parse_quota, help="how many tokens there are")
    parser.add_argument(
        "--per", metavar="TIME", type=duration_s, help="a rate pool: QUOTA tokens within this time, such as 1m"
    )


def _quota_arguments(parser: Parser) -> None:
    _add_namespace_argument(parser)
    parser.add_argument("quota", metavar="QUOTA", type=parse_quota, help="how many tokens there are")


def _holders_arguments(parser: Parser) -> None:
    _add_namespace_argument(parser)
    parser.add_argument("--limit", metavar="N", type=positive_int, default=1000, help="show at most this many")


def _token_arguments(parser: Parser) -> None:
    _add_namespace_argument(parser)
    parser.add_argument("token", metavar="TOKEN", help="the token, as it was claimed")
    parser.add_argument("-p", "--project", metavar="NAME", default="default", help="its project")
    parser.add_argument("-d", "--domain", metavar="NAME", default="development", help="its domain")


def _allocate_arguments(parser: Parser) -> None:
    _token_arguments(parser)
    parser.add_argument("--units", metavar="N", type=positive_int, default=1, help="how many")
    parser.add_argument("--lease", metavar="TIME", type=duration_s, help="the time of the lease; claim again to renew")
    parser.add_argument("--project-cap", metavar="N", type=parse_quota, help="the most the project may hold; 0: none")
    parser.add_argument(
        "--namespace-cap", metavar="N", type=parse_quota, help="the most its project and domain may hold"
    )


def _release_arguments(parser: Parser) -> None:
    _token_arguments(parser)
    add_force(parser)


def _rm_arguments(parser: Parser) -> None:
    _add_namespace_argument(parser)
    add_force(parser)


VERBS = (
    Verb("ls", "List token pools and how much of each is used", _ls, no_arguments, examples="  yard token-pool ls"),
    Verb("show", "Show one in full", _show, _add_namespace_argument, examples="  yard token-pool show matlab"),
    Verb(
        "register",
        "Make a token pool",
        _register,
        _register_arguments,
        examples="  yard token-pool register matlab 40\n"
        "  yard token-pool register geocoder 600 --per 1m    600 a minute, not 600 at once",
    ),
    Verb(
        "set-quota",
        "Change how many tokens there are; holders finish first",
        _set_quota,
        _quota_arguments,
        examples="  yard token-pool set-quota matlab 60",
    ),
    Verb("holders", "List who holds tokens", _holders, _holders_arguments, examples="  yard token-pool holders matlab"),
    Verb(
        "allocate",
        "Claim a token for a time; exits with 1 where it is refused",
        _allocate,
        _allocate_arguments,
        examples="  yard token-pool allocate matlab my-script-1 --lease 5m",
    ),
    Verb(
        "release",
        "Give a caller's token back",
        _release,
        _release_arguments,
        examples="  yard token-pool release matlab my-script-1 --force",
        outputs=(),
    ),
    Verb(
        "rm",
        "Remove a token pool of which nothing is held",
        _rm,
        _rm_arguments,
        examples="  yard token-pool rm matlab --force",
        outputs=(),
    ),
)
