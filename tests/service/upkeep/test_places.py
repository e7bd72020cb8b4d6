"""Places of limited queues when things change under them: limits, holds, agents of different sizes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard.model.cluster.poll import AttemptRef, Room
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.rules.queue import Queue, QueueLimits
from switchyard.model.wire.api import JobChange
from switchyard.service.cluster import queue_settings
from switchyard.service.job import job_control
from switchyard.service.upkeep.round import route_pending
from tests.builders import a_request
from tests.service.queued import ANY, WIDE, a_job, end, promote, queued_rig, states
from tests.service.rig import ADMIN, Rig


@pytest.fixture
def rig(store_url: str, tmp_path: Path) -> Iterator[Rig]:
    with queued_rig(store_url, tmp_path) as rig:
        yield rig


def set_limits(rig: Rig, name: str, **limits: object) -> None:
    before = queue_settings.queue_get(rig.context, ADMIN, name).queue
    queue = Queue(attributes=before.attributes, limits=QueueLimits(**limits))  # type: ignore[arg-type]
    queue_settings.queue_put(rig.context, ADMIN, name, queue, condition=ANY)


def test_a_queued_job_that_was_held_says_again_what_it_waits_for(rig: Rig) -> None:
    rig.cluster("alpha", graph=WIDE)
    ids = [rig.submit(a_job("slow")).id for _ in range(3)]
    promote(rig)
    job_control.job_change(rig.context, ADMIN, ids[2], JobChange(hold=True))
    job_control.job_change(rig.context, ADMIN, ids[2], JobChange(hold=False))
    route_pending(rig.context, rig.leader)
    assert rig.row(ids[2]).reason.startswith("queue two: waits for")
    assert rig.row(ids[2]).blocked == "queue"


def test_a_held_job_gives_its_place_to_the_next(rig: Rig) -> None:
    rig.cluster("alpha", graph=WIDE)
    ids = [rig.submit(a_job("slow")).id for _ in range(3)]
    promote(rig)
    job_control.job_change(rig.context, ADMIN, ids[0], JobChange(hold=True))
    promote(rig)
    assert states(rig, ids) == ["PENDING", "ASSIGNED", "ASSIGNED"]


def test_a_plan_says_which_limit_it_would_wait_for(rig: Rig) -> None:
    rig.cluster("alpha", graph=WIDE)
    set_limits(rig, "each", running=9, projects={"a": 1})

    def plan() -> tuple[str, str]:
        found = rig.submits.plan(ADMIN, a_job("own", project="a"))
        return found.outcome, found.reason

    assert plan() == ("assign", "")
    ids = [rig.submit(a_job("own", project="a")).id]
    promote(rig)
    assert plan() == ("hold", "queue each: project a has 1 of the 1 places it may have")
    assert rig.submit(a_job("own", project="a")).reason == "queue each: waits for a place"
    set_limits(rig, "each", running=1)
    assert plan() == ("hold", "queue each: 1 of its 1 places are taken")
    assert states(rig, ids) == ["ASSIGNED"]


def test_a_lowered_limit_takes_back_what_nobody_has_leased(rig: Rig) -> None:
    agent = rig.cluster("alpha", graph=WIDE)
    ids = [rig.submit(a_job("shared", priority=priority)).id for priority in (0, 0, 5, 0)]
    promote(rig)
    first, *_ = agent.lease(1)
    assert (first.job, states(rig, ids)) == (ids[2], ["ASSIGNED"] * 4)
    set_limits(rig, "fair", running=2)
    promote(rig)
    assert states(rig, ids) == ["ASSIGNED", "PENDING", "ASSIGNED", "PENDING"]
    assert rig.row(ids[1]).reason == "queue fair: waits for a place"
    assert [lease.job for lease in agent.lease(9)] == [ids[0]]
    end(agent, first)
    promote(rig)
    assert states(rig, ids) == ["ASSIGNED", "ASSIGNED", "SUCCEEDED", "PENDING"]


def test_a_new_limit_holds_for_what_stands_in_line_already(rig: Rig) -> None:
    agent = rig.cluster("alpha", graph=WIDE)
    ids = [rig.submit(a_job("fast", project=name)).id for name in ("a", "a", "b")]
    array = rig.submit(a_job("fast", array="0-9", priority=-1)).id
    set_limits(rig, "urgent", running=4, projects={"a": 1})
    promote(rig)
    assert states(rig, ids) == ["ASSIGNED", "PENDING", "ASSIGNED"]
    leases = agent.lease(50)
    assert sum(1 if lease.lo is None else lease.hi - lease.lo + 1 for lease in leases) == 4  # type: ignore[operator]
    assert rig.row(array).tasks_live == 2


def test_of_two_arrays_the_later_one_gives_places_back(rig: Rig) -> None:
    rig.cluster("alpha", graph=WIDE)
    arrays = [rig.submit(a_job("shared", array="0-1")).id for _ in range(2)]
    promote(rig)
    assert [rig.row(each).places for each in arrays] == [2, 2]
    set_limits(rig, "fair", running=2)
    promote(rig)
    assert [rig.row(each).places for each in arrays] == [2, 0]


def test_an_aged_job_holds_nobody_back_where_it_will_never_fit(rig: Rig) -> None:
    """An agent with nothing left to end has no more room to come."""
    agent = rig.cluster("alpha", graph=WIDE)
    big = rig.submit(a_request(cores=16)).id
    small = [rig.submit(a_request(cores=8)).id for _ in range(3)]
    (running,) = agent.lease(9, Room(8))
    rig.clock.wait(301)
    assert agent.lease(9, Room(8 - 8)) == []
    rig.clock.wait(301)
    assert agent.lease(9, Room(8)) == [], "it waits for what runs there"
    agent.report(AttemptRef(running.job, running.fence), ObservedState.SUCCEEDED, exit_code=0)
    assert [lease.job for lease in agent.lease(9, Room(8))] == small[1:2]
    assert rig.row(big).agent_id is None
