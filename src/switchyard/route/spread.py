"""Which clusters may lease tasks of an array, once its own cluster is chosen. Pure."""

from __future__ import annotations

from switchyard.route.router import Eligibility

SPREAD_CLUSTERS_MAX = 64  # of one array; of more, those that rank first in its draw


def spread_names(ruling: Eligibility, chosen: str, *, seed: str) -> list[str]:
    """Return the clusters that may lease tasks, in the order of their names. `chosen` is one of them.

    Weights and algorithms give an order: the chosen cluster is the first of it. They exclude no eligible cluster,
    except that an array which is to run where it costs least stays with the cheapest quotes.
    """
    names: tuple[str, ...] | list[str] = ruling.eligible.names
    if ruling.remaining and ruling.algorithm != "cheapest":
        names = ruling.remaining
    elif len(names) > SPREAD_CLUSTERS_MAX:
        names = [names[index] for index in ruling.eligible.ranked(seed, SPREAD_CLUSTERS_MAX)]
    others = [name for name in names if name != chosen][: SPREAD_CLUSTERS_MAX - 1]
    return sorted([chosen, *others])
