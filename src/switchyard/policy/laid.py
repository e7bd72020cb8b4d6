"""What policy knows of pools, labels and queues follows how they are laid out now, not how they were at the start."""

from __future__ import annotations

from dataclasses import replace

from msgspec import Struct

from switchyard.model.layout import Layout
from switchyard.model.queue import known_tags
from switchyard.policy.kinds.cluster_assignment import ClusterAssignment, ClusterAssignmentValue
from switchyard.policy.kinds.execution_cluster_label import ExecutionClusterLabel, ExecutionClusterLabelValue
from switchyard.policy.kinds.execution_queue import ExecutionQueue, ExecutionQueueValue
from switchyard.policy.platform import Platform

LAID = (ClusterAssignment.name, ExecutionQueue.name)  # the kinds of which a domain has its value from the layout


def platform_with(platform: Platform, layout: Layout) -> Platform:
    """The platform with the names and defaults of this layout in place of those it had."""
    values = {kind: value for kind, value in platform.values.items() if kind != ExecutionClusterLabel.name}
    if layout.default_label is not None:
        values[ExecutionClusterLabel.name] = ExecutionClusterLabelValue(layout.default_label)
    domain_values: dict[str, dict[str, Struct]] = {}
    for domain, found in platform.domain_values.items():
        domain_values[domain] = {kind: value for kind, value in found.items() if kind not in LAID}
    for domain, pool in layout.domain_pools.items():
        domain_values.setdefault(domain, {})[ClusterAssignment.name] = ClusterAssignmentValue(pool)
    for domain, tags in layout.domain_tags.items():
        domain_values.setdefault(domain, {})[ExecutionQueue.name] = ExecutionQueueValue(tags)
    return replace(
        platform,
        pools=frozenset(layout.pools),
        labels=frozenset(layout.labels),
        tags=known_tags(layout.queues),
        queues=layout.queues,
        values=values,
        domain_values=domain_values,
    )
