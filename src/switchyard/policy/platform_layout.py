"""Update the platform's pools, labels and queues from the current layout. Pure."""

from __future__ import annotations

from dataclasses import replace

from msgspec import Struct

from switchyard.model.rules.layout import Layout
from switchyard.model.rules.queue import known_tags
from switchyard.policy.kinds.cluster_assignment import ClusterAssignmentKind, ClusterAssignmentValue
from switchyard.policy.kinds.execution_cluster_label import ExecutionClusterLabelKind, ExecutionClusterLabelValue
from switchyard.policy.kinds.execution_queue import ExecutionQueueKind, ExecutionQueueValue
from switchyard.policy.platform import Platform

LAYOUT_KINDS = (ClusterAssignmentKind.name, ExecutionQueueKind.name)  # a domain's value comes from the layout


def platform_with_layout(platform: Platform, layout: Layout) -> Platform:
    """Return the platform with the names and defaults of this layout instead of its own."""
    values = {kind: value for kind, value in platform.values.items() if kind != ExecutionClusterLabelKind.name}
    if layout.default_label is not None:
        values[ExecutionClusterLabelKind.name] = ExecutionClusterLabelValue(layout.default_label)
    domain_values: dict[str, dict[str, Struct]] = {}
    for domain, by_kind in platform.domain_values.items():
        domain_values[domain] = {kind: value for kind, value in by_kind.items() if kind not in LAYOUT_KINDS}
    for domain, pool in layout.domain_pools.items():
        domain_values.setdefault(domain, {})[ClusterAssignmentKind.name] = ClusterAssignmentValue(pool)
    for domain, tags in layout.domain_tags.items():
        domain_values.setdefault(domain, {})[ExecutionQueueKind.name] = ExecutionQueueValue(tags)
    return replace(
        platform,
        pools=frozenset(layout.pools),
        labels=frozenset(layout.labels),
        tags=known_tags(layout.queues),
        queues=layout.queues,
        values=values,
        domain_values=domain_values,
    )
