"""The pipe from the supervisor of a local job to its agent. Part of the supervisor's program: stdlib only.

The agent keeps the other end open for as long as it follows the supervisor. So the supervisor can tell when the agent
ends, however it ends: the kernel closes the agent's end.
"""

# contextlib would double the imports of a process that starts once per job.
# ruff: noqa: SIM105

from __future__ import annotations

import os

CLAIMED = b"C"  # the supervisor has claimed the job
RUNNING = b"R"  # the command runs


class AgentPipe:
    """`fd`: of the pipe; -1: there is no agent to notify."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._is_watched = False
        if fd >= 0:
            os.set_inheritable(fd, False)

    def notify(self, message: bytes) -> None:
        if self._fd < 0:
            return
        try:
            os.write(self._fd, message)
        except OSError:
            pass  # the agent is gone; the next agent reads the files

    def watch(self) -> None:
        """Let the kernel send SIGIO to this process when the agent's end is closed, and now and then without a reason.

        SIGIO must be blocked. Until this is called, the end of the agent means nothing.
        """
        import fcntl

        if self._fd < 0:
            return
        fcntl.fcntl(self._fd, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(self._fd, fcntl.F_SETFL, fcntl.fcntl(self._fd, fcntl.F_GETFL) | os.O_ASYNC)
        self._is_watched = True

    def is_agent_gone(self) -> bool:
        """Whether the pipe is watched, and the agent has ended."""
        if not self._is_watched:
            return False
        import select

        poll = select.poll()
        poll.register(self._fd, 0)  # no event but POLLERR, which is always reported: nobody can read
        return bool(poll.poll(0))
