"""Two umasks: the agent's own files are for its user alone; its jobs have the umask that the agent was started with."""

from __future__ import annotations

import os

AGENT_UMASK = 0o077
_initial_umask: list[int] = []  # the one that the agent was started with


def set_private_umask() -> None:
    """What the agent itself makes from here on is for its own user alone."""
    before = os.umask(AGENT_UMASK)
    if not _initial_umask:
        _initial_umask.append(before)


def job_umask() -> int:
    """The umask of jobs, and of what submits them; -1: as this process has it."""
    return _initial_umask[0] if _initial_umask else -1
