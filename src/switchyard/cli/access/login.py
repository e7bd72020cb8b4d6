"""`yard login`, `logout` and `whoami`: the token for a server in the user's file, and the user that it belongs to."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

from switchyard.cli.terminal.connect import RETRY_S, connect
from switchyard.cli.terminal.output import emit, print_notice
from switchyard.cli.terminal.parser import Parser, add_shared
from switchyard.cli.terminal.table import print_fields
from switchyard.connection import refuse_plain_http
from switchyard.errors import BadRequest
from switchyard.sdk.client import CoreClient
from switchyard.sdk.transport.config import (
    clean_token,
    clean_url,
    config_path,
    load_user_file,
    resolve_settings,
    save_user_file,
)

LOGIN_EXAMPLES = """\
  yard login --server https://yard.example.org
  yard login --token-stdin < token.txt"""


def login(argv: list[str]) -> int:
    """Check a token with the server and keep it in the user's file."""
    parser = Parser(
        "yard login",
        "Store a token for a server, after asking the server whether it holds. The server becomes your default one.",
        examples=LOGIN_EXAMPLES,
    )
    parser.add_argument("--token-stdin", action="store_true", help="read the token from stdin instead of asking")
    parser.add_argument(
        "--ca-file", metavar="FILE", help="trust the certificates in this file; its name is stored, too"
    )
    add_shared(parser, outputs=())
    args = parser.parse_args(argv)
    account = resolve_settings(args.server)
    url = account.url
    refuse_plain_http(url, is_plain_allowed=account.is_plain_allowed)  # before anybody types a token
    token = clean_token(sys.stdin.readline() if args.token_stdin else _ask_for_token(url))
    if not token:
        raise BadRequest(
            "No token was given.", next_step="An administrator makes one: `yard token create --user NAME`."
        )
    ca_file = os.path.abspath(args.ca_file) if args.ca_file else None  # noqa: PTH100 — a link stays a link
    with CoreClient(url, token, ca_file=ca_file, retry_s=RETRY_S) as yard:
        me = yard.whoami()
    user_file = load_user_file(config_path()).with_token(url, token)
    save_user_file(config_path(), replace(user_file, ca_file=ca_file or user_file.ca_file))
    print(f"Signed in to {url} as {me.name}. The token is kept in {config_path()}.")
    if os.environ.get("YARD_TOKEN"):
        print_notice("Beware: YARD_TOKEN is set and wins over the stored token.")
    return 0


def _ask_for_token(url: str) -> str:
    if not sys.stdin.isatty():
        raise BadRequest(
            "There is no terminal to ask for the token on.", next_step="Use --token-stdin, or set YARD_TOKEN."
        )
    from getpass import getpass

    return getpass(f"Token for {url}: ")


def logout(argv: list[str]) -> int:
    parser = Parser(
        "yard logout",
        "Remove the token for a server from your file. It still holds; `yard token revoke` ends it.",
        examples="  yard logout --server https://yard.example.org",
    )
    add_shared(parser, outputs=())
    args = parser.parse_args(argv)
    url = resolve_settings(args.server).url
    user_file = load_user_file(config_path())
    known = [key for key in user_file.tokens if clean_url(key) == url]
    for key in known:
        user_file = user_file.without_token(key)
    if known:
        save_user_file(config_path(), user_file)
    print(f"The token for {url} is forgotten." if known else f"No token for {url} was stored.")
    return 0


def whoami(argv: list[str]) -> int:
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
