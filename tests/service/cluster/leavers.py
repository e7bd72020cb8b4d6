"""Agents that leave their cluster."""

from __future__ import annotations

from switchyard.service.cluster import clusters
from switchyard.service.upkeep.leadership import TERM_US
from tests.service.rig import ADMIN, Rig


def names(rig: Rig) -> list[str]:
    return [cluster.name for cluster in clusters.cluster_list(rig.context, ADMIN)]


def wait(rig: Rig, seconds: float) -> None:
    """Time passes while this server leads: it renews its term."""
    while seconds > 0:
        rig.clock.wait(min(seconds, TERM_US / 2e6))
        seconds -= TERM_US / 2e6
        assert rig.leader.take(rig.context)
