"""LISTEN on PostgreSQL, as an iterator of payloads. The first one is always `*`: what came before is unknown.

A connection that is silent and one on which nothing happens look alike. So another session sends a heartbeat every few
seconds, on a channel of this listener's own; a listener that does not hear it gives its connection up.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from time import monotonic

import sqlalchemy as sa

from switchyard.errors import YardError
from switchyard.store.database import Database
from switchyard.store.dialect import CHANNEL

STOP_CHECK_S = 0.5  # how soon a stop is noticed
HEARTBEAT_INTERVAL_S = 3.0  # between two heartbeats
HEARTBEAT_TIMEOUT_S = 5.0  # a heartbeat that was sent and not heard for this long was lost


class ListenInterrupted(Exception):
    """The connection that listens was lost."""


class CannotListen(ListenInterrupted):
    """A pooler gives a session to another client after each transaction, so notices do not arrive here."""


def listen(database: Database, stop: threading.Event) -> Iterator[str]:
    """Payloads until `stop`; raises Interrupted when the connection is gone."""
    import psycopg  # here: a server on SQLite never needs it

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
                        heartbeat.hear()
                    else:
                        yield notice.payload
                heartbeat.go_on()
    except psycopg.Error as exc:
        raise ListenInterrupted(str(exc).strip().split("\n")[0]) from exc


class _Heartbeat:
    """Sent over one of the readers' connections, heard over the listener's."""

    def __init__(self, database: Database) -> None:
        self.channel = f"{CHANNEL}_{secrets.token_hex(8)}"
        self._database = database
        self._due = monotonic() + HEARTBEAT_INTERVAL_S
        self._sent: float | None = None  # when the one that was not heard yet was sent

    def hear(self) -> None:
        self._sent = None

    def go_on(self) -> None:
        """Send the next one when it is due; raise if the last was lost."""
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
                return  # the readers find out themselves that the database is away
            self._sent = monotonic()
