"""`yard version`: the versions of this program, and of the server if it answers."""

from __future__ import annotations

import msgspec

from switchyard.cli.terminal.connect import connect
from switchyard.cli.terminal.output import emit, print_notice
from switchyard.cli.terminal.parser import Parser, add_shared
from switchyard.errors import YardError


class Versions(msgspec.Struct, frozen=True):
    """The versions of client and server. `server` is None if it does not answer."""

    client: str
    server: str | None
    url: str


def main(argv: list[str]) -> int:
    from switchyard import __version__

    parser = Parser("yard version", "Show the versions of this program and of the server.", examples="  yard version")
    add_shared(parser, outputs=("json", "yaml"))
    args = parser.parse_args(argv)
    silent: YardError | None = None
    with connect(args, retry_s=0) as yard:
        try:
            server = yard.version().version
        except YardError as exc:  # the version of this program is still worth printing
            server, silent = None, exc
        versions = Versions(__version__, server, yard.url)
    if emit(versions, args.output, key="client"):
        return 0
    print(f"yard    {versions.client}")
    print(f"server  {versions.server or 'does not answer'}  ({versions.url})")
    if silent:
        print_notice(silent.detail)
    return 0
