"""The leader's chores: route what waits, move what nobody leased, judge what fell silent; a deposed one does none."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.errors import Conflict, Resync
from switchyard.model.cluster.cluster import ClusterChange
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import ObservedState, ReportAnswer
from switchyard.model.rules.access import GrantTarget, Role, UserChange
from switchyard.model.wire.api import JobChange
from switchyard.service.access import users
from switchyard.service.cluster import agents, clusters, graphs
from switchyard.service.job import explanation, job_control, jobs
from switchyard.service.placement import evaluation
from switchyard.service.upkeep.leadership import TERM_US, Leadership
from switchyard.service.upkeep.move_jobs import take_back_unleased
from switchyard.service.upkeep.round import route_pending
from switchyard.service.upkeep.silent_agents import LOST_AFTER_S, lose_silent_attempts
from switchyard.store.jobs import jobs as job_store
from switchyard.store.jobs import leases
from tests.builders import a_graph, a_request
from tests.service.rig import ADMIN, Rig, RigAgent

LONG_S = 10 * LOST_AFTER_S


def silence(rig: Rig, seconds: float) -> None:
    """Time passes; the leader stays the leader, no agent speaks."""
    step = 10.0  # less than a leader's term
    while seconds > 0:
        rig.clock.wait(min(step, seconds))
        seconds -= step
        assert rig.leader.take(rig.context)
    rig.context.snapshots.rebuild_world()


# --- route what waits


def test_a_waiting_job_is_taken_up_when_a_cluster_comes_up(rig: Rig) -> None:
    agent = rig.join("alpha")
    made = rig.submit(a_request("a"))
    assert made.state == "PENDING"
    assert route_pending(rig.context, rig.leader) == 0
    graphs.store_agent_graph(rig.context, agent.id, a_graph())
    agent.sync()
    assert route_pending(rig.context, rig.leader) == 1
    job = rig.job(made.id)
    assert (job.state, job.cluster, job.attempt, job.fence, job.reason) == (State.ASSIGNED, "alpha", 1, 1, "")
    assert [lease.job for lease in agent.lease()] == [made.id]
    assert rig.kinds(made.id) == ["accepted", "assigned", "leased"]
    plan = explanation.job_explain(rig.context, ADMIN, made.id).plan
    assert plan is not None
    assert (plan.chosen, plan.outcome) == ("alpha", "assign")


def test_a_waiting_job_that_turns_out_to_fit_nowhere_is_rejected(rig: Rig) -> None:
    agent = rig.join("alpha")
    made = rig.submit(a_request(cores=99))
    graphs.store_agent_graph(rig.context, agent.id, a_graph())
    agent.sync()
    assert route_pending(rig.context, rig.leader) == 1
    job = rig.job(made.id)
    assert (job.state, job.ended_us) == (State.REJECTED, rig.clock())
    assert "needs 99 core" in job.reason


def test_a_waiting_job_keeps_the_reason_of_now_and_gets_an_event_only_when_it_changed(lite: Rig) -> None:
    lite.join("alpha")
    made = lite.submit()
    assert made.reason == "waits for alpha: down: its agent has not told what it has"
    clusters.cluster_change(lite.context, ADMIN, "alpha", ClusterChange(is_cordoned=True, reason="new disks"))
    lite.cluster("beta", graph=a_graph(cores=1))
    clusters.cluster_change(lite.context, ADMIN, "beta", ClusterChange(is_cordoned=True))
    for _ in range(3):
        assert route_pending(lite.context, lite.leader) == 0
    assert "beta: cordoned" in lite.job(made.id).reason
    assert lite.kinds(made.id) == ["accepted", "waits"]


def test_all_that_waits_is_taken_up_however_much_it_is(lite: Rig, monkeypatch) -> None:
    monkeypatch.setattr("switchyard.service.upkeep.round.ROUND_MAX", 7)
    lite.join("alpha")
    ids = [lite.submit().id for _ in range(23)]
    agent = lite.cluster("beta")
    assert route_pending(lite.context, lite.leader) == 23
    assert [lease.job for lease in agent.lease(100)] == ids, "in the order of their arrival"


def test_a_job_cancelled_while_it_was_being_routed_stays_cancelled(lite: Rig, monkeypatch) -> None:
    lite.join("alpha")
    made = lite.submit()
    lite.cluster("beta")
    _meanwhile(monkeypatch, job_store, "job_list_routable", lambda: jobs.job_cancel(lite.context, ADMIN, made.id, ""))
    assert route_pending(lite.context, lite.leader) == 0
    assert lite.job(made.id).state is State.CANCELLED


def test_a_waiting_job_is_judged_with_the_grants_its_owner_has_now(lite: Rig) -> None:
    lite.cluster("alpha")
    clusters.cluster_change(lite.context, ADMIN, "alpha", ClusterChange(is_cordoned=True))
    ann, bob = lite.user("ann"), lite.user("bob")
    lite.grant("ann", Role.VIEW, GrantTarget.CLUSTER, "alpha")
    made, other = lite.submit(actor=ann), lite.submit(actor=bob)
    clusters.cluster_change(lite.context, ADMIN, "alpha", ClusterChange(is_private=True, is_cordoned=False))
    users.user_change(lite.context, ADMIN, "bob", UserChange(is_enabled=False))
    assert route_pending(lite.context, lite.leader) == 2
    assert "no grant to submit" in lite.job(made.id).reason
    assert lite.job(other.id).state is State.REJECTED


# --- move what nobody leased


def test_a_job_that_nobody_leased_moves_when_its_cluster_goes_away(rig: Rig) -> None:
    alpha = rig.cluster("alpha")
    made, held_job = rig.submit(), rig.submit(a_request(priority=9))
    held = alpha.lease_one()
    assert held.job == held_job.id
    silence(rig, 60)
    beta = rig.cluster("beta")
    assert take_back_unleased(rig.context, rig.leader) == 1
    assert rig.job(made.id).state is State.PENDING
    assert route_pending(rig.context, rig.leader) == 1
    job = rig.job(made.id)
    assert (job.cluster, job.attempt, job.fence) == ("beta", 2, 3)
    assert rig.job(held.job).cluster == "alpha", "what is leased stays"
    alpha.sync((held.job, held.fence))
    assert alpha.lease() == []
    assert [lease.job for lease in beta.lease()] == [made.id]
    assert rig.kinds(made.id) == ["accepted", "unassigned", "assigned", "leased"]


def test_jobs_keep_their_place_while_there_is_nowhere_to_go(lite: Rig) -> None:
    lite.cluster("alpha")
    made = lite.submit()
    silence(lite, 60)
    assert take_back_unleased(lite.context, lite.leader) == 0
    assert lite.job(made.id).attempt == 1


def test_a_job_does_not_wander_between_clusters_that_are_away(lite: Rig) -> None:
    """Its own cluster is down and the other one does not fit: it waits, and nothing more happens to it."""
    lite.cluster("alpha", graph=a_graph(cores=64))
    made = lite.submit(a_request(cores=64))
    silence(lite, 60)
    lite.cluster("tiny", graph=a_graph(cores=1))
    for _ in range(4):
        take_back_unleased(lite.context, lite.leader)
        route_pending(lite.context, lite.leader)
    assert lite.job(made.id).state is State.PENDING
    assert lite.kinds(made.id) == ["accepted", "unassigned", "waits"]


def test_the_jobs_of_a_deleted_cluster_are_inherited_by_nobody(rig: Rig) -> None:
    alpha = rig.cluster("alpha")
    running, waiting = rig.submit(a_request(priority=1)), rig.submit()
    held = alpha.lease_one()
    with pytest.raises(Conflict, match="cluster alpha has 1 job that has not ended"):
        clusters.cluster_delete(rig.context, ADMIN, "alpha")
    clusters.cluster_delete(rig.context, ADMIN, "alpha", abandon=True)
    newer = rig.cluster("alpha")
    assert newer.lease() == []
    assert newer.sync((held.job, held.fence)).stops
    assert newer.report(held, ObservedState.SUCCEEDED) is ReportAnswer.STOP
    assert take_back_unleased(rig.context, rig.leader) == 1
    assert lose_silent_attempts(rig.context, rig.leader) == 1
    assert route_pending(rig.context, rig.leader) == 1
    assert rig.job(running.id).state is State.FAILED
    assert [lease.job for lease in newer.lease()] == [waiting.id]


# --- judge what fell silent


def leased(rig: Rig, agent: RigAgent, on_lost: str, lost_after: Any = None) -> Any:
    rig.submit(a_request(on_lost=on_lost, lost_after=lost_after))
    held = agent.lease_one()
    agent.report(held, ObservedState.RUNNING)
    return held


@pytest.mark.parametrize(
    ("on_lost", "state", "kinds"),
    [
        ("wait", State.RUNNING, []),
        ("fail", State.FAILED, ["lost"]),
        ("requeue", State.PENDING, ["requeued"]),
    ],
)
def test_an_attempt_whose_agent_is_silent_follows_on_lost(
    rig: Rig, on_lost: str, state: State, kinds: list[str]
) -> None:
    agent = rig.cluster("alpha")
    held = leased(rig, agent, on_lost, "10m")
    silence(rig, 590)
    assert lose_silent_attempts(rig.context, rig.leader) == 0
    silence(rig, 11)
    assert lose_silent_attempts(rig.context, rig.leader) == len(kinds)
    job = rig.job(held.job)
    assert job.state is state
    assert rig.kinds(held.job)[3:] == kinds
    if kinds:
        assert "silent for 601 s" in job.reason
        assert agent.report(held, ObservedState.RUNNING) is ReportAnswer.STOP
    else:
        assert agent.report(held, ObservedState.SUCCEEDED) is ReportAnswer.TAKEN, "it comes back, and its word counts"


def test_an_agent_that_was_only_frozen_must_say_again_what_it_holds(rig: Rig) -> None:
    agent = rig.cluster("alpha")
    held = leased(rig, agent, "requeue", "10m")
    silence(rig, 700)
    assert lose_silent_attempts(rig.context, rig.leader) == 1
    assert isinstance(rig.failure(agent.ask()), Resync)
    given = agent.sync((held.job, held.fence))
    assert [(stop.job, stop.fence) for stop in given.stops] == [(held.job, held.fence)]


def test_an_hour_is_borne_where_the_job_says_nothing(lite: Rig) -> None:
    agent = lite.cluster("alpha")
    held = leased(lite, agent, "fail")
    silence(lite, LOST_AFTER_S - 1)
    assert lose_silent_attempts(lite.context, lite.leader) == 0
    silence(lite, 2)
    assert lose_silent_attempts(lite.context, lite.leader) == 1
    assert lite.job(held.job).state is State.FAILED


def test_a_living_agent_is_never_judged_however_little_the_job_bears(rig: Rig) -> None:
    """What it said is written down every few seconds; a job that bears one second must not be lost by that."""
    agent = rig.cluster("alpha")
    held = leased(rig, agent, "requeue", 1)
    for _ in range(10):
        rig.clock.wait(5)
        agent.seen()
        rig.leader.take(rig.context)
        assert lose_silent_attempts(rig.context, rig.leader) == 0
    assert rig.job(held.job).state is State.RUNNING


def test_an_agent_that_leased_and_was_never_seen_again_is_judged_too(rig: Rig) -> None:
    agent = rig.cluster("alpha")
    held = leased(rig, agent, "fail", "5m")
    with rig.context.database.write() as tx:
        from switchyard.store.clusters import clusters as cluster_store

        cluster_store.agent_change(tx, agent.id, cluster_store.AgentUpdate(seen_us=None))
    silence(rig, 400)
    assert lose_silent_attempts(rig.context, rig.leader) == 1
    assert rig.job(held.job).state is State.FAILED


def test_many_living_attempts_do_not_hide_a_silent_one(rig: Rig, monkeypatch) -> None:
    monkeypatch.setattr("switchyard.service.upkeep.silent_agents.ROUND_MAX", 5)
    agents = [rig.cluster(name) for name in ("alpha", "beta", "gamma")]
    held: dict[str, list[Any]] = {agent.cluster: [] for agent in agents}
    for agent in agents:
        for _ in range(6):
            rig.submit(a_request(cluster=agent.cluster, on_lost="fail", lost_after="5m"))
            held[agent.cluster].append(agent.lease_one().job)
    silent = agents[1]
    for _ in range(40):
        rig.clock.wait(10)
        rig.leader.take(rig.context)
        for agent in agents:
            if agent is not silent:
                agent.sync(*((job, 1) for job in held[agent.cluster]))
    while lose_silent_attempts(rig.context, rig.leader):
        pass
    states = {name: {rig.job(job).state for job in ids} for name, ids in held.items()}
    assert states == {"alpha": {State.ASSIGNED}, "beta": {State.FAILED}, "gamma": {State.ASSIGNED}}


def test_a_removed_agent_is_silent_for_ever(rig: Rig) -> None:
    agent = rig.cluster("alpha")
    held = leased(rig, agent, "wait")
    with pytest.raises(Conflict, match="has 1 job that has not ended"):
        agents.agent_remove(rig.context, ADMIN, agent.id)
    agents.agent_remove(rig.context, ADMIN, agent.id, abandon=True)
    assert lose_silent_attempts(rig.context, rig.leader) == 1
    job = rig.job(held.job)
    assert (job.state, job.reason) == (State.FAILED, "its agent was removed")


def test_a_job_to_be_cancelled_whose_agent_was_removed_did_not_end_by_that(lite: Rig) -> None:
    agent = lite.cluster("alpha")
    held = leased(lite, agent, "wait")
    jobs.job_cancel(lite.context, ADMIN, held.job, "")
    agents.agent_remove(lite.context, ADMIN, agent.id, abandon=True)
    assert lose_silent_attempts(lite.context, lite.leader) == 1
    job = lite.job(held.job)
    assert (job.state, job.reason) == (State.FAILED, "lost while being cancelled: its agent was removed")


def test_an_attempt_that_ended_meanwhile_is_not_judged_in_the_next_ones_place(lite: Rig, monkeypatch) -> None:
    agent = lite.cluster("alpha")
    held = leased(lite, agent, "requeue", "5m")
    silence(lite, 400)
    newer: list[Any] = []

    def come_back() -> None:
        agent.seen()
        assert agent.report(held, ObservedState.LOST) is ReportAnswer.TAKEN
        assert route_pending(lite.context, lite.leader) == 1
        newer.append(agent.lease_one())
        monkeypatch.setattr(lite.context.snapshots, "is_live", lambda _: False)

    _meanwhile(monkeypatch, leases, "leased_by_silent", come_back)
    assert lose_silent_attempts(lite.context, lite.leader) == 0
    job = lite.job(held.job)
    assert (job.state, job.fence) == (State.ASSIGNED, newer[0].fence)


def test_a_job_lost_while_being_cancelled_is_never_requeued(lite: Rig) -> None:
    agent = lite.cluster("alpha")
    held = leased(lite, agent, "requeue", "5m")
    jobs.job_cancel(lite.context, ADMIN, held.job, "")
    silence(lite, 400)
    assert lose_silent_attempts(lite.context, lite.leader) == 1
    job = lite.job(held.job)
    assert job.state in (State.CANCELLED, State.FAILED)
    assert "lost while being cancelled" in job.reason


# --- amnesty and leadership


def test_silence_while_the_control_plane_was_away_does_not_count(rig: Rig) -> None:
    agent = rig.cluster("alpha")
    held = leased(rig, agent, "fail", "10m")
    rig.clock.wait(LONG_S)  # nobody led: the server was down, or paused
    assert rig.leader.take(rig.context)
    assert lose_silent_attempts(rig.context, rig.leader) == 0
    silence(rig, 590)
    assert lose_silent_attempts(rig.context, rig.leader) == 0
    silence(rig, 11)
    assert lose_silent_attempts(rig.context, rig.leader) == 1
    assert rig.job(held.job).state is State.FAILED


def test_a_change_of_leaders_without_a_pause_is_no_amnesty(rig: Rig) -> None:
    agent = rig.cluster("alpha")
    held = leased(rig, agent, "fail", "10m")
    silence(rig, 600)
    rig.clock.wait(TERM_US / 1_000_000 + 1)
    other = Leadership("two")
    assert other.take(rig.context)
    assert lose_silent_attempts(rig.context, other) == 1
    assert rig.job(held.job).state is State.FAILED


def test_a_deposed_leader_changes_nothing(rig: Rig) -> None:
    agent = rig.cluster("alpha")
    held = leased(rig, agent, "fail", "10m")
    stranded = rig.submit()
    silence(rig, 700)
    waiting = rig.submit(a_request(cluster="alpha"))
    rig.submit(key="old")
    rig.cluster("beta")
    rig.clock.wait(TERM_US / 1_000_000 + 1)
    other = Leadership("two")
    assert other.take(rig.context)
    before = [rig.row(job) for job in (held.job, stranded.id, waiting.id)]
    for chore in (lose_silent_attempts, take_back_unleased, route_pending):
        assert chore(rig.context, rig.leader) == 0
    assert [rig.row(job) for job in (held.job, stranded.id, waiting.id)] == before
    assert not rig.leader.take(rig.context)
    for chore in (lose_silent_attempts, take_back_unleased):
        assert chore(rig.context, other) == 1


def test_one_who_leaves_hands_over_at_once(rig: Rig) -> None:
    rig.leader.leave(rig.context)
    other = Leadership("two")
    assert other.take(rig.context)
    assert not rig.leader.take(rig.context)


def _meanwhile(monkeypatch: Any, module: Any, name: str, act: Any) -> None:
    """Something happens right after the first look."""
    real = getattr(module, name)
    done: list[bool] = []

    def look(*args: Any, **named: Any) -> Any:
        found = real(*args, **named)
        if not done:
            done.append(True)
            act()
        return found

    monkeypatch.setattr(module, name, look)


def test_a_job_that_is_held_while_the_leader_decides_stays_held(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = rig.join("alpha")
    made = rig.submit(a_request("a"))
    graphs.store_agent_graph(rig.context, agent.id, a_graph())
    agent.sync()
    evaluate = evaluation.evaluate_changed

    def hold_meanwhile(*arguments: Any, **options: Any) -> Any:
        eligibilities = evaluate(*arguments, **options)
        job_control.job_change(rig.context, ADMIN, made.id, JobChange(hold=True))
        return eligibilities

    monkeypatch.setattr("switchyard.service.upkeep.round.evaluate_changed", hold_meanwhile)
    assert route_pending(rig.context, rig.leader) == 0
    job = rig.job(made.id)
    assert (job.state, job.cluster) == (State.PENDING, None)
    assert "held by" in job.reason
