"""What is known of a cluster now, value by value: what its agents said with their polls, over it what was set by hand.

A value that an agent said is stale when it was not said again for long; one that was set by hand holds until changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from switchyard.errors import BadRequest
from switchyard.model.cluster import Load
from switchyard.model.graph import Graph
from switchyard.model.selection import Scalar, StateValue
from switchyard.route.operators import ExpressionValue
from switchyard.service.snapshots import Snapshots
from switchyard.service.submit.selection_settings import SelectionSettings

MANUAL_VALUES_MAX = 256  # values set by hand, of one cluster
ManualValue = tuple[Scalar, int, str]  # a value, since when, by whom


def state_values(snapshots: Snapshots, cluster_id: str, *, now_us: int, stale_after_us: int) -> list[StateValue]:
    """Every value by its name; where agents differ, the one that spoke last is right."""
    found: dict[str, StateValue] = {}
    fleet = snapshots.fleet
    row = fleet.rows.get(cluster_id)
    agents = [agent for agent in fleet.by_cluster.get(cluster_id, ()) if agent in snapshots.loads]
    for agent in sorted(agents, key=lambda each: snapshots.told.get(each, 0)):
        at_us = snapshots.told.get(agent, 0)
        is_stale = now_us - at_us > stale_after_us
        by = f"agent {fleet.agents[agent].name}"
        for name, value in _load_values(snapshots.loads[agent], row.graph if row else None).items():
            found[name] = StateValue(name=name, value=value, at_us=at_us, by=by, is_stale=is_stale)
    for name, (value, at_us, by) in (row.state if row else {}).items():
        found[name] = StateValue(name=name, value=value, at_us=at_us, by=by)
    return [found[name] for name in sorted(found)]


def selection_values(
    snapshots: Snapshots, names: Iterable[str], selections: SelectionSettings, *, now_us: int
) -> dict[str, dict[str, ExpressionValue]]:
    """What selection may reckon with, by cluster: numbers as floats, and stale values only if they are to be used."""
    by_name, found = snapshots.world.by_name, {}
    for name in names:
        if name not in by_name:
            continue  # gone since the names were taken
        state = state_values(snapshots, by_name[name].id, now_us=now_us, stale_after_us=selections.stale_after_us)
        used = [each for each in state if selections.is_stale_used or not each.is_stale]
        found[name] = {each.name: to_selection_value(each.value) for each in used}
    return found


def to_selection_value(value: Scalar) -> ExpressionValue:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def set_manual_values(text: str, change: Mapping[str, Scalar | None], *, at_us: int, by: str) -> str:
    """The stored form with these changed; none takes one away."""
    values = read_manual_values(text)
    for name, value in change.items():
        if value is None:
            values.pop(name, None)
        else:
            values[name] = (value, at_us, by)
    if len(values) > MANUAL_VALUES_MAX:
        raise BadRequest(
            f"A cluster has at most {MANUAL_VALUES_MAX} values set by hand; these would be {len(values)}.",
            next_step="Take some away first: `yard cluster set-state NAME K=`.",
        )
    return msgspec.json.encode(values, order="sorted").decode()


def read_manual_values(text: str) -> dict[str, ManualValue]:
    return msgspec.json.decode(text, type=dict[str, ManualValue])


def _load_values(load: Load, graph: Graph | None) -> dict[str, Scalar]:
    """A load as single values; what the site adds may not stand in for what the agent itself has seen."""
    own: dict[str, Scalar | None] = {
        "free_cores": load.free_cores,
        "free_gpus": load.free_gpus,
        "free_memory_bytes": load.free_memory_bytes,
        "free_nodes": _free_nodes(load, graph),
        "running": load.running,
        "queued": load.queued,
    }
    return load.values | {name: value for name, value in own.items() if value is not None}


def _free_nodes(load: Load, graph: Graph | None) -> int | None:
    """Nodes with all of their cores left; none: nobody knows."""
    if load.free is None or graph is None or load.signature != graph.signature:
        return None
    return sum(each.count for each in load.free if each.core >= graph.within[each.shape].get("core", 0))
