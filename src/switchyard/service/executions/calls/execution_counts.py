"""Count executions: how many reached a phase, and how many are live, by pool, label and cluster."""

from __future__ import annotations

from switchyard.service.core.context import Context
from switchyard.service.core.writes.batch import Batch
from switchyard.store.executions import execution_pages
from switchyard.store.executions.execution_pages import LiveCount
from switchyard.store.executions.executions import ExecutionRow


def count_phase(batch: Batch, context: Context, row: ExecutionRow) -> None:
    """Count an execution that has the phase of this row once the batch is committed."""
    batch.settled.append(lambda: context.tally.executions.add(row.pool, row.label, row.cluster, row.phase))


def count_live(context: Context, *, sets_max: int) -> list[LiveCount]:
    """Live executions, the largest counts first, at most so many sets of labels."""
    with context.database.read() as tx:
        return execution_pages.live_counts(tx, limit=sets_max)
