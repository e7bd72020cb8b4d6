"""The bounds of a job: where it may run. They are stored with the job, because later routing decisions need them."""

from __future__ import annotations

import dataclasses

import msgspec
from msgspec import Struct

from switchyard.errors import UnknownName
from switchyard.match.demand import Demand
from switchyard.model.job.job import JobRequest, JobSpec
from switchyard.model.job.site_needs import SiteAsk
from switchyard.model.job.spill import opened_pools, parse_rule, pools_in_rules
from switchyard.model.jobspec.quantity import parse_duration_s
from switchyard.model.jobspec.version_1 import version_1_refusal
from switchyard.policy.draft import Draft
from switchyard.route.router import Eligibility, evaluate
from switchyard.route.routing_request import RoutingRequest
from switchyard.route.world import World
from switchyard.service.core.rights import Actor
from switchyard.service.core.snapshots.selection_settings import NamedAlgorithm


class Bounds(Struct, frozen=True, omit_defaults=True):
    """Limits on where a job may run. They are part of the stored job.

    `named`: clusters that the request names; None: any. `by_token`: clusters that the job has a submit token for.
    `settled`: the chosen cluster, if the answer to the submitter promised it.
    """

    named: tuple[str, ...] | None = None
    by_token: tuple[str, ...] = ()
    pool: str | None = None
    label: str | None = None
    tags: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    needs_backend: bool = False
    is_interruptible: bool = False
    engine: str | None = None  # the requested match engine
    select: NamedAlgorithm | None = None  # the requested selection algorithm, with its options
    parameters: str = ""  # the job's parameters for that algorithm, as JSON
    is_array: bool = False
    order: tuple[str, ...] = ()  # the clusters in the request's order, for steps that do not sort
    spill: tuple[str, ...] = ()  # spill rules (model/job/spill.py)
    spill_from: str = ""  # where the spill rules come from
    within_s: int | None = None  # the job's `expires_after`, if it has spill rules, which may end the wait sooner
    settled: str | None = None
    is_together: bool = False  # an array that stays on one cluster
    begun_on: str | None = None  # the cluster that leased tasks of an array together: the rest stays there
    image: str = ""  # that the job names; empty: none, or a job from before clusters had rules for images
    has_files: bool = False  # files travel with the job; jobs from before this field say no
    site: SiteAsk | None = None  # what the job needs of a site file
    has_pod: bool = False  # the job brings parts of a pod
    flux_refusal: str = ""  # why no Flux cluster can run the job's jobspec; jobs from before this field say nothing

    @property
    def is_decided(self) -> bool:
        """Whether the cluster is decided already: by a promise, or because tasks of an array together have begun."""
        return self.settled is not None or self.begun_on is not None

    @property
    def is_one_cluster(self) -> bool:
        """Whether the request or a promise names the one cluster where the job may run."""
        return self.settled is not None or (self.named is not None and len(self.named) == 1)

    def allows(self, cluster_id: str) -> bool:
        """Whether the request and the promised cluster allow this cluster."""
        return self.settled in (None, cluster_id) and (self.named is None or cluster_id in self.named)

    def ask(
        self,
        demand: Demand,
        owner: Actor,
        world: World,
        *,
        engine: str,
        last: tuple[tuple[str, str], ...] = (),
        refused: tuple[tuple[str, str], ...] = (),
        hidden: frozenset[str] | None = None,
        waited_s: float = 0,
        time_limit_s: int | None = None,
    ) -> RoutingRequest:
        """Return the job's routing request, with the owner's current grants and the pools that spill rules opened."""
        by_token = frozenset(self.by_token)
        return RoutingRequest(
            demand,
            granted=_union_or_same(owner.granted_clusters(world), by_token),
            hidden=owner.hidden_clusters(world) - by_token if hidden is None else hidden,
            named=None if self.named is None else frozenset(self.named),
            settled=self.settled,
            begun_on=self.begun_on,
            last=last,
            refused=refused,
            pool=self.pool,
            spilled=opened_pools(self.spill, waited_s) if self.spill else (),
            label=self.label,
            backends=self.backends,
            needs_backend=self.needs_backend,
            is_interruptible=self.is_interruptible,
            is_array=self.is_array,
            image=self.image,
            has_files=self.has_files,
            site=self.site,
            has_pod=self.has_pod,
            flux_refusal=self.flux_refusal,
            engine=engine,
            time_limit_s=time_limit_s if world.has_ends else None,
        )


def time_limit_s_of(spec: JobSpec) -> int | None:
    limit = spec.resources.time_limit
    return None if limit is None else parse_duration_s(limit)


def _union_or_same(granted: frozenset[str], by_token: frozenset[str]) -> frozenset[str]:
    """Return the union; if `by_token` is empty, the same set object, so that comparing sets of thousands is fast."""
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
        tuple(cluster.name for cluster in request.clusters),
        draft.spill,
        draft.spill_from,
        parse_duration_s(request.expires_after) if draft.spill and request.expires_after is not None else None,
        is_together=request.together and request.array is not None,
        image=request.spec.image or "",
        has_files=request.spec.files is not None,
        site=None if request.spec.site is None else SiteAsk(request.project, request.spec.site),
        has_pod=request.spec.pod is not None,
        flux_refusal=version_1_refusal(request.spec.demand),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class RetryBounds:
    """The bounds of a retry, taken from the old job. `by_token`: clusters that still have a valid submit token."""

    named: tuple[str, ...] | None
    by_token: tuple[str, ...]
    settled: str | None

    def narrow(self, bounds: Bounds) -> Bounds:
        return msgspec.structs.replace(bounds, named=self.named, by_token=self.by_token, settled=self.settled)


def retry_bounds(old: Bounds, *, by_token: tuple[str, ...], is_elsewhere: bool) -> RetryBounds:
    """Return the bounds of a retry. `is_elsewhere` drops the named and promised clusters, but not the tokens' ones."""
    if is_elsewhere:
        return RetryBounds(old.by_token or None, by_token, None)
    return RetryBounds(old.named, by_token, old.settled)


def evaluate_with_spill(bounds: Bounds, ask: RoutingRequest, world: World) -> Eligibility:
    """Evaluate a job's request. A job that only a pool of a later spill rule can run is held, not rejected."""
    ruling = evaluate(ask, world)
    if ruling.outcome != "reject" or ask.spilled == (pools := pools_in_rules(bounds.spill)):
        return ruling
    if evaluate(dataclasses.replace(ask, spilled=pools), world).outcome == "reject":
        return ruling
    rule = next(rule for rule in map(parse_rule, bounds.spill) if rule.pool not in (None, *ask.spilled))
    reason = f"waits: after {rule.after} it may run in pool {rule.pool}; {ruling.reason}"
    return dataclasses.replace(ruling, outcome="hold", reason=reason)


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


def encode_bounds(bounds: Bounds) -> str:
    return msgspec.json.encode(bounds).decode()


def decode_bounds(text: str) -> Bounds:
    return msgspec.json.decode(text, type=Bounds)
