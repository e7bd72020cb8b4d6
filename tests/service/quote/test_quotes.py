"""Asking, answering and deciding by quotes, on a clock that stands still, on each engine."""

from __future__ import annotations

import pytest

from switchyard.model.cluster.cluster import ClusterChange, Load
from switchyard.model.cluster.quote import QuoteOutcome
from switchyard.model.job.job import Resources, State
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.wire.api import JobChange
from switchyard.service.cluster import clusters
from switchyard.service.job import job_control, jobs
from switchyard.service.quote import quote_answers
from switchyard.service.quote.quote_answers import InquiryDelivery
from switchyard.service.quote.quote_decisions import QuoteChore, decide_due_jobs
from switchyard.service.reserve import inquiries
from switchyard.service.reserve.quotes import quotes_of, shape_of
from switchyard.service.submit.quotes_on_request import begin_inquiry, inquiry_answers
from switchyard.service.upkeep.round import route_pending
from switchyard.store.clusters import quotes as store
from tests.builders import a_graph, a_request, a_spec
from tests.service.quote.quoted import WAIT_S, asked, say, wants
from tests.service.rig import ADMIN, Rig, RigAgent


@pytest.fixture
def pair(rig: Rig) -> tuple[RigAgent, RigAgent]:
    return rig.cluster("alpha"), rig.cluster("beta")


def test_the_last_answer_decides(rig: Rig, pair: tuple[RigAgent, RigAgent]) -> None:
    alpha, beta = pair
    made = rig.submit(wants())
    assert (made.state, made.reason) == ("PENDING", "waiting for quotes of alpha, beta")
    assert route_pending(rig.context, rig.leader) == 0, "not the business of others that wait"
    say(alpha, eta_s=60)
    assert decide_due_jobs(rig.context) == 0
    say(beta, eta_s=30)
    assert decide_due_jobs(rig.context) == 1
    job = rig.job(made.id)
    assert (job.state, job.cluster, job.reason) == (State.ASSIGNED, "beta", "")
    assert [lease.job for lease in beta.lease()] == [made.id]
    with rig.context.database.read() as tx:
        used = quotes_of(tx, made.id)
    assert used is not None
    assert [(each.cluster, each.eta_s) for each in used.quotes] == [("alpha", 60), ("beta", 30)]


def test_the_deadline_decides_and_what_comes_later_is_for_the_next(rig: Rig, pair: tuple[RigAgent, RigAgent]) -> None:
    alpha, beta = pair
    made = rig.submit(wants())
    shape = asked(beta)[0]
    say(alpha, eta_s=600, valid_s=100)
    rig.clock.wait(WAIT_S)
    rig.clock.wait(0.1)
    say(beta, shape, eta_s=0, valid_s=100)  # before anybody has looked
    assert decide_due_jobs(rig.context) == 1
    assert rig.job(made.id).cluster == "alpha"
    assert rig.submit(wants()).cluster == "beta"


def test_a_quote_is_asked_for_again_when_it_expired(rig: Rig, pair: tuple[RigAgent, RigAgent]) -> None:
    alpha, beta = pair
    rig.submit(wants())
    say(alpha, eta_s=60, valid_s=10)
    say(beta, eta_s=30, valid_s=100)
    decide_due_jobs(rig.context)
    rig.clock.wait(9)
    assert rig.submit(wants()).cluster == "beta"
    rig.clock.wait(2)
    again = rig.submit(wants())
    assert (again.state, again.reason) == ("PENDING", "waiting for quotes of alpha")
    assert (asked(alpha), asked(beta)) == ([shape_of(a_spec())[0]], [])


def test_one_that_holds_for_no_time_is_held_to_for_a_moment(rig: Rig, pair: tuple[RigAgent, RigAgent]) -> None:
    made = rig.submit(wants())
    for agent, eta_s in zip(pair, (60, 30), strict=True):
        say(agent, eta_s=eta_s, valid_s=0)
    decide_due_jobs(rig.context)
    assert rig.job(made.id).cluster == "beta"
    rig.clock.wait(quote_answers.VALID_S_MIN - 1)
    assert rig.submit(wants()).cluster == "beta"
    rig.clock.wait(1)
    assert rig.submit(wants()).state == "PENDING"


def test_nothing_is_asked_where_there_is_no_choice(lite: Rig) -> None:
    alpha, beta = lite.cluster("alpha"), lite.cluster("beta", graph=a_graph(count=2, cores=1))
    assert lite.submit(wants(cores=4)).cluster == "alpha"
    assert lite.submit(wants(cluster="beta")).cluster == "beta"
    assert asked(alpha) == asked(beta) == []


def test_a_job_that_asks_nobody_leaves_no_trace(lite: Rig, pair_lite: tuple[RigAgent, RigAgent]) -> None:
    made = lite.submit()
    with lite.context.database.read() as tx:
        assert (store.wait_next_due_us(tx), quotes_of(tx, made.id)) == (None, None)


@pytest.fixture
def pair_lite(lite: Rig) -> tuple[RigAgent, RigAgent]:
    return lite.cluster("alpha"), lite.cluster("beta")


def test_each_agent_is_handed_a_question_once(lite: Rig, pair_lite: tuple[RigAgent, RigAgent]) -> None:
    alpha, _ = pair_lite
    handing = InquiryDelivery(lite.context)
    lite.submit(wants())
    assert len(asked(alpha, handing)) == 1
    assert asked(alpha, handing) == []
    lite.clock.wait(1)
    lite.submit(wants())
    assert asked(alpha, handing) == [], "it is thinking of it"
    lite.clock.wait(WAIT_S + 1)
    assert asked(alpha, InquiryDelivery(lite.context)) == [], "too late to ask"
    lite.submit(wants())
    assert len(asked(alpha, handing)) == 1, "asked anew"


def test_a_cluster_is_not_asked_more_than_so_much(
    lite: Rig, pair_lite: tuple[RigAgent, RigAgent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inquiries, "OPEN_INQUIRIES_MAX", 6)
    ids = [lite.submit(wants(cores=1, memory=2**20 * number)).id for number in range(1, 6)]
    assert len(asked(pair_lite[0])) == 3
    lite.clock.wait(WAIT_S)
    assert decide_due_jobs(lite.context) == 5
    assert {lite.job(job).state for job in ids} == {State.ASSIGNED}


def test_one_users_inquiries_leave_places_for_others(
    rig: Rig, pair: tuple[RigAgent, RigAgent], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each user has fewer inquiries open than places are free, however many jobs they submit."""
    monkeypatch.setattr(inquiries, "OPEN_INQUIRIES_MAX", 12)
    shapes = iter(range(1, 100))

    def flood(name: str) -> int:
        """How many inquiries of a new user's 20 shapes reach the cluster."""
        before, actor = len(asked(pair[0])), rig.user(name)
        for _ in range(20):
            rig.submit(wants(cores=1, memory=2**20 * next(shapes)), actor=actor)
        return len(asked(pair[0])) - before

    assert [flood(name) for name in ("ann", "bob", "eve")] == [6, 3, 2]
    rig.clock.wait(WAIT_S + 1)
    assert flood("zoe") == 6, "places come back with the deadline"


@pytest.mark.parametrize("what", ["cancelled", "held", "gone"])
def test_what_happens_to_a_job_while_it_waits(lite: Rig, pair_lite: tuple[RigAgent, RigAgent], what: str) -> None:
    made = lite.submit(wants())
    if what == "cancelled":
        jobs.job_cancel(lite.context, ADMIN, made.id, "")
    elif what == "held":
        job_control.job_change(lite.context, ADMIN, made.id, JobChange(hold=True))
    else:
        clusters.cluster_delete(lite.context, ADMIN, "alpha", abandon=False)
    lite.clock.wait(WAIT_S)
    decide_due_jobs(lite.context)
    expected = {"cancelled": (State.CANCELLED, None), "held": (State.PENDING, None), "gone": (State.ASSIGNED, "beta")}
    assert (lite.job(made.id).state, lite.job(made.id).cluster) == expected[what]
    assert decide_due_jobs(lite.context) == 0
    if what == "held":
        lite.clock.wait(quote_answers.SILENT_CLUSTER_US / 1e6)
        for agent in pair_lite:
            agent.seen()
        assert lite.leader.take(lite.context)
        job_control.job_change(lite.context, ADMIN, made.id, JobChange(hold=False))
        assert route_pending(lite.context, lite.leader) == 0
        assert lite.job(made.id).reason == "waiting for quotes of alpha, beta"
        lite.clock.wait(WAIT_S)
        decide_due_jobs(lite.context)
        assert lite.job(made.id).state is State.ASSIGNED


def test_a_cluster_that_says_now_and_is_always_late_loses_its_jobs(rig: Rig, pair: tuple[RigAgent, RigAgent]) -> None:
    """Beta says five minutes, and is right. Alpha says now, and begins after twenty: for a while."""
    alpha, beta = pair
    quoting, places = QuoteChore(rig.context), []
    for _ in range(7):
        made = rig.submit(wants())
        say(alpha, eta_s=0, valid_s=1)
        say(beta, eta_s=300, valid_s=1)
        decide_due_jobs(rig.context)
        place = rig.job(made.id).cluster
        places.append(place)
        agent = alpha if place == "alpha" else beta
        held = agent.lease_one()
        rig.clock.wait(1200 if place == "alpha" else 300)
        assert rig.leader.take(rig.context)
        for each in pair:
            each.seen()
        agent.report(held, ObservedState.RUNNING)
        agent.report(held, ObservedState.SUCCEEDED)
        quoting.go()
    assert places == ["alpha"] * 5 + ["beta"] * 2
    record = clusters.cluster_view(rig.context, rig.context.snapshots.world.by_name["alpha"]).quotes
    assert record is not None
    assert (record.starts, record.error_s, record.trust) == (5, 1200, pytest.approx(1 / 3, abs=0.001))


def test_what_waits_at_the_server_counts(lite: Rig, pair_lite: tuple[RigAgent, RigAgent]) -> None:
    """A hundred jobs of one shape do not all go to the cluster that was the best one before the first of them."""
    alpha, beta = pair_lite  # two nodes of four cores each
    for agent in pair_lite:
        lite.context.snapshots.take_load(agent.id, Load(free_cores=8), lite.clock())
    shape = wants(cores=4)
    lite.submit(shape)
    say(alpha, eta_s=0, valid_s=600)
    say(beta, eta_s=90, valid_s=600)
    decide_due_jobs(lite.context)
    places = []
    for _ in range(11):
        lite.clock.wait(0.1)
        places.append(lite.submit(shape).cluster)
    assert places.count("alpha") > 2
    assert places.count("beta") > 2


def test_cost_comes_from_what_is_known_of_the_cluster(rig: Rig, pair: tuple[RigAgent, RigAgent]) -> None:
    alpha, beta = pair
    clusters.cluster_change(rig.context, ADMIN, "alpha", ClusterChange(state={"cost_per_node_hour": 4}))
    clusters.cluster_change(rig.context, ADMIN, "beta", ClusterChange(state={"cost_per_node_hour": 6}))
    request = a_request(resources=Resources(nodes=2, tasks=2, time_limit="30m"))
    found = begin_inquiry(rig.context, rig.submits, ADMIN, request)
    say(alpha)
    say(beta, cost=1.0)  # the agent knows better
    told, is_all = inquiry_answers(rig.context, found)
    assert is_all
    assert {each.cluster: each.cost for each in told.items} == {"alpha": 4.0, "beta": 1.0}
    assert (told.cheapest, told.soonest) == ("beta", None)


def test_on_request_who_is_silent_has_no_answer(rig: Rig, pair: tuple[RigAgent, RigAgent]) -> None:
    found = begin_inquiry(rig.context, rig.submits, ADMIN, a_request())
    assert inquiry_answers(rig.context, found)[1] is False
    rig.clock.wait(WAIT_S)
    told, _ = inquiry_answers(rig.context, found)
    assert {(each.cluster, each.said, each.reason) for each in told.items} == {
        ("alpha", QuoteOutcome.NONE, "no answer within 2 s"),
        ("beta", QuoteOutcome.NONE, "no answer within 2 s"),
    }
    nowhere, is_all = inquiry_answers(rig.context, begin_inquiry(rig.context, rig.submits, ADMIN, a_request(cores=99)))
    assert (nowhere.items, is_all) == ([], True)
    assert "needs 99 core" in nowhere.reason


def test_what_is_old_is_removed(rig: Rig, pair: tuple[RigAgent, RigAgent]) -> None:
    rig.submit(wants())
    say(pair[0], eta_s=0)
    rig.clock.wait(WAIT_S)
    decide_due_jobs(rig.context)
    rig.clock.wait(2 * 3600)
    QuoteChore(rig.context).go()
    shape, _ = shape_of(a_spec())
    with rig.context.database.read() as tx:
        assert store.ask_lock(tx, [shape]) == []
        assert store.quote_list_in_time(tx, shape, asked_us=0, deadline_us=rig.clock(), limit=9) == []
