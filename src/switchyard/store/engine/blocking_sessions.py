"""End database sessions of a stopped server that hold locks and that no timeout of PostgreSQL ends.

psycopg sends several rows as one pipeline. A server that is stopped in the middle of one leaves a session that is
"active" and waits for its client: neither `idle_in_transaction_session_timeout` nor `statement_timeout` applies. The
same is true for a session whose client does not read a large answer. The server that waits for the lock ends it.
"""

from __future__ import annotations

from typing import Any

import psycopg
import structlog

log = structlog.get_logger()
CLIENT_WAIT_S_MAX = 5  # equal to IDLE_IN_TRANSACTION_S (store/engine/postgresql_connections.py)
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
    """Ends a session that two checks in a row find blocking with the same statement."""

    def __init__(self, application: str) -> None:
        self._application = application
        self._found_before: set[tuple[int, object]] = set()

    def end_stopped(self, connection: psycopg.Connection[Any]) -> None:
        """End our sessions that wait for their client while other sessions of ours wait for their locks."""
        values = {"application": self._application, "seconds": CLIENT_WAIT_S_MAX}
        sessions = {(int(pid), began) for pid, began in connection.execute(_BLOCKING_SESSIONS, values)}
        for pid, _ in sessions & self._found_before:
            connection.execute("SELECT pg_terminate_backend(%s)", (pid,))
            log.warning("ended the database session of a server that does not go on", session=pid)
        self._found_before = sessions
