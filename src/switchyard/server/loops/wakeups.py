"""What happens after a commit of this server or another: waiting requests, streams, polls and chores are woken."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

import structlog

from switchyard.errors import YardError
from switchyard.model.cluster.namespace_resources import BACKEND as KUBERNETES
from switchyard.server.file_asks import FileAsks
from switchyard.server.loops.loop_calls import call_on_loop
from switchyard.server.loops.wakeup_hub import WakeupHub
from switchyard.server.loops.workers import Workers
from switchyard.service.core.context import Context
from switchyard.service.core.writes.batch import CommitNotice, Topic
from switchyard.service.quote.quote_answers import InquiryDelivery

log = structlog.get_logger()
# Of tables that are kept in memory.
SNAPSHOT_TOPICS = frozenset(
    {
        Topic.ACCESS,
        Topic.CLUSTERS,
        Topic.LAYOUT,
        Topic.POLICY,
        Topic.PROBATION,
        Topic.RESOURCES,
        Topic.TOKENS,
    }
)
# May make a pending job eligible.
ROUTING_TOPICS = frozenset({Topic.PENDING, Topic.CLUSTERS, Topic.LAYOUT, Topic.ACCESS, Topic.PROBATION, Topic.TOKENS})
# Each step of an execution sends this topic, which says nothing of what is kept in memory.
NOT_REFRESHED = frozenset({Topic.EXECUTIONS})
PROMOTION_TOPICS = frozenset({Topic.QUEUES})  # may free a place in a limited queue


class Wakeups:
    """Lives on the event loop, except where a method says otherwise."""

    def __init__(self, context: Context, workers: Workers) -> None:
        self._context = context
        self._workers = workers
        self.hub = WakeupHub()
        self.reads = SharedReads()
        self.quote_questions = InquiryDelivery(context)
        self.file_asks = FileAsks()
        self.quote_kick = asyncio.Event()  # a job asks for quotes, or a quote has come
        self.pending_kick = asyncio.Event()  # upkeep should run
        self._kicks: dict[Topic, asyncio.Event] = {}  # of loops of features, by what wakes them
        self.is_pending_new = True  # a job came to wait, or a pending job may have become eligible
        self.is_listening = True  # to PostgreSQL's notices; without, commits of other servers are polled for
        self.loop: asyncio.AbstractEventLoop | None = None
        self._is_refreshing = False
        self._woken_resources = ""  # the version of namespaces for which polls were woken

    def kick_of(self, topic: Topic) -> asyncio.Event:
        """What is set whenever a commit of any server has this topic."""
        return self._kicks.setdefault(topic, asyncio.Event())

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tell this loop of commits."""
        self.loop = loop
        self._context.committer.after_commit = self.after_commit

    def handle_commit(self, notice: CommitNotice) -> None:
        """This server or another has committed something."""
        if Topic.QUOTES in notice.versions:
            self.quote_questions.note()
            self.quote_kick.set()
        for topic, kick in self._kicks.items():
            if topic in notice.versions:
                kick.set()
        self.hub.wake(notice.clusters, notice.jobs)
        if not ROUTING_TOPICS.isdisjoint(notice.versions):
            self.is_pending_new = True
            self.pending_kick.set()
        elif not PROMOTION_TOPICS.isdisjoint(notice.versions):
            self.pending_kick.set()

    def handle_remote_commit(self, notice: CommitNotice) -> None:
        """Another server has committed something, or a reader there looks at a file."""
        for ask in notice.file_asks:
            if self.file_asks.add_remote(ask):
                self.hub.wake_polls(ask.cluster)
        self.handle_commit(notice)
        if not NOT_REFRESHED.issuperset(notice.versions):
            self._refresh_soon()

    def handle_unknown_commits(self) -> None:
        """Another server has committed more than fits into a notice, or this one did not listen for a while."""
        self.hub.wake_all()
        self._wake_chores()
        self._refresh_soon()

    def wake_without_notices(self) -> None:
        """No notices come from other servers: make waiting requests read again. The sweep wakes parked polls."""
        self.hub.wake_all_jobs()
        self._wake_chores()

    def wake_pending(self) -> None:
        """A pending job may have become eligible without a commit. From any thread."""
        if self.loop is not None:
            call_on_loop(self.loop, self.handle_commit, CommitNotice([], [], ["pending"]))

    def after_commit(self, notice: CommitNotice) -> None:
        """On the committer's thread, before results are delivered: a caller sees its own change."""
        if not SNAPSHOT_TOPICS.isdisjoint(notice.versions):
            self._refresh()
        # A turn of the loop for nobody would take the interpreter from the threads that answer.
        if self.loop is not None and (notice.clusters or notice.versions or self.hub.is_any_waiting(notice.jobs)):
            call_on_loop(self.loop, self.handle_commit, notice)

    def _wake_chores(self) -> None:
        self.quote_questions.note()
        self.quote_kick.set()
        for kick in self._kicks.values():
            kick.set()
        self.is_pending_new = True
        self.pending_kick.set()

    def _refresh_soon(self) -> None:
        if not self._is_refreshing:
            self._is_refreshing = True
            self._workers.start(self._refresh)

    def _refresh(self) -> None:
        """On a thread."""
        self._is_refreshing = False  # first: a commit from here on needs another refresh
        try:
            self._context.snapshots.refresh()
        except YardError as exc:
            log.warning("snapshot not refreshed", error=exc.inner)  # the refresh loop tries again within a second
        if self.loop is not None:
            call_on_loop(self.loop, self.pending_kick.set)
            call_on_loop(self.loop, self._wake_for_resources)

    def _wake_for_resources(self) -> None:
        """Wake the parked polls of Kubernetes clusters if the objects of namespaces changed."""
        snapshots = self._context.snapshots
        if snapshots.resources.name != self._woken_resources:
            self._woken_resources = snapshots.resources.name
            members = snapshots.world.by_id.values()
            self.hub.wake_polls_in_turn([member.id for member in members if KUBERNETES in member.backends])


class SharedReads:
    """Reads by key, which includes the reader's rights. Of each key at most one read runs and one is next."""

    def __init__(self) -> None:
        self._running: dict[Hashable, asyncio.Task[Any]] = {}
        self._next: dict[Hashable, asyncio.Task[Any]] = {}

    async def read(self, key: Hashable, load: Callable[[], Awaitable[Any]]) -> Any:
        """Return the result of a read that starts after this call. Callers with the same key share it."""
        task = self._next.get(key)
        if task is None:
            task = self._next[key] = asyncio.ensure_future(self._run(key, load))
            task.add_done_callback(_note_error)
        return await asyncio.shield(task)

    async def _run(self, key: Hashable, load: Callable[[], Awaitable[Any]]) -> Any:
        before = self._running.get(key)
        if before is not None:
            await asyncio.wait({before})
        task = self._running[key] = self._next.pop(key)
        try:
            return await load()
        finally:
            if self._running.get(key) is task:
                del self._running[key]


def _note_error(task: asyncio.Task[Any]) -> None:
    """Look at the error: all callers may be gone, and asyncio would log that nobody saw it."""
    if not task.cancelled():
        task.exception()
