"""Arrays that move on: what nobody has begun of them goes where it can begin, from cluster to cluster."""

from __future__ import annotations

from switchyard.model.cluster.cluster import ClusterChange
from switchyard.model.cluster.poll import AttemptRef, Room
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import ObservedState
from switchyard.service.cluster import clusters
from switchyard.service.upkeep.move_jobs import JobMover
from switchyard.store.jobs import jobs as job_store
from tests.builders import a_graph, a_request
from tests.service.lines import in_line_at_full, of_one_cluster, say, two, wait
from tests.service.rig import ADMIN, Rig


def test_an_array_moves_with_all_its_tasks_that_nobody_has(rig: Rig) -> None:
    full, idle = two(rig)
    job = of_one_cluster(rig, job=in_line_at_full(rig, array="0-9")[0])
    (range_,) = full.lease(4)
    wait(rig, 31, full, idle)
    say(idle, free_cores=2)
    assert JobMover().look(rig.context, rig.leader) == 1
    (rest,) = idle.lease(6)
    assert (range_.lo, range_.hi, rest.lo, rest.hi) == (0, 3, 4, 9)
    assert rest.fence > range_.fence + 3
    full.sync(*((job, range_.fence + task) for task in range(4)))
    tally = rig.job(job).tasks
    assert tally is not None
    assert (tally.live, tally.waiting) == (10, 0)


def test_an_array_takes_all_the_room_and_nobody_follows_it(lite: Rig) -> None:
    full, idle = two(lite)
    in_line_at_full(lite, array="0-9", together=True)
    clusters.cluster_change(lite.context, ADMIN, "idle", ClusterChange(is_cordoned=True))
    (job,) = in_line_at_full(lite)
    wait(lite, 31, full, idle)
    say(idle, free_cores=3)
    assert JobMover().look(lite.context, lite.leader) == 1
    assert lite.job(job).cluster == "full"


class Worker:
    """A cluster of two cores whose tasks run for some seconds."""

    def __init__(self, rig: Rig, name: str, *, task_s: int) -> None:
        self.agent, self.task_us = rig.cluster(name, graph=a_graph(cores=2)), task_s * 1_000_000
        self.live: dict[AttemptRef, int] = {}  # when it ends
        self.ran: list[int] = []
        self.idle_s = 0

    def turn(self, now_us: int, *, seconds: int) -> None:
        """End what is over, say how it is, and lease while there is room."""
        for held in [held for held, end_us in self.live.items() if end_us <= now_us]:
            self.agent.report(held, ObservedState.SUCCEEDED)
            del self.live[held]
        self.lease(now_us)
        self.idle_s = 0 if self.live else self.idle_s + seconds

    def lease(self, now_us: int) -> None:
        free = 2 - len(self.live)
        for lease in self.agent.lease(free, Room(free)) if free else []:
            assert lease.lo is not None
            assert lease.hi is not None
            for task in range(lease.lo, lease.hi + 1):
                self.live[AttemptRef(lease.job, lease.fence + task - lease.lo)] = now_us + self.task_us
                self.ran.append(task)
        say(self.agent, free_cores=2 - len(self.live), running=len(self.live))


def test_an_array_is_worked_off_by_all_clusters_that_stand_idle(lite: Rig) -> None:
    """None of them waits for longer than the setting and a look for each of the others, to the end of a long array."""
    workers = [Worker(lite, name, task_s=12) for name in ("alpha", "beta", "gamma")]
    agents = [worker.agent for worker in workers]
    job = of_one_cluster(lite, job=lite.submit(a_request(array="0-199")).id)
    mover, began_us, seconds = JobMover(), lite.clock(), 0
    while (tally := lite.job(job).tasks) is not None and tally.ok < tally.total:
        for worker in workers:
            worker.turn(lite.clock(), seconds=2)
        if (tally := lite.job(job).tasks) is not None and tally.waiting:
            idle_s = max(worker.idle_s for worker in workers)
            assert idle_s <= (30 + 3 * 2 if seconds <= 40 else 3 * 2), f"after {seconds} s"
        mover.look(lite.context, lite.leader)
        for worker in workers:
            worker.lease(lite.clock())  # they are told at once
        wait(lite, 2, *agents)
        seconds += 2
    assert sorted(task for worker in workers for task in worker.ran) == list(range(200))
    assert seconds <= 30 + 200 * (12 + 3 * 2) / 6
    ended = lite.job(job)
    assert (ended.state, ended.started_us) == (State.SUCCEEDED, began_us)
    with lite.context.database.read() as tx:
        assert len(job_store.attempt_list(tx, job)) <= 2, "where its tasks ran, its ranges tell"


def test_an_array_that_is_begun_rests_no_longer_for_what_was_before(rig: Rig) -> None:
    full, idle = two(rig)
    job = of_one_cluster(rig, job=in_line_at_full(rig, array="0-9")[0])
    mover, moved = JobMover(), 0
    while moved < 7:
        wait(rig, 10, full, idle)
        say(full, free_cores=8)
        say(idle, free_cores=8)
        moved += mover.look(rig.context, rig.leader)
    here, other = (idle, full) if rig.job(job).cluster == "idle" else (full, idle)
    assert len(here.lease(1)) == 1
    attempt = rig.row(job).attempt
    # It stays while there is room for more; then it goes at once; there nobody begins a task: it waits as any other.
    for free, expected in ((8, 0), (0, 1), (8, 0), (8, 0), (8, 1)):
        wait(rig, 10, full, idle)
        say(here, free_cores=free)
        say(other, free_cores=8)
        assert mover.look(rig.context, rig.leader) == expected
    assert rig.row(job).attempt == attempt + 1, "the last one alone makes a new attempt: nobody had begun it there"
