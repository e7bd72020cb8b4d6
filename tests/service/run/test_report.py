"""Reports: late, repeated, foreign, disordered or under a low fence they change nothing; what is new is taken once."""

from __future__ import annotations

import pytest

from switchyard.model.cluster.poll import CHUNK_BYTES_MAX, AttemptRef, OutputChunk, Report
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import ObservedState, ReportAnswer
from switchyard.model.job.log import OUTPUT_BYTES_MAX
from switchyard.service.job import explanation, jobs
from switchyard.service.run import logs
from switchyard.service.upkeep.round import route_pending
from tests.builders import a_request
from tests.service.rig import ADMIN, Rig, RigAgent

TAKEN, STALE, STOP = ReportAnswer.TAKEN, ReportAnswer.STALE, ReportAnswer.STOP


@pytest.fixture
def agent(rig: Rig) -> RigAgent:
    return rig.cluster("alpha")


def test_a_job_is_followed_to_its_end(rig: Rig, agent: RigAgent) -> None:
    made = rig.submit()
    held = agent.lease_one()
    rig.clock.wait(10)
    assert agent.report(held, ObservedState.SUBMITTED, native_id="native-7") is TAKEN
    rig.clock.wait(10)
    assert agent.report(held, ObservedState.RUNNING, ago_us=2_000_000) is TAKEN
    rig.clock.wait(10)
    assert agent.report(held, ObservedState.FAILED, exit_code=3, signal=0, reason="exit 3", ago_us=1_000_000) is TAKEN
    job = rig.job(made.id)
    assert (job.state, job.exit_code, job.signal, job.reason, job.native_id) == (
        State.FAILED,
        3,
        0,
        "exit 3",
        "native-7",
    )
    assert job.started_us == rig.clock() - 12_000_000
    assert job.ended_us == rig.clock() - 1_000_000
    assert rig.kinds(made.id) == ["accepted", "leased", "submitted", "running", "failed"]


def test_what_waits_at_its_cluster_says_why_as_that_changes(rig: Rig, agent: RigAgent) -> None:
    made = rig.submit()
    held = agent.lease_one()
    agent.report(held, ObservedState.SUBMITTED, reason="waits: Resources")
    assert agent.report(held, ObservedState.SUBMITTED, reason="waits: JobHeldUser") is STALE
    assert (rig.job(made.id).state, rig.job(made.id).reason) == (State.SUBMITTED, "waits: JobHeldUser")
    assert rig.kinds(made.id) == ["accepted", "leased", "submitted"]
    agent.report(AttemptRef(held.job, held.fence - 1), ObservedState.SUBMITTED, reason="of an old attempt")
    assert rig.job(made.id).reason == "waits: JobHeldUser"
    agent.report(held, ObservedState.RUNNING)
    agent.report(held, ObservedState.SUBMITTED, reason="late")
    assert rig.job(made.id).reason == ""


def test_an_array_says_why_its_tasks_wait_at_their_cluster(rig: Rig, agent: RigAgent) -> None:
    job = rig.submit(a_request(array="0-1")).id
    (lease,) = agent.lease()
    first, last = AttemptRef(job, lease.fence), AttemptRef(job, lease.fence + 1)
    agent.report(first, ObservedState.SUBMITTED, reason="waits: Resources")
    agent.report(last, ObservedState.SUBMITTED, reason="waits: Resources")
    assert (rig.job(job).state, rig.job(job).reason) == (State.RUNNING, "a task has not begun: waits: Resources")
    agent.report(last, ObservedState.SUBMITTED, reason="waits: nodes are DOWN")
    assert rig.job(job).reason == "a task has not begun: waits: nodes are DOWN"
    agent.report(first, ObservedState.RUNNING)
    agent.report(first, ObservedState.SUBMITTED, reason="late")
    assert rig.job(job).reason == "a task has not begun: waits: nodes are DOWN"
    agent.report(last, ObservedState.RUNNING)
    assert rig.job(job).reason == ""


def test_what_runs_says_what_its_user_must_know_as_that_changes(rig: Rig, agent: RigAgent) -> None:
    made = rig.submit()
    held = agent.lease_one()
    agent.report(held, ObservedState.RUNNING)
    assert agent.report(held, ObservedState.RUNNING, reason="its node n1 does not answer") is STALE
    assert (rig.job(made.id).state, rig.job(made.id).reason) == (State.RUNNING, "its node n1 does not answer")
    agent.report(held, ObservedState.RUNNING)
    assert rig.job(made.id).reason == ""
    jobs.job_cancel(rig.context, ADMIN, made.id, "")
    request = rig.job(made.id).reason
    for note in ("it is being deleted, held by a/b", "its node n1 does not answer"):
        agent.report(held, ObservedState.RUNNING, reason=note)
        assert rig.job(made.id).reason == f"{request}; at its cluster: {note}"
    agent.report(held, ObservedState.CANCELLED, reason="cancelled")
    assert (rig.job(made.id).state, rig.job(made.id).reason) == (State.CANCELLED, request)


def test_an_age_before_the_lease_is_a_clocks_mistake(rig: Rig, agent: RigAgent) -> None:
    made = rig.submit()
    rig.clock.wait(5)
    held = agent.lease_one()
    rig.clock.wait(5)
    agent.report(held, ObservedState.RUNNING)
    agent.report(held, ObservedState.SUCCEEDED, ago_us=10**12)
    job = rig.job(made.id)
    assert job.created_us < (job.leased_us or 0) <= (job.started_us or 0) <= (job.ended_us or 0)


def test_repeated_late_and_disordered_reports_change_nothing(rig: Rig, agent: RigAgent) -> None:
    made = rig.submit()
    held = agent.lease_one()
    assert agent.report(held, ObservedState.RUNNING) is TAKEN
    assert agent.report(held, ObservedState.RUNNING) is STALE
    assert agent.report(held, ObservedState.SUBMITTED) is STALE
    assert agent.report(held, ObservedState.UNKNOWN) is STALE
    assert agent.report(held, ObservedState.SUCCEEDED, exit_code=0) is TAKEN
    before = rig.row(made.id)
    assert agent.report(held, ObservedState.SUCCEEDED, exit_code=1) is STALE
    assert agent.report(held, ObservedState.FAILED, exit_code=1) is STALE
    assert agent.report(held, ObservedState.LOST) is STALE
    assert agent.report(held, ObservedState.RUNNING) is STOP
    assert rig.row(made.id) == before
    assert rig.kinds(made.id) == ["accepted", "leased", "running", "succeeded"]


def test_reports_of_one_poll_and_of_one_batch_are_applied_in_order(rig: Rig, agent: RigAgent) -> None:
    made = rig.submit()
    held = agent.lease_one()
    first, second = rig.together(
        agent.write(
            Report(held.job, 1, ObservedState.RUNNING, native_id="n"), Report(held.job, 1, ObservedState.SUBMITTED)
        ),
        agent.write(
            Report(held.job, 1, ObservedState.SUCCEEDED, exit_code=0), Report(held.job, 1, ObservedState.SUCCEEDED)
        ),
    )
    assert first.answers == [TAKEN, STALE]
    assert second.answers == [TAKEN, STALE]
    job = rig.job(made.id)
    assert (job.state, job.native_id, job.exit_code) == (State.SUCCEEDED, "n", 0)


def test_what_was_never_leased_to_this_agent_is_stopped(rig: Rig, agent: RigAgent) -> None:
    other = rig.cluster("beta")
    made = rig.submit(a_request(cluster="alpha"))
    assert agent.report(AttemptRef(made.id, 1), ObservedState.RUNNING) is STOP, "not leased yet"
    held = agent.lease_one()
    assert other.report(held, ObservedState.SUCCEEDED) is STOP, "another agent's"
    assert agent.report(AttemptRef("Z" * 26, 1), ObservedState.RUNNING) is STOP, "no such job"
    assert agent.report(AttemptRef(held.job, 0), ObservedState.SUCCEEDED) is STOP, "a lower fence"
    assert agent.report(AttemptRef(held.job, 9), ObservedState.SUCCEEDED) is STALE, "a fence that was never given"
    assert rig.job(made.id).state is State.ASSIGNED


def test_a_lost_attempt_is_requeued_under_a_higher_fence_and_the_old_one_stopped(rig: Rig, agent: RigAgent) -> None:
    made = rig.submit(a_request(on_lost="requeue"))
    held = agent.lease_one()
    agent.report(held, ObservedState.RUNNING, native_id="n1")
    assert agent.report(held, ObservedState.LOST, reason="squeue does not know it") is TAKEN
    job = rig.job(made.id)
    assert (job.state, job.cluster, job.native_id, job.leased_us, job.started_us) == (
        State.PENDING,
        None,
        None,
        None,
        None,
    )
    assert agent.report(held, ObservedState.RUNNING) is STOP
    assert route_pending(rig.context, rig.leader) == 1
    again = agent.lease_one()
    assert again.fence > held.fence
    assert agent.report(held, ObservedState.SUCCEEDED) is STOP, "the old attempt's word counts no more"
    assert agent.report(again, ObservedState.SUCCEEDED) is TAKEN
    notes = explanation.job_explain(rig.context, ADMIN, made.id).notes
    assert "attempt 1 on alpha ended: requeued squeue does not know it" in notes
    kinds = ["accepted", "leased", "running", "requeued", "assigned", "leased", "succeeded"]
    assert rig.kinds(made.id) == kinds


def test_reports_after_a_requeue_in_the_same_batch_are_stopped(rig: Rig, agent: RigAgent) -> None:
    made = rig.submit(a_request(on_lost="requeue"))
    held = agent.lease_one()
    (settled,) = rig.together(
        agent.write(Report(held.job, 1, ObservedState.LOST), Report(held.job, 1, ObservedState.SUCCEEDED))
    )
    assert settled.answers == [TAKEN, STOP]
    assert rig.job(made.id).state is State.PENDING


@pytest.mark.parametrize("text", ["a\x00b", "line\nline", "\x1b[31mred", "\x9b", "a\u2028b"])
def test_words_of_an_agent_that_no_table_can_show_are_kept_readable(rig: Rig, agent: RigAgent, text: str) -> None:
    """A report is never refused for them: the agent would send it again for ever."""
    made = rig.submit()
    held = agent.lease_one()
    assert agent.report(held, ObservedState.FAILED, reason=text, native_id=text) is TAKEN
    job = rig.job(made.id)
    assert job.state is State.FAILED
    assert job.reason.isprintable()
    assert (job.native_id or "").isprintable()
    assert all(
        event.reason.isprintable() for event in jobs.job_events(rig.context, ADMIN, made.id, after=0, limit=9).items
    )


# --- output


def chunk(held: AttemptRef, offset: int, data: bytes, stream: str = "stdout") -> OutputChunk:
    return OutputChunk(held.job, held.fence, stream, offset, data)


def read(rig: Rig, job_id: str, stream: str = "stdout") -> bytes:
    return b"".join(part.data for part in logs.job_output(rig.context, ADMIN, job_id, stream).chunks)


def test_output_is_kept_once_and_in_order(rig: Rig, agent: RigAgent) -> None:
    rig.submit()
    held = agent.lease_one()
    parts = [
        chunk(held, 3, b"def"),
        chunk(held, 0, b"abc"),
        chunk(held, 0, b"err\xff\x00", "stderr"),
        chunk(held, 9, b""),
    ]
    for _ in range(2):
        rig.committer.do(agent.write(output=parts))
    agent.report(held, ObservedState.SUCCEEDED)
    rig.committer.do(agent.write(output=[chunk(held, 6, b"ghi")]))
    assert read(rig, held.job) == b"abcdefghi"
    assert read(rig, held.job, "stderr") == b"err\xff\x00"
    assert logs.job_output(rig.context, ADMIN, held.job, "stdout").size == 9


def test_output_of_others_and_of_old_attempts_is_not_kept(rig: Rig, agent: RigAgent) -> None:
    other = rig.cluster("beta")
    made = rig.submit(a_request(cluster="alpha", on_lost="requeue"))
    rig.committer.do(agent.write(output=[chunk(AttemptRef(made.id, 1), 0, b"before the lease")]))
    held = agent.lease_one()
    rig.committer.do(other.write(output=[chunk(held, 0, b"another agent")]))
    rig.committer.do(
        agent.write(
            output=[chunk(AttemptRef(held.job, 7), 0, b"another fence"), chunk(AttemptRef("Z" * 26, 1), 0, b"?")]
        )
    )
    assert read(rig, made.id) == b""


def test_output_is_bounded(lite: Rig) -> None:
    agent = lite.cluster("alpha")
    lite.submit()
    held = agent.lease_one()
    half = OUTPUT_BYTES_MAX // 2
    for offset in (0, half, 2 * half, 10**9):
        for part in range(0, half, CHUNK_BYTES_MAX):
            lite.committer.do(agent.write(output=[chunk(held, offset + part, b"a" * CHUNK_BYTES_MAX)]))
    offset, kept = 0, 0
    while (seen := logs.job_output(lite.context, ADMIN, held.job, "stdout", offset=offset)).chunks:
        kept += sum(len(part.data) for part in seen.chunks)
        offset = seen.next
    assert offset == seen.size == 10**9 + half
    assert kept <= OUTPUT_BYTES_MAX + CHUNK_BYTES_MAX
    lite.committer.do(agent.write(output=[chunk(held, 0, b"e", "stderr")]))
    assert read(lite, held.job, "stderr") == b"e", "each stream has a bound of its own"
