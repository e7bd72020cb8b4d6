"""Clusters that do not answer, or answer by several agents; and more clusters than are asked at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchyard.model.cluster.quote import CANDIDATES_MAX
from switchyard.model.job.job import State
from switchyard.service.quote.quote_answers import InquiryDelivery
from switchyard.service.quote.quote_decisions import decide_due_jobs
from switchyard.service.submit.quotes_on_request import begin_inquiry, inquiry_answers
from switchyard.service.upkeep.round import route_pending
from tests.builders import a_request
from tests.service.lines import wait
from tests.service.queued import WIDE, promote, queued_rig
from tests.service.quote.quoted import WAIT_S, asked, say, wants
from tests.service.rig import ADMIN, Rig, RigAgent

LATE_S = WAIT_S + 0.1


@pytest.fixture
def pair(rig: Rig) -> tuple[RigAgent, RigAgent]:
    return rig.cluster("alpha"), rig.cluster("beta")


def test_silence_is_remembered_for_a_while_and_counted(rig: Rig, pair: tuple[RigAgent, RigAgent]) -> None:
    alpha, beta = pair
    rig.submit(wants())
    say(alpha, eta_s=60, valid_s=600)
    late = asked(beta)[0]
    rig.clock.wait(LATE_S)
    assert decide_due_jobs(rig.context) == 1
    rig.clock.wait(0.1)
    again = rig.submit(wants())
    assert (again.state, again.cluster) == ("ASSIGNED", "alpha"), "not everybody waits for who does not answer"
    assert rig.context.tally.quotes.read()["beta", "none"] == 1
    say(beta, late, eta_s=0)
    rig.clock.wait(0.1)
    assert rig.submit(wants()).cluster == "beta", "what it says after all counts at once"


def test_one_that_is_silent_is_asked_again_later(rig: Rig, pair: tuple[RigAgent, RigAgent]) -> None:
    alpha, beta = pair
    handing = InquiryDelivery(rig.context)
    rig.submit(wants())
    say(alpha, eta_s=60, valid_s=600)
    assert len(asked(beta, handing)) == 1
    rig.clock.wait(LATE_S)
    decide_due_jobs(rig.context)
    rig.clock.wait(60)
    assert rig.submit(wants()).reason == "waiting for quotes of beta"
    assert len(asked(beta, handing)) == 1


def test_a_question_that_got_lost_is_put_again_however_many_jobs_come(
    lite: Rig, pair_lite: tuple[RigAgent, RigAgent]
) -> None:
    """One whose agent was killed with the question in hand would be silent as long as the stream of jobs lasts."""
    _, beta = pair_lite
    handing = InquiryDelivery(lite.context)
    times = 0
    for _ in range(12):
        lite.submit(wants())
        times += len(asked(beta, handing))
        lite.clock.wait(WAIT_S / 4)
    assert 2 <= times <= 4


@pytest.fixture
def pair_lite(lite: Rig) -> tuple[RigAgent, RigAgent]:
    return lite.cluster("alpha"), lite.cluster("beta")


@pytest.mark.parametrize("answer", [True, False], ids=["one answers", "nobody answers"])
def test_silence_keeps_no_job_from_its_place(store_url: str, tmp_path: Path, answer: bool) -> None:
    with queued_rig(store_url, tmp_path) as rig:
        alpha = rig.cluster("alpha", graph=WIDE)
        rig.cluster("beta", graph=WIDE)
        made = rig.submit(wants(tags=["slow"]))
        if answer:
            say(alpha, eta_s=0, valid_s=600)
        for _ in range(3):
            rig.clock.wait(LATE_S)
            decide_due_jobs(rig.context)
            promote(rig)
            route_pending(rig.context, rig.leader)
        assert rig.row(made.id).state == "ASSIGNED"


def test_a_server_that_missed_a_notice_looks_for_questions(lite: Rig) -> None:
    """Of a large batch the others hear only that there was one; so do they after they were not listening."""
    wakeups = lite.yard.wakeups
    lite.clock.wait(100)
    wakeups.pending_kick.clear()
    wakeups.quote_kick.clear()
    wakeups.is_pending_new = False
    assert not wakeups.quote_questions.may_have()
    wakeups.handle_unknown_commits()
    assert wakeups.quote_questions.may_have()
    assert (wakeups.pending_kick.is_set(), wakeups.quote_kick.is_set(), wakeups.is_pending_new) == (True, True, True)


# --- several agents of one cluster


def test_a_no_of_one_agent_is_not_the_clusters_while_another_may_say_yes(
    rig: Rig, pair: tuple[RigAgent, RigAgent]
) -> None:
    alpha, beta = pair
    other = rig.join("beta", "other", journal="j2")
    other.sync()
    made = rig.submit(wants())
    shape = asked(beta)[0]
    say(alpha, eta_s=60)
    say(beta, shape, can=False, reason="not on this machine")
    assert decide_due_jobs(rig.context) == 0, "the other one has not said anything"
    say(other, shape, eta_s=0)
    assert decide_due_jobs(rig.context) == 1
    assert rig.job(made.id).cluster == "beta"
    say(beta, shape, can=False, reason="still not")
    rig.clock.wait(0.1)
    assert rig.submit(wants()).cluster == "beta", "what nobody asked is not heard"


def test_all_agents_say_no(rig: Rig, pair: tuple[RigAgent, RigAgent]) -> None:
    alpha, beta = pair
    other = rig.join("beta", "other", journal="j2")
    other.sync()
    made = rig.submit(wants())
    shape = asked(beta)[0]
    say(alpha, eta_s=600)
    for agent in (beta, beta, other):
        assert decide_due_jobs(rig.context) == 0
        say(agent, shape, can=False, reason="full")
    assert decide_due_jobs(rig.context) == 1
    assert rig.job(made.id).cluster == "alpha"


def test_a_no_stands_when_the_other_agent_is_silent(rig: Rig, pair: tuple[RigAgent, RigAgent]) -> None:
    _, beta = pair
    rig.join("beta", "other", journal="j2").sync()
    found = begin_inquiry(rig.context, rig.submits, ADMIN, a_request(cluster="beta"))
    say(beta, can=False, reason="full")
    assert inquiry_answers(rig.context, found)[1] is False
    rig.clock.wait(LATE_S)
    (said,) = inquiry_answers(rig.context, found)[0].items
    assert (said.said.value, said.reason) == ("no", "full")


# --- whom to ask


def test_of_many_clusters_others_are_asked_as_time_passes(lite: Rig) -> None:
    agents = {name: lite.cluster(name) for name in (f"c{number:02}" for number in range(20))}
    asked_of: set[str] = set()
    for _ in range(12):
        made = lite.submit(wants())
        now = {name for name, agent in agents.items() if asked(agent)}
        assert len(now) == CANDIDATES_MAX
        for name in now:
            say(agents[name], eta_s=100, valid_s=5)
        assert decide_due_jobs(lite.context) == 1
        assert lite.job(made.id).cluster in now
        asked_of |= now
        wait(lite, 60, *agents.values())
    assert len(asked_of) > 2 * CANDIDATES_MAX


def test_a_good_quote_is_reckoned_with_as_long_as_it_holds(lite: Rig) -> None:
    """Also when others are the ones to be asked by then."""
    agents = {name: lite.cluster(name) for name in (f"c{number:02}" for number in range(20))}
    lite.submit(wants())
    first = sorted(name for name, agent in agents.items() if asked(agent))
    for name in first:
        say(agents[name], eta_s=0 if name == first[0] else 500, valid_s=3600)
    decide_due_jobs(lite.context)
    for _ in range(6):
        wait(lite, 60, *agents.values())
        made = lite.submit(wants())
        for agent in agents.values():
            if asked(agent):
                say(agent, eta_s=400, valid_s=5)
        decide_due_jobs(lite.context)
        held = lite.job(made.id)
        assert (held.state, held.cluster) == (State.ASSIGNED, first[0])
        agents[first[0]].lease()
