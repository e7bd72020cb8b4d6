"""`yard cluster invite`, `invite-group`, `invites` and `revoke-invite`: the join tokens of agents."""

from __future__ import annotations

from argparse import Namespace

from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import emit, paint, print_notice
from switchyard.cli.terminal.parser import Parser, Verb, add_name, add_repeatable, duration_s, positive_int
from switchyard.cli.terminal.table import Column, format_age, format_duration, now_us, print_table
from switchyard.model.cluster.cluster import GroupInvite, Invite, NewGroupInvite, NewInvite

COLUMNS = (
    Column("ID"),
    Column("USED", right=True),
    Column("OF", right=True),
    Column("AGE", right=True),
    Column("EXPIRES", right=True),
    Column("STATUS"),
)


def add_cluster_name(parser: Parser) -> None:
    add_name(parser, "the cluster's name")


def _add_expires(parser: Parser) -> None:
    parser.add_argument(
        "--expires", type=duration_s, default=86_400, metavar="T", help="valid for this time (default 1d)"
    )


def add_namespaces(parser: Parser) -> None:
    """The option by which a platform administrator says that a cluster is Kubernetes."""
    parser.add_argument(
        "--namespaces",
        type=lambda text: [part for part in text.split(",") if part],
        metavar="NS,…",
        help="a Kubernetes cluster; its agents get the objects of these namespaces, with their Secrets: names, or "
        "patterns such as 'physics-*', or '*' (only platform administrators)",
    )


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
    _print_token(invite)
    return 0


def _print_token(invite: NewInvite | NewGroupInvite) -> None:
    print(paint("The join token alone:", "dim"))
    print(invite.token)  # the last word on stdout: scripts take it from there


def _invite_group(args: Namespace) -> int:
    with connect(args) as yard:
        invite = yard.invite_group(
            args.group,
            agents=args.agents,
            expires_s=args.expires,
            private=args.private,
            ephemeral=args.ephemeral,
            namespaces=args.namespaces or (),
        )
        url, ca_file = yard.url, yard.ca_file
    if emit(invite, args.output, key="token"):
        return 0
    agents = "one agent" if args.agents == 1 else f"{args.agents} agents"
    lifetime = format_duration(args.expires * 1_000_000)
    print(f"A join token for clusters of the group {args.group}, shown once. It lets in {agents}, for {lifetime}.")
    print("Each agent names a new cluster, which is registered when the agent joins:")
    print()
    options = " --ephemeral --ends-after 2h" if args.ephemeral else ""
    options += " --ca-file FILE" if ca_file else ""
    backend = "kubernetes" if args.namespaces else "local"
    print(f"  yard agent --server {url} --cluster NAME --backend {backend}{options} --token {invite.token}")
    print()
    print(f"Revoke it: yard cluster revoke-invite {invite.info.id} --group {args.group}")
    _print_token(invite)
    return 0


def _invites(args: Namespace) -> int:
    with connect(args) as yard:
        invites: list[Invite | GroupInvite] = [
            *(yard.group_invites(args.name) if args.group else yard.invites(args.name))
        ]
    if emit(invites, args.output, key="id"):
        return 0
    if not invites:
        print_notice(f"No join tokens of {'group' if args.group else 'cluster'} {args.name}.")
        return 0
    now = now_us()
    print_table(COLUMNS, [_row(invite, now) for invite in invites])
    return 0


def _row(invite: Invite | GroupInvite, now: int) -> list[str]:
    uses_max = invite.uses_max if isinstance(invite, GroupInvite) else None if invite.is_reusable else 1
    is_over = invite.expires_us <= now
    is_used = uses_max is not None and invite.uses >= uses_max
    status = "revoked" if invite.is_revoked else "expired" if is_over else "used" if is_used else "valid"
    return [
        invite.id,
        str(invite.uses),
        "any" if uses_max is None else str(uses_max),
        format_age(invite.created_us, now),
        "past" if is_over else f"in {format_duration(invite.expires_us - now)}",
        status,
    ]


def _revoke_invite(args: Namespace) -> int:
    with connect(args) as yard:
        if args.group is not None:
            yard.revoke_group_invite(args.group, args.id)
        else:
            yard.revoke_invite(args.id)
    print(f"The join token {args.id} lets in nobody any more. Agents that joined with it stay.")
    return 0


def _invite_arguments(parser: Parser) -> None:
    add_cluster_name(parser)
    parser.add_argument("--reusable", action="store_true", help="for many agents; otherwise for one")
    _add_expires(parser)
    parser.add_argument("--private", action="store_true", help="of a new cluster: only those with a grant may submit")
    add_repeatable(parser, "--group", metavar="G", help="a group of a new cluster; repeatable")
    parser.add_argument(
        "--ephemeral", action="store_true", help="a new cluster that leaves by itself, for `yard agent --ephemeral`"
    )
    add_namespaces(parser)


def _invite_group_arguments(parser: Parser) -> None:
    parser.add_argument("group", metavar="GROUP", help="the group that the clusters belong to")
    parser.add_argument("--agents", type=positive_int, default=1, metavar="N", help="how many may join (default 1)")
    _add_expires(parser)
    parser.add_argument("--private", action="store_true", help="only those with a grant may submit to the clusters")
    parser.add_argument(
        "--ephemeral", action="store_true", help="the clusters leave by themselves, for `yard agent --ephemeral`"
    )
    add_namespaces(parser)


def _invites_arguments(parser: Parser) -> None:
    add_cluster_name(parser)
    parser.add_argument("--group", action="store_true", help="NAME is a group: list its join tokens")


def _revoke_arguments(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID", help="of the join token, as `yard cluster invites` lists it")
    parser.add_argument("--group", metavar="GROUP", help="it is a join token of this group")


VERBS = (
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
        "invite-group",
        "Make one join token for several agents, each with a new cluster of a group",
        _invite_group,
        _invite_group_arguments,
        examples="  yard cluster invite-group pilots --agents 20 --expires 2d --ephemeral\n"
        "  token=$(yard cluster invite-group pilots --agents 20 --ephemeral -o name)",
    ),
    Verb(
        "invites",
        "List the join tokens of a cluster or a group",
        _invites,
        _invites_arguments,
        examples="  yard cluster invites alpha\n  yard cluster invites pilots --group",
    ),
    Verb(
        "revoke-invite",
        "Revoke a join token; agents that joined with it stay",
        _revoke_invite,
        _revoke_arguments,
        examples="  yard cluster revoke-invite 01JCQ0V7K3M5N8P2R4T6W8Y0ZA\n"
        "  yard cluster revoke-invite 01JCQ0V7K3M5N8P2R4T6W8Y0ZA --group pilots",
        outputs=(),
    ),
)
