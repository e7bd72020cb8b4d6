"""Count executions: how many reached a phase, and how many are live, by pool, label and cluster."""

from __future__ import annotations

from dataclasses import dataclass, field

from switchyard.features.flyte.store.executions import execution_pages
from switchyard.features.flyte.store.executions.execution_pages import LiveCount
from switchyard.features.flyte.store.executions.executions import ExecutionRow
from switchyard.service.core.context import Context
from switchyard.service.core.process_metrics import LabeledCounter
from switchyard.service.core.writes.batch import Batch


@dataclass
class ExecutionTally:
    """Counts of this process."""

    phases: LabeledCounter = field(default_factory=lambda: LabeledCounter("pool", "label", "cluster", "phase"))


def count_phase(batch: Batch, context: Context, row: ExecutionRow) -> None:
    """Count an execution that has the phase of this row once the batch is committed."""
    phases = context.setting(ExecutionTally).phases
    batch.settled.append(lambda: phases.add(row.pool, row.label, row.cluster, row.phase))


def count_live(context: Context, *, sets_max: int) -> list[LiveCount]:
    """Live executions, the largest counts first, at most so many sets of labels."""
    with context.database.read() as tx:
        return execution_pages.live_counts(tx, limit=sets_max)
