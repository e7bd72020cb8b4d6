"""A database that was restored from a backup: what its first server puts right, and how agents' word is taken after."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchyard.model.cluster.poll import AttemptRef, Report
from switchyard.model.job.job import OnLost, State
from switchyard.model.job.lifecycle import ObservedState, ReportAnswer
from switchyard.model.wire.api import Event
from switchyard.service.access import users
from switchyard.service.upkeep import waiting_jobs
from switchyard.service.upkeep.round import route_pending
from switchyard.store.tables import restore_recovery
from tests.builders import a_request
from tests.service.lookups import WAIT_S, turned_back
from tests.service.rig import ADMIN, Rig, RigAgent, running


def agent_of(rig: Rig, before: RigAgent) -> RigAgent:
    return RigAgent(rig, before.id, before.cluster, before.session)


def test_fences_and_event_numbers_go_on_above_all_there_were(store_url: str, tmp_path: Path) -> None:
    with running(store_url, tmp_path) as rig:
        before = rig.cluster("alpha")
        waits, runs, array = rig.submit().id, rig.submit().id, rig.submit(a_request(array="0-3%2")).id
        last = rig.context.now_us()
        with turned_back(rig, store_url, tmp_path) as again:
            agent = agent_of(again, before)
            agent.sync()
            again.clock.wait(WAIT_S + 1)
            again.leader.take(again.context)
            agent.seen()
            waiting_jobs.end_backoffs(again.context, again.leader)
            route_pending(again.context, again.leader)
            leases = {lease.job: lease for lease in agent.lease(10)}
            assert set(leases) == {waits, runs, array}
            assert all(lease.fence > last for lease in leases.values())
            assert all(lease.known is not None for lease in leases.values()), "the agent is told what is not known here"
            assert min(event.seq for event in _new_events(again)) > last
            assert users.audit_list(again.context, ADMIN, before=None, limit=1).items[0].action == "db.restored"


def _new_events(rig: Rig) -> list[Event]:
    from switchyard.service.job import jobs

    everything = jobs.all_events(rig.context, ADMIN, after=0, limit=500, since_s=None).items
    return [event for event in everything if event.kind == "leased"]


def test_it_is_done_once(store_url: str, tmp_path: Path) -> None:
    with running(store_url, tmp_path) as rig:
        rig.cluster("alpha")
        job = rig.submit().id
        with turned_back(rig, store_url, tmp_path) as again:
            floor = again.row(job).fence_floor
            again.clock.wait(10)
            again.close()
            with running(store_url, tmp_path, clock=again.clock) as third:
                assert third.row(job).fence_floor == floor
                assert not restore_recovery.has_restore_mark(third.context.database)


def test_what_waited_at_the_backup_waits_for_the_agents_first(store_url: str, tmp_path: Path) -> None:
    with running(store_url, tmp_path) as rig:
        before = rig.cluster("alpha")
        assigned, held = rig.submit().id, rig.submit(a_request(hold=True)).id
        with turned_back(rig, store_url, tmp_path) as again:
            agent = agent_of(again, before)
            agent.sync()
            route_pending(again.context, again.leader)
            waiting_jobs.end_backoffs(again.context, again.leader)
            assert agent.lease(10) == []
            assert again.job(assigned).state is State.PENDING
            assert "restored from a backup" in again.job(assigned).reason
            again.clock.wait(WAIT_S + 1)
            again.leader.take(again.context)
            agent.seen()
            waiting_jobs.end_backoffs(again.context, again.leader)
            route_pending(again.context, again.leader)
            assert [lease.job for lease in agent.lease(10)] == [assigned]
            assert again.job(held).is_held, "what was held is held"


def test_what_an_agent_got_after_the_backup_goes_on_there(store_url: str, tmp_path: Path) -> None:
    with running(store_url, tmp_path) as rig:
        before = rig.cluster("alpha")
        job = rig.submit().id
        fence = rig.row(job).fence
        with turned_back(rig, store_url, tmp_path) as again:
            agent = agent_of(again, before)
            given = agent.sync((job, fence))
            assert (given.stops, given.leases) == ([], [])
            assert (again.job(job).state, again.job(job).cluster) == (State.ASSIGNED, "alpha")
            assert again.kinds(job)[-1] == "adopted"
            assert agent.report(AttemptRef(job, fence), ObservedState.RUNNING) is ReportAnswer.TAKEN
            assert agent.report(AttemptRef(job, fence), ObservedState.SUCCEEDED, exit_code=0) is ReportAnswer.TAKEN
            assert again.job(job).state is State.SUCCEEDED


def test_a_report_may_come_before_the_sync(store_url: str, tmp_path: Path) -> None:
    """The end of a job must not be answered with STOP, or it would be forgotten and the job run again."""
    with running(store_url, tmp_path) as rig:
        before = rig.cluster("alpha")
        job = rig.submit().id
        fence = rig.row(job).fence
        with turned_back(rig, store_url, tmp_path) as again:
            agent = agent_of(again, before)
            both = agent.write(
                Report(job, fence, ObservedState.RUNNING), Report(job, fence, ObservedState.FAILED, exit_code=3)
            )
            assert again.committer.do(both).answers == [ReportAnswer.TAKEN, ReportAnswer.TAKEN]
            assert (again.job(job).state, again.job(job).exit_code) == (State.FAILED, 3)


def test_what_moved_on_after_the_backup_is_with_the_later_agent(store_url: str, tmp_path: Path) -> None:
    with running(store_url, tmp_path) as rig:
        one, other = rig.cluster("alpha"), rig.cluster("beta")
        job = rig.submit(a_request(cluster="alpha", on_lost=OnLost.REQUEUE)).id
        held = one.lease_one()
        with turned_back(rig, store_url, tmp_path) as again:
            one, other = agent_of(again, one), agent_of(again, other)
            assert other.sync((job, held.fence + 2)).stops != [], "it names another cluster: not this agent's to have"
            third = again.join("alpha", "second", journal="j2")
            assert third.sync((job, held.fence + 2)).stops == []
            assert one.report(held, ObservedState.SUCCEEDED) is ReportAnswer.STOP
            assert third.report(AttemptRef(job, held.fence + 2), ObservedState.SUCCEEDED) is ReportAnswer.TAKEN


def test_what_was_leased_at_the_backup_goes_on_under_its_fence(store_url: str, tmp_path: Path) -> None:
    with running(store_url, tmp_path) as rig:
        before = rig.cluster("alpha")
        runs, ended = rig.submit(a_request(on_lost=OnLost.REQUEUE)).id, rig.submit().id
        held = {lease.job: lease.fence for lease in before.lease(2)}
        with turned_back(rig, store_url, tmp_path) as again:
            agent = agent_of(again, before)
            given = agent.sync((runs, held[runs]))
            assert given.stops == []
            # What it does not name is leased again under the very same fence: its journal knows how that ended.
            assert [(lease.job, lease.fence) for lease in given.leases] == [(ended, held[ended])]
            assert agent.report(AttemptRef(ended, held[ended]), ObservedState.SUCCEEDED) is ReportAnswer.TAKEN
            assert agent.report(AttemptRef(runs, held[runs]), ObservedState.LOST) is ReportAnswer.TAKEN
            assert again.row(runs).fence > again.row(runs).fence_floor


def test_what_was_submitted_after_the_backup_is_stopped(store_url: str, tmp_path: Path) -> None:
    with running(store_url, tmp_path) as rig:
        before = rig.cluster("alpha")
        unknown = rig.context.new_id()
        with turned_back(rig, store_url, tmp_path) as again:
            agent = agent_of(again, before)
            assert [(stop.job, stop.fence) for stop in agent.sync((unknown, 1)).stops] == [(unknown, 1)]
            assert agent.report(AttemptRef(unknown, 1), ObservedState.RUNNING) is ReportAnswer.STOP


def test_tasks_of_an_array_go_on_or_again_and_none_under_a_fence_that_was_used(store_url: str, tmp_path: Path) -> None:
    with running(store_url, tmp_path) as rig:
        before = rig.cluster("alpha")
        array = rig.submit(a_request(array="0-5")).id
        (first,) = before.lease(2)
        with turned_back(rig, store_url, tmp_path) as again:
            agent = agent_of(again, before)
            live = {(array, first.fence), (array, first.fence + 1)}
            later = (array, first.fence + 2)  # leased after the backup
            given = agent.sync(*live, later)
            assert [(stop.job, stop.fence) for stop in given.stops] == [later]
            leases = agent.lease(10)
            assert sorted(index for lease in leases for index in range(lease.lo or 0, (lease.hi or 0) + 1)) == [
                2,
                3,
                4,
                5,
            ]
            assert all(lease.fence > again.row(array).fence_floor for lease in leases)
            assert all(lease.known == first.fence + 2 for lease in leases)


@pytest.mark.parametrize("session", [1, 2])
def test_an_agent_is_made_to_say_what_it_holds(store_url: str, tmp_path: Path, session: int) -> None:
    with running(store_url, tmp_path) as rig:
        before = rig.cluster("alpha")
        with turned_back(rig, store_url, tmp_path) as again:
            agent = RigAgent(again, before.id, "alpha", session)
            agent.seen()
            assert type(again.failure(agent.ask())).__name__ == "Resync"
