"""PostgreSQL's LISTEN: hears what other replicas committed. One thread, one connection; a reconnect wakes everybody."""

from __future__ import annotations

import threading

import msgspec
import structlog

from switchyard.server.runtime import ServerRuntime
from switchyard.service.committer import CommitNotice
from switchyard.store.listen import CannotListen, ListenInterrupted, listen

log = structlog.get_logger()
RECONNECT_S = 1.0
POOLER_RETRY_S = 60.0  # until the next try where a pooler is between: somebody may have taken it away


class PostgresListener:
    """Tells this process's hub what happened elsewhere."""

    def __init__(self, yard: ServerRuntime) -> None:
        self._yard = yard
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
                for payload in listen(self._yard.context.database, self._stop):
                    self._yard.is_listening = True
                    self._heard(payload)
            except CannotListen as exc:
                self._yard.is_listening = False
                log.warning("not listening", error=str(exc), next="Give the database URL listen=HOST:PORT.")
                self._stop.wait(POOLER_RETRY_S)
            except ListenInterrupted as exc:
                self._yard.is_listening = False
                log.warning("listener", error=str(exc))
                self._stop.wait(RECONNECT_S)

    def _heard(self, payload: str) -> None:
        loop = self._yard.loop
        if loop is None or loop.is_closed():
            return
        if payload == "*":
            loop.call_soon_threadsafe(self._yard.heard_anything)
            return
        woken = msgspec.json.decode(payload, type=CommitNotice)
        loop.call_soon_threadsafe(self._yard.heard, woken)
