"""`yard cluster set-state`: set values of a cluster that selection uses; and the table of these values."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from switchyard.cli.submit.submit_select import parse_scalar
from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import emit
from switchyard.cli.terminal.parser import Parser, Verb, key_value
from switchyard.cli.terminal.table import Column, format_age, now_us, print_table
from switchyard.model.cluster.selection import StateValue

COLUMNS = (Column("STATE"), Column("VALUE"), Column("AGE", right=True), Column("BY", flexible=True))


def print_state(state: Sequence[StateValue]) -> None:
    now = now_us()
    print_table(
        COLUMNS,
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


def _arguments(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="the cluster's name")
    parser.add_argument("value", nargs="+", type=key_value, metavar="K=V", help="a value; K= removes it")


VERBS = (
    Verb(
        "set-state",
        "Set values that selection uses and no agent reports: costs, sites …",
        _set_state,
        _arguments,
        examples="  yard cluster set-state alpha cost_per_node_hour=3 site=north\n"
        "  yard cluster set-state alpha site=               remove it",
    ),
)
