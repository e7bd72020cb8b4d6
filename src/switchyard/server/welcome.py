"""The very first start: the administrator's token is printed once and kept for the local CLI."""

from __future__ import annotations

import sys

from switchyard.errors import YardError
from switchyard.sdk import config
from switchyard.server.settings import Settings


def welcome(settings: Settings, token: str) -> None:
    """Print the token, and put it into the user's file."""
    url = config.clean_url(settings.url)
    say = sys.stdout.write
    say(f"First start: made the user `admin`. This is their token; it is shown only now:\n\n    {token}\n\n")
    try:
        path = config.config_path()
        before = config.load(path)
        stored = before.with_token(url, token)
        config.save(path, stored)
    except YardError as exc:
        say(f"It could not be kept for the local CLI: {exc.detail} Use it as YARD_TOKEN.\n")
    else:
        say(f"It is kept for the local CLI in {path}. Try: yard whoami --server {url}\n")
    sys.stdout.flush()
