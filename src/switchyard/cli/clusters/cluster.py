"""`yard cluster`: the places that run jobs."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Sequence

from switchyard.cli.clusters import cluster_graph, cluster_invites, cluster_probation
from switchyard.cli.clusters.cluster_invites import add_cluster_name, add_namespaces
from switchyard.cli.clusters.cluster_probation import probation_fields, probation_text
from switchyard.cli.submit.submit_select import parse_scalar
from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import confirm, emit, print_given_up, print_notice, print_result
from switchyard.cli.terminal.parser import (
    Parser,
    Verb,
    add_abandon,
    add_force,
    add_labels,
    add_repeatable,
    changed_labels,
    duration_s,
    key_value,
    no_arguments,
    run_noun,
)
from switchyard.cli.terminal.progress import ProgressBar
from switchyard.cli.terminal.table import (
    Column,
    format_age,
    format_duration,
    format_timestamp,
    now_us,
    print_fields,
    print_list,
    print_table,
)
from switchyard.errors import EXIT_OK, EXIT_REJECTED, TimedOut
from switchyard.model.cluster.cluster import Agent, Cluster, Load
from switchyard.model.cluster.quote import QuoteRecord
from switchyard.model.cluster.selection import StateValue
from switchyard.model.cluster.verdict import Fit, FitAnswer
from switchyard.model.jobspec.quantity import show_bytes
from switchyard.sdk.client import CoreClient

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
STATE_COLUMNS = (Column("STATE"), Column("VALUE"), Column("AGE", right=True), Column("BY", flexible=True))
FIT_COLUMNS = (
    Column("CLUSTER"),
    Column("EVER"),
    Column("TIMES", right=True),
    Column("NOW"),
    Column("WHY", flexible=True),
)
ANSWER_WORDS = {True: "yes", False: "no", None: "?"}


def main(argv: list[str]) -> int:
    return run_noun("cluster", "The places that run jobs.", VERBS, argv)


def _ls(args: Namespace) -> int:
    with connect(args) as yard:
        clusters = list(yard.clusters())
    notice = "No clusters. `yard cluster invite NAME` brings one in."
    return print_list(clusters, args.output, COLUMNS, _row, if_empty=notice)


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
        _silence_text(load)
        or cluster.reason
        or probation_text(cluster)
        or (load.trouble or load.files_trouble if load else ""),
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
        *probation_fields(cluster),
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
        print_state(cluster.state)
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
    text = f"Cluster {cluster.name} is registered. `yard cluster invite {cluster.name}` lets an agent join."
    return print_result(cluster, args.output, text)


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
        url = yard.url
    if args.save:
        from switchyard.sdk.transport.config import config_path, load_user_file, save_user_file

        user_file = load_user_file(config_path()).with_submit_token(url, token.cluster, token.token)
        save_user_file(config_path(), user_file)
        opened = f"all clusters of {token.cluster}" if args.group else token.cluster
        print_notice(f"Kept in {config_path()}: your submits may use {opened}, too, from now on.")
    if emit(token, args.output, key="token"):
        return 0
    noun = "group" if args.group else "cluster"
    print(f"The submit token of {noun} {token.cluster}, shown once; the one before no longer holds:")
    print(token.token)
    return 0


def _add_names_argument(parser: Parser) -> None:
    parser.add_argument("name", nargs="+", metavar="NAME", help="the cluster's name")


def _cordon_arguments(parser: Parser) -> None:
    _add_names_argument(parser)
    parser.add_argument("--reason", default="", metavar="TEXT", help="why; users see it")


def _create_arguments(parser: Parser) -> None:
    add_cluster_name(parser)
    parser.add_argument("--private", action="store_true", help="only those with a grant may submit to it")
    add_repeatable(parser, "--group", metavar="G", help="a cluster group; repeatable")
    add_labels(parser)
    add_namespaces(parser)


def _edit_arguments(parser: Parser) -> None:
    add_cluster_name(parser)
    opened = parser.add_mutually_exclusive_group()
    opened.add_argument("--private", action="store_true", default=None, help="only those with a grant may submit to it")
    opened.add_argument("--public", dest="private", action="store_false", help="everyone may submit to it")
    add_repeatable(parser, "--group", metavar="G", help="set its groups to these; repeatable")
    parser.add_argument("--no-groups", action="store_true", help="remove it from all groups")
    add_labels(parser, "add or change this label; repeatable")
    add_repeatable(parser, "--unlabel", metavar="K", help="remove this label; repeatable")
    add_namespaces(parser)
    parser.add_argument("--no-namespaces", action="store_true", help="it is no Kubernetes cluster")


def _rm_arguments(parser: Parser) -> None:
    add_cluster_name(parser)
    add_force(parser)
    add_abandon(parser)


def _token_arguments(parser: Parser) -> None:
    add_cluster_name(parser)
    parser.add_argument(
        "--save",
        action="store_true",
        help="store it in your file: your submits may use NAME, too, and what they may now",
    )
    parser.add_argument("--group", action="store_true", help="NAME is a group: one token for all of its clusters")
    parser.add_argument("--account", metavar="USER", help="the user whose jobs it submits")


def _agree(args: Namespace) -> int:
    with connect(args) as yard:
        if args.withdraw:
            yard.disagree(args.name)
            print(f"No submit token of cluster {args.name} acts for you any more.")
        else:
            agreed = yard.agree(args.name)
            print(f"Administrators of cluster {agreed.cluster} may make submit tokens that act for {agreed.account}.")
    return 0


def _agree_arguments(parser: Parser) -> None:
    add_cluster_name(parser)
    parser.add_argument("--withdraw", action="store_true", help="withdraw it; tokens made in your name end")


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
    current: dict[str, Cluster] = {}
    first: dict[str, int] = {}
    with ProgressBar(f"draining {', '.join(names)}") as progress:

        def show(cluster: Cluster) -> None:
            current[cluster.name] = cluster
            first.setdefault(cluster.name, cluster.held or 0)
            left, total = sum(drained.held or 0 for drained in current.values()), sum(first.values())
            unsent = sum(drained.unsent or 0 for drained in current.values())
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
    return [current[name] for name in names]


def _drain_text(cluster: Cluster) -> str:
    if not cluster.held and cluster.unsent:
        files = f"output files of {cluster.unsent} ended jobs or tasks are still on their way from it"
        return f"Cluster {cluster.name} gets no new jobs, and has none; {files}. `--wait` waits for that."
    if not cluster.held:
        return f"Cluster {cluster.name} is drained: it gets no new jobs, and has none."
    going = "1 job there goes on" if cluster.held == 1 else f"{cluster.held} jobs there go on"
    return f"Cluster {cluster.name} gets no new jobs; {going}. `--wait` waits for that."


def _drain_arguments(parser: Parser) -> None:
    _cordon_arguments(parser)
    parser.add_argument(
        "-w",
        "--wait",
        action="store_true",
        help="wait until no job runs there and output files are sent",
    )
    parser.add_argument("--deadline", type=duration_s, metavar="T", help="wait at most this long; exits 7 after that")


def print_state(state: Sequence[StateValue]) -> None:
    now = now_us()
    print_table(
        STATE_COLUMNS,
        [
            [
                entry.name,
                format_state_value(entry.value),
                format_age(entry.at_us, now) + (" stale" * entry.is_stale),
                entry.by,
            ]
            for entry in state
        ],
    )


def format_state_value(value: bool | int | float | str) -> str:
    return ("false", "true")[value] if isinstance(value, bool) else str(value)


def _set_state(args: Namespace) -> int:
    change = {key: parse_scalar(value) if value else None for key, value in args.value}
    with connect(args) as yard:
        cluster = yard.change_cluster(args.name, state=change)
    if not emit(cluster, args.output):
        print_state(cluster.state)
    return 0


def _state_arguments(parser: Parser) -> None:
    add_cluster_name(parser)
    parser.add_argument("value", nargs="+", type=key_value, metavar="K=V", help="a value; K= removes it")


def _fit(args: Namespace) -> int:
    from switchyard.cli.submit.submit import read_job_file
    from switchyard.cli.submit.submit_files import drop_file_keys

    form = drop_file_keys(read_job_file(args.file))
    with connect(args) as yard:
        answer = yard.fit(form, match_engine=args.match_engine, only_fitting=args.only_fitting)
    content = [fit for fit in answer.items if fit.ever] if args.output == "name" else answer
    if not emit(content, args.output, key="cluster"):
        _print_fit(answer)
    return EXIT_OK if answer.fitting else EXIT_REJECTED


def _print_fit(answer: FitAnswer) -> None:
    if not answer.asked:
        print("There is no cluster yet. `yard cluster invite NAME` brings one in.")
        return
    ranked = sorted(answer.items, key=lambda fit: (not fit.ever, not fit.now, fit.cluster))
    print_table(FIT_COLUMNS, [_fit_row(fit) for fit in ranked])
    print(f"\nIt fits on {answer.fitting} of {answer.asked} clusters (engine {answer.engine}). Nothing was submitted.")


def _fit_row(fit: Fit) -> list[str]:
    why = fit.reason if not fit.ever else fit.now_reason
    return [
        fit.cluster,
        ANSWER_WORDS[fit.ever],
        "" if fit.slots is None else str(fit.slots),
        ANSWER_WORDS[fit.now] if fit.ever else "",
        why or fit.reason,
    ]


def _fit_arguments(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="a job file in any form; - is stdin")
    parser.add_argument("--match-engine", metavar="NAME", help="the engine that checks the fit (default: the server's)")
    parser.add_argument("--only-fitting", action="store_true", help="only the clusters that it fits on")


VERBS = (
    Verb("ls", "List clusters", _ls, no_arguments, examples="  yard cluster ls -o json | jq '.[].health'"),
    Verb(
        "show",
        "Show one cluster: health, what it has, its agents",
        _show,
        add_cluster_name,
        examples="  yard cluster show alpha",
    ),
    Verb(
        "create",
        "Register a cluster before any agent joins",
        _create,
        _create_arguments,
        examples="  yard cluster create alpha --private",
    ),
    *cluster_invites.VERBS,
    *cluster_probation.VERBS,
    Verb(
        "cordon",
        "Give clusters no new jobs",
        _cordon,
        _cordon_arguments,
        examples='  yard cluster cordon alpha --reason "maintenance until noon"',
    ),
    Verb(
        "drain",
        "Give clusters no new jobs; wait until what runs there is over",
        _drain,
        _drain_arguments,
        examples='  yard cluster drain alpha --reason "new disks" --wait\n'
        "  yard cluster drain alpha beta --deadline 2h || yard ls --cluster alpha",
    ),
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
        examples="  yard cluster token alpha --save\n  yard cluster token gpu --group --save\n"
        "  yard cluster token gpu --group --account alice",
    ),
    Verb(
        "agree",
        "Agree that a cluster's administrators make submit tokens in your name",
        _agree,
        _agree_arguments,
        examples="  yard cluster agree alpha\n  yard cluster agree alpha --withdraw",
        outputs=(),
    ),
    *cluster_graph.VERBS,
    Verb(
        "fit",
        "Ask all clusters whether a job would fit, without submitting it; exits 5 if it fits nowhere",
        _fit,
        _fit_arguments,
        examples="  yard cluster fit job.yaml\n  yard cluster fit jobspec.json --match-engine walk -o json",
    ),
    Verb(
        "set-state",
        "Set values that selection uses and no agent reports: costs, sites …",
        _set_state,
        _state_arguments,
        examples="  yard cluster set-state alpha cost_per_node_hour=3 site=north\n"
        "  yard cluster set-state alpha site=               remove it",
    ),
    Verb("rm", "Remove a cluster", _rm, _rm_arguments, examples="  yard cluster rm alpha --force", outputs=()),
)
