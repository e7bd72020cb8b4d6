"""Would it fit? Every visible cluster's answer: ever, on the whole of it, and now, on what its agent says is free.

Ever depends on graphs alone, so the whole answer is kept for one version of the world; now is worked out each time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

import msgspec

from switchyard.match.demand import Demand
from switchyard.match.engine import Misfit, engine
from switchyard.match.free_graph import free_part
from switchyard.model.access import Role
from switchyard.model.cluster import Health
from switchyard.model.verdict import Fit, FitAnswer, FitRequest
from switchyard.route.world import Member, World
from switchyard.service.context import Context
from switchyard.service.rights import Actor
from switchyard.service.submit.demands import demand_of_any_jobspec, demand_of_spec

ANSWERS_MAX = 1024  # kept, of all shapes and actors
ANSWERS_BYTES_MAX = 64 * 2**20

_encoder = msgspec.json.Encoder()


class FitChecker:
    """The use case, with the answers it remembers."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._kept: OrderedDict[tuple[object, ...], bytes] = OrderedDict()
        self._kept_of: tuple[int, int] = (-1, -1)
        self._kept_bytes = 0
        self._lock = threading.Lock()  # the event loop looks, threads put
        self._asking = threading.Lock()  # the index remembers what it is asked, one at a time

    def kept(self, actor: Actor, request: FitRequest) -> bytes | None:
        """The answer as JSON, if it was given before and still holds. Quick enough for the event loop."""
        if request.now:
            return None
        versions = self._context.snapshots.versions
        with self._lock:
            if self._kept_of != versions:
                self._kept, self._kept_of, self._kept_bytes = OrderedDict(), versions, 0
            return self._kept.get(self._key(actor, request))

    def answer(self, actor: Actor, request: FitRequest) -> bytes:
        """The answer as JSON, worked out if need be."""
        if (found := self.kept(actor, request)) is not None:
            return found
        versions = self._context.snapshots.versions
        demand, name = _demand(request), self._engine(request)
        body = _encoder.encode(self._asked(actor, demand, name, request))
        if not request.now:
            with self._lock:
                if self._kept_of == versions:
                    self._keep(self._key(actor, request), body)
        return body

    def _key(self, actor: Actor, request: FitRequest) -> tuple[object, ...]:
        return (actor.id, _demand(request).key, self._engine(request), request.only_fitting)

    def _engine(self, request: FitRequest) -> str:
        return self._context.engines.choose(request.match_engine or (request.job.match_engine if request.job else None))

    def _keep(self, key: tuple[object, ...], body: bytes) -> None:
        kept = self._kept
        if key in kept:
            return
        kept[key] = body
        self._kept_bytes += len(body)
        while len(kept) > ANSWERS_MAX or self._kept_bytes > ANSWERS_BYTES_MAX:
            _, gone = kept.popitem(last=False)
            self._kept_bytes -= len(gone)

    def _asked(self, actor: Actor, demand: Demand, name: str, request: FitRequest) -> FitAnswer:
        world = self._context.snapshots.world
        members = [member for member in world.members if actor.may_cluster(Role.VIEW, member)]
        asked = len(members)
        if request.only_fitting and not demand.is_by_name:
            # The index knows them without asking each of the others for its reason.
            with self._asking:
                groups = world.index.matching(demand, by=name).groups
            fitting = {world.index.ids[number] for _, _, numbers in groups for number in numbers}
            members = [member for member in members if member.id in fitting]
        found = [self._fit(world, member, demand, name, with_now=request.now) for member in members]
        shown = [fit for fit in found if fit.ever] if request.only_fitting else found
        return FitAnswer(name, asked, sum(fit.ever is True for fit in found), shown)

    def _fit(self, world: World, member: Member, demand: Demand, name: str, *, with_now: bool) -> Fit:
        graph = member.graph
        if graph is None:
            return Fit(member.name, ever=None, reason="nobody has said what it has", health=member.health.value)
        said = world.index.verdict(demand, graph, by=name)
        if isinstance(said, Misfit):
            return Fit(
                member.name,
                ever=False,
                slots=said.slots,
                reason=said.reason,
                level=said.level,
                needs=said.needs,
                best=said.best,
                places=said.places,
                health=member.health.value,
            )
        now, why = fits_now(self._context, member, demand, by=name) if with_now else (None, "")
        return Fit(
            member.name,
            ever=True,
            slots=said.slots,
            reason=said.undecided,
            now=now,
            now_reason=why,
            health=member.health.value,
        )


def fits_now(context: Context, member: Member, demand: Demand, *, by: str) -> tuple[bool | None, str]:
    """From what the agent last said is free; that it is up and takes jobs at all comes first. None: nobody knows."""
    if member.health is not Health.UP:
        return False, f"{member.health.value}: {member.reason}".rstrip(": ")
    load, graph = context.snapshots.load_of(member.id), member.graph
    if load is None or load.free is None or graph is None or load.signature != graph.signature:
        return None, "its agent does not say what is free on which node"
    free = free_part(graph, load.free)
    if free is None:
        return False, "nothing is free"
    said = engine(by).satisfy(demand, free)
    return (False, said.reason) if isinstance(said, Misfit) else (True, said.undecided)


def _demand(request: FitRequest) -> Demand:
    if request.job is not None:
        return demand_of_spec(request.job.spec)
    assert request.jobspec is not None
    return demand_of_any_jobspec(request.jobspec)
