"""Check whether a job fits each visible cluster: `ever` on the whole cluster, `now` on its free resources.

`ever` depends only on graphs, so answers are cached until a snapshot changes. `now` is computed for each request.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from itertools import compress

import msgspec
from msgspec.structs import replace

from switchyard.match.demand import Demand
from switchyard.match.engine import Misfit
from switchyard.model.cluster.verdict import Fit, FitAnswer, FitRequest
from switchyard.model.jobspec.alternatives import set_names
from switchyard.model.rules.access import Role
from switchyard.route.member import Member
from switchyard.route.world import World
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.lifecycle.demands import (
    check_demand,
    check_jobspec,
    demand_of_any_jobspec,
    demand_of_spec,
    demands_of_sets,
)
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
        body = _encoder.encode(self._answer(actor, request))
        if not request.now:
            with self._lock:
                if self._cache_versions == versions:
                    self._store(self._key(actor, request), body)
        return body

    def _key(self, actor: Actor, request: FitRequest) -> tuple[object, ...]:
        spec = request.job.spec if request.job is not None else None
        sets = (spec.resources, spec.alternatives) if spec is not None and spec.alternatives else ()
        return (actor.id, _demand(request).key, self._engine(request), request.only_fitting, sets)

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

    def _answer(self, actor: Actor, request: FitRequest) -> FitAnswer:
        """Answer for the job's one demand. With alternatives: each cluster answers for the first set that fits it."""
        engine, spec = self._engine(request), request.job.spec if request.job is not None else None
        if spec is None or not spec.alternatives:
            return self._evaluate(actor, _demand(request), engine, request)
        every = replace(request, only_fitting=False)
        answers = [self._evaluate(actor, demand, engine, every) for demand in demands_of_sets(spec)]
        names, items = set_names(spec), []
        for fits in zip(*(answer.items for answer in answers), strict=True):
            number = next((place for place, fit in enumerate(fits) if fit.ever is True), 0)
            if fits[number].ever is True or not request.only_fitting:
                items.append(_named(fits[number], names[number], [fit.reason for fit in fits], names))
        return FitAnswer(engine, answers[0].asked, sum(fit.ever is True for fit in items), items)

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


def _named(fit: Fit, name: str, reasons: Sequence[str], names: Sequence[str]) -> Fit:
    """Say in the answer of one cluster which set it is about; of a no, why none fits."""
    if fit.ever is True:
        return replace(fit, reason=f"{name}: {fit.reason or 'fits'}")
    if fit.ever is None:
        return fit
    told = (f"{set_name}: {reason}" for set_name, reason in zip(names, reasons, strict=True))
    return replace(fit, reason="; or ".join(told))


def _demand(request: FitRequest) -> Demand:
    if request.job is not None:
        if request.job.spec.demand is not None:
            check_demand(request.job.spec.demand)
        return demand_of_spec(request.job.spec)
    assert request.jobspec is not None
    check_jobspec(request.jobspec)
    return demand_of_any_jobspec(request.jobspec)
