"""The first start of a server: shows the administrator's token once, and stores it for the local CLI."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import structlog

from switchyard.errors import YardError
from switchyard.sdk.transport import config
from switchyard.server.config.settings import Settings

FILE_NAME = "first-admin-token"
log = structlog.get_logger()


def show_first_token(settings: Settings, token: str) -> None:
    """Show the token on a terminal. If output is kept, by journald or in a file, write it to a private file instead."""
    url = config.clean_url(settings.url)
    say = sys.stdout.write
    if sys.stdout.isatty():
        say(f"First start: made the user `admin`. This is their token; it is shown only now:\n\n    {token}\n\n")
    else:
        _keep(settings.data / FILE_NAME, token)
    try:
        path = config.config_path()
        before = config.load_user_file(path)
        stored = before.with_token(url, token)
        config.save_user_file(path, stored)
    except YardError as exc:
        say(f"It could not be kept for the local CLI: {exc.detail} Use it as YARD_TOKEN.\n")
    else:
        say(f"It is kept for the local CLI in {path}. Try: yard whoami --server {url}\n")
    sys.stdout.flush()


def _keep(path: Path, token: str) -> None:
    try:
        path.unlink(missing_ok=True)  # it belonged to an earlier database
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{token}\n")
    except OSError as exc:
        next_step = "`yard server new-admin-token` makes another"
        log.error("the first token could not be written", file=str(path), error=str(exc), next=next_step)
        return
    log.info("first start: made the user admin; remove this file once you have their token", token_file=str(path))
    sys.stdout.write(f"First start: made the user `admin`. Their token is in {path}; remove that file after use.\n")
