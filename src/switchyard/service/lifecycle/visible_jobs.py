"""Find jobs and check that a caller may see or control them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import msgspec

from switchyard.errors import BadRequest, Denied, NoSuchJob
from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.model.rules.access import Role
from switchyard.model.rules.attributes import JobPolicy
from switchyard.model.wire.ids import LENGTH, is_id
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.core.unreadable_rows import log_unreadable
from switchyard.service.core.writes.audit import record_job_audit
from switchyard.service.core.writes.batch import Batch
from switchyard.service.lifecycle.visibility import Visibility
from switchyard.store.engine.database import Tx
from switchyard.store.jobs import jobs
from switchyard.store.jobs.job_rows import JobDetails, JobRow

PREFIX_MIN = 6


def policy_of(tx: Tx, row: JobRow) -> JobPolicy | None:
    """Return the rules that a job was admitted under; None if there are none, or they are unreadable."""
    body = jobs.policy_get(tx, row.policy_hash) if row.policy_hash else None
    try:
        return msgspec.json.decode(body, type=JobPolicy) if body else None
    except UNREADABLE_ERRORS as exc:
        log_unreadable("policies", row.policy_hash or "", str(exc))
        return None


def audit_others_jobs(
    batch: Batch, context: Context, actor: Actor, action: str, rows: Iterable[JobRow], **after: object
) -> None:
    """Audit changes to other users' jobs. Users' changes to their own jobs are too many to audit."""
    owners = {row.id: row.owner for row in rows if row.owner_id != actor.id}
    record_job_audit(
        batch, context, actor.name, action, owners, after={key: value for key, value in after.items() if value}
    )


def need_job_control(actor: Actor, row: JobRow) -> None:
    """Raise Denied unless the actor may control the job: own jobs need `submit`, other users' jobs `operate`."""
    if row.owner_id != actor.id or not actor.may_project(Role.SUBMIT, row.project):
        actor.need_project(Role.OPERATE, row.project)


def resolve_job_id(tx: Tx, actor: Actor, ref: str) -> str:
    """Return the job id for an id or an unambiguous prefix."""
    ref = ref.upper()
    if is_id(ref):
        return ref
    if not (PREFIX_MIN <= len(ref) < LENGTH and is_id(ref.ljust(LENGTH, "0"))):
        raise NoSuchJob(f"{ref[:40]!r} is not a job id.", next_step=f"Give an id or its first {PREFIX_MIN} or more.")
    ids = jobs.job_ids_by_prefix(tx, ref, projects=actor.viewable_projects(), reader=actor.id)
    if not ids:
        raise NoSuchJob(f"There is no job {ref}.")
    if len(ids) > 1:
        raise BadRequest(f"{ref} stands for more than one job.", next_step="Give more characters of the id.")
    return ids[0]


def visible_job(tx: Tx, actor: Actor, ref: str) -> JobDetails:
    row = jobs.job_get(tx, resolve_job_id(tx, actor, ref))
    if row is None or not (row.owner_id == actor.id or actor.may_project(Role.VIEW, row.project)):
        raise NoSuchJob(f"There is no job {ref[:40]}, or it is not yours to see.")
    return row


def visible_filter(context: Context, actor: Actor, wanted: jobs.JobFilter) -> jobs.JobFilter:
    """Return the filter narrowed to jobs that the actor may see. A project the actor may not view raises Denied.

    For a hidden cluster only the actor's own jobs match: other jobs would reveal where they run.
    """
    if wanted.project is not None and not actor.may_project(Role.VIEW, wanted.project):
        raise Denied(f"You may not view the jobs of project {wanted.project}.")
    if wanted.owner is not None and wanted.owner == actor.name:
        wanted = replace(wanted, owner=None, owner_id=actor.id)  # an earlier user may have had the same name
    if wanted.cluster is not None and not Visibility(context, actor).sees_name(wanted.cluster):
        return replace(wanted, projects=[], reader=actor.id)
    return replace(wanted, projects=actor.viewable_projects(), reader=actor.id)
