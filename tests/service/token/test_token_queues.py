"""Tokens of jobs together with places in limited queues, with quotes, and with each other: who goes, and who waits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from switchyard.errors import Rebuilding
from switchyard.model.cluster.poll import AttemptRef
from switchyard.model.cluster.quote import QuoteGiven
from switchyard.model.cluster.selection import Select
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.rules.tokens import AllocateRequest, TokenPoolChange
from switchyard.server.metrics import Metrics
from switchyard.service.job import explanation
from switchyard.service.quote.quote_answers import InquiryDelivery, store_answers
from switchyard.service.quote.quote_decisions import decide_due_jobs
from switchyard.service.reserve.token_queue import TokenRound, TokenWaiter, grant_tokens
from switchyard.service.token import pool_calls
from switchyard.tokens.pools import JobToken
from tests.service.queued import WIDE
from tests.service.rig import ADMIN, RigAgent
from tests.service.tokened import Yard, tokened_yard


@pytest.fixture
def yard(store_url: str, tmp_path: Path) -> Iterator[Yard]:
    with tokened_yard(store_url, tmp_path) as yard:
        yield yard


@pytest.fixture
def alpha(yard: Yard) -> RigAgent:
    return yard.cluster("alpha", graph=WIDE)


@pytest.mark.parametrize("first", ["register", "look"])
def test_one_that_registers_again_after_a_restart_opens_nothing_early(
    yard: Yard, store_url: str, tmp_path: Path, first: str
) -> None:
    """A plugin does so when it starts, which may be before the leader has looked."""
    yard.pool("matlab", 1)
    taken = pool_calls.allocate(yard.context, ADMIN, "matlab", AllocateRequest("before", lease_s=100))
    assert taken.is_granted
    yard.close()
    again = Yard(store_url, tmp_path, clock=yard.clock)
    try:
        if first == "register":
            again.pool("matlab", 1)
        again.round()
        with pytest.raises(Rebuilding):
            pool_calls.allocate(again.context, ADMIN, "matlab", AllocateRequest("after"))
    finally:
        again.close()


# --- places and tokens


def test_a_place_and_a_token_are_taken_together_and_given_back_together(yard: Yard, alpha: RigAgent) -> None:
    yard.pool("matlab", 5)
    ids = [yard.ask("slow", tokens={"matlab": 2}) for _ in range(3)]
    yard.round()
    assert yard.states(ids) == ["ASSIGNED", "ASSIGNED", "PENDING"]
    assert yard.held("matlab") == 4, "one that has no place holds no token"
    assert yard.row(ids[2]).reason == "queue two: waits for a place"
    yard.end(alpha, ids[0])
    yard.round()
    assert yard.states(ids) == ["SUCCEEDED", "ASSIGNED", "ASSIGNED"]
    assert yard.held("matlab") == 4


def test_a_new_job_that_needs_both_waits_for_its_place_first(yard: Yard, alpha: RigAgent) -> None:
    yard.pool("matlab", 5)
    row = yard.row(yard.ask("slow", tokens={"matlab": 2}))
    assert (row.state, row.blocked, row.reason) == ("PENDING", "queue", "queue two: waits for a place")


def test_without_a_token_a_place_is_left_to_others(yard: Yard, alpha: RigAgent) -> None:
    """However many wait for the token before them."""
    yard.pool("matlab", 1)
    holder = yard.ask(tokens={"matlab": 1})
    yard.round()
    waiting = [yard.ask("slow", tokens={"matlab": 1}) for _ in range(30)]
    free = [yard.ask("slow") for _ in range(3)]
    yard.round()
    assert yard.states(free) == ["ASSIGNED", "ASSIGNED", "PENDING"]
    assert set(yard.states(waiting)) == {"PENDING"}
    assert yard.row(waiting[0]).reason == f"matlab 1/1, held by job {holder}"
    assert yard.row(waiting[29]).reason == "matlab 1/1, others before it"
    assert pool_calls.pool_get(yard.context, "matlab").waiting == 30


def test_what_waits_hears_of_a_change_and_of_nothing_else(yard: Yard, alpha: RigAgent) -> None:
    yard.pool("matlab", 1)
    holder = yard.ask(tokens={"matlab": 1})
    yard.round()
    waiting = [yard.ask("slow", tokens={"matlab": 1}) for _ in range(3)]
    others = [yard.ask(tokens={"matlab": 1}) for _ in range(3)]
    free = yard.ask("slow")
    for _ in range(2):
        yard.round()
    heard = {job_id: yard.kinds(job_id) for job_id in (*waiting, *others)}
    for _ in range(5):
        yard.round()
    assert {job_id: yard.kinds(job_id) for job_id in heard} == heard
    yard.end(alpha, holder, free)
    for _ in range(3):
        yard.round()
    assert yard.row(waiting[0]).state == "ASSIGNED"
    assert max(len(yard.kinds(job_id)) - len(heard[job_id]) for job_id in (*waiting[1:], *others)) <= 2, (
        "freed, and taken"
    )


def test_a_reason_that_is_over_is_taken_back(yard: Yard, alpha: RigAgent) -> None:
    """The token is free again, but by now every place is taken."""
    yard.pool("matlab", 1)
    holder = yard.ask(tokens={"matlab": 1})
    yard.round()
    waiting, *_ = yard.ask("slow", tokens={"matlab": 1}), yard.ask("slow"), yard.ask("slow")
    yard.round()
    assert yard.row(waiting).reason == f"matlab 1/1, held by job {holder}"
    yard.end(alpha, holder)
    yard.round()
    yard.round()
    assert (yard.row(waiting).state, yard.held("matlab")) == ("PENDING", 0)
    assert yard.row(waiting).reason == "queue two: waits for a place"


def test_one_that_needs_much_is_not_overtaken_in_its_queue(yard: Yard, alpha: RigAgent) -> None:
    yard.pool("matlab", 2)
    holder = yard.ask(tokens={"matlab": 1})
    yard.round()
    large = yard.ask("slow", tokens={"matlab": 2})
    little = [yard.ask("slow", tokens={"matlab": 1}) for _ in range(2)]
    yard.round()
    assert yard.states([large, *little]) == ["PENDING"] * 3
    yard.end(alpha, holder)
    yard.round()
    assert yard.states([large, *little]) == ["ASSIGNED", "PENDING", "PENDING"]


def test_nor_by_those_of_another_queue(yard: Yard, alpha: RigAgent) -> None:
    """One in a limited queue stands in one line with those that need no place, and the other way round."""
    yard.pool("matlab", 2)
    holder = yard.ask(tokens={"matlab": 1})
    yard.round()
    large = yard.ask("slow", tokens={"matlab": 2})
    yard.round()
    little = [yard.ask(tokens={"matlab": 1}) for _ in range(2)]
    for _ in range(2):
        yard.round()
        assert yard.states([large, *little]) == ["PENDING"] * 3
    yard.end(alpha, holder)
    yard.round()
    assert yard.states([large, *little]) == ["ASSIGNED", "PENDING", "PENDING"]
    later = yard.ask("slow", tokens={"matlab": 1})
    yard.end(alpha, large)
    yard.round()
    assert yard.states([*little, later]) == ["ASSIGNED", "ASSIGNED", "PENDING"]


def test_nor_between_two_limited_queues(yard: Yard, alpha: RigAgent) -> None:
    """Their names say nothing about who is next."""
    yard.pool("matlab", 2)
    holder = yard.ask(tokens={"matlab": 1})
    yard.round()
    large = yard.ask("slow", tokens={"matlab": 2})
    yard.round()
    little = yard.ask("shared", tokens={"matlab": 1})
    for _ in range(3):
        yard.round()
        assert yard.states([large, little]) == ["PENDING", "PENDING"]
    yard.end(alpha, holder)
    yard.round()
    assert yard.states([large, little]) == ["ASSIGNED", "PENDING"]


def test_lanes_take_turns_beside_a_limited_queue(yard: Yard, alpha: RigAgent) -> None:
    yard.pool("matlab", 1)
    first = yard.ask(project="a", tokens={"matlab": 1})
    yard.round()
    many = [yard.ask(project="a", tokens={"matlab": 1}) for _ in range(4)]
    yard.ask("slow", project="a", tokens={"matlab": 1}, priority=-5)  # behind all
    other = yard.ask(project="b", tokens={"matlab": 1})
    yard.round()
    yard.end(alpha, first)
    yard.round()
    assert yard.row(other).state == "ASSIGNED"
    assert set(yard.states(many)) == {"PENDING"}


def test_an_array_takes_its_tokens_with_its_first_place(yard: Yard, alpha: RigAgent) -> None:
    yard.pool("matlab", 8)
    array = yard.ask("slow", array="0-3", tokens={"matlab": 2})
    second = yard.ask("slow", array="0-1", tokens={"matlab": 1})
    yard.round()
    assert yard.states([array, second]) == ["ASSIGNED", "PENDING"]
    assert yard.held("matlab") == 8, "for all of its tasks that may run at once"
    leases = alpha.lease(want=100)
    for _ in range(4):
        for lease in leases:
            for task in range(lease.lo or 0, (lease.hi or 0) + 1):
                alpha.report(
                    AttemptRef(array, lease.fence + task - (lease.lo or 0)), ObservedState.SUCCEEDED, exit_code=0
                )
        yard.round()
        leases = [lease for lease in alpha.lease(want=100) if lease.job == array]
    yard.round()
    assert yard.states([array, second]) == ["SUCCEEDED", "RUNNING"]
    assert yard.held("matlab") == 2


# --- several pools, and impossible needs


def test_one_that_asks_for_more_than_there_is_keeps_nobody_waiting(yard: Yard, alpha: RigAgent) -> None:
    yard.pool("matlab", 4)
    never = [yard.ask(*tags, tokens={"matlab": 50}) for tags in ((), ("slow",))]
    ids = [yard.ask(*tags, tokens={"matlab": 1}) for tags in ((), ("slow",))]
    yard.round()
    assert yard.states([*never, *ids]) == ["PENDING", "PENDING", "ASSIGNED", "ASSIGNED"]
    for job_id in never:
        assert yard.row(job_id).reason == "asks for 50 of matlab, which has 4 in all"
    pool_calls.set_quota(yard.context, ADMIN, "matlab", TokenPoolChange(100))
    yard.context.snapshots.refresh(force=True)
    yard.round()
    assert yard.states(never) == ["ASSIGNED", "PENDING"], "there are 100"


def test_one_that_needs_two_pools_is_not_overtaken_in_either(yard: Yard, alpha: RigAgent) -> None:
    for name in ("left", "right"):
        yard.pool(name, 1)
    holder = yard.ask(tokens={"left": 1})
    yard.round()
    both = yard.ask(tokens={"left": 1, "right": 1})
    right = yard.ask(tokens={"right": 1})
    yard.round()
    assert yard.states([both, right]) == ["PENDING", "PENDING"], "the one on the right is kept for it"
    yard.end(alpha, holder)
    yard.round()
    assert yard.states([both, right]) == ["ASSIGNED", "PENDING"]
    yard.end(alpha, both)
    yard.round()
    assert yard.row(right).state == "ASSIGNED"


def test_an_array_that_holds_its_tokens_keeps_them_whatever_the_quota_becomes(yard: Yard, alpha: RigAgent) -> None:
    yard.pool("matlab", 4)
    array = yard.ask(array="0-3", tokens={"matlab": 1})
    yard.round()
    waiter = TokenWaiter(array, "default", "development", "default/default", 0, 0, "", {"matlab": 4})
    other = TokenWaiter("0", "default", "development", "default/default", 0, 0, "", {"matlab": 1})
    pool_calls.set_quota(yard.context, ADMIN, "matlab", TokenPoolChange(2))
    assert grant_tokens(yard.context, yard.care, [other, waiter], TokenRound())[0] == {array}


def test_what_is_kept_for_one_is_no_more_than_it_needs(yard: Yard, alpha: RigAgent) -> None:
    yard.pool("left", 1)
    yard.pool("right", 3)
    yard.ask(tokens={"left": 1})
    yard.round()
    yard.ask(tokens={"left": 1, "right": 1})
    right = [yard.ask(tokens={"right": 1}) for _ in range(3)]
    yard.round()
    assert yard.states(right) == ["ASSIGNED", "ASSIGNED", "PENDING"]
    assert yard.row(right[2]).reason == "right 2/3, others before it"


# --- quotes and tokens


def answer(agents: Iterable[RigAgent]) -> int:
    """Every question is answered, the later cluster sooner; how many there were."""
    count = 0
    for place, agent in enumerate(agents):
        entry = agent.rig.context.snapshots.fleet.agents[agent.id]
        for asked in InquiryDelivery(agent.rig.context).next(entry):
            given = QuoteGiven(shape=asked.shape, can=True, eta_s=100 - place, valid_s=5)
            store_answers(agent.rig.context, entry, [given])
            count += 1
    return count


@pytest.mark.parametrize("tags", [(), ("slow",)], ids=["plain", "limited"])
def test_a_job_that_goes_by_quotes_asks_again_only_when_it_can_go(
    yard: Yard, alpha: RigAgent, tags: tuple[str, ...]
) -> None:
    both = (alpha, yard.cluster("beta", graph=WIDE))
    yard.pool("matlab", 1)
    holder = yard.ask(cluster="alpha", tokens={"matlab": 1})
    yard.round()
    job = yard.ask(*tags, select=Select("soonest"), tokens={"matlab": 1})
    assert answer(both) == 2
    for _ in range(2):
        decide_due_jobs(yard.context)
        yard.round()
    assert yard.row(job).reason == f"matlab 1/1, held by job {holder}"
    heard = yard.kinds(job)
    for _ in range(3):
        yard.clock.wait(10)  # what was quoted is over
        for agent in both:
            agent.seen()
        yard.round()
        assert (answer(both), decide_due_jobs(yard.context)) == (0, 0)
    assert yard.kinds(job) == heard
    later = yard.ask(tokens={"matlab": 1})
    yard.end(alpha, holder)
    for _ in range(3):
        yard.round()
        answer(both)
        decide_due_jobs(yard.context)
        assert yard.row(later).state == "PENDING", "it does not overtake while the other asks"
    yard.round()
    assert (yard.row(job).state, yard.job(job).cluster) == ("ASSIGNED", "beta")
    assert yard.held("matlab") == 1


# --- what is counted, and what helps


def test_metrics_say_what_is_used_waits_was_refused_and_repaired(yard: Yard, alpha: RigAgent) -> None:
    yard.pool("matlab", 1)
    holder = yard.ask(tokens={"matlab": 1})
    yard.round()
    for tags in ((), ("slow",)):
        yard.ask(*tags, tokens={"matlab": 1})
    for _ in range(5):
        yard.round()
    yard.context.tokens.pools.job_give("matlab", [JobToken(holder, 1, "default", "development")])
    yard.clock.wait(31)
    alpha.seen()
    yard.round()
    text = Metrics(yard.yard).text().decode()
    for line in (
        'switchyard_token_used{token_pool="matlab"} 1.0',
        'switchyard_token_quota{token_pool="matlab"} 1.0',
        'switchyard_token_waiting{token_pool="matlab"} 2.0',
        'switchyard_token_grants_total{token_pool="matlab"} 1.0',
        'switchyard_token_refusals_total{token_pool="matlab"} 2.0',
        'switchyard_token_repairs_total{token_pool="matlab"} 1.0',
        'switchyard_token_wait_seconds_sum{token_pool="matlab"} 0.0',
        'switchyard_jobs_pending{reason="tokens"} 1.0',
    ):
        assert line in text
    yard.end(alpha, holder)
    yard.round()
    text = Metrics(yard.yard).text().decode()
    assert 'switchyard_token_wait_seconds_sum{token_pool="matlab"} 31.0' in text
    assert pool_calls.pool_get(yard.context, "matlab").waited_s == 31


def test_explain_says_how_many_more_would_do(yard: Yard, alpha: RigAgent) -> None:
    yard.pool("matlab", 3)
    yard.ask(tokens={"matlab": 2})
    yard.round()
    two, many = (yard.ask(*tags, tokens={"matlab": units}) for tags, units in (((), 2), (("slow",), 9)))
    yard.round()
    assert explanation.job_explain(yard.context, ADMIN, two).hints == ["1 more matlab token"]
    assert explanation.job_explain(yard.context, ADMIN, many).hints == ["10 more matlab tokens, a quota of 9 or more"]
    assert yard.job(two).state is State.PENDING
