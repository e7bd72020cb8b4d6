"""Two umasks: files of the agent are private; jobs get the umask that the agent was started with."""

from __future__ import annotations

import os

AGENT_UMASK = 0o077
_initial_umask: list[int] = []  # the umask that the agent was started with


def set_private_umask() -> None:
    """Make all files that the agent creates from now on private."""
    before = os.umask(AGENT_UMASK)
    if not _initial_umask:
        _initial_umask.append(before)


def job_umask() -> int:
    """The umask of jobs and of commands that submit them; -1: that of this process."""
    return _initial_umask[0] if _initial_umask else -1
