"""Two umasks: the agent's own files are for its user alone; its jobs have the umask that the agent was started with."""

from __future__ import annotations

import os

OWN = 0o077
_site: list[int] = []  # the one that the agent was started with


def keep_private() -> None:
    """What the agent itself makes from here on is for its own user alone."""
    before = os.umask(OWN)
    if not _site:
        _site.append(before)


def site_umask() -> int:
    """The umask of jobs, and of what submits them; -1: as this process has it."""
    return _site[0] if _site else -1
