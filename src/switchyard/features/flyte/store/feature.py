"""What Flyte adds to the store: its tables, and what concerns them when jobs are removed or the clock jumps."""

from __future__ import annotations

import sqlalchemy as sa

from switchyard.features.flyte.store.executions import execution_retention, schedules
from switchyard.features.flyte.store.tables import entities_tables, executions_tables
from switchyard.features.flyte.store.tables.executions_tables import (
    LIVE_ATTEMPT,
    WAKING_NODE,
    execution_attempts,
    execution_nodes,
    executions,
)
from switchyard.store.engine.database import Tx
from switchyard.store.feature import StoreFeature

TABLES = (entities_tables, executions_tables)  # imported: so the metadata has them
HIDDEN_MAX = 200  # executions in one transaction
ROWS_MAX = 200  # rows of nodes and attempts in one transaction; each may have some MiB of inputs and outputs


class FlyteStore(StoreFeature):
    def __init__(self) -> None:
        self.old = {"executions": _delete_old}

    def awaits_job(self, job_id: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
        """An attempt whose end no step of its execution has stored yet."""
        is_ended_unseen = sa.text(f"execution_attempts.{LIVE_ATTEMPT}")
        return sa.exists().where(execution_attempts.c.job_id == job_id, is_ended_unseen)

    def shift_after_set_back(self, tx: Tx, *, ahead_us: int, by_us: int) -> None:
        schedules.recompute_all(tx)  # only leaders write them, so there is nothing for a second pass
        _shift_gates(tx, execution_nodes.c.created_us > ahead_us, by_us=-by_us)

    def shift_after_set_forward(self, tx: Tx, *, before_us: int, by_us: int) -> None:
        _shift_gates(tx, execution_nodes.c.created_us <= before_us, by_us=by_us)


def _delete_old(tx: Tx, before_us: int) -> int:
    """Hide old executions, then delete their rows in pieces: one may have a hundred thousand."""
    hidden = execution_retention.hidden_execution(tx)
    if hidden is not None:
        return execution_retention.execution_delete_rows(tx, hidden, limit=ROWS_MAX)
    return execution_retention.executions_hide(tx, ended_before_us=before_us, limit=HIDDEN_MAX)


def _shift_gates(tx: Tx, is_from_before: sa.ColumnElement[bool], *, by_us: int) -> None:
    """Shift the times that gates of executions wait for. The driver must read these executions again."""
    where = sa.and_(sa.text(f"execution_nodes.{WAKING_NODE}"), is_from_before)
    ids = sorted(set(tx.execute(sa.select(execution_nodes.c.execution_id).where(where)).scalars()))
    for execution_id in ids:
        tx.execute(sa.update(executions).where(executions.c.id == execution_id).values(steps=executions.c.steps + 1))
        update = sa.update(execution_nodes).where(execution_nodes.c.execution_id == execution_id, where)
        tx.execute(update.values(wake_us=execution_nodes.c.wake_us + by_us))
