"""`yard explain-policy`: every rule that holds for a project and domain, and the level that gave it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import emit, print_notice
from switchyard.cli.terminal.parser import Parser, add_shared
from switchyard.cli.terminal.table import Column, print_table
from switchyard.errors import BadRequest
from switchyard.model.rules.attributes import EffectiveField, UsedValue
from switchyard.model.rules.scope import Level, Scope

VALUE_CHARS_MAX = 500  # of one value in a table; -o json and -o yaml show it whole
COLUMNS = (
    Column("KIND"),
    Column("FIELD", flexible=True),
    Column("VALUE", flexible=True),
    Column("LEVEL"),
    Column("SET AT", flexible=True),
)
ABOUT = """\
Show the effective rules of a project and domain, and the level of each. The most specific level wins, field by
field: launch plan, workflow, project+domain, project, domain, and last the platform's config."""
EXAMPLES = """\
  yard explain-policy -p flyteexamples -d development
  yard explain-policy -p flyteexamples -d development --workflow train --launch-plan nightly
  yard explain-policy -p flyteexamples -d development -o json | jq '.attributes[].fields[]'"""


def main(argv: list[str]) -> int:
    parser = Parser("yard explain-policy", ABOUT, examples=EXAMPLES)
    parser.add_argument("-p", "--project", required=True, metavar="P", help="the project")
    parser.add_argument("-d", "--domain", required=True, metavar="D", help="the domain")
    parser.add_argument("--workflow", metavar="W", help="a workflow of the project")
    parser.add_argument("--launch-plan", metavar="L", help="a launch plan of the workflow")
    add_shared(parser, outputs=("json", "yaml"))
    args = parser.parse_args(argv)
    if args.launch_plan and not args.workflow:
        raise BadRequest("A launch plan belongs to a workflow.", next_step="Give --workflow, too.")
    scope = Scope(args.domain, args.project, args.workflow, args.launch_plan)
    with connect(args) as yard:
        policy = yard.policy(scope)
    if emit(policy, args.output):
        return 0
    rows = [[attribute.kind, *_cells(value)] for attribute in policy.attributes for value in attribute.fields]
    print_table(COLUMNS, rows)
    if not rows:
        print_notice(f"No rule holds for {scope}.")
    return 0


def print_used_values(values: Sequence[UsedValue]) -> None:
    """Print the attribute values that a job was admitted under."""
    print_table(COLUMNS, [[value.kind, *_cells(value)] for value in values])


def _cells(source: EffectiveField | UsedValue) -> list[str]:
    value = source.value if isinstance(source.value, str) else msgspec.json.encode(source.value).decode()
    value = value if len(value) <= VALUE_CHARS_MAX else f"{value[:VALUE_CHARS_MAX]}…"
    where = "config" if source.level is Level.PLATFORM and source.scope is None else str(source.scope or "")
    return [source.field, value, source.level.value, where]
