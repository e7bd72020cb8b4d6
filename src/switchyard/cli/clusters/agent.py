"""`yard agent ls|show|pause|resume|rotate|rm`: agents as the server knows them. `agent/command.py` runs an agent."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import confirm, emit, print_given_up, print_notice, print_result
from switchyard.cli.terminal.parser import Parser, Verb, add_abandon, add_force, run_noun
from switchyard.cli.terminal.table import (
    Column,
    format_age,
    format_timestamp,
    now_us,
    print_fields,
    print_list,
)
from switchyard.model.cluster.cluster import Agent

COLUMNS = (
    Column("ID"),
    Column("NAME", flexible=True),
    Column("CLUSTER", flexible=True),
    Column("BACKEND", optional=True),
    Column("LIVE", flexible=True),
    Column("SEEN", right=True),
    Column("VERSION", optional=True),
)


def main(argv: list[str]) -> int:
    return run_noun("agent", "Agents as the server knows them. `yard agent --help` is about running one.", VERBS, argv)


def print_agents(agents: Sequence[Agent]) -> None:
    print_list(agents, None, COLUMNS, _row)


def _row(agent: Agent, now: int) -> list[str]:
    return [
        agent.id,
        agent.name,
        agent.cluster,
        agent.backend,
        _liveness_text(agent),
        format_age(agent.seen_us, now),
        agent.version,
    ]


def _liveness_text(agent: Agent) -> str:
    words = ["paused"] if agent.is_live and agent.is_paused else ["yes"] if agent.is_live else ["no"]
    words += ["paused"] if agent.is_paused and not agent.is_live else []
    words += ["a copy was refused"] if agent.rival is not None else []
    return ", ".join(words)


def _ls(args: Namespace) -> int:
    with connect(args) as yard:
        agents = list(yard.agents(cluster=args.cluster))
    notice = "No agents. `yard cluster invite NAME` prints the command that starts one."
    return print_list(agents, args.output, COLUMNS, _row, key="id", if_empty=notice)


def _show(args: Namespace) -> int:
    with connect(args) as yard:
        agent = yard.agent(args.agent)
    if emit(agent, args.output, key="id"):
        return 0
    now = now_us()
    fields = [
        ("id", agent.id),
        ("name", agent.name),
        ("cluster", agent.cluster),
        ("backend", agent.backend),
        ("live", _liveness_text(agent)),
        ("reason", agent.reason),
        ("rotation", "asked for" if agent.is_rotation_asked else ""),
        ("version", agent.version),
        ("joined", format_timestamp(agent.created_us, now)),
        ("seen", format_timestamp(agent.seen_us, now)),
        ("runs at", agent.place),
    ]
    if agent.rival is not None:
        fields += [
            ("refused", f"{format_timestamp(agent.rival.refused_us, now)}: {agent.rival.why}"),
            ("refused at", agent.rival.place or "unknown: an agent of an older version"),
        ]
    print_fields(fields)
    if agent.rival is not None:
        print_notice(
            "Two processes use this agent's credential. Stop the one that was refused, or give it a name of its own."
        )
    return 0


def _pause(args: Namespace) -> int:
    return _change(args, "takes nothing new; what it has goes on", paused=True, reason=args.reason)


def _resume(args: Namespace) -> int:
    return _change(args, "takes jobs again", paused=False)


def _rotate(args: Namespace) -> int:
    return _change(args, "is told to get a new credential; the old one ends when the new one is used", rotate=True)


def _change(
    args: Namespace, outcome: str, *, paused: bool | None = None, rotate: bool | None = None, reason: str = ""
) -> int:
    with connect(args) as yard:
        agent = yard.change_agent(yard.agent(args.agent).id, paused=paused, rotate=rotate, reason=reason)
    return print_result(agent, args.output, f"Agent {agent.name} of cluster {agent.cluster} {outcome}.", key="id")


def _rm(args: Namespace) -> int:
    with connect(args) as yard:
        agent = yard.agent(args.agent)
        question = f"Remove agent {agent.name} of cluster {agent.cluster} ({agent.id})? Its credential ends."
        if not confirm(question, force=args.force):
            return 1
        deleted = yard.delete_agent(agent.id, abandon=args.abandon)
    print(f"Agent {agent.name} of cluster {agent.cluster} is removed.")
    print_given_up(deleted)
    return 0


def _ls_arguments(parser: Parser) -> None:
    parser.add_argument("--cluster", metavar="NAME", help="only of this cluster")


def _add_agent_argument(parser: Parser) -> None:
    parser.add_argument("agent", metavar="AGENT", help="its id, the start of its id, or a name only one agent has")


def _pause_arguments(parser: Parser) -> None:
    _add_agent_argument(parser)
    parser.add_argument("--reason", default="", metavar="TEXT", help="why; shown to users whose jobs wait")


def _rm_arguments(parser: Parser) -> None:
    _add_agent_argument(parser)
    add_force(parser)
    add_abandon(parser)


VERBS = (
    Verb("ls", "List agents", _ls, _ls_arguments, examples="  yard agent ls --cluster alpha"),
    Verb("show", "Show one agent", _show, _add_agent_argument, examples="  yard agent show alpha-node1"),
    Verb(
        "pause",
        "Give an agent nothing new; what it has goes on and is reported",
        _pause,
        _pause_arguments,
        examples='  yard agent pause alpha-node1 --reason "new disks"',
    ),
    Verb(
        "resume",
        "Let a paused agent take jobs again",
        _resume,
        _add_agent_argument,
        examples="  yard agent resume alpha-node1",
    ),
    Verb(
        "rotate",
        "Ask an agent to get a new credential, without a break",
        _rotate,
        _add_agent_argument,
        examples="  yard agent rotate alpha-node1",
    ),
    Verb(
        "rm",
        "End an agent's registration",
        _rm,
        _rm_arguments,
        examples="  yard agent rm alpha-node1 --force",
        outputs=(),
    ),
)
