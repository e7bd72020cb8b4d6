"""`yard logout`: forget the token for a server."""

from __future__ import annotations

from switchyard.cli.terminal.parser import Parser, add_shared
from switchyard.sdk.transport.config import clean_url, config_path, load_user_file, resolve_settings, save_user_file


def main(argv: list[str]) -> int:
    parser = Parser(
        "yard logout",
        "Remove the token for a server from your file. It still holds; `yard token revoke` ends it.",
        examples="  yard logout --server https://yard.example.org",
    )
    add_shared(parser, outputs=())
    args = parser.parse_args(argv)
    url = resolve_settings(args.server).url
    stored = load_user_file(config_path())
    known = [key for key in stored.tokens if clean_url(key) == url]
    for key in known:
        stored = stored.without_token(key)
    if known:
        save_user_file(config_path(), stored)
    print(f"The token for {url} is forgotten." if known else f"No token for {url} was stored.")
    return 0
