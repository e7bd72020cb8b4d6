"""`yard cluster graph`, `set-graph` and `subsystem`: show and set the resource graph of a cluster."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from switchyard.cli.clusters.cluster_invites import add_cluster_name
from switchyard.cli.jobs.log_view import write_bytes
from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import confirm, emit, has_colour, print_notice, print_result, printable
from switchyard.cli.terminal.parser import Parser, Verb, add_force
from switchyard.cli.terminal.progress import ProgressBar
from switchyard.cli.terminal.table import Column, format_timestamp, print_list
from switchyard.errors import BadRequest
from switchyard.model.cluster.cluster import Subsystem
from switchyard.model.graph import Graph, Shape
from switchyard.model.graph.graph import vertex_amount
from switchyard.model.jobspec.quantity import show_bytes

if TYPE_CHECKING:
    from rich.tree import Tree

    from switchyard.sdk.rules.graphs import GraphSource, OnProgress

LINES_MAX = 1000  # of a drawing: nobody reads more, and a graph may have a hundred thousand shapes
FIELDS_SHOWN = 12
BYTE_KINDS = ("memory", "storage")
SUBSYSTEM_COLUMNS = (Column("NAME"), Column("SIZE", right=True), Column("SET"), Column("BY", flexible=True))
TIMES_SIGN = "\N{MULTIPLICATION SIGN}"


def _graph(args: Namespace) -> int:
    with connect(args) as yard:
        if args.source:
            write_bytes(yard.graph_source(args.name))
            return 0
        graph = yard.graph(args.name)
    if not emit(graph, args.output, key="signature"):
        draw_graph(args.name, graph)
    return 0


def draw_graph(name: str, graph: Graph) -> None:
    """Draw the graph as a tree. Equal siblings share one line."""
    from rich.console import Console

    left = iter(range(LINES_MAX))
    tree = _branch(graph, graph.root, 1, left)
    assert tree is not None
    console = Console(color_system="standard" if has_colour() else None, highlight=False, soft_wrap=True)
    console.print(tree)
    if next(left, None) is None:
        print_notice(f"Only the first {LINES_MAX} lines are drawn; `yard cluster graph {name} -o json` has all.")
    print(f"{format_totals(graph.totals)} in {len(graph.shapes)} shapes")


def _branch(graph: Graph, index: int, count: int, left: Iterator[int]) -> Tree | None:
    from rich.text import Text
    from rich.tree import Tree

    if next(left, None) is None:
        return None
    shape = graph.shapes[index]
    label = Text.assemble((printable(shape.type), "bold"), (f" {TIMES_SIGN}{count}" if count > 1 else "", "cyan"))
    label.append(_size(shape))
    label.append(_fields(shape.properties), "dim")
    tree = Tree(label, guide_style="dim")
    for attached in shape.attached:
        tree.add(Text.assemble((f"{printable(attached.subsystem)}:", "yellow"), (_fields(attached.metadata), "dim")))
    for child, times in shape.children:
        if (branch := _branch(graph, child, times, left)) is not None:
            tree.add(branch)
    return tree


def _size(shape: Shape) -> str:
    if shape.type in BYTE_KINDS:
        return f" {show_bytes(vertex_amount(shape))}"
    return f" {shape.size}{printable(shape.unit)}" if shape.size != 1 or shape.unit else ""


def _fields(fields: object) -> str:
    assert isinstance(fields, dict)
    shown = [_field(key, value) for key, value in sorted(fields.items())]
    more = " …" if len(shown) > FIELDS_SHOWN else ""
    return printable("  " + " ".join(shown[:FIELDS_SHOWN]) + more) if shown else ""


def _field(key: str, value: object) -> str:
    """`key=value`, or only the key where the value is true, as Flux writes a property."""
    if value is True:
        return key
    return f"{key}={'false' if value is False else value}"


def format_totals(totals: dict[str, int]) -> str:
    """`2 node, 64 core, 128GiB memory`."""
    amounts = ((kind, show_bytes(size) if kind in BYTE_KINDS else size) for kind, size in totals.items())
    return ", ".join(printable(f"{amount} {kind}") for kind, amount in amounts)


def _set_graph(args: Namespace) -> int:
    with connect(args) as yard, ProgressBar("set-graph") as progress:
        if args.agent:
            yard.delete_graph(args.name)
            info = None
        else:
            info = yard.set_graph(args.name, _graph_source(args.file), on_progress=_progress_callback(progress))
    if info is None:
        print(f"Cluster {args.name} has the graph that its agent reports.")
        return 0
    text = f"Cluster {info.cluster} has {format_totals(info.totals)} in {info.shapes} shapes."
    return print_result(info, args.output, text, key="signature")


def _graph_source(file: str | None) -> GraphSource:
    if file is None:
        raise BadRequest("Give the FILE with the graph, or - for stdin.")
    return sys.stdin.buffer.read() if file == "-" else Path(file)


def _progress_callback(progress: ProgressBar) -> OnProgress:
    return lambda done, total: progress.show(done >> 10, total >> 10, "KiB")


def _subsystem(args: Namespace) -> int:
    if args.do == "ls":
        return _subsystem_ls(args)
    if args.subsystem is None:
        raise BadRequest(f"`yard cluster subsystem {args.do}` needs the name of the subsystem.")
    if args.do == "rm":
        return _subsystem_rm(args)
    with connect(args) as yard, ProgressBar("subsystem") as progress:
        if args.do == "show":
            write_bytes(yard.subsystem_source(args.name, args.subsystem))
            return 0
        subsystem = yard.set_subsystem(
            args.name, args.subsystem, _graph_source(args.file), on_progress=_progress_callback(progress)
        )
    return print_result(subsystem, args.output, f"Cluster {args.name} has the subsystem {subsystem.name}.")


def _subsystem_ls(args: Namespace) -> int:
    with connect(args) as yard:
        subsystems = list(yard.subsystems(args.name))
    notice = f"No subsystems. `yard cluster subsystem set {args.name} NAME FILE` adds one."
    return print_list(subsystems, args.output, SUBSYSTEM_COLUMNS, _subsystem_row, if_empty=notice)


def _subsystem_row(subsystem: Subsystem, now: int) -> list[str]:
    return [subsystem.name, show_bytes(subsystem.bytes), format_timestamp(subsystem.at_us, now), subsystem.by]


def _subsystem_rm(args: Namespace) -> int:
    if not confirm(f"Remove the subsystem {args.subsystem} of cluster {args.name}?", force=args.force):
        return 1
    with connect(args) as yard:
        yard.delete_subsystem(args.name, args.subsystem)
    print(f"The subsystem {args.subsystem} of cluster {args.name} is removed.")
    return 0


def _graph_arguments(parser: Parser) -> None:
    add_cluster_name(parser)
    parser.add_argument("--source", action="store_true", help="print the graph in the form in which it was set")


def _set_graph_arguments(parser: Parser) -> None:
    add_cluster_name(parser)
    parser.add_argument("file", nargs="?", metavar="FILE", help="JGF, R or the short form, JSON or YAML; - is stdin")
    parser.add_argument("--agent", action="store_true", help="remove the graph that was set: the agent's applies again")


def _subsystem_arguments(parser: Parser) -> None:
    parser.add_argument("do", choices=("ls", "set", "show", "rm"), metavar="ls|set|show|rm", help="what to do")
    parser.add_argument("name", metavar="CLUSTER", help="the cluster's name")
    parser.add_argument("subsystem", nargs="?", metavar="SUBSYSTEM", help="io, software, licences, system …")
    parser.add_argument("file", nargs="?", metavar="FILE", help="with set: its graph; - is stdin")
    add_force(parser)


VERBS = (
    Verb(
        "graph",
        "Draw what a cluster has as a tree",
        _graph,
        _graph_arguments,
        examples="  yard cluster graph alpha\n  yard cluster graph alpha --source > alpha.yaml",
    ),
    Verb(
        "set-graph",
        "Set what a cluster has, from a file; it overrides what its agent reports",
        _set_graph,
        _set_graph_arguments,
        examples="  yard cluster set-graph alpha alpha.yaml\n"
        "  flux resource R | yard cluster set-graph alpha -\n"
        "  yard cluster set-graph alpha --agent",
    ),
    Verb(
        "subsystem",
        "List, set, show and remove further graphs on a cluster's vertices",
        _subsystem,
        _subsystem_arguments,
        examples="  yard cluster subsystem set alpha software software.yaml\n"
        "  yard cluster subsystem ls alpha\n"
        "  yard cluster subsystem rm alpha software --force",
    ),
)
