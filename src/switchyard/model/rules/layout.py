"""How clusters are laid out: pools, labels and queues, and who gets which where a request says nothing.

The server's file is the base; what was set at run time lies over it. Values only: who may change them is not said here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from switchyard.model.rules.names import NAME_PATTERN, Name, is_name
from switchyard.model.rules.queue import DomainTags, Queue, QueueView

WEIGHT_MAX = 1e9  # far above any share one could mean, far below where a float's score of the draw overflows
MEMBERS_MAX = 20_000  # of one pool or label: twice the clusters a server is measured with
CLUSTER_SETS_MAX = 10_000  # pools and labels set at run time, together: every server keeps them all in memory

ClusterWeights = Mapping[str, float]  # cluster → weight
LayoutValue = dict[str, float] | str | Queue | list[str]  # of a part


class LayoutPart(StrEnum):
    """The parts of the layout that can be set at run time."""

    POOL = "pool"
    LABEL = "label"
    DEFAULT_LABEL = "default-label"
    DOMAIN_POOL = "domain-pool"
    STICKY = "sticky"  # whether a pool is
    QUEUE = "queue"
    DOMAIN_TAGS = "domain-tags"


class Layout(Struct, frozen=True, omit_defaults=True):
    """The whole layout. `clusters`: the clusters that the config file names, and whether each is enabled."""

    clusters: dict[str, bool] = {}
    pools: dict[str, dict[str, float]] = {}
    labels: dict[str, dict[str, float]] = {}
    default_label: str | None = None
    domain_pools: dict[str, str] = {}
    sticky: list[str] = []  # pools whose jobs no idle cluster takes over
    queues: dict[str, Queue] = {}
    domain_tags: dict[str, list[str]] = {}

    def get(self, part: LayoutPart, name: str) -> LayoutValue | None:
        if part is LayoutPart.POOL:
            return self.pools.get(name)
        if part is LayoutPart.LABEL:
            return self.labels.get(name)
        if part is LayoutPart.STICKY:
            return STICKY_VALUE if name in self.sticky else None
        if part is LayoutPart.QUEUE:
            return self.queues.get(name)
        if part is LayoutPart.DOMAIN_TAGS:
            return self.domain_tags.get(name)
        return self.default_label if part is LayoutPart.DEFAULT_LABEL else self.domain_pools.get(name)


STICKY_VALUE = "yes"
NO_LAYOUT = Layout()


class LayoutChange(Struct, frozen=True):
    """One part that was set at run time. No value: it was removed, even if the file defines it."""

    part: LayoutPart
    name: str
    value: LayoutValue | None


def apply_layout_changes(base: Layout, changes: Iterable[LayoutChange]) -> Layout:
    """Return the base with all changes applied."""
    pools, labels, domain_pools = dict(base.pools), dict(base.labels), dict(base.domain_pools)
    default_label, sticky = base.default_label, set(base.sticky)
    queues, domain_tags = dict(base.queues), dict(base.domain_tags)
    for change in changes:
        if change.part is LayoutPart.STICKY:
            sticky = sticky | {change.name} if change.value else sticky - {change.name}
        elif change.part is LayoutPart.DEFAULT_LABEL:
            default_label = change.value if isinstance(change.value, str) else None
        elif change.part is LayoutPart.DOMAIN_POOL:
            domain_pools.pop(change.name, None)
            if isinstance(change.value, str):
                domain_pools[change.name] = change.value
        elif change.part is LayoutPart.QUEUE:
            queues.pop(change.name, None)
            if isinstance(change.value, Queue):
                queues[change.name] = change.value
        elif change.part is LayoutPart.DOMAIN_TAGS:
            domain_tags.pop(change.name, None)
            if isinstance(change.value, list):
                domain_tags[change.name] = change.value
        else:
            sets = pools if change.part is LayoutPart.POOL else labels
            sets.pop(change.name, None)
            if isinstance(change.value, dict):
                sets[change.name] = change.value
    return replace(
        base,
        pools=pools,
        labels=labels,
        default_label=default_label,
        domain_pools=domain_pools,
        sticky=sorted(sticky & pools.keys()),
        queues=queues,
        domain_tags=domain_tags,
    )


class SetMember(Struct, frozen=True, forbid_unknown_fields=True):
    """A cluster in a pool or label. Jobs are drawn among eligible clusters in proportion to their weights.

    Looser than it means, so that every mistake in a set is said at once.
    """

    id: Annotated[str, Meta(max_length=128, extra_json_schema={"pattern": NAME_PATTERN})]
    weight: Annotated[float, Meta(extra_json_schema={"minimum": 0, "maximum": WEIGHT_MAX})] = 1.0


class SetRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """All members of a pool or label. Without members, no cluster may run its jobs.

    `sticky`: of a pool, whether idle clusters leave its jobs where they were drawn to; not given: as it was.
    """

    members: Annotated[list[SetMember], Meta(max_length=MEMBERS_MAX)]
    sticky: bool | None = None


class DefaultLabelRequest(Struct, frozen=True, forbid_unknown_fields=True):
    label: Name


class DomainPoolRequest(Struct, frozen=True, forbid_unknown_fields=True):
    pool: Name


class ClusterSet(Struct, frozen=True, omit_defaults=True):
    """A pool or a label, with the members that the caller may see. `source`: the file, or set at run time."""

    name: str
    members: list[SetMember]
    source: str
    etag: str
    changed_us: int | None = None
    changed_by: str = ""
    sticky: bool = False


class NamedDefault(Struct, frozen=True, omit_defaults=True):
    """A default for requests that name none: the default label, or the pool of a domain."""

    name: str
    source: str
    etag: str
    domain: str = ""
    changed_us: int | None = None
    changed_by: str = ""


class LayoutView(Struct, frozen=True, omit_defaults=True):
    """The whole layout. `clusters`: the clusters that the server's file names, and whether it enables each."""

    version: int
    pools: list[ClusterSet]
    labels: list[ClusterSet]
    default_label: NamedDefault | None = None
    domain_pools: list[NamedDefault] = []
    clusters: dict[str, bool] = {}
    queues: list[QueueView] = []
    domain_tags: list[DomainTags] = []


def set_mistakes(members: Sequence[SetMember], known: Collection[str]) -> list[str]:
    """Return all mistakes in the members of one pool or label."""
    return [
        *duplicate_mistakes(member.id for member in members),
        *(f"{member.id!r}: {wrong}" for member in members if (wrong := weight_mistake(member.weight))),
        *unknown_member_mistakes((member.id for member in members), known),
    ]


def has_right_form(members: Iterable[SetMember]) -> bool:
    """Whether each member is as the schema says, whatever else is wrong with the set."""
    return all(is_name(member.id) and not weight_mistake(member.weight) for member in members)


def duplicate_mistakes(names: Iterable[str]) -> list[str]:
    return [f"{name!r} is given twice" for name, count in Counter(names).items() if count > 1]


def unknown_member_mistakes(names: Iterable[str], known: Collection[str]) -> list[str]:
    listed = ", ".join(sorted(known)[:20]) or "none"
    return [
        f"{name!r} is no cluster; known: {listed}" if is_name(name) else f"{name!r} is not a valid name"
        for name in dict.fromkeys(names)
        if name not in known
    ]


def weight_mistake(weight: float) -> str:
    """Return why this is not a valid weight; empty: it is valid."""
    if not math.isfinite(weight) or weight < 0 or weight > WEIGHT_MAX:
        return f"the weight {weight:g} is not a number from 0 to {WEIGHT_MAX:g}"
    return ""
