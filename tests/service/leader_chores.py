"""One round of the leader, chore by chore."""

from __future__ import annotations

from collections.abc import Callable

from switchyard.features.rainbow.service import pollers
from switchyard.model.job.unreadable import UNREADABLE_ERRORS
from switchyard.service.upkeep import give_places, move_jobs, refresh_lessees, silent_agents, waiting_jobs
from switchyard.service.upkeep.quarantine import Quarantine
from switchyard.service.upkeep.round import route_pending
from tests.service.rig import Rig

CHORES: list[Callable[[Rig], object]] = [
    lambda rig: move_jobs.take_back_unleased(rig.context, rig.leader),
    lambda rig: refresh_lessees.LesseeRefresh().look(rig.context, rig.leader),
    lambda rig: silent_agents.lose_silent_attempts(rig.context, rig.leader),
    lambda rig: silent_agents.lose_silent_tasks(rig.context, rig.leader),
    lambda rig: pollers.requeue_unaccepted(rig.context, lease_us=0),
    lambda rig: pollers.release_unreported(rig.context, ttl_us=0),
    lambda rig: waiting_jobs.end_backoffs(rig.context, rig.leader),
    lambda rig: waiting_jobs.settle_dependencies(rig.context, rig.leader),
    lambda rig: waiting_jobs.expire_jobs(rig.context, rig.leader),
    lambda rig: waiting_jobs.report_late_jobs(rig.context, rig.leader),
    lambda rig: waiting_jobs.release_concurrency_groups(rig.context, rig.leader),
    lambda rig: route_pending(rig.context, rig.leader),
    lambda rig: give_places.enforce_limits(rig.context, rig.leader),
    lambda rig: give_places.give_free_places(rig.context, rig.leader),
    lambda rig: move_jobs.JobMover().look(rig.context, rig.leader),
]


def upkeep(rig: Rig) -> None:
    """One round of the leader; a chore that meets a row it cannot read has it set aside, and is done then."""
    rig.leader.take(rig.context)
    for chore in CHORES:
        try:
            chore(rig)
        except UNREADABLE_ERRORS:
            assert Quarantine(rig.context.database).sweep(rig.context)
            chore(rig)
