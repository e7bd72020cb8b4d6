"""What bounds where a job may go, as it is stored on the job: a later decision needs it again."""

from __future__ import annotations

import dataclasses

import msgspec
from msgspec import Struct

from switchyard.errors import UnknownName
from switchyard.match.demand import Demand
from switchyard.model.job import JobRequest
from switchyard.model.quantity import parse_duration_s
from switchyard.model.spill import opened_pools, parse_rule, pools_in_rules
from switchyard.policy.draft import Draft
from switchyard.route.router import Eligibility, evaluate
from switchyard.route.routing_request import RoutingRequest
from switchyard.route.world import World
from switchyard.service.rights import Actor
from switchyard.service.submit.selection_settings import NamedAlgorithm


class Bounds(Struct, frozen=True, omit_defaults=True):
    """`named`: clusters the request was bounded to; none: no bound. `by_token`: those it holds a submit token for.

    `settled`: the cluster that was chosen and told to its submitter, where that is a promise.
    """

    named: tuple[str, ...] | None = None
    by_token: tuple[str, ...] = ()
    pool: str | None = None
    label: str | None = None
    tags: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    needs_backend: bool = False
    is_interruptible: bool = False
    engine: str | None = None  # the match engine it asked for
    select: NamedAlgorithm | None = None  # the selection algorithm it asked for, with its options
    parameters: str = ""  # what that may reckon with, as JSON
    is_array: bool = False
    order: tuple[str, ...] = ()  # the clusters as the request lists them: steps that do not sort go by it
    spill: tuple[str, ...] = ()  # what becomes of it when it waits for long (model/spill.py)
    spill_from: str = ""  # who gave these rules
    within_s: int | None = None  # by its own word too late to begin, where such a rule may end the waiting sooner
    settled: str | None = None

    def allows(self, cluster_id: str) -> bool:
        """Whether the request, or what was promised, leaves this cluster in."""
        return self.settled in (None, cluster_id) and (self.named is None or cluster_id in self.named)

    def ask(
        self,
        demand: Demand,
        owner: Actor,
        world: World,
        *,
        engine: str,
        last: tuple[tuple[str, str], ...] = (),
        hidden: frozenset[str] | None = None,
        waited_s: float = 0,
    ) -> RoutingRequest:
        """What the job asks of the router, with the grants its owner has now and the pools its waiting has opened."""
        by_token = frozenset(self.by_token)
        return RoutingRequest(
            demand,
            granted=_union_or_same(owner.granted_clusters(world), by_token),
            hidden=owner.hidden_clusters(world) - by_token if hidden is None else hidden,
            named=None if self.named is None else frozenset(self.named),
            settled=self.settled,
            last=last,
            pool=self.pool,
            spilled=opened_pools(self.spill, waited_s) if self.spill else (),
            label=self.label,
            tags=self.tags,
            backends=self.backends,
            needs_backend=self.needs_backend,
            is_interruptible=self.is_interruptible,
            is_array=self.is_array,
            engine=engine,
        )


def _union_or_same(granted: frozenset[str], by_token: frozenset[str]) -> frozenset[str]:
    """A set that nothing is added to stays the same one: thousands of ids are then not compared one by one."""
    return granted | by_token if by_token else granted


def bounds_of(
    named: frozenset[str] | None,
    by_token: frozenset[str],
    draft: Draft,
    request: JobRequest,
    *,
    select: NamedAlgorithm | None,
) -> Bounds:
    return Bounds(
        None if named is None else tuple(sorted(named)),
        tuple(sorted(by_token)),
        draft.pool,
        draft.label,
        draft.tags,
        draft.backends,
        draft.needs_backend,
        draft.is_interruptible,
        request.match_engine,
        select,
        msgspec.json.encode(request.parameters, order="sorted").decode() if request.parameters else "",
        request.array is not None,
        tuple(each.name for each in request.clusters),
        draft.spill,
        draft.spill_from,
        parse_duration_s(request.expires_after) if draft.spill and request.expires_after is not None else None,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class RetryBounds:
    """What bounds a retry: the clusters of the job before, and those of them that its token still opens."""

    named: tuple[str, ...] | None
    by_token: tuple[str, ...]
    settled: str | None

    def narrow(self, bounds: Bounds) -> Bounds:
        return msgspec.structs.replace(bounds, named=self.named, by_token=self.by_token, settled=self.settled)


def retry_bounds(before: Bounds, *, by_token: tuple[str, ...], is_elsewhere: bool) -> RetryBounds:
    """Elsewhere it leaves the cluster it was pinned to or promised, and never those that its tokens bound it to."""
    if is_elsewhere:
        return RetryBounds(before.by_token or None, by_token, None)
    return RetryBounds(before.named, by_token, before.settled)


def evaluate_with_spill(bounds: Bounds, ask: RoutingRequest, world: World) -> Eligibility:
    """The ruling on a job's ask. What only a pool that opens later could run waits for it instead of being rejected."""
    ruling = evaluate(ask, world)
    if ruling.outcome != "reject" or ask.spilled == (pools := pools_in_rules(bounds.spill)):
        return ruling
    if evaluate(dataclasses.replace(ask, spilled=pools), world).outcome == "reject":
        return ruling
    coming = next(each for each in map(parse_rule, bounds.spill) if each.pool not in (None, *ask.spilled))
    return dataclasses.replace(
        ruling, outcome="hold", reason=f"waits: after {coming.after} it may run in pool {coming.pool}; {ruling.reason}"
    )


def refuse_empty_pool_or_label(bounds: Bounds, world: World) -> None:
    """Fail closed: a pool or label whose every cluster is unknown is as unknown as they are."""
    for word, name, sets in (("pool", bounds.pool, world.pools), ("label", bounds.label, world.labels)):
        members = sets.get(name, {}) if name is not None else {}
        if members and not any(each in world.by_name for each in members):
            known = (each for each in sorted(sets) if any(member in world.by_name for member in sets[each]))
            raise UnknownName(
                f"There is no {word} {name!r} to speak of: none of its clusters is registered.",
                next_step=f"Known {word}s: {', '.join(known) or 'none'}.",
            )


def encode_bounds(bounds: Bounds) -> str:
    return msgspec.json.encode(bounds).decode()


def decode_bounds(text: str) -> Bounds:
    return msgspec.json.decode(text, type=Bounds)
