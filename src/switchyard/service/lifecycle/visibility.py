"""What a caller may see: jobs and clusters, whole or in part; and which jobs the caller may control."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import msgspec

from switchyard.errors import BadRequest, Denied, NoSuchJob
from switchyard.model.job.job import JobSpec
from switchyard.model.job.spec_secrets import (
    hide_join_tokens,
    may_hold_join_token,
    may_hold_secrets,
    redact_policy,
    redact_spec,
)
from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.model.rules.access import ROLE_RANK, Role
from switchyard.model.rules.attributes import JobPolicy
from switchyard.model.wire.ids import LENGTH, is_id
from switchyard.route.world import World
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.core.unreadable_rows import log_unreadable
from switchyard.service.core.writes.audit import record_job_audit
from switchyard.service.core.writes.batch import Batch
from switchyard.store.engine.database import Tx
from switchyard.store.jobs import jobs
from switchyard.store.jobs.job_rows import JobDetails, JobRow

HIDDEN = "(hidden)"  # replaces a cluster's name
_WORD = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._@+-]*[A-Za-z0-9_])?")  # matches every possible cluster name
NO_CLUSTERS: frozenset[str] = frozenset()
READERS_MAX = 1024  # cached sets of hidden clusters
PREFIX_MIN = 6


def _hidden(context: Context, actor: Actor, world: World) -> tuple[frozenset[str], frozenset[str]]:
    """Return the ids and names of clusters hidden from a reader. Cached per version of the world, access and fleet."""
    snapshots = context.snapshots
    key = (actor.id, world.version, snapshots.access.version, snapshots.fleet.version)
    hidden = snapshots.hidden.get(key)
    if hidden is None:
        ids = actor.hidden_clusters(world)
        deleted_names = (name for name in snapshots.fleet.deleted_private_names if name not in world.by_name)
        hidden = ids, frozenset(world.by_id[cluster_id].name for cluster_id in ids).union(deleted_names)
        if len(snapshots.hidden) >= READERS_MAX:
            snapshots.hidden.clear()
        snapshots.hidden[key] = hidden
    return hidden


class Visibility:
    """The current view of one reader."""

    def __init__(self, context: Context, actor: Actor) -> None:
        self._actor = actor
        self._world = context.snapshots.world
        self._sees_all = actor.rights.platform >= ROLE_RANK[Role.VIEW]
        self._hidden, self._names = (
            (NO_CLUSTERS, NO_CLUSTERS) if self._sees_all else _hidden(context, actor, self._world)
        )

    def is_own(self, row: Any) -> bool:
        return self.is_reader(row.owner_id)

    def is_reader(self, owner_id: str | None) -> bool:
        return owner_id is not None and owner_id == self._actor.id

    def sees_name(self, name: str) -> bool:
        return name not in self._names

    def name(self, name: str | None) -> str | None:
        return None if name in self._names else name

    def sees(self, cluster_id: str | None, name: str | None, *, is_own: bool = False) -> bool:
        """Whether the reader may know that this cluster exists or existed."""
        if is_own or cluster_id is None or self._sees_all:
            return True
        if cluster_id in self._world.by_id:
            return cluster_id not in self._hidden
        return name not in self._names

    def cluster(self, cluster_id: str | None, name: str | None, *, is_own: bool = False) -> str | None:
        return name if self.sees(cluster_id, name, is_own=is_own) else None

    def text(self, text: str, *, is_own: bool = False) -> str:
        """Replace the names of hidden clusters in a reason."""
        if is_own or not self._names or not text:
            return text
        return _WORD.sub(lambda word: HIDDEN if word[0] in self._names else word[0], text)

    def sees_secrets(self, row: Any) -> bool:
        """Whether the reader may see the secrets of a job: the owner and operators of the project may."""
        return self.is_own(row) or self._actor.may_project(Role.OPERATE, row.project)

    def spec(self, row: Any, body: str) -> tuple[msgspec.Raw, bool]:
        """Return the spec to show, and whether secrets were removed from it; hidden join tokens do not count."""
        sees_secrets = not may_hold_secrets(body) or self.sees_secrets(row)
        if sees_secrets and (self.is_own(row) or not may_hold_join_token(body)):
            return msgspec.Raw(body.encode()), False
        spec = msgspec.json.decode(body, type=JobSpec)
        if sees_secrets:
            return msgspec.Raw(msgspec.json.encode(hide_join_tokens(spec), order="sorted")), False
        redacted = redact_spec(spec)
        if redacted is spec:
            return msgspec.Raw(body.encode()), False
        return msgspec.Raw(msgspec.json.encode(redacted, order="sorted")), True

    def policy(self, row: Any, policy: JobPolicy | None) -> JobPolicy | None:
        """Return the rules that a job was admitted under, without secrets the reader may not see."""
        return policy if policy is None or self.sees_secrets(row) else redact_policy(policy)


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
