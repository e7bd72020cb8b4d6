"""The bounds of a job: where it may run. A request, a draft, a stored job and the router hold the same value. Pure.

They are stored with the job, because later routing decisions need them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from switchyard.model.job.job import JobRequest
from switchyard.model.job.site_needs import SiteAsk
from switchyard.model.jobspec.version_1 import version_1_refusal

NamedAlgorithm = tuple[str, str]  # name, and options as JSON with sorted keys


class Bounds(Struct, frozen=True, omit_defaults=True):
    """Limits on where a job may run. Rules of its scope and submit tokens add to those of the request.

    `named`: ids of the clusters that the request names, sorted; None: any. `by_token`: clusters that the job has a
    submit token for. `by_saved_token`: further clusters that saved submit tokens open. `settled`: the chosen cluster,
    if the answer to the submitter promised it.
    """

    named: tuple[str, ...] | None = None
    by_token: tuple[str, ...] = ()
    by_saved_token: tuple[str, ...] = ()
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
    iam_role: str = ""  # that the job runs as; jobs from before this field say nothing
    has_pod: bool = False  # the job brings parts of a pod
    flux_refusal: str = ""  # why no Flux cluster can run the job's jobspec; jobs from before this field say nothing

    @staticmethod
    def of(request: JobRequest) -> Bounds:
        """Return the bounds that the request sets itself."""
        spec, is_array = request.spec, request.array is not None
        return Bounds(
            pool=request.pool,
            label=request.cluster_label,
            tags=tuple(request.tags),
            engine=request.match_engine,
            parameters=msgspec.json.encode(request.parameters, order="sorted").decode() if request.parameters else "",
            is_array=is_array,
            order=tuple(cluster.name for cluster in request.clusters),
            is_together=request.together and is_array,
            image=spec.image or "",
            has_files=spec.files is not None,
            site=None if spec.site is None else SiteAsk(request.project, spec.site),
            has_pod=spec.pod is not None,
            flux_refusal="" if spec.demand is None else version_1_refusal(spec.demand),
        )

    @property
    def opened(self) -> frozenset[str]:
        """The clusters that need no grant, because the job has a submit token of them."""
        return frozenset((*self.by_token, *self.by_saved_token))

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


NO_BOUNDS = Bounds()


@dataclass(frozen=True, slots=True)
class RetryBounds:
    """The bounds of a retry, taken from the old job. Of its submit tokens only those count that are still valid."""

    named: tuple[str, ...] | None
    by_token: tuple[str, ...]
    settled: str | None
    by_saved_token: tuple[str, ...] = ()

    def narrow(self, bounds: Bounds) -> Bounds:
        return replace(
            bounds,
            named=self.named,
            by_token=self.by_token,
            by_saved_token=self.by_saved_token,
            settled=self.settled,
        )


def retry_bounds(old: Bounds, *, opened: Collection[str], is_elsewhere: bool) -> RetryBounds:
    """Return the bounds of a retry. `opened`: clusters that still have a valid submit token.

    `is_elsewhere` drops the named and promised clusters, but not those that were named with their tokens.
    """
    by_token = tuple(cluster for cluster in old.by_token if cluster in opened)
    by_saved_token = tuple(cluster for cluster in old.by_saved_token if cluster in opened)
    if is_elsewhere:
        return RetryBounds(old.by_token or None, by_token, None, by_saved_token)
    return RetryBounds(old.named, by_token, old.settled, by_saved_token)


def encode_bounds(bounds: Bounds) -> str:
    return msgspec.json.encode(bounds).decode()


def decode_bounds(text: str) -> Bounds:
    return msgspec.json.decode(text, type=Bounds)
