"""The part of the server's config that policy uses: known names, and values that hold where no row sets another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec import Struct

from switchyard.model.rules.queue import Queue


@dataclass(frozen=True, slots=True)
class Platform:
    """Read at start. A change of the layout makes another platform (platform_layout.py).

    `values`: the value of each kind that holds everywhere. `domain_values`: those that hold in one domain.
    """

    domains: dict[str, str] = field(default_factory=dict)  # id → title
    pools: frozenset[str] = frozenset()
    labels: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()  # that some queue has
    queues: Mapping[str, Queue] = field(default_factory=dict)
    task_tokens: dict[str, dict[str, int]] = field(default_factory=dict)  # task type → token pool → tokens of a job
    tiers_s: dict[str, int] = field(default_factory=dict)  # tier → its queueing budget
    spill: dict[str, tuple[str, ...]] = field(default_factory=dict)  # pool → its spill rules; "": of all others
    values: dict[str, Struct] = field(default_factory=dict)  # kind → value
    domain_values: dict[str, dict[str, Struct]] = field(default_factory=dict)  # domain → kind → value
