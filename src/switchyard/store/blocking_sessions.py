"""Sessions of a stopped server that hold locks others wait for, and that no timeout of PostgreSQL ends.

psycopg sends several rows as one pipeline. A server that is stopped in the middle of one leaves a session that is
"active" and waits for its client: neither `idle_in_transaction_session_timeout` nor `statement_timeout` counts there.
The same holds for a session that cannot get rid of a large answer. So whoever waits for such a session ends it.
"""

from __future__ import annotations

from typing import Any

import psycopg
import structlog

log = structlog.get_logger()
CLIENT_WAIT_S_MAX = 5  # as long as PostgreSQL bears an idle transaction (connections.IDLE_IN_TRANSACTION_S)
_BLOCKING_SESSIONS = """
    SELECT DISTINCT blocker.pid, blocker.query_start
    FROM pg_stat_activity AS waiting
    CROSS JOIN LATERAL unnest(pg_blocking_pids(waiting.pid)) AS held(pid)
    JOIN pg_stat_activity AS blocker ON blocker.pid = held.pid
    WHERE waiting.wait_event_type = 'Lock' AND waiting.application_name = %(application)s
        AND blocker.wait_event_type = 'Client' AND blocker.application_name = %(application)s
        AND blocker.usename = current_user AND blocker.datname = current_database()
        AND blocker.query_start < clock_timestamp() - make_interval(secs => %(seconds)s)"""


class BlockingSessions:
    """Remembers what it saw: a session is ended when two looks find it at the same statement."""

    def __init__(self, application: str) -> None:
        self._application = application
        self._seen: set[tuple[int, Any]] = set()

    def end_stopped(self, connection: psycopg.Connection[Any]) -> None:
        """End the sessions of ours that wait for their client while others of ours wait for them."""
        words = {"application": self._application, "seconds": CLIENT_WAIT_S_MAX}
        found = {(int(pid), began) for pid, began in connection.execute(_BLOCKING_SESSIONS, words)}
        for pid, _ in found & self._seen:
            connection.execute("SELECT pg_terminate_backend(%s)", (pid,))
            log.warning("ended the database session of a server that does not go on", session=pid)
        self._seen = found
