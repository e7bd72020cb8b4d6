"""An agent's request for jobs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from switchyard.model.cluster.poll import Room

LOOK_PAST_MAX = 100  # jobs checked behind jobs that do not fit, over all lanes


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """An agent's request for jobs under its session."""

    agent_id: str
    cluster_id: str
    cluster: str
    session: int | None  # none for pollers, which have no sessions
    want: int
    room: Room | None
    cancelling: frozenset[tuple[str, int]] = frozenset()
    backend: str = ""
    backends: frozenset[str] = frozenset()  # of all agents of the cluster
    incarnation: str | None = None  # the agent process; none for pollers
    left_s: int | None = None  # until the agent's part of an ephemeral cluster ends, rounded up; None: it has no end
    is_fresh: bool = False  # the poll has just arrived; else it was parked, and the agent may be gone

    def job_ids(self) -> Iterable[str]:
        return ()
