"""What is known of a cluster now: values from its agents' polls, overridden by values that operators set by hand.

An agent's value becomes stale when the agent does not repeat it. A manual value holds until it is changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from switchyard.errors import BadRequest
from switchyard.model.cluster.cluster import Load
from switchyard.model.cluster.selection import Scalar, StateValue
from switchyard.model.graph import Graph
from switchyard.route.member import Member
from switchyard.route.operators import ExpressionValue
from switchyard.service.core.context import Context
from switchyard.service.core.snapshots.selection_settings import SelectionSettings
from switchyard.service.core.snapshots.snapshots import Snapshots
from switchyard.store.clusters.cluster_samples import ClusterSample

MANUAL_VALUES_MAX = 256  # per cluster
ManualValue = tuple[Scalar, int, str]  # value, time of the change, user


def state_values(snapshots: Snapshots, cluster_id: str, *, now_us: int, stale_after_us: int) -> list[StateValue]:
    """Return a cluster's state values, sorted by name. If agents differ, the last report wins."""
    values: dict[str, StateValue] = {}
    fleet = snapshots.fleet
    row = fleet.rows.get(cluster_id)
    agents = [agent for agent in fleet.by_cluster.get(cluster_id, ()) if agent in snapshots.loads]
    for agent in sorted(agents, key=lambda agent_id: snapshots.load_times.get(agent_id, 0)):
        at_us = snapshots.load_times.get(agent, 0)
        is_stale = now_us - at_us > stale_after_us
        by = f"agent {fleet.agents[agent].name}"
        for name, value in _load_values(snapshots.loads[agent], row.graph if row else None).items():
            values[name] = StateValue(name=name, value=value, at_us=at_us, by=by, is_stale=is_stale)
    for name, (value, at_us, by) in (row.state if row else {}).items():
        values[name] = StateValue(name=name, value=value, at_us=at_us, by=by)
    return [values[name] for name in sorted(values)]


def selection_values(
    snapshots: Snapshots, names: Iterable[str], selections: SelectionSettings, *, now_us: int
) -> dict[str, dict[str, ExpressionValue]]:
    """Return the values that selection may use, by cluster name: integers as floats, stale values only if allowed."""
    by_name, values = snapshots.world.by_name, {}
    for name in names:
        if name not in by_name:
            continue  # deleted in the meantime
        state = state_values(snapshots, by_name[name].id, now_us=now_us, stale_after_us=selections.stale_after_us)
        usable = [entry for entry in state if selections.is_stale_used or not entry.is_stale]
        values[name] = {entry.name: to_selection_value(entry.value) for entry in usable}
    return values


def to_selection_value(value: Scalar) -> ExpressionValue:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def set_manual_values(text: str, change: Mapping[str, Scalar | None], *, at_us: int, by: str) -> str:
    """Return the stored manual values with `change` applied. None removes a value."""
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
    """Return a load as named values. The agent's measurements override the site's values of the same name."""
    measured: dict[str, Scalar | None] = {
        "free_cores": load.free_cores,
        "free_gpus": load.free_gpus,
        "free_memory_bytes": load.free_memory_bytes,
        "free_nodes": _free_nodes(load, graph),
        "running": load.running,
        "queued": load.queued,
    }
    return load.values | {name: value for name, value in measured.items() if value is not None}


def _free_nodes(load: Load, graph: Graph | None) -> int | None:
    """Return the number of nodes whose cores are all free, or None if it is unknown."""
    if load.free is None or graph is None or load.signature != graph.signature:
        return None
    return sum(group.count for group in load.free if group.core >= graph.within[group.shape].get("core", 0))


def sample_of(context: Context, member: Member, now_us: int) -> ClusterSample:
    """A cluster as it is now."""
    load = context.snapshots.load_of(member.id)
    totals = member.graph.totals if member.graph else {}
    cores, gpus = totals.get("core", 0), totals.get("gpu", 0)
    return ClusterSample(
        cluster_id=member.id,
        at_us=now_us,
        health=member.health.value,
        cores=cores,
        cores_used=None if load is None or load.free_cores is None else max(0, cores - load.free_cores),
        gpus=gpus,
        gpus_used=None if load is None or load.free_gpus is None else max(0, gpus - load.free_gpus),
        running=None if load is None else load.running,
        queued=None if load is None else load.queued,
    )
