"""What the server's config says about policy: the names there are, and what holds where no row says another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec import Struct

from switchyard.model.queue import Queue


@dataclass(frozen=True, slots=True)
class Platform:
    """Read once at start. `values`: of each kind what holds everywhere; `domain_values`: what holds in one domain."""

    domains: dict[str, str] = field(default_factory=dict)  # id → title
    pools: frozenset[str] = frozenset()
    labels: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()  # that some queue has
    queues: Mapping[str, Queue] = field(default_factory=dict)
    task_tokens: dict[str, dict[str, int]] = field(default_factory=dict)  # type of task → pool → what its jobs hold
    tiers_s: dict[str, int] = field(default_factory=dict)  # tier → its queueing budget
    spill: dict[str, tuple[str, ...]] = field(default_factory=dict)  # pool → its spill rules; "": of all others
    values: dict[str, Struct] = field(default_factory=dict)  # kind → value
    domain_values: dict[str, dict[str, Struct]] = field(default_factory=dict)  # domain → kind → value
