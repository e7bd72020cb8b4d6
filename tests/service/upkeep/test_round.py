"""A round of the leader: which chores are due, and how long a server waits for the next round."""

from __future__ import annotations

from switchyard.model.cluster.cluster import ClusterChange
from switchyard.model.job.job import State
from switchyard.service.cluster.clusters import cluster_change
from switchyard.service.upkeep.leadership import Leadership
from switchyard.service.upkeep.round import FOLLOWER_LOOK_S, Chore, LeaderRound, rest
from tests.builders import a_request
from tests.service.rig import ADMIN, Rig


class Stopwatch:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_chore_that_rests_takes_at_most_a_fifth_of_the_time(lite: Rig) -> None:
    watch = Stopwatch()

    def work() -> int:
        watch.now_s += 2
        return 1

    leader_round = LeaderRound(lite.context, lite.leader, further=[Chore("slow", work, rest)], clock=watch)
    assert leader_round.go()["slow"] == 1
    for seconds, is_due in ((7.9, False), (0.2, True), (7.9, False)):
        watch.now_s += seconds
        assert ("slow" in leader_round.go()) is is_due


def test_nothing_old_is_removed_right_after_the_clock_jumped(lite: Rig) -> None:
    watch = Stopwatch()
    leader_round = LeaderRound(lite.context, lite.leader, clock=watch)
    leader_round.delay_clean_up()
    assert "remove old data" not in leader_round.go()
    watch.now_s += 3601
    assert "remove old data" in leader_round.go()


def test_a_job_that_came_is_routed_in_the_next_round_and_a_follower_does_not_hurry(lite: Rig) -> None:
    leader_round, follower = (
        LeaderRound(lite.context, leadership, clock=Stopwatch()) for leadership in (lite.leader, Leadership("two"))
    )
    lite.cluster("alpha")
    cluster_change(lite.context, ADMIN, "alpha", ClusterChange(is_cordoned=True))
    job = lite.submit(a_request()).id
    assert lite.job(job).state is State.PENDING
    cluster_change(lite.context, ADMIN, "alpha", ClusterChange(is_cordoned=False))
    assert leader_round.pause_s(60) < 1
    assert follower.pause_s(60) == FOLLOWER_LOOK_S
    assert leader_round.go()["route pending"] == 1
    assert lite.job(job).state is State.ASSIGNED
    assert leader_round.pause_s(60) == 60
