"""Who leads, and what the leader does when the clock that stored times are compared by jumps."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.features.flyte.store.executions import execution_nodes
from switchyard.features.flyte.store.executions.execution_nodes import NodeRow
from switchyard.model.cluster.poll import AttemptRef
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Retry
from switchyard.service.upkeep.leadership import TERM_US, Leadership
from switchyard.service.upkeep.silent_agents import lose_silent_attempts, lose_silent_tasks
from switchyard.service.upkeep.waiting_jobs import end_backoffs, expire_jobs
from switchyard.store.clusters import clusters
from switchyard.store.jobs import events
from tests.builders import a_request
from tests.service.rig import Rig, RigAgent

HOUR_US = 3_600_000_000
TERM_S = TERM_US / 1_000_000
BOTH_WAYS = pytest.mark.parametrize("by_us", [HOUR_US, -HOUR_US, 25_000_000, -25_000_000])


def jump(rig: Rig, by_us: int, leader: Leadership | None = None) -> None:
    """The clock is set; the server follows it and takes the next round, as upkeep does."""
    rig.clock.at_us += by_us
    rig.context.snapshots.follow_jump(by_us)
    assert (leader or rig.leader).take(rig.context)


def running(rig: Rig, agent: RigAgent, **fields: Any) -> Any:
    rig.submit(a_request(**fields))
    held = agent.lease_one()
    agent.report(held, ObservedState.RUNNING)
    return held


def lost(rig: Rig) -> int:
    return lose_silent_attempts(rig.context, rig.leader) + lose_silent_tasks(rig.context, rig.leader)


def pass_time(rig: Rig, seconds: int) -> None:
    for _ in range(0, seconds, 5):
        rig.clock.wait(5)
        assert rig.leader.take(rig.context)


@BOTH_WAYS
def test_a_jump_makes_nobody_silent_and_hides_nobody_who_is(rig: Rig, by_us: int) -> None:
    agent = rig.cluster("alpha")
    job = running(rig, agent, on_lost="fail", lost_after=20)
    jump(rig, by_us)
    assert rig.context.snapshots.is_live(agent.id)
    assert lost(rig) == 0
    pass_time(rig, 15)
    assert lost(rig) == 0
    pass_time(rig, 15)
    assert not rig.context.snapshots.is_live(agent.id)
    assert lost(rig) == 1
    assert rig.job(job.job).state is State.FAILED


@pytest.mark.parametrize("array", [None, "0-1"])
def test_a_back_off_is_no_longer_when_the_clock_is_set_back(rig: Rig, array: str | None) -> None:
    agent = rig.cluster("alpha")
    made = rig.submit(a_request(array=array, retry=Retry(limit=1, backoff=60)))
    for lease in agent.lease():
        for fence in range(lease.fence, lease.fence + (2 if array else 1)):
            agent.report(AttemptRef(lease.job, fence), ObservedState.FAILED, exit_code=1)
    wake_us = rig.row(made.id).wake_us
    assert wake_us == rig.clock() + 60_000_000
    jump(rig, -HOUR_US)
    assert rig.row(made.id).wake_us == wake_us - HOUR_US
    pass_time(rig, 60)
    assert end_backoffs(rig.context, rig.leader) == 1
    assert rig.row(made.id).wake_us is None


@BOTH_WAYS
def test_a_job_expires_when_it_should_have(rig: Rig, by_us: int) -> None:
    rig.join("alpha")
    made = rig.submit(a_request(expires_after="30m"))
    jump(rig, by_us)
    assert expire_jobs(rig.context, rig.leader) == 0
    pass_time(rig, 1700)
    assert expire_jobs(rig.context, rig.leader) == 0
    pass_time(rig, 150)
    assert expire_jobs(rig.context, rig.leader) == 1
    assert rig.job(made.id).state.value in ("CANCELLED", "REJECTED", "FAILED")


@BOTH_WAYS
def test_a_gate_of_an_execution_waits_as_long_as_it_should(rig: Rig, by_us: int) -> None:
    wake_us = rig.clock() + 60_000_000
    fields: dict[str, Any] = {
        **dict.fromkeys(NodeRow.__struct_fields__, None),
        **{"execution_id": "e", "node_id": "n0", "spec_id": "n0", "parent_id": "", "signal_id": "", "is_parent": False},
        **{"phase": "RUNNING", "attempts": 0, "user_failures": 0, "system_failures": 0},
        **{"created_us": rig.clock(), "updated_us": rig.clock(), "wake_us": wake_us},
    }
    with rig.context.database.write() as tx:
        execution_nodes.node_put(tx, [NodeRow(**fields)])
    jump(rig, by_us)
    with rig.context.database.read() as tx:
        (row,) = execution_nodes.node_list(tx, "e")
    assert row.wake_us == wake_us + by_us


def test_a_job_that_came_after_the_clock_was_set_back_is_left_alone(rig: Rig) -> None:
    rig.join("alpha")
    rig.clock.at_us -= HOUR_US
    made = rig.submit(a_request(expires_after="30m"))
    expires_us = rig.row(made.id).expires_us
    assert rig.leader.take(rig.context)
    assert rig.row(made.id).expires_us == expires_us


def test_a_jump_is_followed_once_by_whichever_server_notices_it_first(rig: Rig) -> None:
    other = Leadership("two")
    assert not other.take(rig.context)
    rig.join("alpha")
    made = rig.submit(a_request(expires_after="30m"))
    expires_us = rig.row(made.id).expires_us
    jump(rig, HOUR_US, other)
    assert not rig.leader.take(rig.context), "it was replaced: its term was over by the new clock"
    assert rig.row(made.id).expires_us == expires_us + HOUR_US
    after = rig.submit(a_request(expires_after="30m"))
    jump(rig, -HOUR_US, other)
    assert rig.row(after.id).expires_us == expires_us


@pytest.mark.parametrize("by_us", [HOUR_US, -HOUR_US])
def test_a_server_that_has_not_noticed_a_jump_takes_no_lead_and_moves_nothing(rig: Rig, by_us: int) -> None:
    late = Leadership("two")
    assert not late.take(rig.context)
    rig.join("alpha")
    made = rig.submit(a_request(expires_after="30m"))
    expires_us = rig.row(made.id).expires_us
    jump(rig, by_us)
    assert rig.row(made.id).expires_us == expires_us + by_us
    rig.clock.at_us -= by_us  # as the other server reckons it still
    rig.clock.unseen_us = by_us
    assert not late.take(rig.context)
    assert not rig.leader.take(rig.context), "nor does the leader, by a clock that is not right"
    assert rig.row(made.id).expires_us == expires_us + by_us
    rig.clock.at_us += by_us
    rig.clock.unseen_us = 0
    rig.context.snapshots.follow_jump(0)
    assert rig.leader.take(rig.context)
    assert not late.take(rig.context)
    assert rig.row(made.id).expires_us == expires_us + by_us


@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_clock_that_was_set_back_while_no_server_ran_is_noticed(rig: Rig, is_stopped: bool) -> None:
    agent = rig.cluster("alpha")
    running(rig, agent, on_lost="fail", lost_after=20)
    if is_stopped:
        rig.leader.leave(rig.context)
    rig.clock.at_us -= HOUR_US
    rig.leader = Leadership("after")
    assert rig.leader.take(rig.context), "no term lasts for the length of the jump"
    with rig.context.database.read() as tx:
        (seen_us,) = clusters.agent_last_seen(tx).values()
    assert seen_us is not None
    assert seen_us <= rig.clock()


def test_a_leader_that_is_gone_is_replaced_within_its_term_whatever_the_clock_says(rig: Rig) -> None:
    other = Leadership("two")
    for _ in range(int(TERM_S) + 2):
        rig.clock.passed_us += 1_000_000  # the clock stands still
        if other.take(rig.context):
            break
    assert other.epoch is not None


def test_the_only_server_of_a_database_leads_at_once_and_forgives_the_silence_until_then(rig: Rig) -> None:
    """On SQLite: who has the lock of the file knows that the server that led is dead."""
    agent = rig.cluster("alpha")
    job = running(rig, agent, on_lost="fail", lost_after=20)
    rig.clock.wait(TERM_S - 1)
    assert rig.leader.take(rig.context)
    rig.clock.wait(TERM_S - 1)
    assert not Leadership("two").take(rig.context), "the first one may be alive"
    rig.leader = Leadership("after", is_only_server=True)
    assert rig.leader.take(rig.context)
    assert lost(rig) == 0, "the agent had no server to speak to"
    pass_time(rig, 15)
    assert lost(rig) == 0
    pass_time(rig, 10)
    assert lost(rig) == 1
    assert rig.job(job.job).state is State.FAILED


def test_a_server_that_was_started_again_on_its_data_folder_leads_at_once(rig: Rig) -> None:
    """On PostgreSQL: who has the lock of the folder knows that the server that led from there is dead."""
    first = Leadership("folder-one/1", home="folder-one/")
    rig.clock.wait(TERM_S + 1)
    assert first.take(rig.context)
    assert not Leadership("folder-two/2", home="folder-two/").take(rig.context), "it may be alive, on another folder"
    assert not Leadership("3").take(rig.context), "a server whose folder another one has locked"
    assert Leadership("folder-one/4", home="folder-one/").take(rig.context)
    assert first.commit(rig.context, lambda batch: 1) == 0, "the replaced one writes nothing"


def test_what_a_server_ahead_of_the_clock_stored_is_bounded(rig: Rig) -> None:
    agent = rig.cluster("alpha")
    running(rig, agent, on_lost="fail", lost_after=20)
    ahead_us = rig.clock() + HOUR_US

    def write(batch: Any) -> None:
        clusters.agent_set_seen(batch.tx, {agent.id: (ahead_us, None)})
        events.counter_set(batch.tx, "amnesty_us", ahead_us)

    rig.committer.call(write)
    rig.context.snapshots.refresh()
    pass_time(rig, 70)  # by then the leader has looked
    pass_time(rig, 30)
    rig.context.snapshots.refresh()
    assert not rig.context.snapshots.is_live(agent.id)
    assert lost(rig) == 1


def test_tasks_of_an_array_bear_less_silence_than_anybody_may_keep(rig: Rig) -> None:
    """An agent is written down as seen each few seconds: a job that bears less must not pay for that."""
    agent = rig.cluster("alpha")
    rig.submit(a_request(array="0-1", on_lost="requeue", lost_after=2))
    assert agent.lease()
    pass_time(rig, 10)
    assert lost(rig) == 0
    agent.seen()
    pass_time(rig, 10)
    assert lost(rig) == 0, "it spoke, which is not yet written down"
    pass_time(rig, 10)
    assert lost(rig) == 2
