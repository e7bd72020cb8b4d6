"""`yard cluster`: the places that run jobs."""

from __future__ import annotations

from argparse import Namespace

from switchyard.cli import cluster_agree, cluster_drain, cluster_fit, cluster_graph, cluster_state
from switchyard.cli.connect import connect
from switchyard.cli.output import confirm, emit, emit_list, paint, print_notice
from switchyard.cli.parser import Parser, Verb, add_force, duration_s, key_value, no_arguments, run_noun
from switchyard.cli.table import (
    Column,
    format_age,
    format_duration,
    format_timestamp,
    now_us,
    print_fields,
    print_table,
)
from switchyard.model.cluster import Agent, Cluster
from switchyard.model.quantity import show_bytes
from switchyard.model.quote import QuoteRecord

COLUMNS = (
    Column("NAME"),
    Column("HEALTH"),
    Column("BACKEND", optional=True),
    Column("NODES", right=True),
    Column("CORES", right=True),
    Column("FREE", right=True),
    Column("GPUS", right=True),
    Column("MEMORY", right=True),
    Column("JOBS", right=True),
    Column("SEEN", right=True),
    Column("REASON", flexible=True),
)


def main(argv: list[str]) -> int:
    return run_noun("cluster", "The places that run jobs.", VERBS, argv)


def _ls(args: Namespace) -> int:
    with connect(args) as yard:
        clusters = list(yard.clusters())
    if args.output:
        emit_list(clusters, args.output, name=lambda each: each.name)
        return 0
    now = now_us()
    print_table(COLUMNS, [_row(cluster, now) for cluster in clusters])
    if not clusters:
        print_notice("No clusters. `yard cluster invite NAME` brings one in.")
    return 0


def _row(cluster: Cluster, now: int) -> list[str]:
    totals, load = cluster.totals, cluster.load
    return [
        cluster.name,
        cluster.health.value,
        cluster.backend,
        str(totals.get("node", 1)) if totals else "",
        str(totals.get("core", 0)) if totals else "",
        str(load.free_cores) if load and load.free_cores is not None else "",
        str(totals.get("gpu", 0)) if totals else "",
        show_bytes(totals["memory"]) if totals.get("memory") else "",
        str(load.running) if load else "",
        format_age(cluster.seen_us, now),
        cluster.reason or (load.trouble if load else ""),
    ]


def _show(args: Namespace) -> int:
    with connect(args) as yard:
        cluster = yard.cluster(args.name)
        if args.output:
            return _emit(cluster, args)
        agents = list(yard.agents(cluster=args.name))
    _print(cluster, agents)
    return 0


def _print(cluster: Cluster, agents: list[Agent]) -> None:
    now = now_us()
    load = cluster.load
    fields = [
        ("name", cluster.name),
        ("health", cluster.health.value + (f" ({cluster.reason})" if cluster.reason else "")),
        ("trouble", load.trouble if load else ""),
        ("id", cluster.id),
        ("backend", cluster.backend),
        ("open to", _access_text(cluster)),
        ("groups", " ".join(cluster.groups)),
        ("labels", " ".join(f"{key}={value}" for key, value in sorted(cluster.labels.items()))),
        ("jobs", f"{load.running} running, {load.queued} queued" if load else ""),
        ("ours", f"{cluster.held} held by its agents, {cluster.in_line} in line" if cluster.held is not None else ""),
        ("has", ", ".join(_amount(kind, size) for kind, size in cluster.totals.items())),
        ("free", _free_text(cluster)),
        ("quotes", _quote_accuracy(cluster.quotes)),
        ("created", format_timestamp(cluster.created_us, now)),
        ("seen", format_timestamp(cluster.seen_us, now)),
    ]
    print_fields(fields)
    if cluster.state:
        print()
        cluster_state.print_state(cluster.state)
    if agents:
        from switchyard.cli.agent import print_agents

        print()
        print_agents(agents)


def _access_text(cluster: Cluster) -> str:
    if cluster.is_by_token:
        return f"those with its submit token (`yard cluster edit {cluster.name} --public` shares it)"
    return "those with a grant" if cluster.is_private else "everyone"


def _amount(kind: str, size: int) -> str:
    return f"{show_bytes(size) if kind in ('memory', 'storage') else size} {kind}"


def _quote_accuracy(record: QuoteRecord | None) -> str:
    """How well its quotes were kept: jobs begin so much later, or sooner, than it said."""
    if record is None:
        return ""
    word = "later" if record.error_s >= 0 else "sooner"
    error = format_duration(round(abs(record.error_s) * 1e6))
    starts = f"{record.starts} start{'' if record.starts == 1 else 's'}"
    return f"{error} {word} than quoted (median of {starts}), trusted {record.trust:.0%}"


def _free_text(cluster: Cluster) -> str:
    load = cluster.load
    if load is None:
        return ""
    parts = [
        f"{load.free_cores} cores" if load.free_cores is not None else "",
        f"{load.free_gpus} gpus" if load.free_gpus else "",
        f"{show_bytes(load.free_memory_bytes)} memory" if load.free_memory_bytes else "",
    ]
    return ", ".join(filter(None, parts))


def _create(args: Namespace) -> int:
    with connect(args) as yard:
        cluster = yard.create_cluster(args.name, private=args.private, groups=args.group, labels=dict(args.label))
    if args.output:
        return _emit(cluster, args)
    print(f"Cluster {cluster.name} is registered. `yard cluster invite {cluster.name}` lets an agent join.")
    return 0


def _invite(args: Namespace) -> int:
    with connect(args) as yard:
        invite = yard.invite(
            args.name, reusable=args.reusable, expires_s=args.expires, private=args.private, groups=args.group
        )
        url, ca_file = yard.url, yard.ca_file
    if args.output:
        emit(invite, args.output, name=lambda each: each.token)
        return 0
    uses = "any number of agents" if args.reusable else "one agent"
    lifetime = format_duration(args.expires * 1_000_000)
    print(f"A join token for cluster {args.name}, shown once. It lets in {uses}, for {lifetime}.")
    print("On a machine of the cluster, run" + (" (with the server's CA file added as --ca-file):" if ca_file else ":"))
    print()
    print(f"  yard agent --server {url} --cluster {args.name} --backend local --token {invite.token}")
    print()
    print(paint("The join token alone:", "dim"))
    print(invite.token)  # the last word on stdout: scripts take it from there
    return 0


def _cordon(args: Namespace) -> int:
    return _set_cordoned(args, cordoned=True, done="is cordoned: it gets no new jobs, those that run there go on")


def _uncordon(args: Namespace) -> int:
    return _set_cordoned(args, cordoned=False, done="takes jobs again")


def _set_cordoned(args: Namespace, *, cordoned: bool, done: str) -> int:
    with connect(args) as yard:
        changed = [
            yard.change_cluster(name, cordoned=cordoned, reason=getattr(args, "reason", "")) for name in args.name
        ]
    if args.output:
        emit_list(changed, args.output, name=lambda each: each.name)
        return 0
    for cluster in changed:
        print(f"Cluster {cluster.name} {done}.")
    return 0


def _edit(args: Namespace) -> int:
    with connect(args) as yard:
        labels = None
        if args.label or args.unlabel:
            kept = {key: value for key, value in yard.cluster(args.name).labels.items() if key not in args.unlabel}
            labels = {**kept, **dict(args.label)}
        groups = [] if args.no_groups else args.group or None
        cluster = yard.change_cluster(args.name, private=args.private, groups=groups, labels=labels)
    if args.output:
        return _emit(cluster, args)
    _print(cluster, [])
    return 0


def _rm(args: Namespace) -> int:
    question = f"Remove cluster {args.name}? Its agents' credentials end, and a new one of that name inherits no jobs."
    if not confirm(question, force=args.force):
        return 1
    with connect(args) as yard:
        yard.delete_cluster(args.name, abandon=args.abandon)
    print(f"Cluster {args.name} is removed.")
    return 0


def _token(args: Namespace) -> int:
    """Make a new submit token, and keep it in the user's file if asked."""
    with connect(args) as yard:
        make = yard.group_submit_token if args.group else yard.submit_token
        made = make(args.name, account=args.account)
    if args.save:
        from switchyard.model.job import ClusterToken
        from switchyard.sdk.config import config_path, load_user_file, save_user_file

        save_user_file(
            config_path(), load_user_file(config_path()).with_cluster(ClusterToken(made.cluster, made.token))
        )
        print_notice(f"Kept in {config_path()}: your submits carry it from now on.")
    if args.output:
        emit(made, args.output, name=lambda each: each.token)
        return 0
    what = "group" if args.group else "cluster"
    print(f"The submit token of {what} {made.cluster}, shown once; the one before no longer holds:")
    print(made.token)
    return 0


def _emit(cluster: Cluster, args: Namespace) -> int:
    emit(cluster, args.output, name=lambda each: each.name)
    return 0


def _add_name_argument(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="the cluster's name")


def _add_names_argument(parser: Parser) -> None:
    parser.add_argument("name", nargs="+", metavar="NAME", help="the cluster's name")


def _cordon_arguments(parser: Parser) -> None:
    _add_names_argument(parser)
    parser.add_argument("--reason", default="", metavar="TEXT", help="why; users see it")


def _create_arguments(parser: Parser) -> None:
    _add_name_argument(parser)
    parser.add_argument("--private", action="store_true", help="only those with a grant may submit to it")
    parser.add_argument("--group", action="append", default=[], metavar="G", help="a cluster group; repeatable")
    parser.add_argument("-l", "--label", type=key_value, action="append", default=[], metavar="K=V", help="repeatable")


def _invite_arguments(parser: Parser) -> None:
    _add_name_argument(parser)
    parser.add_argument("--reusable", action="store_true", help="for many agents; otherwise for one")
    parser.add_argument("--expires", type=duration_s, default=86_400, metavar="T", help="holds this long (default 1d)")
    parser.add_argument("--private", action="store_true", help="of a new cluster: only those with a grant may submit")
    parser.add_argument("--group", action="append", default=[], metavar="G", help="of a new cluster; repeatable")


def _edit_arguments(parser: Parser) -> None:
    _add_name_argument(parser)
    opened = parser.add_mutually_exclusive_group()
    opened.add_argument("--private", action="store_true", default=None, help="only those with a grant may submit to it")
    opened.add_argument("--public", dest="private", action="store_false", help="everyone may submit to it")
    parser.add_argument("--group", action="append", default=[], metavar="G", help="its groups are these; repeatable")
    parser.add_argument("--no-groups", action="store_true", help="it is in no group")
    parser.add_argument(
        "-l", "--label", type=key_value, action="append", default=[], metavar="K=V", help="add or change"
    )
    parser.add_argument("--unlabel", action="append", default=[], metavar="K", help="remove this label; repeatable")


def _rm_arguments(parser: Parser) -> None:
    _add_name_argument(parser)
    add_force(parser)
    parser.add_argument("--abandon", action="store_true", help="also while jobs run there: they end as FAILED")


def _token_arguments(parser: Parser) -> None:
    _add_name_argument(parser)
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument("--save", action="store_true", help="keep it in your own file, so your submits carry it")
    kept.add_argument("--group", action="store_true", help="NAME is a group: one token for all of its clusters")
    parser.add_argument("--account", metavar="USER", help="whose jobs they are that show it and nothing else")


VERBS = (
    Verb("ls", "List clusters", _ls, no_arguments, examples="  yard cluster ls -o json | jq '.[].health'"),
    Verb(
        "show",
        "Show one cluster: health, what it has, its agents",
        _show,
        _add_name_argument,
        examples="  yard cluster show alpha",
    ),
    Verb(
        "create",
        "Register a cluster before any agent joins",
        _create,
        _create_arguments,
        examples="  yard cluster create alpha --private",
    ),
    Verb(
        "invite",
        "Make a join token for an agent; the token is the last word printed",
        _invite,
        _invite_arguments,
        examples="  yard cluster invite alpha\n"
        "  yard cluster invite alpha --reusable --expires 7d\n"
        "  token=$(yard cluster invite alpha -o name)",
    ),
    Verb(
        "cordon",
        "Give clusters no new jobs",
        _cordon,
        _cordon_arguments,
        examples='  yard cluster cordon alpha --reason "maintenance until noon"',
    ),
    *cluster_drain.VERBS,
    Verb(
        "uncordon", "Give clusters jobs again", _uncordon, _add_names_argument, examples="  yard cluster uncordon alpha"
    ),
    Verb(
        "edit",
        "Change who may use a cluster, its groups and labels",
        _edit,
        _edit_arguments,
        examples="  yard cluster edit alpha --private --group gpu --label site=north",
    ),
    Verb(
        "token",
        "Make a new submit token of a cluster; the old one ends",
        _token,
        _token_arguments,
        examples="  yard cluster token alpha --save\n  yard cluster token gpu --group --account alice",
    ),
    *cluster_agree.VERBS,
    *cluster_graph.VERBS,
    *cluster_fit.VERBS,
    *cluster_state.VERBS,
    Verb("rm", "Remove a cluster", _rm, _rm_arguments, examples="  yard cluster rm alpha --force", outputs=()),
)
