"""Keeps the agent going: its threads, their retries, and the only `except Exception`. What they do is elsewhere.

    park    waits at the server for work (poller.park)
    talk    sends reports and output as soon as there are any (poller.talk)
    runner  starts, watches and ends attempts (runner.turn)
    refresh asks the cluster how all stands (backend.refresh)
    look    looks every few minutes whether the cluster has something else than it had (backend.look)
    quote   answers what the server asks about jobs that may come (quoting.turn)

The main thread watches them (command.py). Nothing that happens to a server, a disk or a job ends the agent; only a
server that refuses its credential, or a signal, does.
"""

from __future__ import annotations

import logging
import os
import random
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from switchyard.agent.backends import Backend
from switchyard.agent.chooser import Chooser
from switchyard.agent.client import Connection
from switchyard.agent.clock import now_ns
from switchyard.agent.credential import AgentCredentials
from switchyard.agent.journal import Journal
from switchyard.agent.log import line
from switchyard.agent.outbox import Outbox
from switchyard.agent.poller import Poller
from switchyard.agent.quote_answerer import QuoteAnswerer
from switchyard.agent.rotation import ROTATE_AFTER_S, Rotation
from switchyard.agent.runner import Runner
from switchyard.decoder_warmup import warm_loaded_types
from switchyard.errors import Gone, Internal, JournalRefused, Resync, Unauthenticated, YardError
from switchyard.model.quantity import show_bytes
from switchyard.model.selection import Scalar

BACKOFF_S_MIN = 0.1
BACKOFF_S_MAX = 10.0  # after an outage all agents are back within this, spread by chance
CLOSING_S_MAX = 1.0  # a server that goes away sends us off; we do not all arrive at the next one at once
WATCH_S = 1.0  # the longest a change may go unseen if no wake-up came
TALK_EVERY_S = 5.0  # likewise for reports
OUTPUT_READ_S_MIN = 0.05  # between two looks for output, should the last one be just over
REDISCOVER_EVERY_S = 300.0  # drivers and disks change with a reboot or an upgrade, not more often
FREEZE_S_MIN = 3.0  # without a turn: the machine slept, or we were stopped; the server may have given us up meanwhile
THREAD_JOIN_S = 1.5  # for the threads to end after a signal
FREE_BYTES_MIN = 64 * 2**20  # below this much free disk no new work is taken: journals and exit codes need some
QUICK_POLL_S = 0.5  # a parked poll that comes back faster with nothing new did not really park
QUICK_POLLS_MAX = 3  # such in a row before we slow down

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLimits:
    jobs_max: int = 64  # attempts held at once
    free_bytes_min: int = FREE_BYTES_MIN
    rotate_after_s: float = ROTATE_AFTER_S
    look_every_s: float = REDISCOVER_EVERY_S


class Backoff:
    """Waits that double, with chance in them, up to a bound."""

    def __init__(self) -> None:
        self._tries = 0

    def reset(self) -> None:
        self._tries = 0

    def next_s(self, at_least_s: float | None = None) -> float:
        bound = min(BACKOFF_S_MAX, BACKOFF_S_MIN * 2 ** min(self._tries, 20))
        self._tries += 1
        return max(at_least_s or 0.0, random.uniform(bound / 2, bound))  # noqa: S311 - jitter, not a secret


class Loop:
    def __init__(
        self,
        journal: Journal,
        backend: Backend,
        *,
        connect: Callable[[], Connection],
        directory: Path,
        limits: AgentLimits,
        chooser: Chooser | None = None,
        keys: AgentCredentials | None = None,
        values: Callable[[], dict[str, Scalar]] = dict,
    ) -> None:
        self._backend = backend
        self._journal = journal
        self._directory = directory
        self._limits = limits
        self._stop = threading.Event()
        self._news = threading.Event()
        self._fatal: YardError | None = None
        self._threads: list[threading.Thread] = []
        self._runner = Runner(journal, backend, chooser)
        self._park_connection, self._talk_connection = connect(), connect()
        self._quoting = QuoteAnswerer(backend, self._news.set)
        self._rotation = Rotation(keys, self._talk_connection, after_s=limits.rotate_after_s) if keys else None
        self._poller = Poller(
            journal,
            self._runner,
            outbox=Outbox(journal, backend),
            park=self._park_connection,
            talk=self._talk_connection,
            incarnation=secrets.token_hex(8),
            graph=backend.describe(),
            jobs_max=limits.jobs_max,
            trouble=self._trouble,
            on_work=self._on_work,
            values=values,
            quoting=self._quoting,
            place=f"{socket.gethostname()}:{directory} (process {os.getpid()})",
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
            )
        ]
        for thread in self._threads:
            thread.start()

    def is_over(self) -> bool:
        """Has the server refused us, or a thread ended that never should?"""
        dead = [thread.name for thread in self._threads if not thread.is_alive()]
        if dead and not self._stop.is_set():
            self._fatal = Internal(f"The agent's thread {dead[0]} ended.")
        return self._stop.is_set() or bool(dead)

    def stop(self) -> YardError | None:
        """End soon; what runs goes on without us. The reason, if it was not our own will."""
        self._end()
        until = time.monotonic() + THREAD_JOIN_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        if isinstance(self._fatal, JournalRefused):
            self._withdraw()
        return self._fatal

    def _withdraw(self) -> None:
        log.error(line("refused", error=self._fatal))
        if not self._poller.is_accepted:
            return  # this process started nothing
        try:
            log.warning(line("withdrawn", ended=self._runner.withdraw()))
        except YardError as exc:
            log.error(line("withdraw-failed", error=exc.detail))

    def _end(self) -> None:
        self._stop.set()
        self._news.set()
        self._park_connection.abort(for_good=True)
        self._talk_connection.abort(for_good=True)
        self._quoting.wake()
        self._backend.wake()

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
        # Not before the server has taken this process for the agent: a copy would end the agent's own credential.
        rotation = self._rotation if self._poller.is_accepted else None
        if rotation is not None and rotation.go(self._poller.incarnation, is_asked=self._poller.is_rotation_asked):
            self._poller.is_rotation_asked = False
        try:
            while not self._stop.is_set() and self._poller.talk():
                pass
        except YardError:
            self._news.set()  # there is still something to say
            raise
        finally:
            if not self._stop.is_set():
                self._poller.refresh()

    def _run(self) -> None:
        """One start of the runner; the turns go on until something unforeseen happens, and after it too."""
        self._runner.adopt()
        had_trouble = bool(self._trouble())
        turned_ns = now_ns()
        while not self._stop.is_set():
            if now_ns() - turned_ns > FREEZE_S_MIN * 1e9:
                log.warning(line("was-frozen", seconds=(now_ns() - turned_ns) // 10**9))
                self._poller.doubt()
                self._news.set()
            turned_ns = now_ns()
            changed = self._runner.turn(may_start=self._poller.may_start)
            has_trouble = bool(self._trouble())
            if changed or has_trouble != had_trouble:
                had_trouble = has_trouble
                self._news.set()
            self._backend.watch(WATCH_S)

    def _refresh(self) -> None:
        """A thread of its own: a controller that hangs must not keep reports from being told."""
        self._stop.wait(self._backend.refresh())

    def _look(self) -> None:
        """A thread of its own: a broken driver takes seconds to show that it does not answer."""
        if self._stop.wait(self._limits.look_every_s) or not self._backend.look():
            return
        graph = self._backend.describe()
        log.info(line("graph-changed", nodes=graph.nodes, cores=graph.cores, gpus=graph.gpus))
        self._poller.describe(graph)
        self._news.set()

    def _quote(self) -> None:
        self._quoting.turn(WATCH_S)

    def _on_work(self) -> None:
        self._backend.wake()
        self._news.set()

    def _retry_after_s(self, name: str) -> float | None:
        connection = {"park": self._park_connection, "talk": self._talk_connection}.get(name)
        return connection.retry_after_s if connection is not None else None

    def _trouble(self) -> str:
        """Why no new work is taken now, if so."""
        if self._journal.trouble:
            return f"disk full: {self._journal.trouble}"
        try:
            free = shutil.disk_usage(self._directory).free
        except OSError as exc:
            return f"disk error: {exc.strerror}"
        if free < self._limits.free_bytes_min:
            return f"disk full: {show_bytes(free)} free, {show_bytes(self._limits.free_bytes_min)} wanted"
        return ""
