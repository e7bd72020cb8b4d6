"""`yard usage`: how much of the yard's storage the caller and a project use."""

from __future__ import annotations

from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import emit
from switchyard.cli.terminal.parser import Parser, add_shared
from switchyard.cli.terminal.table import Column, print_table
from switchyard.model.files.files import FileUsage
from switchyard.model.jobspec.quantity import show_bytes

EXAMPLES = """\
  yard usage                               your files, and the most they may take
  yard usage --files --project physics     and those of a project
  yard usage -o json"""
COLUMNS = (
    Column("WHOSE"),
    Column("FILES", right=True),
    Column("OF", right=True),
    Column("USED", right=True),
    Column("TREES", right=True),
)


def main(argv: list[str]) -> int:
    parser = Parser(
        "yard usage", "Show how much your stored files take, and the most they may take.", examples=EXAMPLES
    )
    parser.add_argument("--files", action="store_true", help="the files of jobs (there is nothing else yet)")
    parser.add_argument("--project", metavar="NAME", help="also those of this project")
    add_shared(parser, outputs=("json", "yaml"))
    args = parser.parse_args(argv)
    with connect(args) as yard:
        usage = yard.file_usage(project=args.project)
    if not emit(usage, args.output):
        rows = [_row("you", usage.user)]
        rows += [_row(f"project {args.project}", usage.project)] if usage.project else []
        print_table(COLUMNS, rows)
    return 0


def _row(whose: str, usage: FileUsage) -> list[str]:
    limit = show_bytes(usage.bytes_max) if usage.bytes_max else "no limit"
    share = f"{100 * usage.bytes // usage.bytes_max} %" if usage.bytes_max else ""
    return [whose, show_bytes(usage.bytes), limit, share, str(usage.trees)]
