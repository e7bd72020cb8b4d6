"""Local accounts for tests of jobs that run under other accounts: made by root for a test, and removed after it."""

from __future__ import annotations

import os
import pwd
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def local_accounts(*names: str) -> Iterator[list[str]]:
    """Accounts with a home and a group of their own, each named after one of `names`."""
    assert os.getuid() == 0, "local accounts can be made by root alone"
    made = [f"y{name}{os.getpid()}" for name in names]
    for name in made:
        subprocess.run(["useradd", "--create-home", "--user-group", name], check=True, capture_output=True)
    try:
        yield made
    finally:
        for name in made:
            subprocess.run(["userdel", "--force", "--remove", name], check=False, capture_output=True)


def open_way(stash: Path) -> list[str]:
    """Words before a program, for it to find Python and the project although they lie in a home that is root's alone.

    In mounts of its own, what is needed of such a home is put into an empty, open folder at its place.
    """
    lines = []
    needed = [Path(sys.base_prefix), Path(sys.prefix).parent]
    for number, path in enumerate(needed):
        closed = [step for step in reversed(path.parents) if not step.stat().st_mode & stat.S_IXOTH]
        if closed:
            kept = shlex.quote(f"{stash}{number}")
            lines += [f"mkdir -p {kept}", f"mount --bind {shlex.quote(str(path))} {kept}"]
            lines += [f"mount -t tmpfs -o mode=755 none {shlex.quote(str(closed[0]))}"]
            lines += [f"mkdir -p {shlex.quote(str(path))}", f"mount --bind {kept} {shlex.quote(str(path))}"]
    script = "; ".join(["set -e", *lines, 'exec "$@"'])
    return ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", script, "sh"]


def as_account(name: str, stash: Path) -> list[str]:
    """Words before a program that is to run under this account. `stash`: where mounts may be made for it."""
    who = pwd.getpwnam(name)
    ids = [f"--reuid={who.pw_uid}", f"--regid={who.pw_gid}", "--clear-groups"]
    return [*open_way(stash), "setpriv", *ids, "--"]
