"""Submit: admit, route, and one row. `decide` reads only snapshots; `apply_inserts` writes a whole batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from time import perf_counter
from typing import Any

from msgspec.json import decode
from msgspec.structs import replace

from switchyard.errors import Denied, KeyReused, UnknownName, YardError
from switchyard.match.engine import DEFAULT_ENGINE
from switchyard.model.access import Role
from switchyard.model.api import CreatedJob
from switchyard.model.attributes import JobPolicy
from switchyard.model.job import JobRequest, JobSpec
from switchyard.model.queue import queue_named, queue_of_lane
from switchyard.model.verdict import Plan
from switchyard.policy.admit import AdmittedJob, admit
from switchyard.route.router import Eligibility, make_plan
from switchyard.route.world import World
from switchyard.service.access.submit_tokens import find_submit_token
from switchyard.service.committer import Batch
from switchyard.service.context import Context
from switchyard.service.rights import Actor
from switchyard.service.snapshots import Snapshots
from switchyard.service.submit.bounds import (
    Bounds,
    RetryBounds,
    bounds_of,
    encode_bounds,
    evaluate_with_spill,
    refuse_empty_pool_or_label,
)
from switchyard.service.submit.decision_counts import count_new_jobs
from switchyard.service.submit.demands import demand_of_spec, largest_task
from switchyard.service.submit.hints import job_hints
from switchyard.service.submit.new_job import (
    CachedEligibility,
    JobInsert,
    cache_eligibility,
    hold_new_job,
    insert_job,
    lane_for,
    new_job,
    unknown_dependencies,
    with_quote_wait,
)
from switchyard.service.submit.pending_wakeup import PendingWakeup
from switchyard.service.submit.queue_places import hold_plan, needs_place, queue_full_reason, queue_wait_reason
from switchyard.service.submit.select_cluster import SelectionCache
from switchyard.service.submit.usage_limits import refuse_job_over_limit, refuse_jobs_over_limit
from switchyard.service.token.token_needs import needs_of_request, refuse_unknown_pools, tasks_at_once
from switchyard.service.token.token_position import token_hints, token_shortage_reason
from switchyard.store import jobs
from switchyard.store.database import Tx
from switchyard.store.queues import places_taken

RULINGS_CACHE_MAX = 4096  # one per shape and actor, kept for one version of the world
QUICK_CLASSES_MAX = 64  # different clusters that are asked at once: some milliseconds
STORED_HASHES_MAX = 65_536  # hashes known to be stored; forgetting one costs an insert that does nothing
STORED_HASHES_US = 600_000_000  # for this long; then each is put again, which says that it is still used


@dataclass(frozen=True, slots=True)
class AcceptedJob:
    """The answer to a submit; `is_new` is false when the idempotency key had been used for the same body."""

    created: CreatedJob
    is_new: bool


@dataclass(frozen=True, slots=True)
class _RulingCache:
    """What was ruled under one version of the world and of access."""

    versions: tuple[int, int]
    kept: dict[tuple[object, ...], CachedEligibility] = field(default_factory=dict)


class TooSlowForLoop(Exception):
    """Many kinds of cluster are to be asked for the first time: decide it again where that may block."""


class Submit:
    """The use case, with what it remembers between requests: rulings by shape, hashes known to be stored."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._selecting = SelectionCache(context)
        self._rulings = _RulingCache((-1, -1))
        self._known: set[str] = set()
        self._known_since_us = 0
        self.let_wait = PendingWakeup(context)

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
    ) -> JobInsert:
        """Admit and route, from memory alone. `last`: clusters that come last, each with the reason. `again`: what
        bounds it as the job that it repeats. `is_one_of_many`: whether the user has too many is asked for all of them.

        `is_quick`: raise TakesLong rather than ask many clusters what nobody has asked before, or reckon with each.
        """
        if is_quick and not self.is_quick(request):
            raise TooSlowForLoop
        began = perf_counter()
        access = self._context.snapshots.access
        actor = access.actor(actor.user_id or "") or actor  # with the grants by whose version it is remembered
        admitted, bounds = self._admit(actor, request)
        if not is_one_of_many:
            refuse_job_over_limit(self._context, actor, request, is_quick=is_quick)
        bounds = again.narrow(bounds) if again is not None else bounds
        world = self._context.snapshots.world  # one for all of it: the next may not have the chosen cluster any more
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
            bounds=encode_bounds(bounds),
            key=key,
            body=body,
        )
        self._context.tally.decision_s.add(perf_counter() - began)
        return write

    def is_quick(self, request: JobRequest) -> bool:
        """Whether its cluster is selected in no time: by a draw alone."""
        return self._context.selections.is_quick(request.select)

    def repeated(self, actor: Actor, *, key: str, body: bytes) -> AcceptedJob | None:
        """The job that this key and body made before: it is accepted, even if it would be refused by now."""
        with self._context.database.read() as tx:
            held = jobs.idempotency_get(tx, actor.id, key)
            answer = (
                _answer_for_used_key(tx, held, key=key, body_hash=sha256(body).hexdigest(), here={}) if held else None
            )
        if isinstance(answer, KeyReused):
            raise answer
        return answer

    def plan(self, actor: Actor, request: JobRequest) -> Plan:
        """Decide and show, store nothing."""
        admitted, bounds = self._admit(actor, request)
        world, spec = self._context.snapshots.world, admitted.request.spec
        chosen = self._rule(world, actor, spec, bounds).ruling
        ruling, _ = self._ruled(world, actor, spec, bounds)
        engine = self._context.engines.choose(bounds.engine)
        policy = decode(admitted.record.body, type=JobPolicy)
        ask = bounds.ask(demand_of_spec(spec), actor, world, engine=engine)
        decided = make_plan(chosen, seed=self._context.new_id())
        needs = needs_of_request(admitted)
        return replace(
            self._or_waiting(decided, lane_for(admitted, decided.seed), needs),
            engine=engine,
            hints=job_hints(ask, world, ruling.ruling, chosen, policy)
            or token_hints(self._context, needs, at_once=tasks_at_once(admitted)),
            quotes=list(chosen.quoted),
            policy=policy,
        )

    def _or_waiting(self, decided: Plan, lane: str, needs: Mapping[str, int]) -> Plan:
        """A plan that says so where no place is free in the job's queue, or its tokens are not to be had."""
        if decided.outcome != "assign":
            return decided
        if short := token_shortage_reason(self._context, needs):
            return hold_plan(decided, short)
        queues = self._context.snapshots.laid.layout.queues
        if not needs_place(queues, lane):
            return decided
        whose = queue_named(queues, queue_of_lane(lane)).counted(queue_of_lane(lane))
        with self._context.database.read() as tx:
            why = queue_full_reason(queues, lane, places_taken(tx, whose))
        return hold_plan(decided, why) if why else decided

    def able(self, actor: Actor, request: JobRequest) -> tuple[JobSpec, Eligibility]:
        """Who could run it now, before anybody is selected; and its spec as it would be accepted."""
        admitted, bounds = self._admit(actor, request)
        kept, _ = self._ruled(self._context.snapshots.world, actor, admitted.request.spec, bounds)
        return admitted.request.spec, kept.ruling

    def _admit(self, actor: Actor, request: JobRequest) -> tuple[AdmittedJob, Bounds]:
        """The right to submit comes first: what the rules of a project are is no business of a stranger.

        A project that the actor may not view is treated as missing, so the answer does not tell the two apart.
        """
        snapshots = self._context.snapshots
        projects = snapshots.access.projects
        if not actor.may_project(Role.VIEW, request.project):
            projects = {}
        elif request.project in projects:
            actor.need_project(Role.SUBMIT, request.project)
        demanded = largest_task(demand_of_spec(request.spec)) if request.spec.demand is not None else None
        admitted = admit(request, snapshots.policy, projects, demanded=demanded)
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
        kept, key = self._ruled(world, actor, spec, bounds, last, versions=versions, is_quick=is_quick)
        return self._selecting.among(kept, key, bounds, spec)

    def _ruled(
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
        """All but the selection, and what it is kept by. `versions`: of the world and of the actor's rights."""
        versions = versions or (world.version, self._context.snapshots.access.version)
        rulings = self._rulings
        if rulings.versions != versions or len(rulings.kept) > RULINGS_CACHE_MAX:
            # Threads decide, too: one that is still at an older world writes into the older memory, never into this.
            rulings = self._rulings = _RulingCache(versions)
        demand = demand_of_spec(spec)
        engine = bounds.engine or self._context.engines.default
        key = (actor.id, demand, bounds, last)
        kept = rulings.kept.get(key)
        if kept is None:
            # Shapes that compete for nodes are searched, cluster by cluster, and other engines take what they take.
            is_long = world.index.classes > QUICK_CLASSES_MAX or spec.demand is not None or engine != DEFAULT_ENGINE
            if is_quick and is_long:
                raise TooSlowForLoop
            kept = cache_eligibility(
                evaluate_with_spill(bounds, bounds.ask(demand, actor, world, engine=engine, last=last), world)
            )
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
        bounds: str,
        key: str | None,
        body: bytes,
    ) -> JobInsert:
        tokens = needs_of_request(admitted) if self._context.tokens.pools.is_enforced else {}
        decided = hold_new_job(decided, admitted.request, kept.ruling, tokens)
        lane, queues = lane_for(admitted, decided.seed), self._context.snapshots.laid.layout.queues
        is_queued = decided.outcome == "assign" and needs_place(queues, lane)
        if is_queued:
            decided = hold_plan(decided, queue_wait_reason(lane))
        cluster = world.by_name[decided.chosen] if decided.chosen else None
        write = new_job(
            actor,
            admitted,
            kept=kept,
            decided=decided,
            cluster_id=cluster.id if cluster else None,
            versions=versions,
            bounds=bounds,
            lane=lane,
            needs_place=is_queued,
            key=key,
            body=body,
            now_us=self._context.now_us(),
        )
        if not kept.ruling.asks and not kept.ruling.quoted:
            return write
        wait_us = self._context.selections.quote_wait_us
        return with_quote_wait(write, admitted.request.spec, decided, world, wait_us=wait_us)

    def apply_inserts(self, batch: Batch, writes: list[JobInsert]) -> list[Any]:
        """Put the specs, verdicts and keys of a batch, then its rows. A key already taken is that write's result."""
        self.put_shared(batch, writes)
        refused = unknown_dependencies(batch, writes)
        earlier = self._claim(batch, [write for write in writes if write.key and id(write) not in refused])
        created = {write.row["id"]: write.created for write in writes}
        results: list[Any] = []
        new: list[JobInsert] = []
        for write in writes:
            held = earlier.get((write.row["owner_id"], write.key)) if write.key else None
            if id(write) in refused:
                results.append(refused[id(write)])
            elif held is not None and held.job_id != write.row["id"]:
                results.append(
                    _answer_for_used_key(batch.tx, held, key=write.key, body_hash=write.body_hash, here=created)
                )
            else:
                insert_job(batch, write)
                new.append(write)
                results.append(AcceptedJob(write.created, is_new=True))
        self.settle(batch, new)
        return results

    def settle(self, batch: Batch, writes: list[JobInsert]) -> None:
        """What is to be done besides about jobs that were put into the batch."""
        count_new_jobs(self._context.tally, batch, writes)
        self._context.usage.note_new(batch, ((write.row, write.spec_body) for write in writes))
        self.let_wait.note(batch, writes)

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
        specs = {write.row["spec_hash"]: write.spec_body for write in writes}
        verdicts = {write.kept.verdicts_hash: write.kept.verdicts_body for write in writes}
        new = {key: body for key, body in specs.items() if key not in self._known}
        jobs.spec_put(batch.tx, new, at_us=batch.now_us)
        new = {key: body for key, body in verdicts.items() if key not in self._known}
        jobs.verdicts_put(batch.tx, new, at_us=batch.now_us)
        policies = {write.policy.hash: write.policy.body for write in writes}
        new = {key: body for key, body in policies.items() if key not in self._known}
        jobs.policy_put(batch.tx, new, at_us=batch.now_us)
        # Only what is durable counts as known.
        batch.settled.append(lambda: self._known.update(specs, verdicts, policies))

    def _claim(self, batch: Batch, writes: list[JobInsert]) -> dict[tuple[str, str], jobs.Row]:
        if not writes:
            return {}
        return jobs.idempotency_claim(
            batch.tx,
            [
                {
                    "owner": write.row["owner_id"],
                    "key": write.key,
                    "body_hash": write.body_hash,
                    "job_id": write.row["id"],
                    "created_us": batch.now_us,
                }
                for write in writes
            ],
        )


def answer_without_commit(write: JobInsert) -> AcceptedJob:
    """What a submit would answer, with the commit left out: the benchmark's upper bound."""
    return AcceptedJob(write.created, is_new=True)


def _answer_for_used_key(
    tx: Tx, held: jobs.Row, *, key: str | None, body_hash: str, here: dict[str, CreatedJob]
) -> AcceptedJob | KeyReused:
    """What a submit gets whose key was used before; `here`: the jobs of this very batch, not inserted yet."""
    if held.body_hash != body_hash:
        return KeyReused(f"The idempotency key {key!r} belongs to job {held.job_id}, made from another body.")
    now = jobs.job_states(tx, [held.job_id]).get(held.job_id)
    created = here.get(held.job_id) if now is None else CreatedJob(now.id, now.state, now.cluster, now.reason)
    if created is None:
        return KeyReused(f"The job {held.job_id} that the idempotency key {key!r} made was removed since, being old.")
    return AcceptedJob(created, is_new=False)


def named_clusters(
    snapshots: Snapshots, actor: Actor, request: JobRequest
) -> tuple[frozenset[str] | None, frozenset[str]]:
    """The clusters a request bounds itself to, and those it holds a submit token for. Fails closed."""
    world = snapshots.world
    by_token: set[str] = set()
    for given in request.clusters:
        member = world.by_name.get(given.name)
        if find_submit_token(snapshots, member, given.token) is None or member is None:
            raise Denied(
                f"The submit token for cluster {given.name} does not hold.",
                next_step="Correct or remove it under `clusters:` in your file: one that does not hold denies all.",
            )
        by_token.add(member.id)
    named = frozenset(by_token) if request.clusters else None
    if request.cluster is None:
        return named, frozenset(by_token)
    member = world.by_name.get(request.cluster)
    if member is None or not (member.id in by_token or actor.may_cluster(Role.VIEW, member)):
        known = ", ".join(m.name for m in world.members if actor.may_cluster(Role.VIEW, m)) or "none"
        raise UnknownName(f"There is no cluster {request.cluster!r}.", next_step=f"Known clusters: {known}.")
    if member.id not in by_token:
        actor.need_cluster(Role.SUBMIT, member)
    pin = frozenset({member.id})
    return (pin if named is None else named & pin), frozenset(by_token)
