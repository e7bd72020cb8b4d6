"""The nodes that a lease tells its backend to avoid, as far as the cluster can spare them. Pure."""

from __future__ import annotations

from collections.abc import Collection

from switchyard.agent.loop.need import spec_of
from switchyard.model.cluster.poll import AVOIDED_NODES_SHARE, Lease


def avoided_nodes(lease: Lease, names: Collection[str]) -> list[str]:
    """Return the nodes of `names` that the attempt is not to run on: none, if they are too many to do without."""
    known = sorted(set(lease.avoid_nodes).intersection(names))
    left = len(names) - len(known)
    is_spared = len(known) * AVOIDED_NODES_SHARE <= len(names) and left >= (spec_of(lease).resources.nodes or 1)
    return known if is_spared else []
