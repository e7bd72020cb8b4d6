"""Submit a job: check it against the rules, route it, insert its row.

`decide` reads only snapshots in memory. `apply_inserts` writes the decided jobs of a whole batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from time import perf_counter
from typing import Any, NamedTuple

from msgspec.json import decode
from msgspec.structs import replace

from switchyard.errors import Denied, KeyReused, LimitReached, UnknownName, YardError
from switchyard.match.demand import Demand
from switchyard.match.engine import DEFAULT_ENGINE
from switchyard.model.cluster.idset import IdSet, parse_array
from switchyard.model.cluster.verdict import Plan
from switchyard.model.job.job import JobRequest, JobSpec
from switchyard.model.rules.access import Role
from switchyard.model.rules.attributes import JobPolicy
from switchyard.model.rules.queue import queue_named, queue_of_lane
from switchyard.policy.admit import NO_LABELS, AdmittedJob, admit
from switchyard.policy.limits import JOB_OVERHEAD_BYTES
from switchyard.route.placement import NeedStatus, Placement, decide_placement
from switchyard.route.router import Eligibility, make_plan
from switchyard.route.world import World
from switchyard.service.core.context import Context
from switchyard.service.core.process_metrics import ProcessMetrics
from switchyard.service.core.rights import Actor
from switchyard.service.core.snapshots.snapshots import Snapshots
from switchyard.service.core.submit_tokens import find_submit_token
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.service.lifecycle.bounds import (
    Bounds,
    RetryBounds,
    bounds_of,
    encode_bounds,
    evaluate_with_spill,
    refuse_empty_pool_or_label,
    time_limit_s_of,
)
from switchyard.service.lifecycle.demands import check_demand, demand_of_spec, largest_task
from switchyard.service.placement.decision_counts import decision_key, rejecting_step
from switchyard.service.placement.eligibility_cache import CachedEligibility, cache_eligibility
from switchyard.service.placement.hints import job_hints
from switchyard.service.placement.select_cluster import SelectionCache
from switchyard.service.placement.spread_lessees import spread_of
from switchyard.service.reserve.inquiries import ask_for_jobs
from switchyard.service.reserve.queue_places import hold_plan, needs_place, queue_full_reason, queue_wait_reason
from switchyard.service.reserve.token_needs import (
    needs_of_request,
    refuse_unknown_pools,
    tasks_at_once,
    token_wait_reason,
)
from switchyard.service.reserve.token_position import token_hints, token_shortage_reason
from switchyard.service.submit.idempotency import AcceptedJob, answer_for_used_key, claim_keys
from switchyard.service.submit.job_files import refer_to_trees, refused_inserts
from switchyard.service.submit.new_job import (
    JobInsert,
    blocked_by_request,
    blocked_reason,
    insert_job,
    lane_for,
    new_job,
    with_quote_wait,
)
from switchyard.store.clusters import quotes
from switchyard.store.jobs import jobs
from switchyard.store.rules.queues import places_taken

RULINGS_CACHE_MAX = 4096  # cached rulings, one per shape and actor, for one version of the snapshots
QUICK_CLASSES_MAX = 64  # different clusters to match on the event loop: some milliseconds
QUICK_GRAPH_SIZE_MAX = 1000  # shapes and edges of graphs to match on the event loop: some milliseconds
_ONLY_RESERVATIONS_MISSING = (Placement.ASSIGN, Placement.QUEUE, Placement.WAIT_TOKENS)
STORED_HASHES_MAX = 65_536  # hashes known to be stored; forgetting one costs an insert that does nothing
STORED_HASHES_US = 600_000_000  # then each hash is written again, so that retention sees that it is used


@dataclass(frozen=True, slots=True)
class _RulingCache:
    """Rulings by shape and actor. They hold for one version of the world and of the grants."""

    versions: tuple[int, int]
    kept: dict[tuple[object, ...], CachedEligibility] = field(default_factory=dict)


class JobEligibility(NamedTuple):
    """Where a job could run. `rules`: a JobPolicy, encoded."""

    spec: JobSpec
    ruling: Eligibility
    bounds: Bounds
    rules: str


class TooSlowForLoop(Exception):
    """The job must be decided on a thread: matching it takes too long for the event loop."""


class Submit:
    """Submits jobs. Caches rulings by shape, and the hashes of specs, verdicts and rules that are stored."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.file_limits = context.files.limits
        self._selecting = SelectionCache(context)
        self._rulings = _RulingCache((-1, -1))
        self._known: set[str] = set()
        self._known_since_us = 0
        self.pending_wakeup = PendingWakeup(context)

    def decide(
        self,
        actor: Actor,
        request: JobRequest,
        *,
        key: str | None,
        body: bytes,
        job_id: str | None = None,
        last: tuple[tuple[str, str], ...] = (),
        again: RetryBounds | None = None,
        is_quick: bool = False,
        is_one_of_many: bool = False,
        server_labels: Mapping[str, str] = NO_LABELS,
    ) -> JobInsert:
        """Check a job against the rules and route it. Reads only snapshots, writes nothing.

        `last`: clusters that are tried last, each with the reason. `again`: the bounds of the job that this job
        retries. `is_one_of_many`: the caller checks the user's limits for all jobs of its request together.
        `server_labels`: labels that no request may have.
        `is_quick`: raise TooSlowForLoop if many clusters or large graphs must be matched for the first time.
        """
        if is_quick and not self.is_quick(request):
            raise TooSlowForLoop
        began = perf_counter()
        access = self._context.snapshots.access
        actor = access.actor(actor.user_id or "") or actor  # the grants must be of the version in the cache key
        admitted, bounds = self._admit(actor, request, server_labels)
        if not is_one_of_many:
            refuse_job_over_limit(self._context, actor, request, is_quick=is_quick)
        bounds = again.narrow(bounds) if again is not None else bounds
        world = self._context.snapshots.world  # one snapshot for all steps: the next may lack the chosen cluster
        versions = (world.version, access.version)
        kept = self._rule(world, actor, admitted.request.spec, bounds, last, versions=versions, is_quick=is_quick)
        job_id = job_id or self._context.new_id()
        write = self._insert(
            actor,
            admitted,
            world=world,
            versions=versions,
            kept=kept,
            decided=make_plan(kept.ruling, seed=job_id, is_shown=False),
            bounds=bounds,
            key=key,
            body=body,
        )
        self._context.tally.decision_s.add(perf_counter() - began)
        return write

    def is_quick(self, request: JobRequest) -> bool:
        """Whether the job's cluster is selected by a draw, which is fast enough for the event loop."""
        return self._context.selections.is_quick(request.select)

    def repeated(self, actor: Actor, *, key: str, body: bytes) -> AcceptedJob | None:
        """Return the job that an earlier request with this key and body created; None: the key is unused.

        The job counts as accepted, even if the rules would refuse it now.
        """
        with self._context.database.read() as tx:
            held = jobs.idempotency_get(tx, actor.id, key)
            answer = (
                answer_for_used_key(tx, held, key=key, body_hash=sha256(body).hexdigest(), here={}) if held else None
            )
        if isinstance(answer, KeyReused):
            raise answer
        return answer

    def plan(self, actor: Actor, request: JobRequest) -> Plan:
        """Return how the job would be decided now. Stores nothing."""
        admitted, bounds = self._admit(actor, request)
        world, spec = self._context.snapshots.world, admitted.request.spec
        chosen = self._rule(world, actor, spec, bounds).ruling
        ruling, _ = self._evaluate(world, actor, spec, bounds)
        engine = self._context.engines.choose(bounds.engine)
        policy = decode(admitted.record.body, type=JobPolicy)
        limit_s = time_limit_s_of(spec)
        ask = bounds.ask(demand_of_spec(spec), actor, world, engine=engine, time_limit_s=limit_s)
        decided = make_plan(chosen, seed=self._context.new_id())
        needs = needs_of_request(admitted)
        return replace(
            self._with_missing_needs(decided, lane_for(admitted, decided.seed), needs),
            engine=engine,
            hints=job_hints(ask, world, ruling.ruling, chosen, policy)
            or token_hints(self._context, needs, at_once=tasks_at_once(admitted)),
            quotes=list(chosen.quoted),
            policy=policy,
        )

    def _with_missing_needs(self, decided: Plan, lane: str, needs: Mapping[str, int]) -> Plan:
        """Return the plan. If the job's queue has no free place or a pool has too few tokens, it says so."""
        if decided.outcome != "assign":
            return decided
        full, short = self._full_reason(lane), token_shortage_reason(self._context, needs)
        placement = decide_placement(
            decided.outcome,
            asks=False,
            is_blocked=False,  # a plan says where the job would go once it is released
            place=NeedStatus.UNMET if full else NeedStatus.MET,
            tokens=NeedStatus.UNMET if short else NeedStatus.MET,
        )
        if placement is Placement.ASSIGN:
            return decided
        return hold_plan(decided, full if placement is Placement.QUEUE else short)

    def _full_reason(self, lane: str) -> str:
        """Return why a job of this lane would get no place in its queue now. Empty: it would, or needs no place."""
        queues = self._context.snapshots.laid.layout.queues
        if not needs_place(queues, lane):
            return ""
        whose = queue_named(queues, queue_of_lane(lane)).counted(queue_of_lane(lane))
        with self._context.database.read() as tx:
            return queue_full_reason(queues, lane, places_taken(tx, whose))

    def eligibility(self, actor: Actor, request: JobRequest) -> JobEligibility:
        """Return the job after the rules, and the clusters that could run it, before one is selected."""
        admitted, bounds = self._admit(actor, request)
        kept, _ = self._evaluate(self._context.snapshots.world, actor, admitted.request.spec, bounds)
        return JobEligibility(admitted.request.spec, kept.ruling, bounds, admitted.record.body)

    def _admit(
        self, actor: Actor, request: JobRequest, server_labels: Mapping[str, str] = NO_LABELS
    ) -> tuple[AdmittedJob, Bounds]:
        """Apply the rules of the job's scope. Checks the right to submit first: others must not learn the rules."""
        snapshots = self._context.snapshots
        actor.need_project(Role.SUBMIT, request.project)  # also if there is none: others must not learn which exist
        demanded = None
        if request.spec.demand is not None:
            check_demand(request.spec.demand)
            demanded = largest_task(demand_of_spec(request.spec))
        policy, projects = snapshots.policy, snapshots.access.projects
        admitted = admit(
            request,
            policy,
            projects,
            demanded=demanded,
            is_operator=actor.is_platform_operator,
            server_labels=server_labels,
        )
        if admitted.draft.tokens:
            refuse_unknown_pools(self._context, admitted)
        if request.match_engine is not None:
            self._context.engines.choose(request.match_engine)
        named, by_token = named_clusters(snapshots, actor, request)
        select = self._context.selections.read(request.select)
        bounds = bounds_of(named, by_token, admitted.draft, request, select=select)
        refuse_empty_pool_or_label(bounds, snapshots.world)
        return admitted, bounds

    def _rule(
        self,
        world: World,
        actor: Actor,
        spec: JobSpec,
        bounds: Bounds,
        last: tuple[tuple[str, str], ...] = (),
        *,
        versions: tuple[int, int] | None = None,
        is_quick: bool = False,
    ) -> CachedEligibility:
        kept, key = self._evaluate(world, actor, spec, bounds, last, versions=versions, is_quick=is_quick)
        return self._selecting.among(kept, key, bounds, spec)

    def _evaluate(
        self,
        world: World,
        actor: Actor,
        spec: JobSpec,
        bounds: Bounds,
        last: tuple[tuple[str, str], ...] = (),
        *,
        versions: tuple[int, int] | None = None,
        is_quick: bool = False,
    ) -> tuple[CachedEligibility, tuple[object, ...]]:
        """Return the eligible clusters without a selection, from the cache if possible, and the cache key.

        `versions`: of the world and of the actor's rights.
        """
        versions = versions or (world.version, self._context.snapshots.access.version)
        rulings = self._rulings
        if rulings.versions != versions or len(rulings.kept) > RULINGS_CACHE_MAX:
            # Several threads decide. A thread with an older snapshot writes into the older cache, never into this one.
            rulings = self._rulings = _RulingCache(versions)
        demand = demand_of_spec(spec)
        engine = bounds.engine or self._context.engines.default
        limit_s = time_limit_s_of(spec) if world.has_ends else None
        key = (actor.id, demand, bounds, last, limit_s)
        kept = rulings.kept.get(key)
        if kept is None:
            if is_quick and (spec.demand is not None or _is_long(world, demand, engine)):
                raise TooSlowForLoop
            ask = bounds.ask(demand, actor, world, engine=engine, last=last, time_limit_s=limit_s)
            kept = cache_eligibility(evaluate_with_spill(bounds, ask, world))
            rulings.kept[key] = kept
        return kept, key

    def _insert(
        self,
        actor: Actor,
        admitted: AdmittedJob,
        *,
        world: World,
        versions: tuple[int, int],
        kept: CachedEligibility,
        decided: Plan,
        bounds: Bounds,
        key: str | None,
        body: bytes,
    ) -> JobInsert:
        tokens = needs_of_request(admitted) if self._context.tokens.pools.is_enforced else {}
        lane, queues = lane_for(admitted, decided.seed), self._context.snapshots.laid.layout.queues
        placement = decide_placement(
            decided.outcome,
            asks=bool(kept.ruling.asks),
            is_blocked=blocked_by_request(admitted.request) is not None,
            place=NeedStatus.UNMET if needs_place(queues, lane) else NeedStatus.NONE,
            tokens=NeedStatus.UNMET if tokens else NeedStatus.NONE,  # the leader grants them, in order
        )
        preferred = decided.chosen if placement in _ONLY_RESERVATIONS_MISSING else None
        if placement is Placement.BLOCK and (decided.outcome == "assign" or kept.ruling.asks):
            decided = hold_plan(decided, blocked_reason(admitted.request))
        elif placement is Placement.QUEUE:
            decided = hold_plan(decided, queue_wait_reason(lane))
        elif placement is Placement.WAIT_TOKENS:
            decided = hold_plan(decided, token_wait_reason(tokens))
        cluster = world.by_name[decided.chosen] if decided.chosen else None
        write = new_job(
            actor,
            admitted,
            kept=kept,
            decided=decided,
            cluster_id=cluster.id if cluster else None,
            versions=versions,
            bounds=encode_bounds(bounds),
            lane=lane,
            is_queued=placement is Placement.QUEUE,
            preferred=preferred,
            spread=spread_of(self._context, kept.ruling, bounds, world, decided),
            key=key,
            body=body,
            now_us=self._context.now_us(),
        )
        if not kept.ruling.asks and not kept.ruling.quoted:
            return write
        return with_quote_wait(write, admitted.request.spec, decided, world)

    def apply_inserts(self, batch: Batch, writes: list[JobInsert]) -> list[Any]:
        """Insert the jobs of a batch. A job whose idempotency key is taken gets the answer of the earlier job."""
        self.put_shared(batch, writes)
        refused = refused_inserts(batch, self.file_limits, writes)
        earlier = claim_keys(batch, [write for write in writes if write.key and id(write) not in refused])
        created = {write.row.id: write.created for write in writes}
        results: list[Any] = []
        new: list[JobInsert] = []
        for write in writes:
            held = earlier.get((write.row.owner_id, write.key)) if write.key else None
            if id(write) in refused:
                results.append(refused[id(write)])
            elif held is not None and held.job_id != write.row.id:
                results.append(
                    answer_for_used_key(batch.tx, held, key=write.key, body_hash=write.body_hash, here=created)
                )
            else:
                insert_job(batch, write)
                new.append(write)
                results.append(AcceptedJob(write.created, is_new=True))
        self.settle(batch, new)
        return results

    def settle(self, batch: Batch, writes: list[JobInsert]) -> None:
        """Store what belongs to inserted jobs: inquiries, used quotes, file references. Count them for metrics."""
        asking = [write.asking for write in writes if write.asking is not None]
        ask_for_jobs(batch, asking, wait_us=self._context.selections.quote_wait_us)
        quotes.use_put(batch.tx, [write.quoted for write in writes if write.quoted is not None])
        refer_to_trees(batch, writes)
        count_new_jobs(self._context.tally, batch, writes)
        self._context.usage.note_new(batch, ((write.row, write.spec_body) for write in writes))
        self.pending_wakeup.note(batch, writes)

    def count_refused(self, errors: Iterable[YardError]) -> None:
        for error in errors:
            self._context.tally.refusals.add(error.code, "admit")

    def refuse_many(self, actor: Actor, writes: list[JobInsert], *, key: str | None) -> None:
        refuse_jobs_over_limit(self._context, actor, writes, key=key)

    def put_shared(self, batch: Batch, writes: list[JobInsert]) -> None:
        if (
            batch.is_replay
            or len(self._known) > STORED_HASHES_MAX
            or batch.now_us - self._known_since_us > STORED_HASHES_US
        ):
            self._known, self._known_since_us = set(), batch.now_us
        specs = {write.row.spec_hash: write.spec_body for write in writes}
        verdicts = {write.kept.verdicts_hash: write.kept.verdicts_body for write in writes}
        new = {key: body for key, body in specs.items() if key not in self._known}
        jobs.spec_put(batch.tx, new, at_us=batch.now_us)
        new = {key: body for key, body in verdicts.items() if key not in self._known}
        jobs.verdicts_put(batch.tx, new, at_us=batch.now_us)
        policies = {write.policy.hash: write.policy.body for write in writes}
        new = {key: body for key, body in policies.items() if key not in self._known}
        jobs.policy_put(batch.tx, new, at_us=batch.now_us)
        # Only hashes that are committed count as stored.
        batch.settled.append(lambda: self._known.update(specs, verdicts, policies))


def _is_long(world: World, demand: Demand, engine: str) -> bool:
    """Whether an evaluation may take longer than some milliseconds. Engines other than the default always may."""
    index = world.index
    if engine != DEFAULT_ENGINE or index.classes > QUICK_CLASSES_MAX:
        return True
    return index.unanswered_size(demand, by=engine) > QUICK_GRAPH_SIZE_MAX


def answer_without_commit(write: JobInsert) -> AcceptedJob:
    """Return the answer to a submit without a commit. Benchmarks measure the upper bound with it."""
    return AcceptedJob(write.created, is_new=True)


def count_new_jobs(tally: ProcessMetrics, batch: Batch, writes: Sequence[JobInsert]) -> None:
    """Count the jobs of this batch once it is committed."""
    if not writes:
        return
    keys = [
        decision_key(write.row.bounds, write.row.lane, write.created.cluster, write.created.state.lower())
        for write in writes
    ]
    rejected = [rejecting_step(write.kept.ruling.verdicts) for write in writes if write.created.state == "REJECTED"]

    def count() -> None:
        tally.decided(keys, rejected)
        tally.accepted.add(amount=len(keys))

    batch.settled.append(count)


def named_clusters(
    snapshots: Snapshots, actor: Actor, request: JobRequest
) -> tuple[frozenset[str] | None, frozenset[str]]:
    """Return the allowed clusters (none: all) and those with a submit token. An invalid token denies the request."""
    world = snapshots.world
    by_token: set[str] = set()
    for entry in request.clusters:
        member = world.by_name.get(entry.name)
        if find_submit_token(snapshots, member, entry.token) is None or member is None:
            raise Denied(
                f"The submit token for cluster {entry.name} is not valid.",
                next_step="Correct or remove it under `clusters:` in your file: one invalid token denies the request.",
            )
        by_token.add(member.id)
    allowed = frozenset(by_token) if request.clusters else None
    if request.cluster is None:
        return allowed, frozenset(by_token)
    member = world.by_name.get(request.cluster)
    if member is None or not (member.id in by_token or actor.may_cluster(Role.VIEW, member)):
        known = ", ".join(m.name for m in world.members if actor.may_cluster(Role.VIEW, m)) or "none"
        raise UnknownName(f"There is no cluster {request.cluster!r}.", next_step=f"Known clusters: {known}.")
    if member.id not in by_token:
        actor.need_cluster(Role.SUBMIT, member)
    pinned = frozenset({member.id})
    return (pinned if allowed is None else allowed & pinned), frozenset(by_token)


def refuse_job_over_limit(context: Context, actor: Actor, request: JobRequest, *, is_quick: bool) -> None:
    """Refuse a job over the limit before it is routed. `is_quick`: use only cached usage, which may be stale."""
    tasks = 0 if request.array is None else len(parse_array(request.array)[0])
    try:
        context.usage.refuse_over(actor, tasks=tasks, size=JOB_OVERHEAD_BYTES)
    except LimitReached:
        if is_quick or not context.usage.freshen(context.database, actor.name):
            raise
        context.usage.refuse_over(actor, tasks=tasks, size=JOB_OVERHEAD_BYTES)


def refuse_jobs_over_limit(context: Context, actor: Actor, writes: Sequence[JobInsert], *, key: str | None) -> None:
    """Refuse jobs that together exceed the limits. A used idempotency key is let through: its jobs exist already."""
    if actor.is_platform_admin:
        return
    tasks = sum(len(IdSet.parse(write.row.array)) for write in writes if write.row.array)
    size = sum(JOB_OVERHEAD_BYTES + len(write.spec_body) for write in writes)
    context.usage.freshen(context.database, actor.name)
    try:
        context.usage.refuse_over(actor, jobs=len(writes), tasks=tasks, size=size)
    except LimitReached:
        with context.database.read() as tx:
            if key is None or jobs.idempotency_get(tx, actor.id, key) is None:
                raise


# Wake the leader for new pending jobs.
#
# A server decides from its snapshot and commits later. In between, a cluster may come up and the leader may route all
# pending jobs. Without a notice, the new job would wait for the leader's next periodic round.


class PendingWakeup:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._versions: tuple[int, int] | None = None  # snapshot versions at the first unannounced pending job

    def note(self, batch: Batch, writes: Iterable[JobInsert]) -> None:
        """Note the pending jobs of this batch. Jobs decided from a stale snapshot wake the leader immediately."""
        decided_at = {write.pending_at_versions for write in writes if write.pending_at_versions is not None}
        if not decided_at:
            return
        current = self._context.snapshots.versions
        if decided_at != {current}:
            batch.topics.add(Topic.PENDING)
        batch.settled.append(lambda: self._set_versions(current))

    def _set_versions(self, versions: tuple[int, int]) -> None:
        self._versions = self._versions or versions

    def take(self) -> bool:
        """Return once whether pending jobs were inserted under an older snapshot than the current one."""
        if self._versions in (None, self._context.snapshots.versions):
            return False
        self._versions = None
        return True

    def tell_leader(self) -> None:
        """Wake the leader if the snapshot changed since: the leader may have routed before the jobs were inserted."""
        versions = self._versions
        if not self.take():
            return
        try:
            self._context.committer.call(lambda batch: batch.topics.add(Topic.PENDING))
        except YardError:
            self._versions = versions
            raise
