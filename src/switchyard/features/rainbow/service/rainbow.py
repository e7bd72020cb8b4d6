"""Submit through the Rainbow API: cluster tokens are the only credential, and the answer names the cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from switchyard.errors import Denied, PolicyRefused
from switchyard.features.rainbow.service.handovers import handover_row, refuse_number_overflow
from switchyard.model.cluster.verdict import Answer, Outcome
from switchyard.model.job.bounds import decode_bounds, encode_bounds
from switchyard.model.job.job import ClusterToken, JobRequest
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.core.snapshots.snapshots import owner_of, submit_token_owner
from switchyard.service.core.submit_tokens import find_submit_token
from switchyard.service.core.writes.batch import Batch
from switchyard.service.submit.new_job import AcceptedJob, JobInsert
from switchyard.service.submit.submit import Submit
from switchyard.store.jobs import handovers

HOW_TO_BE_ADMITTED = "Show a submit token of that cluster: its administrator makes one (`yard cluster token NAME`)."


@dataclass(frozen=True, slots=True)
class NumberedInsert:
    """A new job to be committed, which then gets its Rainbow job number."""

    insert: JobInsert
    jobspec: str
    cluster: str  # name of the cluster
    cluster_id: str

    def job_ids(self) -> Iterable[str]:
        return ()


@dataclass(frozen=True, slots=True)
class NumberedJob:
    number: int
    cluster: str


def actor_of_cluster_tokens(context: Context, clusters: list[ClusterToken]) -> Actor:
    """Return the owner of the job: the account of the first cluster's token."""
    snapshots = context.snapshots
    first = clusters[0]
    entry = find_submit_token(snapshots, snapshots.world.by_name.get(first.name), first.token)
    if entry is None:
        raise Denied(f"request denied: the token for cluster {first.name} is not valid.", next_step=HOW_TO_BE_ADMITTED)
    for cluster in clusters:  # Rainbow's clients name clusters, never a group
        if cluster.name not in snapshots.world.by_name:
            raise Denied(f"request denied: there is no cluster {cluster.name}.", next_step=HOW_TO_BE_ADMITTED)
    account = snapshots.access.users.get(entry.account)
    if entry.account and account is None:  # the account was deleted, and its tokens soon are
        raise Denied(f"request denied: the token for cluster {first.name} is not valid.", next_step=HOW_TO_BE_ADMITTED)
    return owner_of(snapshots.access, entry.account, account[0]) if account else submit_token_owner(snapshots.access)


def possible_clusters(submit: Submit, actor: Actor, request: JobRequest) -> list[str]:
    """Return the eligible clusters, the best first. Nothing is stored."""
    plan = submit.plan(actor, request)
    if plan.outcome != Outcome.ASSIGN:
        return []
    return plan.remaining or [verdict.cluster for verdict in plan.verdicts if verdict.say is Answer.YES]


def decide(
    context: Context, submit: Submit, actor: Actor, request: JobRequest, jobspec: str, *, is_quick: bool = False
) -> NumberedInsert:
    """Choose a cluster among those with a token. The job never moves: the cluster's name is the answer.

    Raises PolicyRefused if no cluster can take the job, because the answer needs a cluster's name.
    """
    world = context.snapshots.world
    insert = submit.decide(actor, request, key=None, body=b"", is_quick=is_quick)
    chosen = insert.preferred  # set also for a job that waits for a queue place or for tokens
    if chosen is None or chosen not in world.by_name:
        reason = insert.created.reason or "no clusters passed selection"
        raise PolicyRefused(reason, next_step="Ask for less, or show the tokens of further clusters.")
    cluster_id = world.by_name[chosen].id
    bounds = encode_bounds(replace(decode_bounds(insert.row.bounds), settled=cluster_id))
    insert = dataclasses.replace(insert, row=replace(insert.row, bounds=bounds))
    return NumberedInsert(insert, jobspec, chosen, cluster_id)


def apply_numbered(submit: Submit, batch: Batch, writes: list[NumberedInsert]) -> list[Any]:
    """Insert the jobs and assign their numbers, in one transaction."""
    results = submit.apply_inserts(batch, [write.insert for write in writes])
    created = [
        (position, write)
        for position, (write, result) in enumerate(zip(writes, results, strict=True))
        if isinstance(result, AcceptedJob)
    ]
    numbers = handovers.handover_insert(
        batch.tx,
        [handover_row(write.insert.row.id, write.cluster_id, jobspec=write.jobspec) for _, write in created],
    )
    refuse_number_overflow(numbers)
    for (position, write), number in zip(created, numbers, strict=True):
        results[position] = NumberedJob(number, write.cluster)
    return results
