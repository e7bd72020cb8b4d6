"""How the queues stand: their limits, the jobs they have at clusters, and the cores that each project has."""

from __future__ import annotations

from dataclasses import dataclass

from switchyard.model.rules.access import Role
from switchyard.model.rules.queue import DEFAULT_QUEUE, Queue, queue_named
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.reserve.queue_usage import cores_by_project

PROJECTS_MAX = 12  # shown; the ones with the most cores


@dataclass(frozen=True, slots=True)
class ProjectShare:
    project: str
    cores: float


@dataclass(frozen=True, slots=True)
class QueueShares:
    """`queues` by name. `projects`: those that the reader may view, the most cores first."""

    queues: dict[str, Queue]
    projects: list[ProjectShare]
    cores: float  # of all projects that the reader may view, also of those that are not listed


def queue_shares(context: Context, actor: Actor) -> QueueShares:
    queues = context.snapshots.laid.layout.queues
    with context.database.read() as tx:
        cores = cores_by_project(tx)
    ranked = sorted(cores.items(), key=lambda item: (-item[1], item[0]))
    shares = [ProjectShare(name, used) for name, used in ranked if actor.may_project(Role.VIEW, name)]
    return QueueShares(
        {name: queue_named(queues, name) for name in sorted({*queues, DEFAULT_QUEUE})},
        shares[:PROJECTS_MAX],
        sum(share.cores for share in shares),
    )
