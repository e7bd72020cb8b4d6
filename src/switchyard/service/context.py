"""What every use case is handed: the database, the committer, the snapshots, time and ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from switchyard.route.moving import MovingSettings
from switchyard.service.cluster.graph_compiler import GraphCompiler
from switchyard.service.committer import Batch, Committer
from switchyard.service.process_metrics import ProcessMetrics
from switchyard.service.run.log_store import LogStore
from switchyard.service.snapshots import Snapshots
from switchyard.service.submit.engines import Engines
from switchyard.service.submit.selection_settings import SelectionSettings
from switchyard.service.token.settings import TokenSettings
from switchyard.service.user_usage import UserUsage
from switchyard.store import access
from switchyard.store.database import Database, Tx
from switchyard.store.database_logs import DatabaseLogs
from switchyard.store.events import counter_take


@dataclass(frozen=True)
class Context:
    """Wired once, in the server; passed down."""

    database: Database
    committer: Committer
    snapshots: Snapshots
    now_us: Callable[[], int]  # by the database's clock: for what is stored, or compared with what is
    steady_us: Callable[[], int]  # never jumps: for how long something takes in this process
    is_clock_right: Callable[[Tx], bool]  # whether `now_us` still agrees with the database
    new_id: Callable[[], str]
    list_budget: int = 5000
    page_max: int = 500
    logs: LogStore = field(default_factory=DatabaseLogs)
    compiler: GraphCompiler = field(default_factory=GraphCompiler)
    engines: Engines = field(default_factory=Engines)
    selections: SelectionSettings = field(default_factory=SelectionSettings)
    tally: ProcessMetrics = field(default_factory=ProcessMetrics)
    moving: MovingSettings = field(default_factory=MovingSettings)
    tokens: TokenSettings = field(default_factory=TokenSettings)
    usage: UserUsage = field(default_factory=UserUsage)


def bump_version(batch: Batch, version: str) -> None:
    """Every replica loads this snapshot anew once the batch is committed."""
    if version not in batch.versions:
        counter_take(batch.tx, version, 1)
        batch.versions.add(version)


def record_audit(
    batch: Batch,
    context: Context,
    actor: str,
    action: str,
    object_: str,
    *,
    before: object = None,
    after: object = None,
) -> None:
    """Record who changed what, in the change's own transaction."""
    access.audit_insert(batch.tx, _audit_row(batch, context, actor, action, object_, before, after))


def record_job_audit(
    batch: Batch,
    context: Context,
    actor: str,
    action: str,
    owners: Mapping[str, str],
    *,
    after: Mapping[str, object] | None = None,
) -> None:
    """Record who changed which jobs of whom. `owners`: job → its owner's name."""
    rows = [
        _audit_row(batch, context, actor, action, job_id, None, {"owner": owner, **(after or {})})
        for job_id, owner in owners.items()
    ]
    access.audit_insert(batch.tx, *rows)


def _audit_row(  # noqa: PLR0917  the columns, in their order
    batch: Batch, context: Context, actor: str, action: str, object_: str, before: object, after: object
) -> dict[str, object]:
    return {
        "id": context.new_id(),
        "at_us": batch.now_us,
        "actor": actor,
        "action": action,
        "object": object_,
        "before": None if before is None else msgspec.json.encode(before).decode(),
        "after": None if after is None else msgspec.json.encode(after).decode(),
    }
