"""Build the row of a new job, with its dependencies and quotes, and the write for the committer with its key."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from typing import TypedDict, cast

import msgspec

from switchyard.errors import KeyReused, UnknownName
from switchyard.match.demand import Demand
from switchyard.model.cluster.idset import parse_array
from switchyard.model.cluster.verdict import Outcome
from switchyard.model.files.files import JobFiles
from switchyard.model.job.blocker import Blocker
from switchyard.model.job.job import JobRequest, JobSpec, State
from switchyard.model.job.lifecycle import LifecycleState, assign, reject
from switchyard.model.job.spill import reject_rule
from switchyard.model.jobspec.quantity import parse_duration_s
from switchyard.model.rules.access import Role
from switchyard.model.rules.queue import Lane
from switchyard.model.wire.api import CreatedJob
from switchyard.policy.admit import AdmittedJob
from switchyard.policy.draft import Draft
from switchyard.policy.record import PolicyRecord
from switchyard.route.router import ChosenSets
from switchyard.route.select.weighted_draw import draw
from switchyard.route.world import World
from switchyard.service.core.rights import Actor
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.service.lifecycle.array_spread import lessee_ids
from switchyard.service.lifecycle.chosen_sets import INTEGER_MAX, chosen_update, largest_update
from switchyard.service.placement.decision import Placement, PlacementDecision
from switchyard.service.placement.eligibility_cache import CachedEligibility
from switchyard.service.reserve.inquiries import JobInquiry, further_inquiries, inquiry_of
from switchyard.service.reserve.quotes import quote_use_row
from switchyard.store.clusters import quotes
from switchyard.store.engine.database import Tx
from switchyard.store.engine.new_rows import NewJobRow
from switchyard.store.jobs import jobs
from switchyard.store.jobs.job_rows import DependencyCondition, DependencyRow, IdempotencyClaim

_SORTED = msgspec.json.Encoder(order="sorted")


class OptionalColumns(TypedDict, total=False):
    """Columns that most new jobs leave empty. An insert without these columns costs half."""

    lost_after_s: int
    ended_us: int
    blocked: str
    expires_us: int
    array: str
    array_max: int | None
    todo: str
    tasks_live: int
    tasks_ok: int
    tasks_failed: int
    tasks_cancelled: int
    workflow: str
    launch_plan: str | None
    tokens: str
    late_from_us: int
    crowd: str
    crowd_max: int
    arrival: str
    spread: str


@dataclass(frozen=True, slots=True)
class JobInsert:
    """A new job to be committed."""

    row: NewJobRow
    spec_body: str
    cached: CachedEligibility
    policy: PolicyRecord
    created: CreatedJob
    key: str | None
    body_hash: str
    actor: Actor
    after: tuple[tuple[str, DependencyCondition], ...] = ()  # dependencies: job id and condition
    asking: JobInquiry | None = None  # the inquiry, if the job waits for quotes
    quoted: quotes.QuoteUseRow | None = None  # the quotes, if the cluster was chosen by quotes
    pending_at_versions: tuple[int, int] | None = None  # world and access versions of a decision to wait for a cluster
    preferred: str | None = None  # the drawn cluster, also if the job waits for a queue place or tokens
    files: JobFiles | None = None  # if it names a tree

    def job_ids(self) -> Iterable[str]:
        return ()


def new_job(
    actor: Actor,
    admitted: AdmittedJob,
    *,
    cached: CachedEligibility,
    decision: PlacementDecision,
    demand: Demand,
    cluster_id: str | None,
    versions: tuple[int, int],
    bounds: str,
    lane: Lane,
    spread: str | None = None,
    key: str | None,
    body: bytes,
    now_us: int,
) -> JobInsert:
    """Build the write of a routed job. `spread`: the clusters that may lease an array (array_spread.py).

    `versions`: the versions of world and access that the decision used.
    """
    request, plan = admitted.draft.request, decision.plan
    is_queued = decision.step is Placement.QUEUE
    spec_body = _SORTED.encode(request.spec).decode()
    life = life_after_routing(plan.outcome)
    optional = _optional_columns(request, life, plan.reason, now_us, is_queued=is_queued)
    optional |= _policy_columns(admitted.draft, life, now_us)
    if spread is not None:
        optional["spread"] = spread
    row = NewJobRow(
        id=plan.seed,
        name=request.name or _default_name(request.spec.command[0]),
        owner=actor.name,
        owner_id=actor.id,
        project=request.project,
        domain=request.domain,
        lane=lane.text,
        state=life.state.value,
        reason=plan.reason,
        priority=request.priority,
        labels=_SORTED.encode(request.labels).decode() if request.labels else "{}",
        spec_hash=sha256(spec_body.encode()).hexdigest(),
        bounds=bounds,
        plan_hash=cached.verdicts_hash,
        policy_hash=admitted.record.hash,
        # Larger demands fit no cluster. The job is rejected, and its row must still be stored.
        cores=min(demand.cores_total, INTEGER_MAX),
        gpus=min(demand.gpus_total, INTEGER_MAX),
        memory_bytes=min(demand.memory_bytes_total, INTEGER_MAX),
        on_lost=request.spec.on_lost.value,
        cluster_id=cluster_id,
        attempt=life.attempt,
        fence=life.fence,
        created_us=now_us,
        assigned_us=now_us if cluster_id else None,
        is_ready=cluster_id is not None,
        tries=0,
        retries=request.spec.retry.limit_in_all,
        **optional,
    )
    is_waiting_for_cluster = life.state is State.PENDING and row.blocked is None
    return JobInsert(
        row=row,
        spec_body=spec_body,
        cached=cached,
        policy=admitted.record,
        created=CreatedJob(plan.seed, life.state.value, plan.chosen, plan.reason),
        key=key,
        body_hash=sha256(body).hexdigest() if key else "",
        actor=actor,
        after=tuple(map(parse_dependency, request.after)),
        pending_at_versions=versions if is_waiting_for_cluster else None,
        preferred=decision.drawn,
        files=None if request.spec.files is None else _with_trees(request.spec.files),
    )


def _with_trees(files: JobFiles) -> JobFiles | None:
    return files if files.tree or files.task_tree else None


def lane_for(admitted: AdmittedJob, job_id: str) -> Lane:
    """Return the lane of a new job. If several queues match its tags, a draw seeded by its id chooses the queue."""
    names = admitted.queues
    queue = names[0] if len(names) == 1 else names[draw(job_id, names, [1.0] * len(names))]
    return Lane.of(queue, admitted.draft.request.project, admitted.draft.bounds.backends)


def _optional_columns(
    request: JobRequest, life: LifecycleState, reason: str, now_us: int, *, is_queued: bool
) -> OptionalColumns:
    """Return the optional columns that the request and the decision set."""
    columns: OptionalColumns = {}
    if request.spec.lost_after is not None:
        columns["lost_after_s"] = parse_duration_s(request.spec.lost_after)
    if life.state is State.REJECTED:
        columns["ended_us"] = now_us
    elif request.after or request.hold:
        blockers = [Blocker.AFTER] * bool(request.after) + [Blocker.HOLD] * request.hold
        columns["blocked"] = ",".join(blockers)
    if is_queued:
        columns["blocked"] = Blocker.QUEUE.value
    if life.state is State.PENDING:
        columns["arrival"] = reason
    if request.expires_after is not None:
        columns["expires_us"] = now_us + parse_duration_s(request.expires_after) * 1_000_000
    if request.array is not None:
        indexes, parallel_max = parse_array(request.array)
        columns |= {"array": str(indexes), "array_max": parallel_max, "todo": str(indexes)}
        columns |= {"tasks_live": 0, "tasks_ok": 0, "tasks_failed": 0, "tasks_cancelled": 0}
    return columns


def _policy_columns(draft: Draft, life: LifecycleState, now_us: int) -> OptionalColumns:
    """Return the optional columns that policy sets: workflow, expiry, tokens, time budget, parallelism."""
    request = draft.request
    columns: OptionalColumns = {}
    if request.workflow is not None:
        columns |= {"workflow": request.workflow, "launch_plan": request.launch_plan}
    if life.state is State.REJECTED:
        return columns
    if draft.bounds.spill and (rule := reject_rule(draft.bounds.spill)) is not None:
        expires_s = rule.after_s if request.expires_after is None else parse_duration_s(request.expires_after)
        columns["expires_us"] = now_us + min(rule.after_s, expires_s) * 1_000_000
    if draft.tokens:
        columns["tokens"] = _SORTED.encode(draft.tokens).decode()
    if draft.budget_s is not None:
        columns["late_from_us"] = now_us + draft.budget_s * 1_000_000
    if draft.parallel_max is not None and request.array is not None:
        _, parallel_max = parse_array(request.array)
        columns["array_max"] = draft.parallel_max if parallel_max is None else min(parallel_max, draft.parallel_max)
    if draft.parallel_max is not None and request.workflow is not None:
        columns |= {
            "crowd": f"{request.project}/{request.domain}/{request.workflow}",
            "crowd_max": draft.parallel_max,
        }
    return columns


def with_set(write: JobInsert, sets: ChosenSets, world: World) -> JobInsert:
    """Add the set that the job has at its cluster. Before it has a cluster, it counts as the largest of all."""
    row = write.row
    if write.created.cluster is not None:
        update = chosen_update(sets, world, write.created.cluster, row.spread)
    else:
        update = largest_update(sets.demands)
    return replace(write, row=msgspec.structs.replace(row, **update.columns()))


def with_quote_wait(write: JobInsert, spec: JobSpec, world: World) -> JobInsert:
    """Add the inquiry of a job that waits for quotes, or the quotes that chose its cluster."""
    eligibility, row = write.cached.eligibility, write.row
    if eligibility.asks and row.blocked is None:
        asks, owner = eligibility.asks, write.actor.id
        inquiry = inquiry_of(spec, asks, world, owner=owner)
        further = further_inquiries(spec, eligibility, asks, world, owner=owner)
        return replace(
            write,
            row=msgspec.structs.replace(row, blocked=Blocker.QUOTES.value),
            asking=JobInquiry(row.id, inquiry, further),
            pending_at_versions=None,
        )
    if eligibility.quoted and write.created.cluster is not None:
        used = quote_use_row(row.id, eligibility, write.created.cluster, row.cluster_id or "", now_us=row.created_us)
        return replace(write, quoted=used)
    return write


def insert_job(batch: Batch, write: JobInsert) -> None:
    """Add one job to the batch. `Submit.settle` then handles quotes and counts of all jobs together."""
    batch.inserts.append(write.row)
    batch.jobs.add(write.row.id)
    if write.row.cluster_id:
        batch.clusters.update(lessee_ids(write.row))
    if write.row.blocked == Blocker.QUEUE:
        batch.topics.add(Topic.QUEUES)
    if write.row.tokens:
        batch.topics.add(Topic.PENDING)
    if write.after:
        batch.after += [DependencyRow(write.row.id, job_id, condition) for job_id, condition in write.after]
        batch.topics.add(Topic.PENDING)


def unknown_dependencies(batch: Batch, writes: list[JobInsert]) -> dict[int, UnknownName]:
    """Return an error, by `id(write)`, for each write that depends on an unknown or invisible job."""
    dependencies = {job_id for write in writes for job_id, _ in write.after}
    if not dependencies:
        return {}
    new = {write.row.id for write in writes}
    states = jobs.job_states(batch.tx, sorted(dependencies - new))
    refused: dict[int, UnknownName] = {}
    for write in writes:
        for job_id, _ in write.after:
            row = states.get(job_id)
            is_visible = row is not None and (
                row.owner_id == write.actor.id or write.actor.may_project(Role.VIEW, row.project)
            )
            if job_id not in new and not is_visible:
                refused[id(write)] = UnknownName(
                    f"It depends on job {job_id}, which does not exist or is not yours to see.",
                    next_step="`yard ls --all` lists the jobs you may see; give whole ids.",
                )
    return refused


def parse_dependency(text: str) -> tuple[str, DependencyCondition]:
    """Parse `ID[:ok|any|notok]`; the request's type has checked the format. The default condition is ok."""
    job_id, _, condition = text.partition(":")
    return job_id.upper(), cast("DependencyCondition", condition or "ok")


def blocked_reason(request: JobRequest) -> str:
    """Return why its user holds the job back; empty: it is not held back."""
    if request.hold:
        return "held; `yard release` lets it go"
    if not request.after:
        return ""
    return f"begins after {', '.join(request.after[:5])}" + (" …" if len(request.after) > 5 else "")


def _default_name(program: str) -> str:
    """Return the name of the program. Unprintable characters are dropped: they could forge lines of a table."""
    return "".join(char for char in program.rpartition("/")[2][:64] if char.isprintable()).strip() or "job"


@cache
def life_after_routing(outcome: str) -> LifecycleState:
    """Return the lifecycle state of a new job with this router outcome."""
    new = LifecycleState(State.PENDING, attempt=0, fence=0, is_leased=False)
    if outcome == Outcome.ASSIGN:
        return assign(new).life
    if outcome == Outcome.REJECT:
        return reject(new, "").life
    return new


@dataclass(frozen=True, slots=True)
class AcceptedJob:
    """The answer to a submit; `is_new` is false when the idempotency key had been used for the same body."""

    created: CreatedJob
    is_new: bool


def claim_keys(batch: Batch, writes: list[JobInsert]) -> dict[tuple[str, str], IdempotencyClaim]:
    """Claim the idempotency keys of these jobs. Returns the claim of each key: the new one, or an earlier one."""
    if not writes:
        return {}
    return jobs.idempotency_claim(
        batch.tx,
        [
            IdempotencyClaim(
                write.row.owner_id, write.key, body_hash=write.body_hash, job_id=write.row.id, created_us=batch.now_us
            )
            for write in writes
            if write.key is not None
        ],
    )


def answer_for_used_key(
    tx: Tx, claim: IdempotencyClaim, *, key: str | None, body_hash: str, here: dict[str, CreatedJob]
) -> AcceptedJob | KeyReused:
    """Return the answer to a submit whose key is used. `here`: jobs of this batch that are not inserted yet."""
    if claim.body_hash != body_hash:
        return KeyReused(f"The idempotency key {key!r} belongs to job {claim.job_id}, made from another body.")
    now = jobs.job_states(tx, [claim.job_id]).get(claim.job_id)
    created = here.get(claim.job_id) if now is None else CreatedJob(now.id, now.state, now.cluster, now.reason)
    if created is None:
        return KeyReused(f"The job {claim.job_id} that the idempotency key {key!r} made was removed since, being old.")
    return AcceptedJob(created, is_new=False)
