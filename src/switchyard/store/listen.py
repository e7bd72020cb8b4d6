"""LISTEN on PostgreSQL, as an iterator of payloads. The first one is always `*`: what came before is unknown."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from switchyard.store.database import CONNECT_S, Database
from switchyard.store.dialect import CHANNEL

WAIT_S = 0.5  # how soon a stop is noticed


class Interrupted(Exception):
    """The connection that listens was lost."""


def listen(database: Database, stop: threading.Event) -> Iterator[str]:
    """Payloads until `stop`; raises Interrupted when the connection is gone."""
    import psycopg  # here: a server on SQLite never needs it

    url = database.url.set(drivername="postgresql").render_as_string(hide_password=False)
    try:
        with psycopg.connect(url, autocommit=True, connect_timeout=CONNECT_S) as connection:
            connection.execute(f"LISTEN {CHANNEL}")
            yield "*"
            while not stop.is_set():
                for notice in connection.notifies(timeout=WAIT_S):
                    yield notice.payload
    except psycopg.Error as exc:
        raise Interrupted(str(exc).strip().split("\n")[0]) from exc
