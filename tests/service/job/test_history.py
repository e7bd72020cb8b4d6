"""History: every answer that was another one is kept, once, with its time and cause; of many the first and the last."""

from __future__ import annotations

from switchyard.model.cluster.cluster import ClusterChange
from switchyard.model.cluster.selection import Select
from switchyard.model.cluster.verdict import Decision
from switchyard.service.cluster import clusters
from switchyard.service.job import explanation, jobs
from switchyard.service.lifecycle import decision_history
from switchyard.service.upkeep.move_jobs import take_back_unleased
from switchyard.service.upkeep.round import route_pending
from tests.builders import a_request
from tests.service.lines import say, wait
from tests.service.rig import ADMIN, Rig


def told(rig: Rig, job: str) -> list[Decision]:
    return explanation.job_explain(rig.context, ADMIN, job).history


def cordon(rig: Rig, name: str, reason: str) -> None:
    clusters.cluster_change(rig.context, ADMIN, name, ClusterChange(is_cordoned=True, reason=reason))
    route_pending(rig.context, rig.leader)


def test_each_other_answer_is_told_once_with_its_cause(rig: Rig) -> None:
    rig.cluster("alpha")
    clusters.cluster_change(rig.context, ADMIN, "alpha", ClusterChange(is_cordoned=True, reason="new disks"))
    made = rig.submit()
    first = rig.clock()
    rig.clock.wait(1)
    route_pending(rig.context, rig.leader)  # nothing changed: nothing is written
    cordon(rig, "alpha", "new racks")
    second = rig.clock()
    rig.clock.wait(1)
    clusters.cluster_change(rig.context, ADMIN, "alpha", ClusterChange(is_cordoned=False))
    route_pending(rig.context, rig.leader)
    assert [(each.at_us, each.what, each.state, each.cluster, each.reason) for each in told(rig, made.id)] == [
        (first, "accepted", "PENDING", None, "waits for alpha: cordoned: new disks"),
        (second, "waits", "PENDING", None, "waits for alpha: cordoned: new racks"),
        (rig.clock(), "assigned", "ASSIGNED", "alpha", "until now alpha: cordoned: new racks"),
    ]


def test_a_new_cluster_is_the_cause_of_what_goes_there(lite: Rig) -> None:
    lite.join("alpha")
    made = lite.submit()
    lite.cluster("beta")
    route_pending(lite.context, lite.leader)
    assert told(lite, made.id)[-1].reason == "beta is new"


def test_an_array_that_moved_on_keeps_where_it_went_first(rig: Rig) -> None:
    alpha = rig.cluster("alpha")
    made = rig.submit(a_request(array="0-9"))
    assert alpha.lease(want=2)
    rig.cluster("beta")
    cordon(rig, "alpha", "new racks")
    rig.clock.wait(60)
    take_back_unleased(rig.context, rig.leader)
    assert rig.row(made.id).cluster_id != alpha.cluster_id
    arrived = ("accepted", "ASSIGNED", "alpha")
    assert next((each.what, each.state, each.cluster) for each in told(rig, made.id)) == arrived
    event = jobs.job_events(rig.context, ADMIN, made.id, after=0, limit=1).items[0]
    assert (event.kind, event.state, event.cluster) == arrived


def test_a_job_decided_on_arrival_costs_no_event(lite: Rig) -> None:
    lite.cluster("alpha")
    made = lite.submit()
    assert [(each.what, each.state, each.cluster) for each in told(lite, made.id)] == [
        ("accepted", "ASSIGNED", "alpha")
    ]
    assert lite.kinds(made.id) == ["accepted"]


def test_of_very_many_reasons_the_first_and_the_last_are_kept(rig: Rig) -> None:
    rig.cluster("alpha")
    clusters.cluster_change(rig.context, ADMIN, "alpha", ClusterChange(is_cordoned=True, reason="0"))
    made = rig.submit()
    count = decision_history.FIRST_KEPT + decision_history.LAST_KEPT + 30
    for number in range(1, count + 1):
        cordon(rig, "alpha", str(number))
    numbers = [int(each.reason.rpartition(" ")[2]) for each in told(rig, made.id)[1:]]
    kept = decision_history.FIRST_KEPT + decision_history.LAST_KEPT
    assert kept <= len(numbers) <= kept + 2
    assert numbers[: decision_history.FIRST_KEPT] == list(range(1, decision_history.FIRST_KEPT + 1))
    assert numbers[-decision_history.LAST_KEPT :] == list(range(count - decision_history.LAST_KEPT + 1, count + 1))


def test_what_runs_and_ends_is_no_decision(lite: Rig) -> None:
    agent = lite.cluster("alpha")
    made = lite.submit(a_request(priority=3))
    agent.lease_one()
    assert [each.what for each in told(lite, made.id)] == ["accepted"]


def test_other_numbers_alone_are_no_other_answer_of_a_selection(lite: Rig) -> None:
    alpha = lite.cluster("alpha")
    say(alpha, free_cores=1)
    steps = [{"filter": "free_cores > 100"}, {"select": "first"}]
    job = lite.submit(a_request(select=Select("constraint", {"priorities": [{"priority": 1, "steps": steps}]}))).id
    for free in (2, 3):
        wait(lite, 3, alpha)
        say(alpha, free_cores=free)
        route_pending(lite.context, lite.leader)
    assert lite.kinds(job) == ["accepted"]
    assert "free_cores = 3" in explanation.job_explain(lite.context, ADMIN, job).now[0].reason
    cordon(lite, "alpha", "until 18:00")
    cordon(lite, "alpha", "until 20:00")
    assert lite.kinds(job) == ["accepted", "waits", "waits"], "an operator's numbers are news"
