"""A new job: the row it becomes, what it waits for, and the write that carries it to the committer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from typing import Any

import msgspec

from switchyard.errors import UnknownName
from switchyard.model.access import Role
from switchyard.model.api import CreatedJob
from switchyard.model.idset import parse_array
from switchyard.model.job import JobRequest, JobSpec, State
from switchyard.model.lifecycle import LifecycleState, assign, reject
from switchyard.model.quantity import parse_duration_s
from switchyard.model.queue import lane_of
from switchyard.model.spill import reject_rule
from switchyard.model.verdict import Plan
from switchyard.policy.admit import AdmittedJob, PolicyRecord
from switchyard.policy.draft import Draft
from switchyard.route.router import Eligibility
from switchyard.route.select.weighted_draw import draw
from switchyard.route.verdicts import encode_verdicts
from switchyard.route.world import World
from switchyard.service.committer import Batch
from switchyard.service.quote.inquiries import BLOCKED_BY_QUOTES, Inquiry, ask_for_job, inquiry_of
from switchyard.service.quote.quotes import quote_use_row
from switchyard.service.rights import Actor
from switchyard.service.submit.demands import demand_of_spec
from switchyard.service.submit.queue_places import BLOCKED_BY_QUEUE, QUEUES_CHANGED
from switchyard.service.token.token_needs import token_wait_reason
from switchyard.store import jobs, quotes

INTEGER_MAX = 2**63 - 1  # what the database's integers hold

_SORTED = msgspec.json.Encoder(order="sorted")


@dataclass(frozen=True, slots=True)
class CachedEligibility:
    """A ruling with the stored form of its verdicts."""

    ruling: Eligibility
    verdicts_hash: str
    verdicts_body: str


@dataclass(frozen=True, slots=True)
class QuoteWait:
    """For whose quotes a new job waits, and how long."""

    inquiry: Inquiry
    wait_us: int


@dataclass(frozen=True, slots=True)
class JobInsert:
    """A job that waits for its commit."""

    row: dict[str, Any]
    spec_body: str
    kept: CachedEligibility
    policy: PolicyRecord
    created: CreatedJob
    key: str | None
    body_hash: str
    actor: Actor
    after: tuple[tuple[str, str], ...] = ()  # jobs to wait for, each with the condition
    asking: QuoteWait | None = None  # it waits for quotes
    quoted: dict[str, Any] | None = None  # what was quoted, where its cluster was chosen by that
    waits_by: tuple[int, int] | None = None  # the versions of world and access by which it waits for a cluster

    def job_ids(self) -> Iterable[str]:
        return ()


def new_job(
    actor: Actor,
    admitted: AdmittedJob,
    *,
    kept: CachedEligibility,
    decided: Plan,
    cluster_id: str | None,
    versions: tuple[int, int],
    bounds: str,
    lane: str,
    needs_place: bool = False,
    key: str | None,
    body: bytes,
    now_us: int,
) -> JobInsert:
    """The write of a job that was decided, by these versions of world and access.

    `needs_place`: it could be assigned, and waits for that alone.
    """
    request = admitted.request
    spec_body = _SORTED.encode(request.spec).decode()
    life = life_after_routing(decided.outcome)
    demand = demand_of_spec(request.spec)
    row = {
        "id": decided.seed,
        "name": request.name or _default_name(request.spec.command[0]),
        "owner": actor.name,
        "owner_id": actor.id,
        "project": request.project,
        "domain": request.domain,
        "lane": lane,
        "state": life.state.value,
        "reason": decided.reason,
        "priority": request.priority,
        "labels": _SORTED.encode(request.labels).decode() if request.labels else "{}",
        "spec_hash": sha256(spec_body.encode()).hexdigest(),
        "bounds": bounds,
        "plan_hash": kept.verdicts_hash,
        "policy_hash": admitted.record.hash,
        # What no column holds, no cluster has: such a job is rejected, and still stored.
        "cores": min(demand.cores_total, INTEGER_MAX),
        "gpus": min(demand.gpus_total, INTEGER_MAX),
        "memory_bytes": min(demand.memory_bytes_total, INTEGER_MAX),
        "on_lost": request.spec.on_lost.value,
        "cluster_id": cluster_id,
        "attempt": life.attempt,
        "fence": life.fence,
        "created_us": now_us,
        "assigned_us": now_us if cluster_id else None,
        "is_ready": cluster_id is not None,
        "tries": 0,
        "retries": request.spec.retry.limit,
        **_optional_columns(request, life, now_us),
        **_policy_columns(admitted.draft, life, now_us),
    }
    if needs_place:
        row["blocked"] = BLOCKED_BY_QUEUE
    if life.state is State.PENDING:
        row["arrival"] = decided.reason
    created = CreatedJob(decided.seed, life.state.value, decided.chosen, decided.reason)
    after = tuple(parse_dependency(text) for text in request.after) if request.after else ()
    body_hash = sha256(body).hexdigest() if key else ""
    waits_by = versions if life.state is State.PENDING and "blocked" not in row else None
    return JobInsert(
        row, spec_body, kept, admitted.record, created, key, body_hash, actor, after=after, waits_by=waits_by
    )


def lane_for(admitted: AdmittedJob, job_id: str) -> str:
    """The lane of a new job; of several queues that have its tags, its id decides."""
    names = admitted.queues
    queue = names[0] if len(names) == 1 else names[draw(job_id, names, [1.0] * len(names))]
    return lane_of(queue, admitted.request.project, admitted.draft.backends)


def _optional_columns(request: JobRequest, life: LifecycleState, now_us: int) -> dict[str, Any]:
    """The columns that most new jobs leave empty; an insert without them costs half."""
    found: dict[str, Any] = {}
    if request.spec.lost_after is not None:
        found["lost_after_s"] = parse_duration_s(request.spec.lost_after)
    if life.state is State.REJECTED:
        found["ended_us"] = now_us
    elif (waits := blocked_by_request(request)) is not None:
        found["blocked"] = waits
    if request.expires_after is not None:
        found["expires_us"] = now_us + parse_duration_s(request.expires_after) * 1_000_000
    if request.array is not None:
        indexes, most = parse_array(request.array)
        found |= {"array": str(indexes), "array_max": most, "todo": str(indexes)}
        found |= dict.fromkeys(("tasks_live", "tasks_ok", "tasks_failed", "tasks_cancelled"), 0)
    return found


def _policy_columns(draft: Draft, life: LifecycleState, now_us: int) -> dict[str, Any]:
    """What rules bound while the job lives: how many run at once, and how long it may wait."""
    request = draft.request
    found: dict[str, Any] = {}
    if request.workflow is not None:
        found |= {"workflow": request.workflow, "launch_plan": request.launch_plan}
    if life.state is State.REJECTED:
        return found
    if draft.spill and (rule := reject_rule(draft.spill)) is not None:
        within_s = rule.after_s if request.expires_after is None else parse_duration_s(request.expires_after)
        found["expires_us"] = now_us + min(rule.after_s, within_s) * 1_000_000
    if draft.tokens:
        found["tokens"] = _SORTED.encode(draft.tokens).decode()
    if draft.budget_s is not None:
        found["late_from_us"] = now_us + draft.budget_s * 1_000_000
    if draft.parallel_max is not None and request.array is not None:
        _, most = parse_array(request.array)
        found["array_max"] = draft.parallel_max if most is None else min(most, draft.parallel_max)
    if draft.parallel_max is not None and request.workflow is not None:
        found |= {
            "crowd": f"{request.project}/{request.domain}/{request.workflow}",
            "crowd_max": draft.parallel_max,
        }
    return found


def hold_new_job(decided: Plan, request: JobRequest, ruling: Eligibility, tokens: Mapping[str, int]) -> Plan:
    """A job that is held, or waits for others, goes nowhere yet, and asks nobody; nor is one assigned that needs
    tokens, which one server for all hands out in order."""
    if blocked_by_request(request) is None and not (tokens and decided.outcome == "assign"):
        return decided
    if decided.outcome != "assign" and not ruling.asks:
        return decided
    reason = token_wait_reason(tokens) if blocked_by_request(request) is None else _blocked_reason(request)
    return msgspec.structs.replace(decided, outcome="hold", chosen=None, reason=reason)


def with_quote_wait(write: JobInsert, spec: JobSpec, decided: Plan, world: World, *, wait_us: int) -> JobInsert:
    """The write of a job that asks for quotes and waits for them, or that went by some."""
    ruling, row = write.kept.ruling, write.row
    if ruling.asks and "blocked" not in row:
        inquiry = inquiry_of(spec, ruling.asks, world)
        return replace(
            write, row=row | {"blocked": BLOCKED_BY_QUOTES}, asking=QuoteWait(inquiry, wait_us), waits_by=None
        )
    if ruling.quoted and decided.chosen is not None:
        used = quote_use_row(row["id"], ruling, decided.chosen, row["cluster_id"], now_us=row["created_us"])
        return replace(write, quoted=used)
    return write


def insert_job(batch: Batch, write: JobInsert) -> None:
    """Put one job into the batch."""
    batch.inserts.append(dict(write.row))
    batch.jobs.add(write.row["id"])
    if write.row["cluster_id"]:
        batch.clusters.add(write.row["cluster_id"])
    if write.row.get("blocked") == BLOCKED_BY_QUEUE:
        batch.versions.add(QUEUES_CHANGED)
    if write.asking is not None:
        ask_for_job(batch, write.row["id"], write.asking.inquiry, wait_us=write.asking.wait_us)
    if write.quoted is not None:
        quotes.use_put(batch.tx, [write.quoted])
    if write.row.get("tokens"):
        batch.versions.add("pending")
    if write.after:
        batch.after += [
            {"job_id": write.row["id"], "on_id": job_id, "condition": condition} for job_id, condition in write.after
        ]
        batch.versions.add("pending")


def unknown_dependencies(batch: Batch, writes: list[JobInsert]) -> dict[int, UnknownName]:
    """The writes that wait for a job that does not exist, or that their owner may not see."""
    wanted = {job_id for write in writes for job_id, _ in write.after}
    if not wanted:
        return {}
    new = {write.row["id"] for write in writes}
    found = jobs.job_states(batch.tx, sorted(wanted - new))
    refused: dict[int, UnknownName] = {}
    for write in writes:
        for job_id, _ in write.after:
            row = found.get(job_id)
            is_visible = row is not None and (
                row.owner_id == write.actor.id or write.actor.may_project(Role.VIEW, row.project)
            )
            if job_id not in new and not is_visible:
                refused[id(write)] = UnknownName(
                    f"It is to begin after job {job_id}, which does not exist or is not yours to see.",
                    next_step="`yard ls --all` lists the jobs you may see; give whole ids.",
                )
    return refused


def parse_dependency(text: str) -> tuple[str, str]:
    """`ID[:ok|any|notok]`; without a condition: ok, as most people mean it."""
    job_id, _, condition = text.partition(":")
    return job_id.upper(), condition or "ok"


def blocked_by_request(request: JobRequest) -> str | None:
    words = ["after"] * bool(request.after) + ["hold"] * request.hold
    return ",".join(words) or None


def _blocked_reason(request: JobRequest) -> str:
    if request.hold:
        return "held; `yard release` lets it go"
    return f"begins after {', '.join(request.after[:5])}" + (" …" if len(request.after) > 5 else "")


def _default_name(program: str) -> str:
    """A job that was given no name is called after its program; what would forge a line in a table is left out."""
    return "".join(char for char in program.rpartition("/")[2][:64] if char.isprintable()).strip() or "job"


@cache
def life_after_routing(outcome: str) -> LifecycleState:
    """The life of a new job once the router has spoken."""
    born = LifecycleState(State.PENDING, attempt=0, fence=0, is_leased=False)
    if outcome == "assign":
        return assign(born).life
    if outcome == "reject":
        return reject(born, "").life
    return born


def cache_eligibility(ruling: Eligibility) -> CachedEligibility:
    body = encode_verdicts(ruling.verdicts)
    return CachedEligibility(ruling, sha256(body).hexdigest(), body.decode())
