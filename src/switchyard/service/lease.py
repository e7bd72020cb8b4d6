"""Leases: which ready jobs an agent gets, in order and while they fit; and the sync after a lost answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from switchyard.errors import Gone, Resync
from switchyard.model.poll import Held, Lease, Room, Stop
from switchyard.service.committer import Batch
from switchyard.store import clusters, leases


@dataclass(frozen=True, slots=True)
class LeaseAsk:
    """One agent asks for work under its session."""

    agent_id: str
    cluster_id: str
    cluster: str
    session: int
    want: int
    room: Room | None
    cancelling: frozenset[tuple[str, int]] = frozenset()

    def job_ids(self) -> Iterable[str]:
        return ()


@dataclass(frozen=True, slots=True)
class SyncAsk:
    """An agent says which attempts it holds; begins a session."""

    agent_id: str
    cluster: str
    incarnation: str
    inventory: frozenset[tuple[str, int]]

    def job_ids(self) -> Iterable[str]:
        return ()


@dataclass(frozen=True, slots=True)
class Given:
    """What goes down to an agent."""

    session: int
    leases: list[Lease]
    cancels: list[Held]
    stops: list[Stop]


def apply_leases(batch: Batch, asks: list[LeaseAsk]) -> list[Any]:
    """One look for all agents that wait; several of one cluster share its line in the order they asked."""
    sessions = clusters.agent_sessions(batch.tx, [ask.agent_id for ask in asks])
    valid = [ask for ask in asks if sessions.get(ask.agent_id) == ask.session]
    wants: dict[str, int] = {}
    for ask in valid:
        if ask.want:
            wants[ask.cluster_id] = wants.get(ask.cluster_id, 0) + ask.want
    lines = {
        cluster: in_order(rows) for cluster, rows in (leases.lease_heads(batch.tx, wants) if wants else {}).items()
    }
    cancels = leases.held_cancels(batch.tx, [ask.agent_id for ask in valid]) if valid else {}
    results: list[Any] = []
    given: list[tuple[str, str]] = []
    for ask in asks:
        if ask.agent_id not in sessions:
            results.append(Gone("This agent was removed."))
        elif sessions[ask.agent_id] != ask.session:
            results.append(Resync())
        else:
            chosen = choose(lines.get(ask.cluster_id, []), ask.want, ask.room)
            given += [(row.id, ask.agent_id) for row in chosen]
            for row in chosen:
                _record(batch, row)
            pending = [
                Held(row.id, row.fence)
                for row in cancels.get(ask.agent_id, [])
                if (row.id, row.fence) not in ask.cancelling
            ]
            results.append(Given(ask.session, [lease_of(row, ask.cluster) for row in chosen], pending, []))
    leases.lease_give(batch.tx, given, at_us=batch.now_us)
    return results


def in_order(rows: Sequence[leases.Row]) -> list[leases.Row]:
    """The order in which leases are given: priority, then arrival. Fair share and ageing will enter here."""
    return sorted(rows, key=lambda row: (-row.priority, row.id))


def choose(line: list[leases.Row], want: int, room: Room | None) -> list[leases.Row]:
    """Take from the head of the line while it fits. The first that does not fit ends it, so that it is not starved."""
    cores = gpus = memory = 0
    chosen: list[leases.Row] = []
    while line and len(chosen) < want:
        row = line[0]
        cores, gpus, memory = cores + row.cores, gpus + row.gpus, memory + row.memory_bytes
        if room is not None and (cores > room.cores or gpus > room.gpus or memory > room.memory_bytes):
            break
        chosen.append(line.pop(0))
    return chosen


def apply_syncs(batch: Batch, asks: list[SyncAsk]) -> list[Any]:
    """Begin sessions: redeliver what was leased and never arrived, name what is to be stopped."""
    results: dict[int, Any] = {}
    # By id, as every replica locks them; an agent that asks twice has two answers, each with its own session.
    for index in sorted(range(len(asks)), key=lambda each: asks[each].agent_id):
        ask = asks[index]
        session = clusters.agent_sync(batch.tx, ask.agent_id, ask.incarnation, at_us=batch.now_us)
        batch.versions.add("seen")  # the other replicas hear at once that this agent is alive
        if session is None:
            results[index] = Gone("This agent was removed.")
            continue
        held = {(row.id, row.fence): row for row in leases.held_by(batch.tx, ask.agent_id)}
        missing = [lease_of(row, ask.cluster) for key, row in held.items() if key not in ask.inventory]
        cancels = [Held(row.id, row.fence) for row in held.values() if row.cancel_us is not None]
        stops = [Stop(job, fence, "not leased to this agent") for job, fence in sorted(ask.inventory - set(held))]
        results[index] = Given(session, missing, cancels, stops)
    return [results[index] for index in range(len(asks))]


def lease_of(row: leases.Row, cluster: str) -> Lease:
    return Lease(
        job=row.id,
        attempt=row.attempt,
        fence=row.fence,
        name=row.name,
        owner=row.owner,
        project=row.project,
        domain=row.domain,
        priority=row.priority,
        labels=msgspec.json.decode(row.labels, type=dict[str, str]),
        cluster=cluster,
        spec=msgspec.Raw(row.spec.encode()),
    )


def _record(batch: Batch, row: leases.Row) -> None:
    batch.event(row.id, "leased", state=row.state, attempt=row.attempt, fence=row.fence, cluster_id=row.cluster_id)
