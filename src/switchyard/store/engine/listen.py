"""LISTEN on PostgreSQL, as an iterator of payloads. The first payload is always `*`: earlier notices were missed.

A dead connection looks like one without notices. So another session sends a heartbeat every few seconds, on a channel
that only this listener has. A listener that misses a heartbeat closes its connection.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from time import monotonic

import sqlalchemy as sa

from switchyard.errors import YardError
from switchyard.store.engine.database import Database
from switchyard.store.engine.dialect import CHANNEL

STOP_CHECK_S = 0.5  # how soon a stop is noticed
HEARTBEAT_INTERVAL_S = 3.0  # between two heartbeats
HEARTBEAT_TIMEOUT_S = 5.0  # a heartbeat that does not arrive within this time is lost


class ListenInterrupted(Exception):
    """The connection that listens was lost."""


class CannotListen(ListenInterrupted):
    """A pooler gives a session to another client after each transaction, so notices do not arrive here."""


def listen(database: Database, stop: threading.Event) -> Iterator[str]:
    """Yield payloads until `stop`. Raises ListenInterrupted when the connection is lost."""
    import psycopg  # here, because a server on SQLite does not need it

    assert database.site is not None
    assert database.watchdog is not None
    heartbeat = _Heartbeat(database)
    try:
        with database.watchdog.connect(database.site.listen_url, autocommit=True) as connection:
            # Before LISTEN: it would stay in the pooler's session, and other clients would get the notices.
            if connection.introduce(database.site).session_pid is None:
                raise CannotListen("a pooler is between this server and PostgreSQL")
            connection.execute(f"LISTEN {CHANNEL}; LISTEN {heartbeat.channel}")
            yield "*"
            while not stop.is_set():
                for notice in connection.notifies(timeout=STOP_CHECK_S):
                    if notice.channel == heartbeat.channel:
                        heartbeat.received()
                    else:
                        yield notice.payload
                heartbeat.send_if_due()
    except psycopg.Error as exc:
        raise ListenInterrupted(str(exc).strip().split("\n")[0]) from exc


class _Heartbeat:
    """Sent over a reader's connection, received over the listener's."""

    def __init__(self, database: Database) -> None:
        self.channel = f"{CHANNEL}_{secrets.token_hex(8)}"
        self._database = database
        self._due = monotonic() + HEARTBEAT_INTERVAL_S
        self._sent: float | None = None  # when the heartbeat was sent that has not arrived yet

    def received(self) -> None:
        self._sent = None

    def send_if_due(self) -> None:
        """Send the next heartbeat when it is due. Raise if the last one was lost."""
        now = monotonic()
        if self._sent is not None:
            if now - self._sent > HEARTBEAT_TIMEOUT_S:
                raise ListenInterrupted(f"a heartbeat was not heard for {HEARTBEAT_TIMEOUT_S:g} s")
        elif now >= self._due:
            self._due = now + HEARTBEAT_INTERVAL_S
            try:
                with self._database.read() as tx:
                    tx.execute(sa.select(sa.func.pg_notify(self.channel, "")))
            except YardError:
                return  # readers notice by themselves that the database is away
            self._sent = monotonic()
