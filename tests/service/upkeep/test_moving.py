"""Moving on: idle clusters take over what waits elsewhere, quotes and spill rules move it too, nothing moves unseen."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from switchyard.model.cluster.cluster import ClusterChange
from switchyard.model.cluster.poll import Room
from switchyard.model.cluster.selection import Select
from switchyard.model.graph.graph import FreeNodes
from switchyard.model.job.job import State
from switchyard.service.cluster import clusters
from switchyard.service.job import jobs
from switchyard.service.upkeep import move_jobs
from switchyard.service.upkeep.leadership import Leadership
from switchyard.service.upkeep.move_jobs import JobMover, take_back_unleased
from switchyard.service.upkeep.round import route_pending
from switchyard.store.clusters import quotes
from tests.builders import a_request
from tests.service.lines import in_line_at_full, of_one_cluster, pool, quote, say, two, wait
from tests.service.rig import ADMIN, Rig


def test_an_idle_cluster_takes_over_what_waits_elsewhere_for_long(rig: Rig) -> None:
    full, idle = two(rig)
    (job,) = in_line_at_full(rig)
    mover = JobMover()
    wait(rig, 29, full, idle)
    say(idle, free_cores=8)
    assert mover.look(rig.context, rig.leader) == 0, "not yet"
    wait(rig, 1, full, idle)
    assert mover.look(rig.context, rig.leader) == 1
    moved = rig.job(job)
    assert (moved.state, moved.cluster, moved.attempt, moved.fence) == (State.ASSIGNED, "idle", 2, 2)
    assert full.lease() == []
    assert [lease.fence for lease in idle.lease()] == [2]
    assert rig.kinds(job) == ["accepted", "moved", "leased"]
    said = jobs.job_events(rig.context, ADMIN, job, after=0, limit=9).items[1]
    assert (said.cluster, said.reason) == ("idle", "idle has room, and it waited 30 s at full")


def test_no_more_is_taken_than_there_is_room_for_and_the_first_in_line_go_first(rig: Rig) -> None:
    full, idle = two(rig)
    ids = in_line_at_full(rig, 5)
    wait(rig, 31, full, idle)
    mover = JobMover()
    say(idle, free_cores=3)
    assert mover.look(rig.context, rig.leader) == 3
    assert [rig.job(job).cluster for job in ids] == ["idle", "idle", "idle", "full", "full"]
    assert mover.look(rig.context, rig.leader) == 0, "it has something in line now"
    assert len(idle.lease(room=Room(3))) == 3
    assert mover.look(rig.context, rig.leader) == 0, "what it said is older than what it was given"
    wait(rig, 1, full, idle)
    say(idle, free_cores=0)
    assert mover.look(rig.context, rig.leader) == 0
    say(idle, free_cores=1)
    assert mover.look(rig.context, rig.leader) == 1


# What is in line at the cluster that has 3 cores free, how long it has been there, what else runs there, and how many
# of two jobs of one core it takes over.
LINES: list[tuple[str, dict[str, Any], int, int, int]] = [
    ("does not fit now: others pass", {"cores": 4}, 31, 1, 2),
    ("fits: its room is kept", {"cores": 3}, 31, 1, 0),
    ("fits, and leaves a core", {"cores": 2}, 31, 1, 1),
    ("tasks of an array take all", {"cores": 1, "array": "0-9"}, 31, 1, 0),
    ("tasks of an array leave a core", {"cores": 2, "array": "0-9"}, 31, 1, 1),
    ("does not fit, and was passed for long enough", {"cores": 4}, 300, 1, 0),
    ("the same, but no room will come of waiting", {"cores": 4}, 300, 0, 2),
]


@pytest.mark.parametrize(
    ("line", "seconds", "running", "moved"), [row[1:] for row in LINES], ids=[row[0] for row in LINES]
)
def test_room_that_nobody_in_line_can_use_is_taken(
    lite: Rig, line: dict[str, Any], seconds: int, running: int, moved: int
) -> None:
    full, idle = two(lite)
    ids = in_line_at_full(lite, 2)
    first = lite.submit(a_request(cluster="idle", **line)).id
    wait(lite, seconds, full, idle)
    say(full, free_cores=0)
    say(idle, free_cores=3, running=running)
    mover = JobMover()
    assert mover.look(lite.context, lite.leader) == moved
    assert [lite.job(job).cluster for job in ids].count("idle") == moved
    assert lite.job(first).attempt == 1
    assert mover.look(lite.context, lite.leader) == 0, "not again by the same word"


def test_nobody_goes_where_a_lease_would_not_see_it(rig: Rig, monkeypatch) -> None:
    monkeypatch.setattr(move_jobs, "LOOK_PAST_MAX", 2)
    full, idle = two(rig)
    in_line_at_full(rig)
    ids = [rig.submit(a_request(cluster="idle", cores=4)).id for _ in range(3)]
    wait(rig, 31, full, idle)
    say(idle, free_cores=3, running=1)
    assert JobMover().look(rig.context, rig.leader) == 0
    jobs.job_cancel(rig.context, ADMIN, ids[0], "")
    assert JobMover().look(rig.context, rig.leader) == 1


def test_every_cluster_with_a_line_is_asked_in_its_turn(lite: Rig, monkeypatch) -> None:
    monkeypatch.setattr(move_jobs, "LINES_MAX", 1)
    full, idle = two(lite)
    in_line_at_full(lite)
    others = [lite.cluster(name) for name in ("a", "b", "z")]
    for agent in (*others, idle):
        lite.submit(a_request(cluster=agent.cluster, cores=4 if agent is idle else 1))
    wait(lite, 31, full, idle, *others)
    for agent in (*others, idle):
        say(agent, free_cores=1, running=1)
    mover = JobMover()
    assert sum(mover.look(lite.context, lite.leader) for _ in range(4)) == 1


IDLE_LOADS: list[tuple[str, dict[str, Any], dict[str, Any], int]] = [
    ("room for it", {"free_cores": 2, "free_memory_bytes": 0}, {}, 1),
    ("too few cores", {"free_cores": 1}, {"cores": 2}, 0),
    ("no core", {"free_cores": 0}, {}, 0),
    ("nobody knows", {}, {}, 0),
    ("in trouble", {"free_cores": 2, "trouble": "the disk is full"}, {}, 0),
    ("its own queue is long", {"free_cores": 2, "queued": 7}, {}, 0),
    ("too little memory", {"free_cores": 2, "free_memory_bytes": 2**20}, {"memory": "1GiB"}, 0),
    ("memory not counted", {"free_cores": 2}, {"memory": "1GiB"}, 1),
]


@pytest.mark.parametrize(("load", "asks", "moved"), [row[1:] for row in IDLE_LOADS], ids=[r[0] for r in IDLE_LOADS])
def test_who_is_idle(lite: Rig, load: dict[str, Any], asks: dict[str, Any], moved: int) -> None:
    full, idle = two(lite)
    in_line_at_full(lite, **asks)
    wait(lite, 31, full, idle)
    say(idle, **load)
    assert JobMover().look(lite.context, lite.leader) == moved


def test_what_is_free_here_and_there_is_no_room_for_a_large_task(lite: Rig) -> None:
    full, idle = two(lite)
    in_line_at_full(lite, cores=4)
    wait(lite, 31, full, idle)
    graph = lite.context.snapshots.world.by_name["idle"].graph
    assert graph is not None
    (node,) = [number for number, shape in enumerate(graph.shapes) if shape.type == "node"]
    halves = [FreeNodes(node, 2, 2, 0, 8 * 2**30)]
    say(idle, free_cores=4, free=halves, signature=graph.signature)
    assert JobMover().look(lite.context, lite.leader) == 0
    say(idle, free_cores=4, free=[FreeNodes(node, 1, 4, 0, 8 * 2**30)], signature=graph.signature)
    assert JobMover().look(lite.context, lite.leader) == 1


def test_what_may_not_run_there_stays_and_does_not_hide_those_behind(lite: Rig, monkeypatch) -> None:
    """However many of them there are: a look goes on where the last one ended."""
    monkeypatch.setattr(move_jobs, "LINE_JOBS_READ_MAX", 4)
    full, idle = two(lite)
    pinned = in_line_at_full(lite, 10, cluster="full")
    clusters.cluster_change(lite.context, ADMIN, "idle", ClusterChange(is_cordoned=True))
    (free,) = in_line_at_full(lite)
    wait(lite, 31, full, idle)
    say(idle, free_cores=8)
    mover = JobMover()
    assert [mover.look(lite.context, lite.leader) for _ in range(4)] == [0, 0, 1, 0]
    assert lite.job(free).cluster == "idle"
    assert {lite.job(job).cluster for job in pinned} == {"full"}


def test_grants_match_and_pools_bound_a_take_over(lite: Rig) -> None:
    full, idle = two(lite)
    pool(lite, "apart", full=1)
    ids = [*in_line_at_full(lite, pool="apart")]
    clusters.cluster_change(lite.context, ADMIN, "idle", ClusterChange(is_cordoned=True))
    ids += in_line_at_full(lite, cores=8, tasks=2, nodes=2)
    clusters.cluster_change(lite.context, ADMIN, "idle", ClusterChange(is_private=True))
    ann = lite.user("ann")
    ids.append(lite.submit(actor=ann).id)
    wait(lite, 31, full, idle)
    say(idle, free_cores=4)
    assert JobMover().look(lite.context, lite.leader) == 0
    assert {lite.job(job).cluster for job in ids} == {"full"}


def test_jobs_of_a_sticky_pool_stay_where_they_were_drawn_to(lite: Rig) -> None:
    full, idle = two(lite)
    pool(lite, "both", full=1, idle=1, sticky=True)
    (job,) = in_line_at_full(lite, pool="both")
    wait(lite, 31, full, idle)
    say(idle, free_cores=8)
    mover = JobMover()
    assert mover.look(lite.context, lite.leader) == 0
    pool(lite, "both", full=1, idle=1)  # not said: as it was
    assert mover.look(lite.context, lite.leader) == 0
    clusters.cluster_change(lite.context, ADMIN, "full", ClusterChange(is_cordoned=True))
    assert take_back_unleased(lite.context, lite.leader) == 1, "a cordoned cluster is left all the same"
    assert route_pending(lite.context, lite.leader) == 1
    assert lite.job(job).cluster == "idle"
    clusters.cluster_change(lite.context, ADMIN, "full", ClusterChange(is_cordoned=False))
    pool(lite, "both", full=1, idle=1, sticky=False)
    wait(lite, 31, full, idle)
    say(full, free_cores=8)
    assert mover.look(lite.context, lite.leader) == 1


@pytest.mark.parametrize("array", [None, "0-9"], ids=["a job", "an array"])
def test_what_nobody_begins_is_moved_ever_more_rarely(lite: Rig, array: str | None) -> None:
    """Two clusters that say they are idle and lease nothing: it does not go to and fro for ever."""
    full, idle = two(lite)
    (job,) = in_line_at_full(lite, array=array)
    if array:
        of_one_cluster(lite, job=job)
        assert len(full.lease(1)) == 1  # and no more
    mover, times = JobMover(), []
    for second in range(0, 3600, 10):
        wait(lite, 10, full, idle)
        say(full, free_cores=8)
        say(idle, free_cores=8)
        if mover.look(lite.context, lite.leader):
            times.append(second)
    gaps = [later - sooner for sooner, later in pairwise(times)]
    assert gaps[:3] == [30, 30, 30]
    assert gaps[3:6] == [60, 120, 240]
    assert lite.row(job).attempt == len(times) + 1


def test_attempts_that_were_begun_or_taken_back_make_no_job_rest_for_longer(lite: Rig) -> None:
    full, idle = two(lite)
    (job,) = in_line_at_full(lite)
    for _ in range(8):
        for is_cordoned in (True, False):
            clusters.cluster_change(lite.context, ADMIN, "idle", ClusterChange(is_cordoned=True))
            clusters.cluster_change(lite.context, ADMIN, "full", ClusterChange(is_cordoned=is_cordoned))
            take_back_unleased(lite.context, lite.leader)
            route_pending(lite.context, lite.leader)
    clusters.cluster_change(lite.context, ADMIN, "idle", ClusterChange(is_cordoned=False))
    assert (lite.job(job).cluster, lite.job(job).attempt) == ("full", 9)
    wait(lite, 31, full, idle)
    say(idle, free_cores=8)
    assert JobMover().look(lite.context, lite.leader) == 1


def test_an_agent_that_leases_first_keeps_the_job(rig: Rig, monkeypatch) -> None:
    full, idle = two(rig)
    (job,) = in_line_at_full(rig)
    wait(rig, 31, full, idle)
    say(idle, free_cores=8)
    real, held = move_jobs.evaluate_again, []

    def meanwhile(*args: Any, **options: Any) -> Any:
        held.append(full.lease_one())
        return real(*args, **options)

    monkeypatch.setattr(move_jobs, "evaluate_again", meanwhile)
    assert JobMover().look(rig.context, rig.leader) == 0
    assert [each.job for each in held] == [job]
    assert (rig.job(job).cluster, rig.job(job).fence) == ("full", held[0].fence)


def test_a_deposed_leader_moves_nothing(rig: Rig) -> None:
    full, idle = two(rig)
    in_line_at_full(rig)
    wait(rig, 31, full, idle)
    say(idle, free_cores=8)
    assert JobMover().look(rig.context, Leadership("another")) == 0


# --- cordoned


def test_what_waits_at_a_cordoned_cluster_waits_with_the_reason_and_goes_at_once_when_it_is_back(rig: Rig) -> None:
    alone = rig.cluster("alone")
    job = rig.submit().id
    change = ClusterChange(is_cordoned=True, reason="new disks")
    clusters.cluster_change(rig.context, ADMIN, "alone", change)
    assert alone.lease() == []
    assert take_back_unleased(rig.context, rig.leader) == 1
    assert route_pending(rig.context, rig.leader) == 0
    waits = rig.job(job)
    assert (waits.state, waits.reason) == (State.PENDING, "waits for alone: cordoned: new disks")
    clusters.cluster_change(rig.context, ADMIN, "alone", ClusterChange(is_cordoned=False))
    assert route_pending(rig.context, rig.leader) == 1
    assert [lease.job for lease in alone.lease()] == [job]


def test_all_that_waits_at_a_cordoned_cluster_leaves_in_one_look(lite: Rig, monkeypatch) -> None:
    monkeypatch.setattr(move_jobs, "ROUND_MAX", 3)
    two(lite)
    ids = in_line_at_full(lite, 10)
    clusters.cluster_change(lite.context, ADMIN, "full", ClusterChange(is_cordoned=True))
    assert take_back_unleased(lite.context, lite.leader) == 10
    assert route_pending(lite.context, lite.leader) == 10
    assert {lite.job(job).cluster for job in ids} == {"idle"}


# --- better quotes


@pytest.mark.parametrize(("algorithm", "column"), [("soonest", "eta_us"), ("cheapest", "cost")])
def test_a_clearly_better_quote_moves_a_job_once(rig: Rig, algorithm: str, column: str) -> None:
    here, there = rig.cluster("here"), rig.cluster("there")
    request = a_request(select=Select(algorithm))
    unit = 1_000_000 if column == "eta_us" else 1
    quote(here, request, **{column: 100 * unit})
    quote(there, request, **{column: 900 * unit})
    job = rig.submit(request).id
    assert rig.job(job).cluster == "here"
    mover = JobMover()
    wait(rig, 59, here, there)
    quote(here, request, **{column: 1000 * unit})
    quote(there, request, **{column: 800 * unit})
    assert mover.look(rig.context, rig.leader) == 0, "it rests"
    wait(rig, 2, here, there)
    assert mover.look(rig.context, rig.leader) == 0, "by a fifth: not clearly"
    quote(there, request, **{column: 400 * unit})
    assert mover.look(rig.context, rig.leader) == 1
    assert rig.job(job).cluster == "there"
    quote(here, request, **{column: 0})
    assert mover.look(rig.context, rig.leader) == 0, "it does not flap"
    said = jobs.job_events(rig.context, ADMIN, job, after=0, limit=9).items[-1]
    assert said.kind == "moved"
    assert said.reason.startswith(
        "there could begin it in 4" if algorithm == "soonest" else "there would run it for 400"
    )
    with rig.context.database.read() as tx:
        used = quotes.use_get(tx, job)
    assert used is not None
    assert used.cluster_id == there.cluster_id, "when it begins, the new cluster's quote is measured"


def test_only_one_at_a_time_goes_where_it_begins_sooner(lite: Rig) -> None:
    """With each that came the other cluster is less soon: what it quoted did not know of them."""
    here, there = lite.cluster("here"), lite.cluster("there")
    request = a_request(select=Select("soonest"))
    quote(here, request, eta_us=0)
    quote(there, request, eta_us=900_000_000)
    ids = [lite.submit(request).id for _ in range(4)]
    assert {lite.job(job).cluster for job in ids} == {"here"}
    wait(lite, 61, here, there)
    quote(here, request, eta_us=900_000_000)
    quote(there, request, eta_us=0)
    assert JobMover().look(lite.context, lite.leader) == 1
