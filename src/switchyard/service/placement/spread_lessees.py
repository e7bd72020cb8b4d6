"""Which clusters may lease tasks of an array that gets a cluster now."""

from __future__ import annotations

from switchyard.model.cluster.verdict import Plan
from switchyard.route.router import Eligibility
from switchyard.route.world import World
from switchyard.service.core.context import Context
from switchyard.service.lifecycle.array_spread import spread_text
from switchyard.service.lifecycle.bounds import Bounds


def spread_of(context: Context, ruling: Eligibility, bounds: Bounds, world: World, decided: Plan) -> str | None:
    """Return the column `spread` of a job by its decision. None: no array, no cluster yet, or one cluster alone."""
    if not bounds.is_array or decided.chosen is None:
        return None
    sticky_pools = context.snapshots.laid.layout.sticky
    return spread_text(ruling, bounds, world, chosen=decided.chosen, seed=decided.seed, sticky_pools=sticky_pools)
