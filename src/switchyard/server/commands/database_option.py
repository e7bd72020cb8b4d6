"""The server's folder and database URL, from options, a file or the environment. No password on a command line.

Every user of a machine sees the command lines of processes (`ps`), and they stay in shell histories and unit files.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from switchyard.errors import Malformed

URL_VARIABLE = "YARD_DATABASE_URL"
FILE_BYTES_MAX = 64 * 1024
OTHERS_MODE = 0o007  # the bits of a file's mode that let every user read it
PASSWORD_ADVICE = (
    f"Put the URL into {URL_VARIABLE}, or into a file for --database-file; or leave the password to ~/.pgpass."
)


def data_folder(option: str | None) -> Path:
    """The server's folder, as --data names it."""
    return Path(option or "~/.local/share/switchyard/server").expanduser().resolve()


def sqlite_url(data: Path) -> str:
    return f"sqlite:///{data / 'switchyard.db'}"


def add_database_options(parser: argparse.ArgumentParser, more: str = "") -> None:
    given = parser.add_mutually_exclusive_group()
    given.add_argument("--database", metavar="URL", help=f"sqlite:///FILE or postgresql://…, without a password{more}")
    given.add_argument("--database-file", metavar="FILE", help=f"a file with the URL (or set {URL_VARIABLE})")


def read_database_url(options: argparse.Namespace, environment: Mapping[str, str]) -> str | None:
    """The URL from the options, else from the environment; None if there is none."""
    if options.database:
        if has_password(options.database):
            raise Malformed(
                "--database has a password, which every user of this machine sees in `ps`.", next_step=PASSWORD_ADVICE
            )
        return str(options.database)
    if options.database_file:
        return _read(Path(options.database_file).expanduser())
    return environment.get(URL_VARIABLE) or None


def has_password(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.password is not None or any(name == "password" for name, _ in parse_qsl(parts.query))
    except ValueError:
        return False


def _read(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            mode = file.stat().st_mode
            text = opened.read(FILE_BYTES_MAX).decode().strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise Malformed(f"--database-file: cannot read {file}: {exc}.", next_step="Check the file.") from exc
    if mode & OTHERS_MODE:
        raise Malformed(f"--database-file: every user may read {file}.", next_step=f"chmod o= {file}")
    if not text or len(text.split()) != 1:
        raise Malformed(f"--database-file: {file} is not one URL.", next_step="Write one line: postgresql://…")
    return text
