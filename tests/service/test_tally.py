"""The tally: counts are exact among threads, labels are bounded, and decisions count once they are durable."""

from __future__ import annotations

import threading

import pytest

from switchyard.errors import UnknownName
from switchyard.model.cluster.cluster import ClusterChange
from switchyard.service.cluster import clusters
from switchyard.service.core import process_metrics
from switchyard.service.core.process_metrics import Histogram, LabeledCounter
from switchyard.service.job.live_job_counts import blocked_category, count_live_jobs, reason_category
from switchyard.service.job.stats import route_stats
from switchyard.service.upkeep.move_jobs import JobMover
from switchyard.service.upkeep.round import route_pending
from switchyard.service.upkeep.waiting_jobs import expire_jobs
from tests.builders import a_graph, a_request
from tests.service.lines import in_line_at_full, say, two, wait
from tests.service.rig import ADMIN, Rig


def test_counts_of_many_threads_add_up() -> None:
    count, histogram = LabeledCounter("who"), Histogram((1.0, 2.0))

    def work() -> None:
        for _ in range(2000):
            count.add("a")
            histogram.add(1.5)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count.read() == {("a",): 8000}
    (spread,) = histogram.read().values()
    assert (spread.counts, spread.sum) == ([0, 8000, 0], 12_000)


def test_labels_beyond_the_bound_are_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_metrics, "LABEL_SETS_MAX", 3)
    count, histogram = LabeledCounter("a", "b"), Histogram((1.0,), "a")
    for number in range(10):
        count.add(str(number), "x")
        histogram.add(0.5, str(number))
    assert count.read() == {("0", "x"): 1, ("1", "x"): 1, ("2", "x"): 1, ("other", "other"): 7}
    assert {key: spread.counts for key, spread in histogram.read().items()}[("other",)] == [7, 0]


def test_a_value_falls_up_to_its_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (1.0, 1.1, 2.0, 9.0):
        histogram.add(value)
    assert histogram.read()[()].counts == [1, 2, 1]


def test_decisions_are_counted_by_where_and_how(rig: Rig) -> None:
    rig.cluster("alpha", graph=a_graph(cores=4))
    rig.submit()
    rig.submit(a_request(cores=5))
    clusters.cluster_change(rig.context, ADMIN, "alpha", ClusterChange(is_cordoned=True))
    rig.submit()
    clusters.cluster_change(rig.context, ADMIN, "alpha", ClusterChange(is_cordoned=False))
    route_pending(rig.context, rig.leader)
    counted = rig.context.tally
    assert counted.decisions.read() == {
        ("", "", "default", "alpha", "assigned"): 2,
        ("", "", "default", "", "rejected"): 1,
        ("", "", "default", "", "pending"): 1,
    }
    assert counted.refusals.read() == {("rejected", "match"): 1}
    assert counted.accepted.read() == {(): 3}
    assert sum(counted.decision_s.read()[()].counts) == 3
    assert counted.commit_s.read()[()].sum > 0


def test_a_submit_that_is_sent_again_is_counted_once(lite: Rig) -> None:
    lite.cluster("alpha")
    request = a_request()
    assert lite.accept(request, key="k").is_new
    assert not lite.accept(request, key="k").is_new
    assert lite.context.tally.accepted.read() == {(): 1}


def test_what_is_refused_is_no_decision(lite: Rig) -> None:
    with pytest.raises(UnknownName):
        lite.submit(a_request(project="nobody"))
    assert lite.context.tally.decisions.read() == {}


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("waits for alpha: down: its agent is silent", "down"),
        ("waits for alpha: cordoned: new disks; beta: down", "cordoned"),
        ("waits for alpha: paused", "paused"),
        ("waits: no clusters passed selection (constraint): a: 3 < 4", "selection"),
        ("waits: the selection cannot be followed: step 1", "selection"),
        ("waiting for quotes of alpha, beta", "quotes"),
        ("waits: after 10m it may run in pool burst; alpha: needs 8 core", "spill"),
        ("queue gpu: 40 of 40 run", "queue"),
        ("its cluster went away before the job was handed over", "other"),
        ("", "other"),
    ],
)
def test_a_reason_has_one_word(reason: str, word: str) -> None:
    assert reason_category(reason) == word


@pytest.mark.parametrize(
    ("blocked", "word"), [("hold", "hold"), ("after,hold", "hold"), ("backoff", "backoff"), ("?", "other")]
)
def test_what_holds_a_job_back_has_one_word(blocked: str, word: str) -> None:
    assert blocked_category(blocked) == word


def test_live_jobs_and_statistics_are_told_from_what_is_stored(rig: Rig) -> None:
    agent = rig.cluster("alpha", graph=a_graph(cores=4))
    rig.submit(a_request(priority=9))
    agent.lease_one()
    rig.submit()
    rig.submit(a_request(hold=True))
    rig.submit(a_request(cores=5))
    clusters.cluster_change(rig.context, ADMIN, "alpha", ClusterChange(is_cordoned=True, reason="new disks"))
    rig.submit()
    live = count_live_jobs(rig.context)
    assert live.states == {"PENDING": 2, "ASSIGNED": 2, "SUBMITTED": 0, "RUNNING": 0}
    assert live.waiting == {"hold": 1, "cordoned": 1}
    found = route_stats(rig.context, ADMIN, 3600)
    assert (found.jobs, found.is_whole) == (5, True)
    bars = {by: {bar.name: (bar.assigned, bar.pending, bar.rejected) for bar in bars} for by, bars in found.by.items()}
    assert bars["cluster"] == {"alpha": (2, 0, 0), "-": (0, 2, 1)}
    assert bars["outcome"] == {"assigned": (2, 0, 0), "pending": (0, 2, 0), "rejected": (0, 0, 1)}
    assert bars["reason"] == {"rejected: match": (0, 0, 1), "pending: hold": (0, 1, 0), "pending: cordoned": (0, 1, 0)}
    rig.clock.wait(7200)
    assert route_stats(rig.context, ADMIN, 3600).jobs == 0


def test_statistics_say_when_they_are_of_the_newest_only(lite: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    from switchyard.service.job import stats

    lite.cluster("alpha")
    for _ in range(5):
        lite.submit()
    monkeypatch.setattr(stats, "LOOK_MAX", 3)
    found = route_stats(lite.context, ADMIN, 3600)
    assert (found.looked_at, found.is_whole, found.jobs) == (3, False, 3)


def test_statistics_count_what_one_may_view(lite: Rig) -> None:
    lite.cluster("alpha")
    lite.project("web")
    lite.submit(a_request(project="web"))
    ann = lite.user("ann")
    assert route_stats(lite.context, ann, 3600).jobs == 0


def test_a_move_is_counted_as_such_and_as_another_answer(lite: Rig) -> None:
    full, idle = two(lite)
    in_line_at_full(lite)
    wait(lite, 31, full, idle)
    say(idle, free_cores=8)
    assert JobMover().look(lite.context, lite.leader) == 1
    assert lite.context.tally.moves.read() == {("full", "idle"): 1}
    counted = lite.context.tally.decisions.read()
    assert counted["", "", "default", "idle", "assigned"] == 1


def test_what_a_spill_rule_rejects_is_counted_as_that(lite: Rig) -> None:
    lite.cluster("alpha")
    clusters.cluster_change(lite.context, ADMIN, "alpha", ClusterChange(is_cordoned=True))
    lite.submit(a_request(spill=["reject after 1m"]))
    wait(lite, 61)
    assert expire_jobs(lite.context, lite.leader) == 1
    assert lite.context.tally.refusals.read() == {("rejected", "spill"): 1}
    assert lite.context.tally.decisions.read()["", "", "default", "", "rejected"] == 1
    (bar,) = route_stats(lite.context, ADMIN, 3600).by["reason"]
    assert (bar.name, bar.rejected) == ("rejected: spill", 1)
