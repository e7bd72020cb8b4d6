"""Runs the agent's threads and their retries; it has the agent's only `except Exception`.

    park    waits at the server for work (poller.park)
    talk    sends reports and output as soon as there are any (poller.talk)
    runner  starts, watches and ends attempts (runner.run_once)
    refresh asks the cluster for the state of all jobs (backend.refresh)
    look    checks every few minutes whether the cluster's hardware changed (backend.look)
    quote   answers the server's inquiries about possible jobs (quote_answerer.run_once)
    namespaces  applies the objects of namespaces, where the backend has namespaces (ManagesNamespaces.run_once)

The main thread watches them (command.py). Only a signal, or a server that refuses the agent, ends the agent; failures
of servers, disks and jobs do not.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from switchyard.agent.backends import Backend
from switchyard.agent.backoff import backoff_s
from switchyard.agent.files.attempt_files import AttemptFiles
from switchyard.agent.journal.journal import Journal
from switchyard.agent.log import line
from switchyard.agent.loop.batch_silence import BatchSilence
from switchyard.agent.loop.chooser import Chooser
from switchyard.agent.loop.clock import now_ns
from switchyard.agent.loop.departure import Departure
from switchyard.agent.loop.lifetime import Lifetime
from switchyard.agent.loop.offers import AgentCondition, Offers
from switchyard.agent.loop.outbox import Outbox
from switchyard.agent.loop.poller import AgentProcess, AnswerReceivers, PollConnections, Poller
from switchyard.agent.loop.quote_answerer import QuoteAnswerer
from switchyard.agent.loop.runner import Runner
from switchyard.agent.server.client import Connection, ServerUnreachable
from switchyard.agent.server.credential import AgentCredentials
from switchyard.agent.site.site import OutageSite
from switchyard.decoder_warmup import warm_loaded_types
from switchyard.errors import Gone, Internal, JournalRefused, Resync, Unauthenticated, YardError
from switchyard.model.cluster.poll import UNBEGUN_MAX, Leave, Left, Rotate, Rotated, UnbegunAttempt
from switchyard.model.cluster.selection import Scalar
from switchyard.model.job.lifecycle import ObservedState

ROTATE_AFTER_S = 30 * 86_400.0
ROTATION_RETRY_S = 60.0  # after a failed rotation; the current credential stays valid

ROTATE_PATH = "/v1/agents/rotate"
SELF_PATH = "/v1/agents/self"


class Rotation:
    """Used by one thread, but for `request`."""

    def __init__(self, keys: AgentCredentials, connection: Connection, *, after_s: float) -> None:
        self._keys = keys
        self._connection = connection
        self._after_s = after_s
        self._not_before = 0.0
        self._is_asked = False  # an operator asked for it

    def request(self) -> None:
        """Rotate soon. Called from any thread."""
        self._is_asked = True

    def go(self, incarnation: str) -> None:
        """Rotate if it is due or asked for."""
        if not self._is_asked and self._keys.age_s() < self._after_s:
            return
        if time.monotonic() < self._not_before:
            return
        self._not_before = time.monotonic() + ROTATION_RETRY_S
        try:
            self._rotate(incarnation)
        except (Gone, Unauthenticated):
            raise
        except YardError as exc:
            log.warning(line("rotation-failed", error=exc.detail))
            return
        log.info(line("rotated"))
        self._not_before = 0.0
        self._is_asked = False

    def _rotate(self, incarnation: str) -> None:
        body = self._connection.post(ROTATE_PATH, msgspec.json.encode(Rotate(incarnation=incarnation)))
        try:
            rotated = msgspec.json.decode(body, type=Rotated)
        except msgspec.DecodeError as exc:
            raise ServerUnreachable(f"The server's answer to a rotation cannot be read: {exc}.") from exc
        self._keys.renew(rotated.credential)
        # The first use ends the old credential. It goes to the same server, on the same connection.
        self._connection.get(SELF_PATH)


LEAVE_PATH = "/v1/agents/leave"
BACKOFF_S_MIN = 0.1
BACKOFF_S_MAX = 10.0  # after an outage all agents are back within this time, at random moments
CLOSING_S_MAX = 1.0  # random wait after a server shuts down, so that not all agents reach the next one at once
WATCH_S = 1.0  # the longest time until a change is seen without a wake-up
TALK_EVERY_S = 5.0  # the same for reports
OUTPUT_READ_S_MIN = 0.05  # between two reads of output
REDISCOVER_EVERY_S = 300.0  # drivers and disks change with a reboot or an upgrade, not more often
FREEZE_S_MIN = 3.0  # between two rounds: the machine slept or the process was stopped, and leases may be lost
THREAD_JOIN_S = 1.5  # for threads to end after a signal
ROOM_EVERY_S = 2.0  # between two looks whether there is room for files
FREE_BYTES_MIN = 64 * 2**20  # no new work below this much free disk: journals and exit codes need it
QUICK_POLL_S = 0.5  # a parked poll that returns faster without news was not parked
QUICK_POLLS_MAX = 3  # such polls in a row before the agent slows down

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLimits:
    jobs_max: int = 64  # attempts held at once
    free_bytes_min: int = FREE_BYTES_MIN
    rotate_after_s: float = ROTATE_AFTER_S
    look_every_s: float = REDISCOVER_EVERY_S
    outage: OutageSite = field(default_factory=OutageSite)


class Backoff:
    """Random waits that double up to a bound."""

    def __init__(self) -> None:
        self._tries = 0

    def reset(self) -> None:
        self._tries = 0

    def next_s(self, at_least_s: float | None = None) -> float:
        self._tries += 1
        return max(at_least_s or 0.0, backoff_s(self._tries, least_s=BACKOFF_S_MIN, most_s=BACKOFF_S_MAX))


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """What an agent may be given, or not. `values`: state values that the site adds to the load."""

    chooser: Chooser | None = None
    values: Callable[[], dict[str, Scalar]] = dict
    make_files: Callable[[Backend, Callable[[], None]], AttemptFiles] | None = None
    lifetime: Lifetime | None = None  # of an ephemeral cluster, which the agent leaves before its end
    departure: Departure | None = None  # of `yard loop`, which leaves when there is no job for it


class Loop:
    def __init__(
        self,
        journal: Journal,
        backend: Backend,
        *,
        connect: Callable[[], Connection],
        directory: Path,
        limits: AgentLimits,
        keys: AgentCredentials | None = None,
        options: AgentOptions,
    ) -> None:
        self._journal, self._backend = journal, backend
        self._limits, self._lifetime, self._departure = limits, options.lifetime, options.departure
        self._stop = threading.Event()
        self._news = threading.Event()
        self._refresh_due = threading.Event()
        self._fatal: YardError | None = None
        self._threads: list[threading.Thread] = []
        self._files = options.make_files(backend, self._on_work) if options.make_files else None
        self._namespaces = backend.namespaces
        self._graph = backend.describe()  # the one that the server is told
        silence = BatchSilence(backend.trouble, limits.outage)
        self._condition = AgentCondition(
            journal,
            silence,
            directory=directory,
            free_bytes_min=limits.free_bytes_min,
            lifetime=options.lifetime,
            files=self._files,
        )
        self._runner = Runner(
            journal,
            backend,
            options.chooser,
            self._files,
            silence=silence,
            # Queued jobs are over as soon as they are cancelled: do not wait for the next regular refresh.
            on_cancel=self._refresh_due.set,
            is_disk_short=self._condition.is_disk_short,
            hold=self._namespaces.hold if self._namespaces is not None else lambda _: "",
            departure=options.departure,
            graph=lambda: None if self._poller.session.is_graph_by_operator else self._graph,
        )
        if self._namespaces is not None:
            self._namespaces.attach(connect().within_session(), self._on_work)
        self._connections = PollConnections(park=connect(), talk=connect())
        self._quoting = QuoteAnswerer(backend, self._news.set)
        self._rotation = Rotation(keys, self._connections.talk, after_s=limits.rotate_after_s) if keys else None
        self._poller = Poller(
            journal,
            Offers(
                journal,
                self._runner,
                self._condition,
                jobs_max=limits.jobs_max,
                values=options.values,
                departure=options.departure,
            ),
            Outbox(journal, backend),
            connections=self._connections,
            process=AgentProcess(
                incarnation=secrets.token_hex(8),
                keys=keys,
                place=f"{socket.gethostname()}:{directory} (process {os.getpid()})",
            ),
            receivers=self._receivers(),
            graph=self._graph,
        )

    def _receivers(self) -> AnswerReceivers:
        return AnswerReceivers(
            on_work=self._on_work,
            quoting=self._quoting,
            view=self._files.view if self._files is not None else None,
            note_resources=self._namespaces.note_version if self._namespaces is not None else lambda _: None,
            rotate=self._rotation.request if self._rotation is not None else lambda: None,
        )

    def start(self) -> None:
        warm_loaded_types()
        self._threads = [
            threading.Thread(target=self._keep, args=(name, step), name=name, daemon=True)
            for name, step in (
                ("park", self._park),
                ("talk", self._talk),
                ("runner", self._run),
                ("refresh", self._refresh),
                ("look", self._look),
                ("quote", self._quote),
                *([("room", self._watch_room)] if self._files is not None else []),
                *([("namespaces", self._apply_namespaces)] if self._namespaces is not None else []),
            )
        ]
        for thread in self._threads:
            thread.start()

    def is_over(self) -> bool:
        """Whether the server refused the agent, a thread ended unexpectedly, the time of the cluster is over, or the
        agent of `yard loop` has left in order."""
        dead = [thread.name for thread in self._threads if not thread.is_alive()]
        if dead and not self._stop.is_set():
            self._fatal = Internal(f"The agent's thread {dead[0]} ended.")
        return self._stop.is_set() or bool(dead) or self._is_time_over() or self._may_depart()

    def stop(self) -> YardError | None:
        """Stop the threads; running jobs go on. Returns the error that ended the agent, if any."""
        self._end()
        until = time.monotonic() + THREAD_JOIN_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        if isinstance(self._fatal, JournalRefused):
            self._withdraw()
        return self._fatal

    def _is_time_over(self) -> bool:
        if self._lifetime is None:
            return False
        return self._lifetime.may_leave(has_work=self._has_work())

    def _has_work(self) -> bool:
        return bool(self._journal.queued()) or any(attempt.is_live for attempt in self._journal.attempts())

    def depart(self, reason: str) -> bool:
        """Leave in order, which `is_over` tells. False: this agent only stops."""
        if self._departure is None:
            return False
        self._departure.order(reason)
        self._backend.wake()
        self._news.set()
        return True

    def _may_depart(self) -> bool:
        departure = self._departure
        if departure is None:
            return False
        has_work = self._has_work()
        is_sending = self._files is not None and self._files.is_sending
        if self._poller.session.is_accepted and departure.observe(has_work=has_work, is_sending=is_sending):
            log.info(line("leaving" if departure.is_begun else "staying", why=departure.return_reason or None))
            self._news.set()
        if departure.is_overdue:
            return True
        if departure.return_reason and not self._poller.session.is_accepted:
            return not has_work  # the server was never reached: it gave nothing, and can be told nothing
        # Look for work again at the end: a lease may have come with the last answer.
        is_done = departure.is_begun and not has_work and not (departure.return_reason and is_sending)
        return is_done and self._poller.has_stopped_asking() and not self._has_work()

    def summary(self) -> str:
        """What this process ran, for `yard loop`. Each task of an array counts."""
        ends = {seen: count for seen, count in self._runner.ends.items() if seen is not ObservedState.RETURNED}
        words = [f"{count} {seen.lower()}" for seen, count in sorted(ends.items())]
        parts = [f"ran {sum(ends.values())}" + (f": {', '.join(words)}" if words else "")]
        if returned := self._runner.ends[ObservedState.RETURNED]:
            parts.append(f"gave back {returned}")
        if unsent := len(self._journal.queued()):
            parts.append(f"{unsent} reports are not sent; the next `yard loop` sends them")
        return "; ".join(parts)

    def leave(self, connection: Connection, number: int | None = None) -> None:
        """After `stop`: leave an ephemeral cluster. The server refuses that while jobs of this agent have not ended.

        `number`: the signal that stopped the agent. If the cluster ends, too, its jobs are ended here and lost there,
        and the server takes back those that have not begun.
        """
        if self._lifetime is None:
            return
        leave = Leave(incarnation=self._poller.incarnation)
        if reason := self._lifetime.end_reason(number):
            unbegun = [UnbegunAttempt(*key) for key in self._runner.unbegun()[:UNBEGUN_MAX]]
            self._end_all(reason)
            leave = msgspec.structs.replace(leave, is_over=True, reason=reason, unbegun=unbegun)
        body = msgspec.json.encode(leave)
        try:
            left = msgspec.json.decode(connection.post(LEAVE_PATH, body), type=Left)
            log.info(line("left", cluster=left.cluster, is_cluster_removed=left.is_cluster_removed))
        except (YardError, msgspec.DecodeError) as exc:
            log.warning(line("not-left", error=exc))

    def _end_all(self, reason: str) -> None:
        """End all live attempts. Backends that can wait for the ends, because the server may start a next attempt as
        soon as it knows.
        """
        live = {attempt.native_id for attempt in self._journal.attempts() if attempt.is_live and attempt.native_id}
        log.warning(line("cluster-ends", why=reason, live=len(live)))
        try:
            self._backend.end_jobs(live)
        except YardError as exc:  # an instance that ends may not answer; it ends its jobs itself
            log.warning(line("cancel-failed", error=exc.detail))

    def _withdraw(self) -> None:
        log.error(line("refused", error=self._fatal))
        if not self._poller.session.is_accepted:
            return  # this process started nothing
        try:
            log.warning(line("withdrawn", ended=self._runner.withdraw()))
        except YardError as exc:
            log.error(line("withdraw-failed", error=exc.detail))

    def _end(self) -> None:
        self._stop.set()
        self._news.set()
        self._refresh_due.set()
        self._connections.park.abort(for_good=True)
        self._connections.talk.abort(for_good=True)
        self._quoting.wake()
        if self._namespaces is not None:
            self._namespaces.stop()
        self._backend.wake()
        if self._files is not None:
            self._files.stop()

    def _keep(self, name: str, step: Callable[[], None]) -> None:
        backoff = Backoff()
        is_well = True
        while not self._stop.is_set():
            try:
                step()
            except (Gone, JournalRefused, Unauthenticated) as exc:
                self._fatal = exc
                self._end()
            except Resync:
                log.info(line("session-over"))
                self._stop.wait(backoff.next_s())
            except YardError as exc:
                if not self._stop.is_set():
                    log.warning(line("trouble", code=exc.code, error=exc.detail))
                is_well = False
                self._stop.wait(backoff.next_s(self._retry_after_s(name)))
            except Exception:
                log.exception(line("defect", thread=name))
                is_well = False
                self._stop.wait(backoff.next_s())
            else:
                if not is_well:
                    log.info(line("well-again"))
                    is_well = True
                backoff.reset()

    def _park(self) -> None:
        quick = 0
        while not self._stop.is_set():
            begun = time.monotonic()
            parked = self._poller.park()
            if parked is None:
                return
            if parked.is_closing:
                self._stop.wait(random.uniform(0, CLOSING_S_MAX))  # noqa: S311 - jitter, not a secret
                return
            quick = quick + 1 if not parked.has_news and time.monotonic() - begun < QUICK_POLL_S else 0
            if quick > QUICK_POLLS_MAX:
                self._stop.wait(QUICK_POLL_S)
                return
            if parked.has_news:
                return

    def _talk(self) -> None:
        look_s = self._poller.look_s
        self._news.wait(TALK_EVERY_S if look_s is None else min(TALK_EVERY_S, max(look_s, OUTPUT_READ_S_MIN)))
        self._news.clear()
        # Rotate only after the server accepted this process: a copy would end the real agent's credential.
        if self._rotation is not None and self._poller.session.is_accepted:
            self._rotation.go(self._poller.incarnation)
        try:
            while not self._stop.is_set() and self._poller.talk():
                pass
        except YardError:
            self._news.set()  # there is still something to send
            raise
        finally:
            if not self._stop.is_set():
                self._poller.refresh()

    def _run(self) -> None:
        """Adopt lost attempts, then run rounds until an unexpected error. `_keep` starts this again after it."""
        self._runner.adopt()
        had_trouble = self._condition.is_any()
        turned_ns = now_ns()
        while not self._stop.is_set():
            if now_ns() - turned_ns > FREEZE_S_MIN * 1e9:
                log.warning(line("was-frozen", seconds=(now_ns() - turned_ns) // 10**9))
                self._poller.session.doubt()  # leases may have been given away
                self._news.set()
            turned_ns = now_ns()
            changed = self._runner.run_once(may_start=self._poller.session.may_start)
            has_trouble = self._condition.is_any()
            if changed or has_trouble != had_trouble:
                had_trouble = has_trouble
                self._news.set()
            self._backend.watch(WATCH_S)

    def _refresh(self) -> None:
        """Runs in its own thread: a controller that hangs must not delay reports."""
        self._refresh_due.wait(self._backend.refresh())
        self._refresh_due.clear()

    def _look(self) -> None:
        """Runs in its own thread: a broken driver may take seconds to fail."""
        if self._stop.wait(self._limits.look_every_s) or not self._backend.look():
            return
        graph = self._graph = self._backend.describe()
        log.info(line("graph-changed", nodes=graph.nodes, cores=graph.cores, gpus=graph.gpus))
        self._poller.describe(graph)
        self._news.set()

    def _quote(self) -> None:
        self._quoting.run_once(WATCH_S)

    def _watch_room(self) -> None:
        """Runs in its own thread: a shared folder may hang."""
        if self._files is not None and self._files.look_at_room():
            log.warning(line("files-room", trouble=self._files.trouble or "none"))
            self._news.set()
        self._stop.wait(ROOM_EVERY_S)

    def _apply_namespaces(self) -> None:
        assert self._namespaces is not None
        self._namespaces.run_once(WATCH_S)

    def _on_work(self) -> None:
        self._backend.wake()
        self._news.set()

    def _retry_after_s(self, name: str) -> float | None:
        connection = {"park": self._connections.park, "talk": self._connections.talk}.get(name)
        return connection.retry_after_s if connection is not None else None
