"""Check whether a job fits each visible cluster: `ever` on the whole cluster, `now` on its free resources.

`ever` depends only on graphs, so answers are cached until a snapshot changes. `now` is computed for each request.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from itertools import compress

import msgspec

from switchyard.match.demand import Demand
from switchyard.match.engine import Misfit
from switchyard.model.cluster.verdict import Fit, FitAnswer, FitRequest
from switchyard.model.rules.access import Role
from switchyard.route.member import Member
from switchyard.route.world import World
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.lifecycle.demands import check_demand, check_jobspec, demand_of_any_jobspec, demand_of_spec
from switchyard.service.placement.evaluation import fits_now

ANSWERS_MAX = 1024  # in the cache, for all demands and actors
ANSWERS_BYTES_MAX = 64 * 2**20

_encoder = msgspec.json.Encoder()


class FitChecker:
    """Answers fit requests and caches the answers."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._cache: OrderedDict[tuple[object, ...], bytes] = OrderedDict()
        self._cache_versions: tuple[int, int] = (-1, -1)
        self._cache_bytes = 0
        self._lock = threading.Lock()  # the event loop reads the cache, worker threads fill it

    def cached(self, actor: Actor, request: FitRequest) -> bytes | None:
        """Return the cached answer as JSON, or none. Fast enough for the event loop."""
        if request.now:
            return None
        versions = self._context.snapshots.versions
        with self._lock:
            if self._cache_versions != versions:
                self._cache, self._cache_versions, self._cache_bytes = OrderedDict(), versions, 0
            return self._cache.get(self._key(actor, request))

    def answer(self, actor: Actor, request: FitRequest) -> bytes:
        """Return the answer as JSON, from the cache if possible."""
        if (cached := self.cached(actor, request)) is not None:
            return cached
        versions = self._context.snapshots.versions
        demand, engine = _demand(request), self._engine(request)
        body = _encoder.encode(self._evaluate(actor, demand, engine, request))
        if not request.now:
            with self._lock:
                if self._cache_versions == versions:
                    self._store(self._key(actor, request), body)
        return body

    def _key(self, actor: Actor, request: FitRequest) -> tuple[object, ...]:
        return (actor.id, _demand(request).key, self._engine(request), request.only_fitting)

    def _engine(self, request: FitRequest) -> str:
        return self._context.engines.choose(request.match_engine or (request.job.match_engine if request.job else None))

    def _store(self, key: tuple[object, ...], body: bytes) -> None:
        if key in self._cache:
            return
        self._cache[key] = body
        self._cache_bytes += len(body)
        while len(self._cache) > ANSWERS_MAX or self._cache_bytes > ANSWERS_BYTES_MAX:
            _, evicted = self._cache.popitem(last=False)
            self._cache_bytes -= len(evicted)

    def _evaluate(self, actor: Actor, demand: Demand, engine: str, request: FitRequest) -> FitAnswer:
        world = self._context.snapshots.world
        members = [member for member in world.members if actor.may_cluster(Role.VIEW, member)]
        visible_count = len(members)
        if request.only_fitting:
            members = list(compress(members, world.index.fits(demand, [member.graph for member in members], by=engine)))
        fits = [self._fit(world, member, demand, engine, with_now=request.now) for member in members]
        return FitAnswer(engine, visible_count, sum(fit.ever is True for fit in fits), fits)

    def _fit(self, world: World, member: Member, demand: Demand, engine: str, *, with_now: bool) -> Fit:
        graph = member.graph
        if graph is None:
            return Fit(member.name, ever=None, reason="its resources are not known yet", health=member.health.value)
        verdict = world.index.verdict(demand, graph, by=engine)
        if isinstance(verdict, Misfit):
            return Fit(
                member.name,
                ever=False,
                slots=verdict.slots,
                reason=verdict.reason,
                level=verdict.level,
                needs=verdict.needs,
                best=verdict.best,
                places=verdict.places,
                health=member.health.value,
            )
        now, now_reason = fits_now(self._context, member, demand, by=engine) if with_now else (None, "")
        return Fit(
            member.name,
            ever=True,
            slots=verdict.slots,
            reason=verdict.undecided,
            now=now,
            now_reason=now_reason,
            health=member.health.value,
        )


def _demand(request: FitRequest) -> Demand:
    if request.job is not None:
        if request.job.spec.demand is not None:
            check_demand(request.job.spec.demand)
        return demand_of_spec(request.job.spec)
    assert request.jobspec is not None
    check_jobspec(request.jobspec)
    return demand_of_any_jobspec(request.jobspec)
