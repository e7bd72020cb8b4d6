"""Submit a job: check it against the rules, route it, insert its row.

`decide` reads only snapshots in memory. `apply_inserts` writes the decided jobs of a whole batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from time import perf_counter
from typing import Any, NamedTuple

from msgspec.json import decode
from msgspec.structs import replace

from switchyard.errors import KeyReused, LimitReached, UnknownName, YardError
from switchyard.model.cluster.idset import IdSet, parse_array
from switchyard.model.cluster.verdict import Outcome, Plan
from switchyard.model.job.bounds import Bounds, RetryBounds, encode_bounds
from switchyard.model.job.job import JobRequest, JobSpec
from switchyard.model.rules.access import Role
from switchyard.model.rules.attributes import JobPolicy
from switchyard.policy.admit import NO_LABELS, AdmittedJob, admit
from switchyard.policy.limits import JOB_OVERHEAD_BYTES
from switchyard.route.router import Eligibility
from switchyard.route.world import World
from switchyard.service.core.context import Context
from switchyard.service.core.process_metrics import ProcessMetrics
from switchyard.service.core.rights import Actor
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.service.lifecycle.demands import check_demand, demand_of_spec, largest_task
from switchyard.service.placement.decision import (
    EligibilityCache,
    JobNeeds,
    JobToPlace,
    TooSlowForLoop,
    decide,
    decide_as_if_next,
    evaluate_job,
    spread_of,
)
from switchyard.service.placement.decision_counts import count_set, decision_key, rejecting_step
from switchyard.service.placement.eligibility_cache import CachedEligibility
from switchyard.service.placement.hints import job_hints
from switchyard.service.reserve.inquiries import ask_for_jobs
from switchyard.service.reserve.token_needs import (
    needs_of_request,
    refuse_unknown_pools,
    tasks_at_once,
)
from switchyard.service.reserve.token_position import token_hints
from switchyard.service.submit.job_files import refer_to_trees, refused_inserts
from switchyard.service.submit.named_clusters import find_named_clusters, find_stale_tokens
from switchyard.service.submit.new_job import (
    AcceptedJob,
    JobInsert,
    answer_for_used_key,
    blocked_reason,
    claim_keys,
    insert_job,
    lane_for,
    new_job,
    with_quote_wait,
    with_set,
)
from switchyard.service.submit.preparation import BULK_US_MAX, needs_preparation, prepare_request
from switchyard.store.clusters import quotes
from switchyard.store.jobs import jobs

STORED_HASHES_MAX = 65_536  # hashes known to be stored; forgetting one costs an insert that does nothing
STORED_HASHES_US = 600_000_000  # then each hash is written again, so that retention sees that it is used


class JobEligibility(NamedTuple):
    """Where a job could run. `rules`: a JobPolicy, encoded."""

    spec: JobSpec
    eligibility: Eligibility
    bounds: Bounds
    rules: str


class Submit:
    """Submits jobs. Caches eligibilities by shape, and the hashes of specs, verdicts and rules that are stored."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.file_limits = context.files.limits
        self.eligibilities = EligibilityCache(context)
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
        spec, versions = admitted.draft.request.spec, (world.version, access.version)
        job = JobToPlace(actor, spec, demand_of_spec(spec), bounds, last=last, is_elsewhere=bool(last))
        cached = self.eligibilities.selected(world, job, versions, is_quick=is_quick)
        write = self._insert(
            admitted, job, world=world, versions=versions, cached=cached, job_id=job_id, key=key, body=body
        )
        if request.submit_tokens and (stale := find_stale_tokens(self._context.snapshots, request)):
            write = dataclasses.replace(write, created=replace(write.created, stale_tokens=stale))
        self._context.tally.decision_s.add(perf_counter() - began)
        return write

    def needs_preparation(self, request: JobRequest) -> bool:
        """Whether `prepare` has something to do. Asked on the event loop."""
        return needs_preparation(self._context, request)

    def prepare(self, actor: Actor, request: JobRequest, *, until_us: int | None = None) -> JobRequest:
        """Return the request that is to be admitted. May wait for seconds, for example for a registry of images."""
        return prepare_request(self._context, actor, request, until_us=until_us)

    def bulk_until_us(self) -> int:
        """Until when the jobs of a bulk request may be prepared, by the steady clock."""
        return self._context.steady_us() + BULK_US_MAX

    def is_quick(self, request: JobRequest) -> bool:
        """Whether the job's cluster is selected by a draw, which is fast enough for the event loop."""
        return self._context.selections.is_quick(request.select)

    def repeated(self, actor: Actor, *, key: str, body: bytes) -> AcceptedJob | None:
        """Return the job that an earlier request with this key and body created; None: the key is unused.

        The job counts as accepted, even if the rules would refuse it now.
        """
        with self._context.database.read() as tx:
            claim = jobs.idempotency_get(tx, actor.id, key)
            answer = (
                answer_for_used_key(tx, claim, key=key, body_hash=sha256(body).hexdigest(), here={}) if claim else None
            )
        if isinstance(answer, KeyReused):
            raise answer
        return answer

    def plan(self, actor: Actor, request: JobRequest) -> Plan:
        """Return how the job would be decided now. Stores nothing. May wait, as `prepare` does."""
        context, request = self._context, self.prepare(actor, request)
        admitted, bounds = self._admit(actor, request)
        world, job, versions = self._job_now(actor, admitted.request.spec, bounds)
        eligibility = self.eligibilities.eligible(world, job, versions)
        selection = self.eligibilities.selected(world, job, versions).eligibility
        policy, needs = decode(admitted.record.body, type=JobPolicy), needs_of_request(admitted)
        job_id = context.new_id()
        plan = decide_as_if_next(context, selection, JobNeeds(job_id, lane_for(admitted, job_id), needs))
        hints: list[str] = []
        if selection.outcome is not Outcome.ASSIGN:
            routing_request, _ = evaluate_job(context, world, job)
            hints = job_hints(routing_request, world, eligibility=eligibility, selection=selection, policy=policy)
        return replace(
            plan,
            engine=context.engines.choose(bounds.engine),
            hints=hints or token_hints(context, needs, at_once=tasks_at_once(admitted)),
            quotes=list(selection.quoted),
            policy=policy,
            stale_tokens=find_stale_tokens(context.snapshots, request),
            alternative=selection.sets.number(plan.chosen) if selection.sets is not None and plan.chosen else None,
        )

    def eligibility(self, actor: Actor, request: JobRequest) -> JobEligibility:
        """Return the job after the rules, and the clusters that could run it, before one is selected."""
        admitted, bounds = self._admit(actor, request)
        world, job, versions = self._job_now(actor, admitted.request.spec, bounds)
        if job.spec.alternatives:  # a draw would leave the preferred set alone, and all clusters are asked here
            _, eligibility = evaluate_job(self._context, world, job, is_preferring=False)
        else:
            eligibility = self.eligibilities.eligible(world, job, versions)
        return JobEligibility(admitted.request.spec, eligibility, bounds, admitted.record.body)

    def _job_now(self, actor: Actor, spec: JobSpec, bounds: Bounds) -> tuple[World, JobToPlace, tuple[int, int]]:
        """Return the present world, the job, and the versions of the world and of the actor's rights."""
        snapshots = self._context.snapshots
        world = snapshots.world
        return world, JobToPlace(actor, spec, demand_of_spec(spec), bounds), (world.version, snapshots.access.version)

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
        bounds = admitted.draft.bounds
        if request.clusters or request.submit_tokens or request.cluster is not None:
            clusters = find_named_clusters(snapshots, actor, request)
            bounds = replace(
                bounds,
                named=clusters.named,
                by_token=clusters.by_token,
                by_saved_token=clusters.by_saved_token,
            )
        if request.select is not None:
            bounds = replace(bounds, select=self._context.selections.read(request.select))
        if bounds.pool is not None or bounds.label is not None:
            refuse_empty_pool_or_label(bounds, snapshots.world)
        return admitted, bounds

    def _insert(
        self,
        admitted: AdmittedJob,
        job: JobToPlace,
        *,
        world: World,
        versions: tuple[int, int],
        cached: CachedEligibility,
        job_id: str | None,
        key: str | None,
        body: bytes,
    ) -> JobInsert:
        """Decide on the job and build its row. The leader gives places and tokens, in order: a new job has none."""
        context, eligibility, request = self._context, cached.eligibility, admitted.draft.request
        job_id = job_id or context.new_id()
        lane = lane_for(admitted, job_id)
        tokens = needs_of_request(admitted) if context.tokens.pools.is_enforced else {}
        decision = decide(context, eligibility, JobNeeds(job_id, lane, tokens, blocked_reason(request)))
        plan = decision.plan
        write = new_job(
            job.owner,
            admitted,
            cached=cached,
            decision=decision,
            demand=job.demand,
            cluster_id=world.by_name[plan.chosen].id if plan.chosen else None,
            versions=versions,
            bounds=encode_bounds(job.bounds),
            lane=lane,
            spread=spread_of(context, eligibility, bounds=job.bounds, world=world, plan=plan)
            if job.bounds.is_array
            else None,
            key=key,
            body=body,
            now_us=context.now_us(),
        )
        if eligibility.sets is not None:
            write = with_set(write, eligibility.sets, world)
        if not eligibility.asks and not eligibility.quoted:
            return write
        return with_quote_wait(write, request.spec, world)

    def apply_inserts(self, batch: Batch, writes: list[JobInsert]) -> list[Any]:
        """Insert the jobs of a batch. A job whose idempotency key is taken gets the answer of the earlier job."""
        self.put_shared(batch, writes)
        refused = refused_inserts(batch, self.file_limits, writes)
        earlier = claim_keys(batch, [write for write in writes if write.key and id(write) not in refused])
        created = {write.row.id: write.created for write in writes}
        results: list[Any] = []
        new: list[JobInsert] = []
        for write in writes:
            claim = earlier.get((write.row.owner_id, write.key)) if write.key else None
            if id(write) in refused:
                results.append(refused[id(write)])
            elif claim is not None and claim.job_id != write.row.id:
                results.append(
                    answer_for_used_key(batch.tx, claim, key=write.key, body_hash=write.body_hash, here=created)
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
        for write in writes:
            if write.row.alternatives is not None and write.created.cluster is not None:
                count_set(self._context.tally, batch, write.cached.eligibility.sets, write.created.cluster)
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
        verdicts = {write.cached.verdicts_hash: write.cached.verdicts_body for write in writes}
        new = {key: body for key, body in specs.items() if key not in self._known}
        jobs.spec_put(batch.tx, new, at_us=batch.now_us)
        new = {key: body for key, body in verdicts.items() if key not in self._known}
        jobs.verdicts_put(batch.tx, new, at_us=batch.now_us)
        policies = {write.policy.hash: write.policy.body for write in writes}
        new = {key: body for key, body in policies.items() if key not in self._known}
        jobs.policy_put(batch.tx, new, at_us=batch.now_us)
        # Only hashes that are committed count as stored.
        batch.settled.append(lambda: self._known.update(specs, verdicts, policies))


def count_new_jobs(tally: ProcessMetrics, batch: Batch, writes: Sequence[JobInsert]) -> None:
    """Count the jobs of this batch once it is committed."""
    if not writes:
        return
    keys = [
        decision_key(write.row.bounds, write.row.lane, write.created.cluster, write.created.state.lower())
        for write in writes
    ]
    refused = [write.cached.eligibility for write in writes if write.created.state == "REJECTED"]
    rejected = [rejecting_step(eligibility.verdicts) for eligibility in refused]

    def count() -> None:
        tally.decided(keys, rejected)
        tally.accepted.add(amount=len(keys))

    batch.settled.append(count)


def refuse_empty_pool_or_label(bounds: Bounds, world: World) -> None:
    """Raise UnknownName for a pool or label without a registered cluster."""
    for word, name, sets in (("pool", bounds.pool, world.pools), ("label", bounds.label, world.labels)):
        members = sets.get(name, {}) if name is not None else {}
        if members and not any(member in world.by_name for member in members):
            known = (set_name for set_name in sorted(sets) if any(member in world.by_name for member in sets[set_name]))
            raise UnknownName(
                f"There is no {word} {name!r} to speak of: none of its clusters is registered.",
                next_step=f"Known {word}s: {', '.join(known) or 'none'}.",
            )


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
