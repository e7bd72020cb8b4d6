"""Pilots: a join token that is for one job opens its cluster to that job alone, and the cluster ends with the job."""

from __future__ import annotations

import pytest

from switchyard.errors import Conflict, Denied, NotFound, ProofMissing, Unauthenticated
from switchyard.model.cluster.cluster import InviteRequest, NewInvite
from switchyard.model.cluster.poll import AttemptRef, Join, OutputChunk, proof_line
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause
from switchyard.model.rules.access import GrantTarget, Role
from switchyard.service.cluster import agent_join, agent_leave, clusters, graphs, pilots
from switchyard.service.upkeep.round import route_pending
from switchyard.service.upkeep.silent_agents import lose_silent_attempts
from switchyard.service.upkeep.waiting_jobs import JOIN_WITHIN_US, expire_pilots
from tests.builders import a_graph, a_request
from tests.service.cluster.leavers import names, wait
from tests.service.rig import ADMIN, Rig, RigAgent

SILENT_S = 60  # longer than an agent may be silent
START_WITHIN_S = 120
PROOF = "f00d"


def invited(rig: Rig) -> NewInvite:
    request = InviteRequest(is_ephemeral=True, is_for_job=True, expires_s=START_WITHIN_S)
    return clusters.invite_create(rig.context, ADMIN, "pilot", request)


def pilot_of(rig: Rig, host: RigAgent) -> tuple[NewInvite, AttemptRef]:
    """A token that is for a job which the host has."""
    invite = invited(rig)
    job = rig.submit(a_request(cluster=host.cluster)).id
    pilots.bind_invite(rig.context, ADMIN, invite.info.id, job)
    return invite, host.lease_one()


def join(rig: Rig, token: str, *, proof: str | None = PROOF, name: str = "inside") -> RigAgent:
    asked = Join(cluster="pilot", name=name, journal=name, backend="fake", is_ephemeral=True, proof=proof)
    agent = RigAgent(rig, agent_join.join_agent(rig.context, token, asked, is_open=False).agent, "pilot")
    graphs.store_agent_graph(rig.context, agent.id, a_graph(count=2))
    agent.sync()
    return agent


def show(rig: Rig, host: RigAgent, held: AttemptRef, line: str) -> None:
    """The host's agent sends what its job printed."""
    chunk = OutputChunk(held.job, held.fence, "stdout", 0, f"starting\n{line}\n".encode())
    rig.committer.do(host.write(output=[chunk]))


def end(rig: Rig) -> int:
    return pilots.end_pilots(rig.context, rig.leader.commit)


def test_only_an_agent_that_shows_itself_in_the_jobs_output_joins(rig: Rig) -> None:
    host = rig.cluster("alpha")
    invite, held = pilot_of(rig, host)
    for proof in (None, PROOF):
        with pytest.raises(ProofMissing, match="output does not show this agent"):
            join(rig, invite.token, proof=proof)
    show(rig, host, held, proof_line(PROOF))
    thief = proof_line(PROOF).split()[-1]  # all that a reader of the output learns
    with pytest.raises(ProofMissing):
        join(rig, invite.token, proof=thief, name="thief")
    with pytest.raises(Unauthenticated, match="unknown"):
        join(rig, invite.token[:-1] + "_")
    join(rig, invite.token)
    assert clusters.invite_list(rig.context, ADMIN, "pilot", after="", limit=9)[0].uses == 1


def test_a_token_without_its_job_lets_nobody_in(lite: Rig) -> None:
    with pytest.raises(ProofMissing, match="nobody has said yet"):
        join(lite, invited(lite).token)


def test_the_output_of_another_job_or_attempt_is_no_proof(lite: Rig) -> None:
    host = lite.cluster("alpha")
    invite, first = pilot_of(lite, host)
    lite.submit(a_request(cluster="alpha"))
    other = host.lease_one()
    show(lite, host, other, proof_line(PROOF))
    show(lite, host, first, proof_line("of the first attempt"))
    with pytest.raises(ProofMissing):
        join(lite, invite.token)
    host.report(first, ObservedState.RETURNED, reason="no room")
    lite.clock.wait(1)
    with pytest.raises(ProofMissing):
        join(lite, invite.token, proof="of the first attempt")


def test_a_job_that_has_ended_lets_nobody_in(lite: Rig) -> None:
    host = lite.cluster("alpha")
    invite, held = pilot_of(lite, host)
    show(lite, host, held, proof_line(PROOF))
    host.report(held, ObservedState.SUCCEEDED, exit_code=0)
    with pytest.raises(Unauthenticated, match="which has ended"):
        join(lite, invite.token)


def test_a_token_is_bound_once_and_by_those_who_may(lite: Rig) -> None:
    host = lite.cluster("alpha")
    invite, held = pilot_of(lite, host)
    pilots.bind_invite(lite.context, ADMIN, invite.info.id, held.job)  # an answer was lost: no harm
    other = lite.submit(a_request(cluster="alpha")).id
    with pytest.raises(Conflict, match="is for job"):
        pilots.bind_invite(lite.context, ADMIN, invite.info.id, other)
    with pytest.raises(NotFound):
        pilots.bind_invite(lite.context, ADMIN, "nothing", other)
    plain = clusters.invite_create(lite.context, ADMIN, "plain", InviteRequest(is_ephemeral=True))
    with pytest.raises(Conflict, match="not for a job"):
        pilots.bind_invite(lite.context, ADMIN, plain.info.id, other)
    ann = lite.user("ann", (Role.SUBMIT, GrantTarget.PROJECT, "default"))
    mine = lite.submit(a_request(cluster="alpha"), actor=ann).id
    fresh = invited(lite)
    with pytest.raises((Denied, NotFound)):
        pilots.bind_invite(lite.context, ann, fresh.info.id, mine)


def test_the_cluster_ends_with_the_job_and_jobs_in_it_are_lost_for_its_reason(rig: Rig) -> None:
    host = rig.cluster("alpha")
    invite, held = pilot_of(rig, host)
    show(rig, host, held, proof_line(PROOF))
    inside = join(rig, invite.token)
    again = a_request(cluster="pilot", on_lost="requeue")
    lost, requeued = rig.submit(a_request(cluster="pilot")).id, rig.submit(again).id
    assert len(inside.lease()) == 2
    host.report(held, ObservedState.FAILED, reason="preempted by another job", cause=Cause.PREEMPTED)
    host.seen()
    assert end(rig) == 0, "an agent that still calls keeps its cluster"
    wait(rig, SILENT_S)
    assert end(rig) == 1
    assert names(rig) == ["alpha"]
    lose_silent_attempts(rig.context, rig.leader)
    ended = rig.job(lost)
    assert ended.state is State.FAILED
    assert f"the pilot's job {held.job} ended as FAILED: preempted by another job" in ended.reason
    assert rig.job(requeued).state is State.PENDING


def test_a_pilots_jobs_get_time_to_end_after_its_job(rig: Rig) -> None:
    """Its agent was out of reach for long before it was killed: its silence alone says nothing of its jobs."""
    host = rig.cluster("alpha")
    invite, held = pilot_of(rig, host)
    show(rig, host, held, proof_line(PROOF))
    inside = join(rig, invite.token)
    rig.submit(a_request(cluster="pilot", on_lost="requeue"))
    assert len(inside.lease()) == 1
    wait(rig, SILENT_S)
    host.report(held, ObservedState.FAILED, reason="killed by SIGKILL")
    wait(rig, pilots.JOBS_END_US // 1_000_000 - 1)
    assert end(rig) == 0
    wait(rig, 1)
    assert end(rig) == 1


def test_the_cluster_of_a_pilot_that_never_began_goes_with_its_job(rig: Rig) -> None:
    host = rig.cluster("alpha")
    _, held = pilot_of(rig, host)
    assert end(rig) == 0
    host.report(held, ObservedState.CANCELLED)
    assert end(rig) == 1
    assert names(rig) == ["alpha"]


def test_a_pilot_that_does_not_start_in_time_is_cancelled_and_told_why(rig: Rig) -> None:
    host = rig.cluster("alpha")
    _, held = pilot_of(rig, host)
    host.report(held, ObservedState.SUBMITTED)
    assert expire_pilots(rig.context, rig.leader) == 0
    wait(rig, START_WITHIN_S + 1)
    host.seen()
    assert expire_pilots(rig.context, rig.leader) == 1
    assert expire_pilots(rig.context, rig.leader) == 0
    assert host.poll().stops or rig.row(held.job).cancel_us
    host.report(held, ObservedState.CANCELLED)
    ended = rig.job(held.job)
    assert ended.state is State.CANCELLED
    assert "the pilot did not start in time" in ended.reason
    assert end(rig) == 1


def test_a_pilot_that_started_in_time_may_join_a_little_later(rig: Rig) -> None:
    host = rig.cluster("alpha")
    invite, held = pilot_of(rig, host)
    wait(rig, START_WITHIN_S - 1)
    host.seen()
    host.report(held, ObservedState.RUNNING)
    wait(rig, JOIN_WITHIN_US / 1e6)
    assert expire_pilots(rig.context, rig.leader) == 0
    assert agent_leave.remove_silent_clusters(rig.context, rig.leader.commit) == 0
    show(rig, host, held, proof_line(PROOF))
    join(rig, invite.token)
    wait(rig, 2)
    assert expire_pilots(rig.context, rig.leader) == 0


def test_a_pilot_whose_agent_does_not_join_is_cancelled_and_told_why(rig: Rig) -> None:
    host = rig.cluster("alpha")
    _, held = pilot_of(rig, host)
    wait(rig, START_WITHIN_S - 1)
    host.report(held, ObservedState.RUNNING)
    wait(rig, JOIN_WITHIN_US / 1e6 + 2)
    assert expire_pilots(rig.context, rig.leader) == 1
    host.report(held, ObservedState.CANCELLED)
    assert "agent did not join" in rig.job(held.job).reason


def test_a_revoked_token_ends_its_pilot(lite: Rig) -> None:
    host = lite.cluster("alpha")
    invite, held = pilot_of(lite, host)
    show(lite, host, held, proof_line(PROOF))
    clusters.invite_revoke(lite.context, ADMIN, invite.info.id)
    with pytest.raises(Unauthenticated, match="was revoked"):
        join(lite, invite.token)
    assert expire_pilots(lite.context, lite.leader) == 1


def test_a_cluster_that_others_joined_stays(lite: Rig) -> None:
    host = lite.cluster("alpha")
    _, held = pilot_of(lite, host)
    plain = clusters.invite_create(lite.context, ADMIN, "pilot", InviteRequest(is_ephemeral=True))
    join(lite, plain.token, proof=None, name="other")
    host.report(held, ObservedState.CANCELLED)
    wait(lite, SILENT_S)
    assert end(lite) == 0
    assert sorted(names(lite)) == ["alpha", "pilot"]


def test_a_later_attempt_of_the_job_joins_again(lite: Rig) -> None:
    host = lite.cluster("alpha")
    invite, first = pilot_of(lite, host)
    show(lite, host, first, proof_line(PROOF))
    join(lite, invite.token)
    host.report(first, ObservedState.RETURNED, reason="the node failed")
    lite.clock.wait(SILENT_S)
    route_pending(lite.context, lite.leader)
    second = host.lease_one()
    assert (second.job, second.fence > first.fence) == (first.job, True)
    show(lite, host, second, proof_line("of the second attempt"))
    join(lite, invite.token, proof="of the second attempt", name="again")
