"""`yard flyte`: executions of Flyte's workflows and tasks: list, show, draw, explain."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import NamedTuple

from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import emit, has_colour, print_notice
from switchyard.cli.terminal.parser import Parser, Verb, add_limit, positive_int, run_noun
from switchyard.cli.terminal.refresh import refresh_until_done, refuse_output_option
from switchyard.cli.terminal.table import screen_width
from switchyard.errors import BadRequest
from switchyard.features.flyte.cli.flyte_graph import draw_nodes, format_dot
from switchyard.features.flyte.cli.flyte_view import (
    is_final,
    print_details,
    print_execution_explanation,
    print_executions,
    print_nodes,
)
from switchyard.features.flyte.model.workflow_execution import PHASES, ExecutionNode, is_execution_name
from switchyard.features.flyte.sdk.execution_calls import DOMAIN, PROJECT, WorkflowClient
from switchyard.model.rules.names import is_name

ABOUT = """\
Executions of Flyte's workflows, launch plans and tasks. An execution is named by its name, its project (-p) and its
domain (-d), or by all three: PROJECT:DOMAIN:NAME. `yard create execution` makes one."""
LIMIT = 20  # fits a terminal
NODES_MAX = 500  # that are shown; --nodes shows more


def main(argv: list[str]) -> int:
    return run_noun("flyte", ABOUT, VERBS, argv)


def _ls(args: Namespace) -> int:
    limit = None if args.all else args.limit
    with connect(args, WorkflowClient) as yard:
        found = yard.executions(
            project=args.project,
            domain=args.domain,
            phase=args.phase,
            cluster=args.cluster,
            pool=args.pool,
            label=args.cluster_label,
            owner=args.owner,
            launched=args.launched,
            archived=args.archived,
            limit=None if limit is None else limit + 1,  # one more than shown tells whether there are more
        )
        executions = list(found)
    if emit(executions[:limit], args.output):
        return 0
    print_executions(executions[:limit])
    if not executions:
        print_notice("No executions. `pyflyte run --remote` or `yard create execution` makes one.")
    if limit and len(executions) > limit and sys.stdout.isatty():
        print_notice(f"These are the newest {limit}; `yard flyte ls --all` lists all.")
    return 0


def _show(args: Namespace) -> int:
    key = execution_key(args)
    with connect(args, WorkflowClient) as yard:
        if args.watch:
            refuse_output_option(args)
            return refresh_until_done(lambda: _print_execution(yard, key, args.nodes))
        if args.output is None:
            _print_execution(yard, key, args.nodes)
        else:
            emit(yard.execution(key.name, project=key.project, domain=key.domain), args.output, key="execution.name")
    return 0


def _print_execution(yard: WorkflowClient, key: NamedExecution, nodes_max: int) -> bool:
    details = yard.execution(key.name, project=key.project, domain=key.domain)
    nodes = _nodes(yard, key, nodes_max)  # before anything is printed
    print_details(details)
    print()
    print_nodes(nodes[:nodes_max])
    _tell_more(nodes, nodes_max)
    return is_final(details.execution)


def _graph(args: Namespace) -> int:
    key = execution_key(args)
    with connect(args, WorkflowClient) as yard:
        if args.watch:
            if args.format != "text":
                raise BadRequest("--watch draws for people.", next_step="Leave --format away.")
            return refresh_until_done(lambda: _draw(yard, key, args.nodes))
        if args.format == "text":
            _draw(yard, key, args.nodes)
            return 0
        nodes = list(yard.execution_nodes(key.name, project=key.project, domain=key.domain))
    if args.format == "dot":
        print(format_dot(nodes, title=":".join(key)))
    else:
        emit(nodes, args.format)
    return 0


def _draw(yard: WorkflowClient, key: NamedExecution, nodes_max: int) -> bool:
    execution = yard.execution(key.name, project=key.project, domain=key.domain).execution
    nodes = _nodes(yard, key, nodes_max)
    print_executions([execution])
    print()
    for line in draw_nodes(nodes[:nodes_max], width=screen_width(), coloured=has_colour()):
        print(line)
    _tell_more(nodes, nodes_max)
    return is_final(execution)


def _explain(args: Namespace) -> int:
    key = execution_key(args)
    with connect(args, WorkflowClient) as yard:
        explanation = yard.explain_execution(key.name, project=key.project, domain=key.domain)
    if not emit(explanation, args.output, key="execution.name"):
        print_execution_explanation(explanation)
    return 0


def _nodes(yard: WorkflowClient, key: NamedExecution, nodes_max: int) -> list[ExecutionNode]:
    """One more than are shown tells whether there are more."""
    return list(yard.execution_nodes(key.name, project=key.project, domain=key.domain, limit=nodes_max + 1))


def _tell_more(nodes: list[ExecutionNode], nodes_max: int) -> None:
    if len(nodes) > nodes_max:
        print_notice(f"There are more nodes than these {nodes_max}; --nodes N shows more.")


class NamedExecution(NamedTuple):
    project: str
    domain: str
    name: str


def execution_key(args: Namespace) -> NamedExecution:
    """The execution that the command line names."""
    *scope, name = args.execution.split(":")
    if len(scope) not in (0, 2) or not is_execution_name(name) or not all(map(is_name, scope)):
        raise BadRequest(
            f"{args.execution[:200]!r} names no execution.",
            next_step="Give NAME with -p and -d, or PROJECT:DOMAIN:NAME.",
        )
    project, domain = scope or (args.project or PROJECT, args.domain or DOMAIN)
    if (args.project or project, args.domain or domain) != (project, domain):
        raise BadRequest(
            f"{args.execution} is not in project {args.project or project}, domain {args.domain or domain}."
        )
    return NamedExecution(project, domain, name)


def add_scope(parser: Parser, *, default: bool = True) -> None:
    about = (f" (default {PROJECT})", f" (default {DOMAIN})") if default else ("", "")
    parser.add_argument("-p", "--project", metavar="P", help=f"the project{about[0]}")
    parser.add_argument("-d", "--domain", metavar="D", help=f"the domain{about[1]}")


def _add_execution(parser: Parser) -> None:
    parser.add_argument("execution", metavar="EXECUTION", help="its name, or PROJECT:DOMAIN:NAME")
    add_scope(parser)


def _add_nodes(parser: Parser) -> None:
    _add_execution(parser)
    parser.add_argument(
        "--nodes", type=positive_int, default=NODES_MAX, metavar="N", help=f"at most so many (default {NODES_MAX})"
    )
    parser.add_argument("--watch", action="store_true", help="show it again each second, until it is over")


def _add_graph(parser: Parser) -> None:
    _add_nodes(parser)
    parser.add_argument(
        "--format", choices=("text", "dot", "json"), default="text", metavar="FORM", help="text, dot or json"
    )


def _add_filters(parser: Parser) -> None:
    parser.add_argument("-a", "--all", action="store_true", help="all of them, not only the newest")
    add_limit(parser, LIMIT)
    add_scope(parser, default=False)
    parser.add_argument(
        "--phase",
        action="append",
        type=str.upper,
        choices=PHASES,
        metavar="PHASE",
        help=f"only in this phase; repeatable: {', '.join(PHASES).lower()}",
    )
    parser.add_argument("--cluster", metavar="C", help="only those that run or ran on this cluster")
    parser.add_argument("--pool", metavar="P", help="only those of this pool")
    parser.add_argument("--cluster-label", metavar="L", help="only those of this cluster label")
    parser.add_argument("--owner", metavar="USER", help="only those of this user")
    parser.add_argument("--launched", metavar="NAME", help="only those of this launch plan or task")
    parser.add_argument("--archived", action="store_true", help="archived ones, too")


VERBS = (
    Verb(
        "ls",
        "List executions, newest first",
        _ls,
        _add_filters,
        examples="  yard flyte ls\n"
        "  yard flyte ls --all --phase failed -p vision\n"
        "  yard flyte ls --cluster alpha --phase running -o name",
    ),
    Verb(
        "show",
        "Show an execution: where it runs, its inputs and outputs, its nodes and why they wait",
        _show,
        _add_nodes,
        examples="  yard flyte show first-run\n"
        "  yard flyte show vision:production:nightly-7 --watch\n"
        "  yard flyte show first-run -o json | jq .outputs",
    ),
    Verb(
        "graph",
        "Draw the nodes of an execution",
        _graph,
        _add_graph,
        examples="  yard flyte graph first-run\n  yard flyte graph first-run --format dot | dot -Tsvg > first-run.svg",
        outputs=(),
    ),
    Verb(
        "explain",
        "Say where an execution runs and why, and what it waits for",
        _explain,
        _add_execution,
        examples="  yard flyte explain first-run\n"
        "  yard flyte explain first-run -o json | jq '.tasks[].verdicts[] | select(.say == \"no\")'",
        outputs=("json", "yaml"),
    ),
)
