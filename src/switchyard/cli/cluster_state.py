"""`yard cluster set-state`: what is known of a cluster and set by hand; and the table of all that is known."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from switchyard.cli.connect import connect
from switchyard.cli.output import emit
from switchyard.cli.parser import Parser, Verb, key_value
from switchyard.cli.submit_select import parse_scalar
from switchyard.cli.table import Column, format_age, now_us, print_table
from switchyard.model.selection import StateValue

COLUMNS = (Column("STATE"), Column("VALUE"), Column("AGE", right=True), Column("BY", flexible=True))


def print_state(state: Sequence[StateValue]) -> None:
    now = now_us()
    print_table(
        COLUMNS,
        [
            [
                each.name,
                format_state_value(each.value),
                format_age(each.at_us, now) + (" stale" * each.is_stale),
                each.by,
            ]
            for each in state
        ],
    )


def format_state_value(value: bool | int | float | str) -> str:
    return ("false", "true")[value] if isinstance(value, bool) else str(value)


def _set_state(args: Namespace) -> int:
    change = {key: parse_scalar(value) if value else None for key, value in args.value}
    with connect(args) as yard:
        cluster = yard.change_cluster(args.name, state=change)
    if args.output:
        emit(cluster, args.output, name=lambda each: each.name)
        return 0
    print_state(cluster.state)
    return 0


def _arguments(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="the cluster's name")
    parser.add_argument("value", nargs="+", type=key_value, metavar="K=V", help="a value; K= takes it away")


VERBS = (
    Verb(
        "set-state",
        "Set by hand what selection goes by: costs, sites, whatever no agent says",
        _set_state,
        _arguments,
        examples="  yard cluster set-state alpha cost_per_node_hour=3 site=north\n"
        "  yard cluster set-state alpha site=               take it away",
    ),
)
