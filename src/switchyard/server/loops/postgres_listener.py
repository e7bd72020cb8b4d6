"""Listens for notices of other servers' commits (PostgreSQL's LISTEN). One thread; a reconnect wakes all."""

from __future__ import annotations

import threading

import msgspec
import structlog

from switchyard.server.loops.loop_calls import call_on_loop
from switchyard.server.loops.wakeups import Wakeups
from switchyard.service.core.writes.batch import CommitNotice
from switchyard.store.engine.database import Database
from switchyard.store.engine.listen import CannotListen, ListenInterrupted, listen

log = structlog.get_logger()
RECONNECT_S = 1.0
POOLER_RETRY_S = 60.0  # until the next try where a pooler is in between: somebody may have removed it


class PostgresListener:
    """Passes the notices on to the event loop."""

    def __init__(self, database: Database, wakeups: Wakeups, *, own_name: str) -> None:
        self._database = database
        self._wakeups = wakeups
        self._own_name = own_name  # of this server's committer
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(1)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                for payload in listen(self._database, self._stop):
                    self._wakeups.is_listening = True
                    self._handle(payload)
            except CannotListen as exc:
                self._wakeups.is_listening = False
                log.warning("not listening", error=str(exc), next="Give the database URL listen=HOST:PORT.")
                self._stop.wait(POOLER_RETRY_S)
            except ListenInterrupted as exc:
                self._wakeups.is_listening = False
                log.warning("listener", error=str(exc))
                self._stop.wait(RECONNECT_S)

    def _handle(self, payload: str) -> None:
        loop = self._wakeups.loop
        if loop is None:
            return
        if payload == "*":
            call_on_loop(loop, self._wakeups.handle_unknown_commits)
            return
        notice = msgspec.json.decode(payload, type=CommitNotice)
        if notice.sender == self._own_name:
            return  # `Wakeups.after_commit` has told of it
        call_on_loop(loop, self._wakeups.handle_remote_commit, notice)
