"""`yard whoami`: the user that the server sees, and the user's grants."""

from __future__ import annotations

from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import emit
from switchyard.cli.terminal.parser import Parser, add_shared
from switchyard.cli.terminal.table import print_fields


def main(argv: list[str]) -> int:
    parser = Parser("yard whoami", "Show your user name, your groups and what you may do.", examples="  yard whoami")
    add_shared(parser)
    args = parser.parse_args(argv)
    with connect(args) as yard:
        me = yard.whoami()
        url = yard.url
    if emit(me, args.output):
        return 0
    fields = [
        ("name", me.name),
        ("groups", " ".join(me.groups)),
        ("platform", "administrator" if me.is_platform_admin else ""),
        ("server", url),
        *(("grant", grant) for grant in me.grants),
    ]
    print_fields(fields)
    return 0
