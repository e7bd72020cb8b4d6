"""Which clusters may lease tasks of an array, once its own cluster is chosen. Pure."""

from __future__ import annotations

from switchyard.route.router import Eligibility

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
