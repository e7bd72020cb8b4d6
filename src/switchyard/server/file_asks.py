"""Readers who look at files of running jobs, and the asks for the agents that have these files.

Lives on the event loop, in memory. An ask goes to an agent with the answer to its next poll, at any server: servers
tell each other of asks. It ends with the agent's answer, or when its reader has gone.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

from switchyard.errors import LimitReached
from switchyard.model.files.file_views import ASKS_IN_POLL_MAX, VIEW_WAIT_S_MAX, FileAnswer, FileAsk

FILES_PER_JOB_MAX = 16  # looked at by one user on this server at once
FILES_PER_USER_MAX = 32  # of all jobs
# A follower asks again and again. It counts for so long after its last request; then it has gone.
INTEREST_S = 15.0
BYTES_PER_S = 4 * 2**20  # of one user
ANSWER_S = 10.0  # for an agent to answer, beyond the time that it may wait for more of the file
LIMIT_NAME = "viewed_files"

WatchedFile = tuple[str, int, bytes]  # job, fence, name


@dataclass(slots=True)
class _OpenAsk:
    ask: FileAsk
    answer: asyncio.Future[FileAnswer] | None  # None: its reader is at another server
    until: float


class FileAsks:
    def __init__(self) -> None:
        self._origin = secrets.token_hex(6)
        self._numbers = itertools.count(1)
        self._open: dict[str, _OpenAsk] = {}
        self._by_agent: dict[str, list[str]] = {}  # ids of asks that wait for a poll
        self._interest: dict[tuple[str, WatchedFile], float] = {}  # by user and file: until when it counts
        self._free_at: dict[str, float] = {}  # by user: when the next bytes may be read

    def new_id(self) -> str:
        return f"{self._origin}-{next(self._numbers)}"

    def watch(self, user: str, file: WatchedFile) -> None:
        """Count a file that this user looks at. Raises LimitReached for one too many."""
        now = monotonic()
        key = (user, file)
        if key not in self._interest:
            self._interest = {each: until for each, until in self._interest.items() if until > now}
            own = [watched for watcher, watched in self._interest if watcher == user]
            if sum(watched[0] == file[0] for watched in own) >= FILES_PER_JOB_MAX:
                raise _too_many(f"You look at {FILES_PER_JOB_MAX} files of job {file[0]} already")
            if len(own) >= FILES_PER_USER_MAX:
                raise _too_many(f"You look at {FILES_PER_USER_MAX} files already")
        self._interest[key] = now + INTEREST_S + VIEW_WAIT_S_MAX

    def leave(self, user: str, file: WatchedFile, *, is_following: bool) -> None:
        """A request has ended. The next one of a follower should come soon."""
        if is_following:
            self._interest[user, file] = monotonic() + INTEREST_S
        else:
            self._interest.pop((user, file), None)

    def pause_s(self, user: str) -> float:
        """Seconds until this user may read more bytes."""
        return max(0.0, self._free_at.get(user, 0.0) - monotonic())

    def count_bytes(self, user: str, size: int) -> None:
        now = monotonic()
        if len(self._free_at) > 1000:
            self._free_at = {name: at for name, at in self._free_at.items() if at > now}
        self._free_at[user] = max(self._free_at.get(user, 0.0), now) + size / BYTES_PER_S

    @contextmanager
    def opened(self, ask: FileAsk) -> Iterator[asyncio.Future[FileAnswer]]:
        """Ask an agent for as long as the block runs. The future has its answer."""
        answer: asyncio.Future[FileAnswer] = asyncio.get_running_loop().create_future()
        self._add(_OpenAsk(ask, answer, monotonic() + ask.wait_s + ANSWER_S))
        try:
            yield answer
        finally:
            answer.cancel()
            self._remove(ask.id)

    def add_remote(self, ask: FileAsk) -> bool:
        """Take over the ask of a reader at another server. False: it is our own, or known."""
        if ask.id.startswith(self._origin) or ask.id in self._open:
            return False
        now = monotonic()
        for old in [known for known, each in self._open.items() if each.answer is None and each.until < now]:
            self._remove(old)
        self._add(_OpenAsk(ask, None, now + ask.wait_s + ANSWER_S))
        return True

    def has(self, agent_id: str) -> bool:
        return agent_id in self._by_agent

    def take(self, agent_id: str) -> list[FileAsk]:
        """The asks for this agent that it has not got from this server."""
        ids = self._by_agent.pop(agent_id, [])
        if len(ids) > ASKS_IN_POLL_MAX:
            self._by_agent[agent_id] = ids[ASKS_IN_POLL_MAX:]
        taken = [self._open[ask_id] for ask_id in ids[:ASKS_IN_POLL_MAX] if ask_id in self._open]
        now = monotonic()
        return [each.ask for each in taken if each.until > now]

    def settle(self, agent_id: str, answer: FileAnswer) -> FileAsk | None:
        """Give an answer to its reader. Returns the ask if its reader is at another server."""
        opened = self._open.get(answer.id)
        if opened is None or opened.ask.agent != agent_id:
            return None  # the reader has gone
        if opened.answer is None:
            self._remove(answer.id)
            return opened.ask
        if not opened.answer.done():
            opened.answer.set_result(answer)
        return None

    def _add(self, opened: _OpenAsk) -> None:
        self._open[opened.ask.id] = opened
        self._by_agent.setdefault(opened.ask.agent, []).append(opened.ask.id)

    def _remove(self, ask_id: str) -> None:
        opened = self._open.pop(ask_id, None)
        waiting = self._by_agent.get(opened.ask.agent, []) if opened is not None else []
        if opened is not None and ask_id in waiting:
            waiting.remove(ask_id)
            if not waiting:
                del self._by_agent[opened.ask.agent]


def _too_many(detail: str) -> LimitReached:
    error = LimitReached(
        f"{detail}, and that is the most on one server.",
        next_step=f"End one of them (`yard logs --file`), and try again after {INTEREST_S:.0f} s.",
    )
    error.limit = LIMIT_NAME
    return error
