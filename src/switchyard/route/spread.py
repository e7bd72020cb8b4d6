"""Which clusters may lease tasks of an array, once its own cluster is chosen. Pure."""

from __future__ import annotations

from switchyard.route.checks import LAST_STEP
from switchyard.route.probation import ON_PROBATION
from switchyard.route.router import Eligibility
from switchyard.route.world import World

PROBATION_CLUSTERS_MAX = 8  # of one array
SPREAD_CLUSTERS_MAX = 64  # of one array; of more, those that rank first in its draw


def spread_names(eligibility: Eligibility, own: str, *, seed: str) -> list[str]:
    """Return the clusters that may lease tasks, in the order of their names. `own` is one of them.

    Weights and algorithms give an order: the chosen cluster is the first of it. They exclude no eligible cluster,
    except that an array which is to run where it costs least stays with the cheapest quotes.
    """
    names: tuple[str, ...] | list[str] = eligibility.eligible.names
    if eligibility.remaining and eligibility.algorithm != "cheapest":
        names = eligibility.remaining
    elif len(names) > SPREAD_CLUSTERS_MAX:
        names = [names[index] for index in eligibility.eligible.ranked(seed, SPREAD_CLUSTERS_MAX)]
    others = [name for name in names if name != own][: SPREAD_CLUSTERS_MAX - 1]
    return sorted([own, *others])


def probation_names(eligibility: Eligibility, world: World) -> list[str]:
    """Return clusters on probation that could run tasks of the array: they lease canaries."""
    if not (world.has_probation or world.owner_probations):
        return []
    return eligibility.verdicts.names(
        lambda verdict: verdict.step == LAST_STEP and ON_PROBATION in verdict.reason
    )[:PROBATION_CLUSTERS_MAX]
