"""What every use case is handed: the database, the committer, the snapshots, time and ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from switchyard.route.moving import MovingTerms
from switchyard.service.cluster.compiler import Compiler
from switchyard.service.committer import Batch, Committer
from switchyard.service.run.log_store import LogStore
from switchyard.service.snapshots import Snapshots
from switchyard.service.submit.engines import Engines
from switchyard.service.submit.selections import Selections
from switchyard.service.tally import Tally
from switchyard.service.token.settings import Tokens
from switchyard.service.usage import Usage
from switchyard.store import access
from switchyard.store.database import Database, Tx
from switchyard.store.events import counter_take
from switchyard.store.output import DatabaseLogs


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
    compiler: Compiler = field(default_factory=Compiler)
    engines: Engines = field(default_factory=Engines)
    selections: Selections = field(default_factory=Selections)
    tally: Tally = field(default_factory=Tally)
    moving: MovingTerms = field(default_factory=MovingTerms)
    tokens: Tokens = field(default_factory=Tokens)
    usage: Usage = field(default_factory=Usage)


def bump(batch: Batch, version: str) -> None:
    """Every replica loads this snapshot anew once the batch is committed."""
    if version not in batch.versions:
        counter_take(batch.tx, version, 1)
        batch.versions.add(version)


def audited(
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


def audited_jobs(
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
