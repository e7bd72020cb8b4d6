"""`yard cluster`: the places that run jobs."""

from __future__ import annotations

from argparse import Namespace

from switchyard.cli.clusters import (
    cluster_agree,
    cluster_drain,
    cluster_fit,
    cluster_graph,
    cluster_invites,
    cluster_state,
)
from switchyard.cli.clusters.cluster_invites import add_namespaces
from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import confirm, emit, paint, print_given_up, print_notice
from switchyard.cli.terminal.parser import (
    ABANDON_HELP,
    Parser,
    Verb,
    add_force,
    add_labels,
    changed_labels,
    duration_s,
    no_arguments,
    run_noun,
)
from switchyard.cli.terminal.table import (
    Column,
    format_age,
    format_duration,
    format_timestamp,
    now_us,
    print_fields,
    print_table,
)
from switchyard.model.cluster.cluster import Agent, Cluster, Load
from switchyard.model.cluster.quote import QuoteRecord
from switchyard.model.jobspec.quantity import show_bytes

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
    if emit(clusters, args.output):
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
        str(load.free_cores) if load and load.free_cores is not None and load.silent_s is None else "",
        str(totals.get("gpu", 0)) if totals else "",
        show_bytes(totals["memory"]) if totals.get("memory") else "",
        str(load.running) if load and load.silent_s is None else "",
        format_age(cluster.seen_us, now),
        _silence_text(load) or cluster.reason or (load.trouble or load.files_trouble if load else ""),
    ]


def _silence_text(load: Load | None) -> str:
    """Why nothing new is known of the cluster, and for how long; empty: its batch system answers."""
    if load is None or load.silent_s is None:
        return ""
    return f"{load.trouble} (for {format_duration(load.silent_s * 1_000_000)})"


def _show(args: Namespace) -> int:
    with connect(args) as yard:
        cluster = yard.cluster(args.name)
        if emit(cluster, args.output):
            return 0
        agents = list(yard.agents(cluster=args.name))
    _print(cluster, agents)
    return 0


def _print(cluster: Cluster, agents: list[Agent]) -> None:
    now = now_us()
    load = cluster.load
    fields = [
        ("name", cluster.name),
        ("health", cluster.health.value + (f" ({cluster.reason})" if cluster.reason else "")),
        ("trouble", _silence_text(load) or (load.trouble if load else "")),
        ("files", f"takes no jobs with files now: {load.files_trouble}" if load and load.files_trouble else ""),
        ("id", cluster.id),
        ("backend", cluster.backend),
        ("open to", _access_text(cluster)),
        ("groups", " ".join(cluster.groups)),
        ("namespaces", " ".join(cluster.namespaces)),
        ("life", "ephemeral: it leaves with its last agent" if cluster.is_ephemeral else ""),
        ("labels", " ".join(f"{key}={value}" for key, value in sorted(cluster.labels.items()))),
        ("jobs", f"{load.running} running, {load.queued} queued{_staleness(load)}" if load else ""),
        ("ours", f"{cluster.held} held by its agents, {cluster.in_line} in line" if cluster.held is not None else ""),
        ("has", cluster_graph.format_totals(cluster.totals)),
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
        from switchyard.cli.clusters.agent import print_agents

        print()
        print_agents(agents)


def _access_text(cluster: Cluster) -> str:
    if cluster.is_by_token:
        return f"those with its submit token (`yard cluster edit {cluster.name} --public` shares it)"
    return "those with a grant" if cluster.is_private else "everyone"


def _quote_accuracy(record: QuoteRecord | None) -> str:
    """How much later or sooner jobs start than the cluster quoted, and how far its quotes are trusted."""
    if record is None:
        return ""
    word = "later" if record.error_s >= 0 else "sooner"
    error = format_duration(round(abs(record.error_s) * 1e6))
    starts = f"{record.starts} start{'' if record.starts == 1 else 's'}"
    return f"{error} {word} than quoted (median of {starts}), trusted {record.trust:.0%}"


def _free_text(cluster: Cluster) -> str:
    """What is free of each kind that the cluster has. What nobody counts is unknown, and not 0."""
    load, totals = cluster.load, cluster.totals
    if load is None:
        return ""
    memory = None if load.free_memory_bytes is None else show_bytes(load.free_memory_bytes)
    free = {"core": ("cores", load.free_cores), "gpu": ("gpus", load.free_gpus), "memory": ("memory", memory)}
    parts = [
        f"{word} unknown" if left is None else f"{left} {word}"
        for kind, (word, left) in free.items()
        if totals.get(kind) or left
    ]
    is_known = any(left is not None for _, left in free.values())
    return f"{', '.join(parts)}{_staleness(load)}" if parts and is_known else ""


def _staleness(load: Load) -> str:
    """What follows facts of a cluster: they are old while its batch system does not answer."""
    return "" if load.silent_s is None else ", when it last answered"


def _create(args: Namespace) -> int:
    with connect(args) as yard:
        cluster = yard.create_cluster(
            args.name,
            private=args.private,
            groups=args.group,
            labels=dict(args.label),
            namespaces=args.namespaces or (),
        )
    if not emit(cluster, args.output):
        print(f"Cluster {cluster.name} is registered. `yard cluster invite {cluster.name}` lets an agent join.")
    return 0


def _invite(args: Namespace) -> int:
    with connect(args) as yard:
        invite = yard.invite(
            args.name,
            reusable=args.reusable,
            expires_s=args.expires,
            private=args.private,
            groups=args.group,
            ephemeral=args.ephemeral,
            namespaces=args.namespaces or (),
        )
        url, ca_file = yard.url, yard.ca_file
    if emit(invite, args.output, key="token"):
        return 0
    uses = "any number of agents" if args.reusable else "one agent"
    lifetime = format_duration(args.expires * 1_000_000)
    print(f"A join token for cluster {args.name}, shown once. It lets in {uses}, for {lifetime}.")
    print("On a machine of the cluster, run" + (" (with the server's CA file added as --ca-file):" if ca_file else ":"))
    print()
    ending = " --ephemeral --ends-after 2h" if args.ephemeral else ""
    backend = "kubernetes" if args.namespaces else "local"
    print(f"  yard agent --server {url} --cluster {args.name} --backend {backend}{ending} --token {invite.token}")
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
    if emit(changed, args.output):
        return 0
    for cluster in changed:
        print(f"Cluster {cluster.name} {done}.")
    return 0


def _edit(args: Namespace) -> int:
    with connect(args) as yard:
        has_labels = args.label or args.unlabel
        labels = changed_labels(yard.cluster(args.name).labels, args) if has_labels else None
        groups = [] if args.no_groups else args.group or None
        namespaces = [] if args.no_namespaces else args.namespaces
        cluster = yard.change_cluster(
            args.name, private=args.private, groups=groups, labels=labels, namespaces=namespaces
        )
    if not emit(cluster, args.output):
        _print(cluster, [])
    return 0


def _rm(args: Namespace) -> int:
    question = f"Remove cluster {args.name}? Its agents' credentials end, and a new one of that name inherits no jobs."
    if not confirm(question, force=args.force):
        return 1
    with connect(args) as yard:
        deleted = yard.delete_cluster(args.name, abandon=args.abandon)
    print(f"Cluster {args.name} is removed.")
    print_given_up(deleted)
    return 0


def _token(args: Namespace) -> int:
    """Make a new submit token, and keep it in the user's file if asked."""
    with connect(args) as yard:
        make = yard.group_submit_token if args.group else yard.submit_token
        token = make(args.name, account=args.account)
    if args.save:
        from switchyard.model.job.job import ClusterToken
        from switchyard.sdk.transport.config import config_path, load_user_file, save_user_file

        save_user_file(
            config_path(), load_user_file(config_path()).with_cluster(ClusterToken(token.cluster, token.token))
        )
        print_notice(f"Kept in {config_path()}: your submits carry it from now on.")
    if emit(token, args.output, key="token"):
        return 0
    noun = "group" if args.group else "cluster"
    print(f"The submit token of {noun} {token.cluster}, shown once; the one before no longer holds:")
    print(token.token)
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
    add_labels(parser)
    add_namespaces(parser)


def _invite_arguments(parser: Parser) -> None:
    _add_name_argument(parser)
    parser.add_argument("--reusable", action="store_true", help="for many agents; otherwise for one")
    parser.add_argument(
        "--expires", type=duration_s, default=86_400, metavar="T", help="valid for this time (default 1d)"
    )
    parser.add_argument("--private", action="store_true", help="of a new cluster: only those with a grant may submit")
    parser.add_argument(
        "--group", action="append", default=[], metavar="G", help="a group of a new cluster; repeatable"
    )
    parser.add_argument(
        "--ephemeral", action="store_true", help="a new cluster that leaves by itself, for `yard agent --ephemeral`"
    )
    add_namespaces(parser)


def _edit_arguments(parser: Parser) -> None:
    _add_name_argument(parser)
    opened = parser.add_mutually_exclusive_group()
    opened.add_argument("--private", action="store_true", default=None, help="only those with a grant may submit to it")
    opened.add_argument("--public", dest="private", action="store_false", help="everyone may submit to it")
    parser.add_argument("--group", action="append", default=[], metavar="G", help="set its groups to these; repeatable")
    parser.add_argument("--no-groups", action="store_true", help="remove it from all groups")
    add_labels(parser, "add or change this label; repeatable")
    parser.add_argument("--unlabel", action="append", default=[], metavar="K", help="remove this label; repeatable")
    add_namespaces(parser)
    parser.add_argument("--no-namespaces", action="store_true", help="it is no Kubernetes cluster")


def _rm_arguments(parser: Parser) -> None:
    _add_name_argument(parser)
    add_force(parser)
    parser.add_argument(
        "--abandon",
        action="store_true",
        help=ABANDON_HELP,
    )


def _token_arguments(parser: Parser) -> None:
    _add_name_argument(parser)
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--save", action="store_true", help="store it in your file, so that your submits carry it")
    target.add_argument("--group", action="store_true", help="NAME is a group: one token for all of its clusters")
    parser.add_argument("--account", metavar="USER", help="the user whose jobs it submits")


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
        "  yard cluster invite k8s --namespaces '*'\n"
        "  token=$(yard cluster invite alpha -o name)",
    ),
    Verb(
        "cordon",
        "Give clusters no new jobs",
        _cordon,
        _cordon_arguments,
        examples='  yard cluster cordon alpha --reason "maintenance until noon"',
    ),
    *cluster_invites.VERBS,
    *cluster_drain.VERBS,
    Verb(
        "uncordon", "Give clusters jobs again", _uncordon, _add_names_argument, examples="  yard cluster uncordon alpha"
    ),
    Verb(
        "edit",
        "Change who may use a cluster, its groups, labels and namespaces",
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
