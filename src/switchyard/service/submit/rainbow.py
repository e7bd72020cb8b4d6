"""Submit through Rainbow's door: tokens of clusters are the only credential, and the answer names the cluster."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from switchyard.errors import Denied, PolicyRefused
from switchyard.model.job import ClusterToken, JobRequest
from switchyard.model.verdict import Answer
from switchyard.route.router import make_plan
from switchyard.service.access.submit_tokens import find_submit_token
from switchyard.service.committer import Batch
from switchyard.service.context import Context
from switchyard.service.rights import Actor
from switchyard.service.run.pollers import handover_row, refuse_number_overflow
from switchyard.service.snapshots import owner_of, submit_token_owner
from switchyard.service.submit.bounds import decode_bounds, encode_bounds
from switchyard.service.submit.new_job import JobInsert
from switchyard.service.submit.queue_places import BLOCKED_BY_QUEUE
from switchyard.service.submit.submit import AcceptedJob, Submit
from switchyard.store import handovers

HOW_TO_BE_ADMITTED = "Show a submit token of that cluster: its administrator makes one (`yard cluster token NAME`)."


@dataclass(frozen=True, slots=True)
class NumberedInsert:
    """A job that waits for its commit and its number."""

    insert: JobInsert
    jobspec: str
    cluster: str  # its name, and below the registration's id
    cluster_id: str

    def job_ids(self) -> Iterable[str]:
        return ()


@dataclass(frozen=True, slots=True)
class NumberedJob:
    number: int
    cluster: str


def actor_of_cluster_tokens(context: Context, clusters: list[ClusterToken]) -> Actor:
    """Whose job it is: the first cluster's token says it."""
    snapshots = context.snapshots
    first = clusters[0]
    entry = find_submit_token(snapshots, snapshots.world.by_name.get(first.name), first.token)
    if entry is None:
        raise Denied(f"request denied: the token for cluster {first.name} does not hold.", next_step=HOW_TO_BE_ADMITTED)
    account = snapshots.access.users.get(entry.account)
    if entry.account and account is None:  # deleted at this moment: its tokens are about to be
        raise Denied(f"request denied: the token for cluster {first.name} does not hold.", next_step=HOW_TO_BE_ADMITTED)
    return owner_of(snapshots.access, entry.account, account[0]) if account else submit_token_owner(snapshots.access)


def possible_clusters(submit: Submit, actor: Actor, request: JobRequest) -> list[str]:
    """Who could take the job, the best first; nothing is stored."""
    decided = submit.plan(actor, request)
    if decided.outcome != "assign":
        return []
    return decided.remaining or [verdict.cluster for verdict in decided.verdicts if verdict.say is Answer.YES]


def decide(
    context: Context, submit: Submit, actor: Actor, request: JobRequest, jobspec: str, *, is_quick: bool = False
) -> NumberedInsert:
    """Choose among the clusters it has tokens for. There the job stays: the cluster's name is the answer.

    What no cluster can take is an error, and nothing is stored: there would be no name to answer with.
    """
    world = context.snapshots.world
    found = submit.decide(actor, request, key=None, body=b"", is_quick=is_quick)
    chosen = found.created.cluster
    is_waiting_only = found.row.get("blocked") == BLOCKED_BY_QUEUE or (
        "blocked" not in found.row and found.row.get("tokens")
    )
    if chosen is None and is_waiting_only:  # for a place or for tokens: where it will run is decided now
        chosen = make_plan(found.kept.ruling, seed=found.created.id).chosen
    if chosen is None or chosen not in world.by_name:
        why = found.created.reason or "no clusters passed selection"
        raise PolicyRefused(why, next_step="Ask for less, or show the tokens of further clusters.")
    cluster_id = world.by_name[chosen].id
    found.row["bounds"] = encode_bounds(replace(decode_bounds(found.row["bounds"]), settled=cluster_id))
    return NumberedInsert(found, jobspec, chosen, cluster_id)


def apply_numbered(submit: Submit, batch: Batch, writes: list[NumberedInsert]) -> list[Any]:
    """Put the jobs and draw their numbers, in one transaction."""
    results = submit.apply_inserts(batch, [write.insert for write in writes])
    made = [
        (number, write)
        for number, (write, result) in enumerate(zip(writes, results, strict=True))
        if isinstance(result, AcceptedJob)
    ]
    numbers = handovers.handover_insert(
        batch.tx,
        [handover_row(write.insert.row["id"], write.cluster_id, jobspec=write.jobspec) for _, write in made],
    )
    refuse_number_overflow(numbers)
    for (place, write), number in zip(made, numbers, strict=True):
        results[place] = NumberedJob(number, write.cluster)
    return results
