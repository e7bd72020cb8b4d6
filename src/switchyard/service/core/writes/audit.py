"""Write and read the audit log. An entry is written in the transaction of the change that it records."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from switchyard.model.wire.api import AuditEntry
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.core.unreadable_rows import read_or_default
from switchyard.service.core.writes.batch import Batch
from switchyard.store.access import access


def audit_entry(row: access.AuditRow) -> AuditEntry:
    return AuditEntry(
        id=row.id,
        at_us=row.at_us,
        actor=row.actor,
        action=row.action,
        object=row.object,
        before=read_or_default("audit", row.id, lambda: msgspec.json.decode(row.before) if row.before else None, None),
        after=read_or_default("audit", row.id, lambda: msgspec.json.decode(row.after) if row.after else None, None),
    )


def record_audit(
    batch: Batch,
    context: Context,
    actor: Actor | str,
    action: str,
    object_: str,
    *,
    before: object = None,
    after: object = None,
) -> None:
    """Write one audit entry in the transaction of the change.

    `actor`: the user, whose budget of changes is charged (limit `changes`); or the name of a part of the server, or of
    an agent. Revocations and deletions give the name: they are never refused. Raises Throttled if the user has no
    budget left: then the change is undone, too.
    """
    name = actor if isinstance(actor, str) else actor.name
    row = _audit_row(batch, context, name, action, object_, before, after)
    if not isinstance(actor, str):
        context.changes.charge_audit(actor, len(row.before or "") + len(row.after or ""))
    access.audit_insert(batch.tx, row)


def record_job_audit(
    batch: Batch,
    context: Context,
    actor: str,
    action: str,
    owners: Mapping[str, str],
    *,
    after: Mapping[str, object] | None = None,
) -> None:
    """Write one audit entry per job that `actor` changed. `owners`: owner name by job id."""
    rows = [
        _audit_row(batch, context, actor, action, job_id, None, {"owner": owner, **(after or {})})
        for job_id, owner in owners.items()
    ]
    access.audit_insert(batch.tx, *rows)


def _audit_row(  # noqa: PLR0917  the table's columns, in order
    batch: Batch, context: Context, actor: str, action: str, object_: str, before: object, after: object
) -> access.AuditRow:
    return access.AuditRow(
        id=context.new_id(),
        at_us=batch.now_us,
        actor=actor,
        action=action,
        object=object_,
        before=None if before is None else msgspec.json.encode(before).decode(),
        after=None if after is None else msgspec.json.encode(after).decode(),
    )
