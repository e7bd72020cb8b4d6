"""Who comes next: priority, then fair share among projects, then arrival."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from switchyard.route.queue_order import BypassTimes, FairQueue, QueuedJob

PROJECTS = ("a", "b", "c")


def waiting(number: int, project: str = "a", priority: int = 0, **fields: Any) -> QueuedJob[int]:
    """`row` is how many cores it asks for."""
    weight, cores = fields.pop("weight", 1.0), fields.pop("cores", 1)
    return QueuedJob(f"{number:04}", project, priority, weight, cores, **fields)


@st.composite
def several(draw: Any) -> list[QueuedJob[int]]:
    weights = {project: draw(st.sampled_from([0.5, 1.0, 2.0, 7.0])) for project in PROJECTS}
    made = draw(
        st.lists(
            st.tuples(st.sampled_from(PROJECTS), st.integers(-1, 1), st.integers(1, 9), st.booleans()), max_size=30
        )
    )
    return [
        QueuedJob(f"{number:04}", project, priority, weights[project], cores, is_aged=is_aged)
        for number, (project, priority, cores, is_aged) in enumerate(made)
    ]


def by_lane(jobs: list[QueuedJob[int]]) -> list[list[QueuedJob[int]]]:
    lanes: dict[str, list[QueuedJob[int]]] = {}
    for each in jobs:
        lanes.setdefault(each.project, []).append(each)
    return list(lanes.values())


def taken(line: FairQueue[int]) -> list[QueuedJob[int]]:
    """All of them, each with the cores it asks for."""
    found = []
    while (each := line.next()) is not None:
        found.append(each)
        line.give(each, each.row)
    return found


def brute(jobs: list[QueuedJob[int]], cores: dict[str, float]) -> list[QueuedJob[int]]:
    """The rule, word by word: of all lanes' heads the best one, again and again."""
    lanes = [sorted(lane, key=lambda each: (-each.priority, each.id)) for lane in by_lane(jobs)]
    cores, found = dict(cores), []
    while heads := [lane[0] for lane in lanes if lane]:
        best = min(
            heads,
            key=lambda each: (
                -each.priority,
                not each.is_aged,
                0 if each.is_aged else cores.get(each.project, 0) / each.weight,
                each.id,
            ),
        )
        next(lane for lane in lanes if lane and lane[0] is best).pop(0)
        cores[best.project] = cores.get(best.project, 0) + best.row
        found.append(best)
    return found


@given(several(), st.dictionaries(st.sampled_from(PROJECTS), st.integers(0, 50).map(float)))
def test_the_order_is_that_of_the_rule(jobs: list[QueuedJob[int]], cores: dict[str, float]) -> None:
    assert taken(FairQueue.of(by_lane(jobs), dict(cores))) == brute(jobs, cores)


@given(several())
def test_nobody_is_lost_and_no_lower_priority_comes_first(jobs: list[QueuedJob[int]]) -> None:
    found = taken(FairQueue.of(by_lane(jobs), {}))
    assert sorted(each.id for each in found) == [each.id for each in jobs]
    assert [each.priority for each in found] == sorted((each.priority for each in found), reverse=True)


@given(several())
def test_what_is_put_back_comes_again_in_its_order(jobs: list[QueuedJob[int]]) -> None:
    line = FairQueue.of(by_lane(jobs), {})
    looked_at = []
    while (each := line.next()) is not None:
        looked_at.append(each)
    line.put_back(looked_at)
    found = []
    while (each := line.next()) is not None:
        found.append(each)
    assert sorted(each.id for each in found) == [each.id for each in jobs]
    keys = [(-each.priority, not each.is_aged) for each in found]
    assert keys == sorted(keys)


@given(st.lists(st.integers(-3, 3), max_size=20))
def test_in_one_project_it_is_priority_and_then_arrival(priorities: list[int]) -> None:
    jobs = [waiting(number, priority=priority) for number, priority in enumerate(priorities)]
    found = taken(FairQueue.of([jobs], {}))
    assert found == sorted(jobs, key=lambda each: (-each.priority, each.id))


def test_of_equal_weights_projects_take_turns() -> None:
    jobs = [waiting(number, "a") for number in range(4)] + [waiting(number, "b") for number in range(4, 6)]
    assert [each.project for each in taken(FairQueue.of(by_lane(jobs), {}))] == ["a", "b", "a", "b", "a", "a"]


def test_three_times_the_weight_is_three_times_the_cores() -> None:
    jobs = [waiting(number, "a") for number in range(40)] + [
        waiting(number, "b", weight=3.0) for number in range(40, 80)
    ]
    first = [each.project for each in taken(FairQueue.of(by_lane(jobs), {}))][:40]
    assert (first.count("a"), first.count("b")) == (10, 30)


def test_who_has_much_already_waits_for_the_others() -> None:
    jobs = [waiting(0, "a"), waiting(1, "b", cores=4), waiting(2, "b", cores=4), waiting(3, "b")]
    assert [each.id for each in taken(FairQueue.of(by_lane(jobs), {"a": 8.0}))] == ["0001", "0002", "0000", "0003"]


def test_one_that_was_passed_for_too_long_comes_first_of_its_priority() -> None:
    jobs = [waiting(1, "b"), waiting(2, "a", is_aged=True), waiting(3, "c", priority=1)]
    assert [each.id for each in taken(FairQueue.of(by_lane(jobs), {"a": 99.0}))] == ["0003", "0002", "0001"]


def test_being_passed_is_remembered_from_the_first_time_on_and_by_cluster() -> None:
    passed = BypassTimes()
    passed.note("x", "job", 100)
    passed.note("x", "job", 150)
    assert not passed.aged("x", ["job"], now_us=199, ageing_us=100)
    assert passed.aged("x", ["job", "other"], now_us=200, ageing_us=100) == {"job"}
    assert not passed.aged("y", ["job"], now_us=999, ageing_us=100)
    passed.forget("x", "job")
    assert not passed.aged("x", ["job"], now_us=999, ageing_us=100)


def test_what_was_not_seen_for_longest_is_forgotten() -> None:
    passed = BypassTimes(most=2)
    for job in ("one", "two", "one", "three"):
        passed.note("x", job, 0)
    assert passed.aged("x", ["one", "two", "three"], now_us=9, ageing_us=1) == {"one", "three"}
