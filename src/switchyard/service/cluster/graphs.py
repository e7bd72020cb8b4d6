"""Set, replace and remove the resource graph and the subsystems of a cluster.

A cluster has several sources: the agent's graph, an optional operator's graph that overrides it, and subsystems. Each
change compiles all sources outside any transaction, and is committed only if no source changed in between.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256

import msgspec
import structlog

from switchyard.errors import Busy, Conflict, Denied, Malformed, NotFound
from switchyard.model.cluster.cluster import GraphInfo, Subsystem
from switchyard.model.graph import Graph
from switchyard.model.job.image_rules import ImageOffers
from switchyard.model.job.site_needs import SiteOffer
from switchyard.model.rules.access import Role
from switchyard.route.member import Member
from switchyard.service.core.agents.fleet import AgentEntry
from switchyard.service.core.agents.visible_clusters import visible_cluster
from switchyard.service.core.context import Context, bump_version
from switchyard.service.core.rights import Actor
from switchyard.service.core.writes.audit import record_audit
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.store.clusters import clusters, graphs

log = structlog.get_logger()

AGENT_SOURCE, OPERATOR_SOURCE = "", "containment"  # stored names of the two main graphs
RESERVED_SUBSYSTEMS = ("containment", "cluster")  # both names mean the main graph
TRIES_MAX = 5  # while other requests change the same cluster's graph
SUBSYSTEMS_MAX = 64
SOURCES_BYTES_MAX = 512 * 2**20  # of one cluster, uncompressed: each change reads all sources


class _ReportedOffers(msgspec.Struct):
    """The part of an agent's graph that an operator's graph does not replace."""

    images: ImageOffers = None
    site: SiteOffer | None = None


@dataclass(frozen=True, slots=True)
class PackedGraph:
    """A graph as received, compressed with gzip. `size` and `hash` are of the uncompressed content."""

    body: bytes
    size: int
    hash: str


PackedGraphs = dict[str, PackedGraph]


@dataclass(frozen=True, slots=True)
class GraphCaller:
    """The caller of a request: a user, or an agent that acts for its own cluster."""

    actor: Actor
    agent: AgentEntry | None = None

    @property
    def name(self) -> str:
        return f"agent:{self.agent.name}" if self.agent else self.actor.name

    @property
    def audited_as(self) -> Actor | str:
        """The user, whose budget of changes is charged; or the name of the agent."""
        return self.name if self.agent else self.actor


def graph_put(context: Context, caller: GraphCaller, name: str, source: PackedGraph) -> GraphInfo:
    """Set the operator's graph of a cluster. It overrides the agent's graph."""
    member = _operable_cluster(context, caller, name)
    graph = _change_sources(
        context, member, lambda old: {**old, OPERATOR_SOURCE: source}, by=caller.audited_as, action="graph.set"
    )
    assert graph is not None
    return graph_info(name, graph)


def graph_delete(context: Context, caller: GraphCaller, name: str) -> None:
    """Remove the operator's graph, so that the agent's graph applies again."""
    member = _operable_cluster(context, caller, name)
    _remove(context, member, OPERATOR_SOURCE, by=caller.name, action="graph.delete")


def graph_get(context: Context, caller: GraphCaller, name: str) -> Graph:
    member = _cluster_for_caller(context, caller, name)
    if member.graph is None:
        raise _no_graph(name)
    return member.graph


def graph_source(context: Context, caller: GraphCaller, name: str) -> bytes:
    """Return the main graph as received, uncompressed."""
    member = _cluster_for_caller(context, caller, name)
    with context.database.read() as tx:
        source = graphs.source_get(tx, member.id, OPERATOR_SOURCE) or graphs.source_get(tx, member.id, AGENT_SOURCE)
    if source is None:
        raise _no_graph(name)
    return gzip.decompress(source.body)


def subsystem_put(context: Context, caller: GraphCaller, name: str, subsystem: str, source: PackedGraph) -> Subsystem:
    """Set or replace one subsystem: an additional graph on the vertices of the main graph."""
    member = _operable_cluster(context, caller, name)

    def changed(old: PackedGraphs) -> PackedGraphs:
        if _main_source(old) is None:
            raise Conflict(
                f"Cluster {name} has no graph yet that a subsystem could be attached to.",
                next_step=f"Start its agent, or run `yard cluster set-graph {name} FILE` first.",
            )
        if len(old) >= SUBSYSTEMS_MAX and subsystem not in old:
            raise Conflict(
                f"Cluster {name} has {len(old)} graphs; the most is {SUBSYSTEMS_MAX}.",
                next_step=f"Remove one that nobody needs: `yard cluster subsystem rm {name} NAME`.",
            )
        return {**old, subsystem: source}

    _change_sources(context, member, changed, by=caller.audited_as, action="subsystem.set", subsystem=subsystem)
    with context.database.read() as tx:
        row = graphs.source_get(tx, member.id, subsystem)
    if row is None:
        raise _no_subsystem(name, subsystem)
    return _subsystem_view(row)


def subsystem_delete(context: Context, caller: GraphCaller, name: str, subsystem: str) -> None:
    """Remove one subsystem."""
    member = _operable_cluster(context, caller, name)
    _remove(context, member, subsystem, by=caller.name, action="subsystem.delete")


def subsystem_list(context: Context, caller: GraphCaller, name: str) -> list[Subsystem]:
    member = _cluster_for_caller(context, caller, name)
    with context.database.read() as tx:
        rows = graphs.source_heads(tx, member.id)
    return [_subsystem_view(row) for row in rows if row.subsystem not in (AGENT_SOURCE, OPERATOR_SOURCE)]


def subsystem_source(context: Context, caller: GraphCaller, name: str, subsystem: str) -> bytes:
    """Return one subsystem as received, uncompressed."""
    member = _cluster_for_caller(context, caller, name)
    with context.database.read() as tx:
        row = graphs.source_get(tx, member.id, subsystem)
    if row is None or subsystem in (AGENT_SOURCE, OPERATOR_SOURCE):
        raise _no_subsystem(name, subsystem)
    return gzip.decompress(row.body)


def store_agent_graph(context: Context, agent_id: str, graph: Graph) -> None:
    """Store the graph that an agent reports. A graph that does not match the operator's subsystems is ignored."""
    snapshots = context.snapshots
    entry = snapshots.fleet.agents.get(agent_id)
    member = snapshots.world.by_id.get(entry.cluster_id) if entry else None
    if entry is None or member is None or member.graph == graph:
        return
    source = pack_graph(msgspec.json.encode(graph))
    with context.database.read() as tx:
        stored = graphs.source_heads(tx, member.id)
    if any(row.subsystem == AGENT_SOURCE and row.hash == source.hash for row in stored):
        return
    try:
        _change_sources(
            context, member, lambda old: {**old, AGENT_SOURCE: source}, by=f"agent:{entry.name}", action="graph.agent"
        )
    except Malformed as exc:
        # Do not fail the poll: the agent knows nothing of the subsystem that its new graph conflicts with.
        log.warning("graph of agent ignored", cluster=member.name, agent=entry.name, error=exc.detail)


def pack_graph(body: bytes) -> PackedGraph:
    return PackedGraph(gzip.compress(body, 1, mtime=0), len(body), sha256(body).hexdigest())


def graph_info(name: str, graph: Graph) -> GraphInfo:
    return GraphInfo(
        cluster=name, nodes=graph.nodes, totals=graph.totals, shapes=len(graph.shapes), signature=graph.signature
    )


def _main_source(sources: Mapping[str, PackedGraph]) -> PackedGraph | None:
    return sources.get(OPERATOR_SOURCE) or sources.get(AGENT_SOURCE)


def _remove(context: Context, member: Member, subsystem: str, *, by: str, action: str) -> None:
    def changed(old: PackedGraphs) -> PackedGraphs:
        if subsystem not in old:
            raise (
                NotFound(f"Cluster {member.name} has no graph that was set by hand.")
                if subsystem == OPERATOR_SOURCE
                else _no_subsystem(member.name, subsystem)
            )
        return {name: source for name, source in old.items() if name != subsystem}

    _change_sources(context, member, changed, by=by, action=action, subsystem=subsystem)


def _change_sources(
    context: Context,
    member: Member,
    changed: Callable[[PackedGraphs], PackedGraphs],
    *,
    by: Actor | str,
    action: str,
    subsystem: str = "",
) -> Graph | None:
    """Compile the changed sources, then replace sources and graph in one transaction. Retry after a conflict."""
    for _ in range(TRIES_MAX):
        with context.database.read() as tx:
            rows = graphs.source_all(tx, member.id)
        old = {row.subsystem: PackedGraph(row.body, row.bytes, row.hash) for row in rows}
        new = changed(old)
        graph = compile_sources(context, new, where=f"cluster {member.name}")

        def apply(batch: Batch, old: PackedGraphs = old, new: PackedGraphs = new, graph: Graph | None = graph) -> bool:
            if clusters.cluster_lock(batch.tx, member.id) is None:
                raise NotFound(f"Cluster {member.name} was deleted a moment ago.")
            stored = {row.subsystem: row.hash for row in graphs.source_heads(batch.tx, member.id)}
            if stored != {name: source.hash for name, source in old.items()}:
                return False
            _write_sources(batch, member.id, old, new, by=by if isinstance(by, str) else by.name)
            encoded = None if graph is None else msgspec.json.encode(graph).decode()
            clusters.cluster_change(batch.tx, member.id, clusters.ClusterUpdate(graph=encoded))
            bump_version(batch, Topic.CLUSTERS)
            what = f"{member.name}/{subsystem}" if subsystem else member.name
            record_audit(batch, context, by, action, what, before=_source_digests(old), after=_source_digests(new))
            return True

        if context.committer.call(apply):
            return graph
    raise Busy(f"Other requests change the graph of cluster {member.name} at the same time.")


def compile_sources(context: Context, sources: PackedGraphs, *, where: str) -> Graph | None:
    main = _main_source(sources)
    if sum(source.size for source in sources.values()) > SOURCES_BYTES_MAX:
        raise Malformed(f"{where}: its graphs have over {SOURCES_BYTES_MAX} bytes together.")
    subsystems = {name: source for name, source in sources.items() if name not in (AGENT_SOURCE, OPERATOR_SOURCE)}
    if main is None:
        if subsystems:
            raise Conflict(
                f"{where}: the subsystems {', '.join(sorted(subsystems))} are attached to this graph.",
                next_step="Remove them first, with `yard cluster subsystem rm`.",
            )
        return None
    sizes = {"": main.size, **{name: source.size for name, source in subsystems.items()}}
    bodies = {name: source.body for name, source in subsystems.items()}
    graph = context.compiler.compile(main.body, bodies, sizes=sizes, where=where)
    if OPERATOR_SOURCE not in sources:
        return graph
    reported = _reported_offers(sources.get(AGENT_SOURCE))
    return msgspec.structs.replace(
        graph,
        images=reported.images if graph.images is None else graph.images,
        site=reported.site if graph.site is None else graph.site,
        is_by_operator=True,
    )


def _reported_offers(source: PackedGraph | None) -> _ReportedOffers:
    """What the agent's site file offers: an operator's graph does not replace it."""
    if source is None:
        return _ReportedOffers()
    try:
        return msgspec.json.decode(gzip.decompress(source.body), type=_ReportedOffers)
    except msgspec.DecodeError:  # of an older version
        return _ReportedOffers()


def _write_sources(batch: Batch, cluster_id: str, old: PackedGraphs, new: PackedGraphs, *, by: str) -> None:
    for name in sorted(old.keys() - new.keys()):
        graphs.source_delete(batch.tx, cluster_id, name)
    for name, source in sorted(new.items()):
        if old.get(name) is None or old[name].hash != source.hash:
            graphs.source_put(batch.tx, source_row(batch, cluster_id, name, source, by=by))


def source_row(batch: Batch, cluster_id: str, subsystem: str, source: PackedGraph, *, by: str) -> graphs.GraphSourceRow:
    return graphs.GraphSourceRow(
        cluster_id=cluster_id,
        subsystem=subsystem,
        hash=source.hash,
        bytes=source.size,
        actor=by,
        at_us=batch.now_us,
        body=source.body,
    )


def _cluster_for_caller(context: Context, caller: GraphCaller, name: str) -> Member:
    if caller.agent is None:
        return visible_cluster(context, caller.actor, name)
    member = context.snapshots.world.by_id.get(caller.agent.cluster_id)
    if member is None or member.name != name:
        raise Denied("An agent may see only the graph of its own cluster.")
    return member


def _operable_cluster(context: Context, caller: GraphCaller, name: str) -> Member:
    member = _cluster_for_caller(context, caller, name)
    if caller.agent is None:
        caller.actor.need_cluster(Role.OPERATE, member)
    return member


def _no_graph(name: str) -> NotFound:
    return NotFound(
        f"The resources of cluster {name} are not known yet.",
        next_step=f"Start its agent, or run `yard cluster set-graph {name} FILE`.",
    )


def _no_subsystem(name: str, subsystem: str) -> NotFound:
    return NotFound(
        f"Cluster {name} has no subsystem {subsystem[:128]!r}.",
        next_step=f"`yard cluster subsystem ls {name}` lists them.",
    )


def _subsystem_view(row: graphs.GraphSourceHead) -> Subsystem:
    return Subsystem(name=row.subsystem, bytes=row.bytes, hash=row.hash, by=row.actor, at_us=row.at_us)


def _source_digests(sources: PackedGraphs) -> dict[str, str]:
    return {name or "agent": f"{source.size} bytes, sha256:{source.hash[:16]}" for name, source in sources.items()}
