"""Queues on a real database: which one tags select, places of limited ones, and the order in which they are given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from switchyard.errors import BadRequest, Conflict, UnknownName
from switchyard.model.cluster.poll import AttemptRef, Room
from switchyard.model.job.job import JobRequest
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.rules.layout import LayoutPart
from switchyard.model.rules.queue import Queue, QueueLimits
from switchyard.model.rules.scope import Scope
from switchyard.service.cluster import layout, queue_settings
from switchyard.service.upkeep.round import route_pending
from tests.builders import a_request
from tests.service.queued import ANY, FIRST, WIDE, a_job, end, give_tags, promote, queued_rig, states
from tests.service.rig import ADMIN, Rig


@pytest.fixture
def rig(store_url: str, tmp_path: Path) -> Iterator[Rig]:
    with queued_rig(store_url, tmp_path) as rig:
        yield rig


# --- which queue


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (a_job(), "default"),
        (a_job("fast"), "urgent"),
        (a_job("urgent"), "urgent"),
        (a_job("default"), "default"),
        (a_job("few", "slow"), "two"),
        (a_job("few"), "two"),
        (a_job(domain="staging"), "two"),
        (a_job("fast", domain="staging"), "urgent"),
        (a_job(domain="production"), "default"),
    ],
    ids=[
        "none",
        "a tag",
        "its name",
        "default",
        "all of two",
        "not the interruptible",
        "domain",
        "asked",
        "no such pair",
    ],
)
def test_tags_select_a_queue(rig: Rig, asked: JobRequest, found: str) -> None:
    made = rig.submit(asked)
    assert rig.job(made.id).queue == found


def test_an_attribute_gives_tags_above_the_domain_and_below_the_request(rig: Rig) -> None:
    scope = Scope(domain="staging", project="a")
    give_tags(rig, scope, {"tags": ["fast"]})
    ruled, own = (rig.submit(a_job(*tags, domain="staging", project="a")) for tags in ((), ("shared",)))
    assert (rig.job(ruled.id).queue, rig.job(own.id).queue) == ("urgent", "fair")
    policy = rig.job(ruled.id).policy
    (used,) = [value for value in policy.values if value.kind == "execution-queue-attribute"]  # type: ignore[union-attr]
    assert (used.value, used.level.value) == (["fast"], "project+domain")


@pytest.mark.parametrize(
    ("tags", "says"),
    [
        (("nowhere",), "There is no queue tag 'nowhere'"),
        (("fast", "few"), "No queue has all of the tags fast, few"),
        (("cheap",), "spot takes only jobs that are interruptible"),
    ],
)
def test_tags_that_no_queue_has_are_refused_with_the_known_ones(rig: Rig, tags: tuple[str, ...], says: str) -> None:
    with pytest.raises(UnknownName, match=says) as refused:
        rig.submit(a_job(*tags))
    assert "cheap, default, each, fair, fast, few, own" in refused.value.next_step


def test_of_several_queues_the_jobs_id_decides_in_every_server(rig: Rig) -> None:
    queue_settings.queue_put(rig.context, ADMIN, "other", Queue(attributes=["fast"]), condition=FIRST)
    made = [rig.submit(a_job("fast")).id for _ in range(40)]
    found = [rig.job(job_id).queue for job_id in made]
    assert set(found) == {"other", "urgent"}
    again = [rig.submits.decide(ADMIN, a_job("fast"), key=None, body=b"", job_id=job_id).row.lane for job_id in made]
    assert again == [f"{queue}/default" for queue in found]


def test_a_stored_tag_must_be_known_and_stays_so(rig: Rig) -> None:
    here = Scope(domain="staging", project="b")
    with pytest.raises(BadRequest, match="no queue has the tag 'nowhere'"):
        give_tags(rig, here, {"tags": ["nowhere"]})
    give_tags(rig, here, {"tags": ["shared"]})
    with pytest.raises(Conflict, match="the tags fair, shared any more, which 1 attribute of kind"):
        layout.remove_part(rig.context, ADMIN, LayoutPart.QUEUE, "fair", condition=ANY)
    with pytest.raises(Conflict, match="tags fast, urgent any more, which the domain production"):
        layout.remove_part(rig.context, ADMIN, LayoutPart.QUEUE, "urgent", condition=ANY)
    with pytest.raises(Conflict, match="the tags shared any more"):
        queue_settings.queue_put(rig.context, ADMIN, "fair", Queue(), condition=ANY)


# --- places


def test_a_limited_queue_runs_so_many_and_the_next_in_order_as_one_ends(rig: Rig) -> None:
    agent = rig.cluster("alpha", graph=WIDE)
    made = [rig.submit(a_job("slow", priority=priority)) for priority in (0, 0, 5, 0)]
    assert {(job.state, job.reason) for job in made} == {("PENDING", "queue two: waits for a place")}
    ids = [job.id for job in made]
    promote(rig)
    assert states(rig, ids) == ["ASSIGNED", "PENDING", "ASSIGNED", "PENDING"]
    leases = agent.lease()
    assert [(lease.job, lease.native_queue) for lease in leases] == [(ids[2], "part-2"), (ids[0], "part-2")]
    promote(rig)
    assert states(rig, ids) == ["ASSIGNED", "PENDING", "ASSIGNED", "PENDING"]
    end(agent, leases[0])
    promote(rig)
    assert states(rig, ids) == ["ASSIGNED", "ASSIGNED", "SUCCEEDED", "PENDING"]
    assert agent.sync().leases[0].native_queue == "part-2", "also when it is told again"


def test_what_goes_back_loses_its_place_and_waits_for_one_again(rig: Rig) -> None:
    agent = rig.cluster("alpha", graph=WIDE)
    ids = [rig.submit(a_job("slow")).id for _ in range(3)]
    promote(rig)
    first, _ = agent.lease()
    agent.report(AttemptRef(first.job, first.fence), ObservedState.RETURNED, reason="not now")
    assert rig.row(ids[0]).state == "PENDING"
    route_pending(rig.context, rig.leader)
    assert rig.row(ids[0]).blocked == "queue"
    promote(rig)
    assert states(rig, ids) == ["ASSIGNED", "ASSIGNED", "PENDING"], "the oldest first"


def test_what_cannot_be_assigned_takes_no_place_and_does_not_stand_in_the_way(rig: Rig) -> None:
    rig.cluster("alpha", graph=WIDE)
    beta = rig.cluster("beta", graph=WIDE)
    away = [rig.submit(a_job("slow", cluster="beta")).id for _ in range(3)]
    rig.clock.wait(3600)
    rig.context.snapshots.mark_seen(beta.id, 0)
    rig.context.snapshots.seen = {key: rig.clock() for key in rig.context.snapshots.seen if key != beta.id}
    rig.context.snapshots.rebuild_world()
    ids = [rig.submit(a_job("slow")).id for _ in range(3)]
    promote(rig)
    assert states(rig, away) == ["PENDING"] * 3
    assert rig.row(away[0]).reason.startswith("waits for beta: down")
    assert states(rig, ids) == ["ASSIGNED", "ASSIGNED", "PENDING"]


def test_a_job_that_is_held_or_waits_for_another_is_queued_when_let_go(rig: Rig) -> None:
    rig.cluster("alpha", graph=WIDE)
    held = rig.submit(a_job("slow", hold=True)).id
    promote(rig)
    assert rig.row(held).blocked == "hold"


def test_a_project_may_have_a_limit_of_its_own(rig: Rig) -> None:
    rig.cluster("alpha", graph=WIDE)
    bound = [rig.submit(a_job("own", project="a")) for _ in range(2)]
    free = [rig.submit(a_job("own", project="b")) for _ in range(3)]
    assert bound[0].reason == "queue each: waits for a place"
    assert {job.state for job in free} == {"ASSIGNED"}
    promote(rig)
    assert states(rig, (job.id for job in bound)) == ["ASSIGNED", "PENDING"]


def test_a_limit_can_be_lowered_raised_and_lifted_while_jobs_wait(rig: Rig) -> None:
    agent = rig.cluster("alpha", graph=WIDE)
    ids = [rig.submit(a_job("slow")).id for _ in range(6)]
    promote(rig)
    leases = agent.lease()

    def set_limit(most: int | None) -> None:
        before = queue_settings.queue_get(rig.context, ADMIN, "two").queue
        changed = replace(before, limits=QueueLimits(running=most))
        queue_settings.queue_put(rig.context, ADMIN, "two", changed, condition=ANY)

    set_limit(1)
    end(agent, leases[0])
    promote(rig)
    assert states(rig, ids)[2:] == ["PENDING"] * 4, "one runs, and only one may"
    set_limit(0)
    end(agent, leases[1])
    promote(rig)
    assert states(rig, ids)[2:] == ["PENDING"] * 4
    set_limit(3)
    promote(rig)
    assert states(rig, ids)[2:] == ["ASSIGNED"] * 3 + ["PENDING"]
    set_limit(None)
    promote(rig)
    assert states(rig, ids)[5] == "ASSIGNED"


def test_what_ran_before_there_was_a_limit_counts(rig: Rig) -> None:
    agent = rig.cluster("alpha", graph=WIDE)
    early = [rig.submit(a_job("fast")).id for _ in range(3)]
    leases = agent.lease(2)
    limited = Queue(attributes=["fast"], limits=QueueLimits(running=2))
    queue_settings.queue_put(rig.context, ADMIN, "urgent", limited, condition=ANY)
    late = rig.submit(a_job("fast")).id
    promote(rig)
    assert states(rig, [*early, late]) == ["ASSIGNED"] * 2 + ["PENDING"] * 2, "what nobody has is taken back"
    end(agent, leases[0])
    promote(rig)
    assert states(rig, [early[2], late]) == ["ASSIGNED", "PENDING"], "two are still there, one of them in line"
    end(agent, leases[1])
    promote(rig)
    assert rig.row(late).state == "ASSIGNED"


def test_an_array_runs_as_many_tasks_as_there_are_places(rig: Rig) -> None:
    agent = rig.cluster("alpha", graph=WIDE)
    array = rig.submit(a_job("slow", array="0-9")).id
    single = rig.submit(a_job("slow", priority=1)).id
    promote(rig)
    assert states(rig, [single, array]) == ["ASSIGNED", "ASSIGNED"]
    leases = agent.lease(50)
    assert [(lease.job, lease.lo, lease.hi) for lease in leases] == [(single, None, None), (array, 0, 0)]
    assert agent.lease(50) == []
    end(agent, leases[0])
    promote(rig)
    (second,) = agent.lease(50)
    assert (second.lo, second.hi) == (1, 1)
    end(agent, second)
    (third,) = agent.lease(50)
    assert (third.lo, third.hi) == (2, 2), "its place is its own, without the leader"
    urgent = rig.submit(a_job("slow", priority=1)).id
    promote(rig)
    assert rig.row(urgent).state == "PENDING"
    assert agent.lease(50) == []


def test_an_array_that_has_all_places_gives_up_those_it_cannot_use(rig: Rig) -> None:
    agent = rig.cluster("alpha", graph=WIDE)
    array = rig.submit(a_job("slow", array="0-2")).id
    later = rig.submit(a_job("slow")).id
    promote(rig)
    (first,) = agent.lease(50)
    assert (first.lo, first.hi) == (0, 1)
    end(agent, first, task=0)
    (last,) = agent.lease(50)
    end(agent, first, task=1)
    promote(rig)
    assert (rig.row(array).places, rig.row(later).state) == (1, "ASSIGNED")
    end(agent, last)
    assert rig.row(array).state == "SUCCEEDED"


def test_an_array_starts_no_more_than_a_lowered_limit_allows(rig: Rig) -> None:
    agent = rig.cluster("alpha", graph=WIDE)
    array = rig.submit(a_job("shared", array="0-9")).id
    promote(rig)
    (lease,) = agent.lease(50)
    assert (lease.lo, lease.hi, rig.row(array).places) == (0, 3, 4)
    for most, running_then in ((1, 1), (None, 7)):
        queue = Queue(attributes=["shared"], limits=QueueLimits(running=most))
        queue_settings.queue_put(rig.context, ADMIN, "fair", queue, condition=ANY)
        promote(rig)
        if most == 1:
            for task in (0, 1, 2):
                end(agent, lease, task=task)
                promote(rig)
                assert agent.lease(50) == []
            assert rig.row(array).tasks_live == running_then
    assert sum((each.hi or 0) - (each.lo or 0) + 1 for each in agent.lease(50)) == 6


def test_a_leader_that_leads_no_more_gives_no_place(rig: Rig) -> None:
    rig.cluster("alpha", graph=WIDE)
    made = rig.submit(a_job("slow")).id
    rig.leader.epoch = (rig.leader.epoch or 0) - 1
    assert promote(rig) == 0
    assert rig.row(made).state == "PENDING"


# --- the order


def test_places_go_to_projects_by_what_they_have_and_weigh(rig: Rig) -> None:
    rig.cluster("alpha", graph=WIDE)
    ids = {name: [rig.submit(a_job("shared", project=name)).id for _ in range(6)] for name in ("a", "b")}
    promote(rig)
    given = {name: states(rig, ids[name]).count("ASSIGNED") for name in ids}
    assert given == {"a": 1, "b": 3}


def test_leases_go_by_queue_priority_then_to_the_project_with_fewest_cores(rig: Rig) -> None:
    agent = rig.cluster("alpha", graph=WIDE)
    first = [rig.submit(a_request(project="a", cores=4)).id for _ in range(2)]
    assert [lease.job for lease in agent.lease(1)] == first[:1]
    other = [rig.submit(a_request(project="b", cores=3)).id for _ in range(3)]
    urgent = rig.submit(a_job("fast", project="a")).id
    rig.clock.wait(2)
    assert [lease.job for lease in agent.lease(9)] == [urgent, other[0], other[1], first[1], other[2]]


def test_a_big_job_is_passed_only_for_its_queues_ageing(rig: Rig) -> None:
    queue_settings.queue_put(rig.context, ADMIN, "urgent", Queue(attributes=["fast"], ageing="30s"), condition=ANY)
    agent = rig.cluster("alpha", graph=WIDE)
    big = rig.submit(a_job("fast", cores=16, project="a")).id
    small = [rig.submit(a_request(cores=1, project="b")).id for _ in range(6)]
    room = Room(8)
    assert [lease.job for lease in agent.lease(1, room)] == small[:1]
    rig.clock.wait(29)
    assert [lease.job for lease in agent.lease(1, room)] == small[1:2]
    rig.clock.wait(1)
    assert agent.lease(9, room) == [], "now it holds back all that come after it"
    above = rig.submit(a_request(cores=1, priority=1)).id
    assert [lease.job for lease in agent.lease(9, room)] == [above], "but not what comes before it"
    assert [lease.job for lease in agent.lease(2, Room(17))] == [big, small[2]]
