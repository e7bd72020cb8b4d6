"""The whole agent, a real process with real jobs, against a peer that speaks the protocol and breaks it on demand."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest

from switchyard.agent.loop.poller import PARK_S
from switchyard.errors import Busy, Gone, Malformed, Unauthenticated, Unavailable
from switchyard.model.cluster.poll import AttemptRef, Lease, Poll, PollAnswer
from switchyard.model.job.lifecycle import ObservedState
from tests.agent.builders import a_counted_job, a_lease, count_runs
from tests.agent.conftest import Starter
from tests.agent.peer import Peer
from tests.processes import PATIENCE_S, until

TRIES = 5


def jobdir(tmp_path: Path, lease: Lease) -> Path:
    return tmp_path / "data/jobs" / f"yard-{lease.job}-{lease.attempt}-{lease.fence}"


def waiting_for(gate: Path) -> str:
    """Shell words that end once a file is there: the test decides when a job ends."""
    return f"until [ -e {gate} ]; do sleep 0.02; done"


def test_leases_run_and_are_reported_with_their_output(peer: Peer, agent: Starter) -> None:
    agent(peer.url)
    good = a_lease("sh", "-c", "printf out; printf err >&2")
    bad = a_lease("sh", "-c", "exit 3")
    peer.lease(good, bad)
    assert peer.wait_end(good).seen is ObservedState.SUCCEEDED
    ended = peer.wait_end(bad)
    assert (ended.seen, ended.exit_code, ended.reason) == (ObservedState.FAILED, 3, "exit code 3")
    assert (peer.text(good), peer.text(good, "stderr")) == (b"out", b"err")
    assert peer.seen(good) == [ObservedState.RUNNING, ObservedState.SUCCEEDED]


def test_a_first_join_waits_for_a_server_that_lives_and_is_busy(
    peer: Peer, agent: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_answer, join = threading.Event(), peer._join
    monkeypatch.setattr(peer, "_join", lambda request: join(request) if may_answer.wait(PATIENCE_S) else None)
    running = agent(peer.url)
    running.wait_for(lambda: "server-busy" in running.log, PATIENCE_S, "it waits on")
    may_answer.set()
    peer.wait_parked()
    assert "joined cluster alpha" in running.log


def test_first_poll_is_a_sync_with_graph_and_later_ones_are_not(peer: Peer, agent: Starter) -> None:
    agent(peer.url)
    parked = peer.wait_parked()
    first = peer.polls[0]
    assert (first.inventory, first.want, first.wait_s) == ([], 0, 0)
    assert first.graph is not None
    assert first.graph.cores == 4
    assert (parked.inventory, parked.graph, parked.session) == (None, None, 1)
    assert parked.room is not None
    assert (parked.want, parked.room.cores) == (64, 4)
    assert parked.load is not None
    assert (parked.load.free_cores, parked.load.running, parked.load.trouble) == (4, 0, "")


def test_work_starts_at_once_when_room_frees(peer: Peer, agent: Starter) -> None:
    """Full, the park asks for nothing; the report of an end asks itself, and brings the next job."""
    agent(peer.url, cores=1)
    jobs = [a_lease("sleep", "0.2") for _ in range(4)]
    peer.lease(*jobs)
    begun = time.monotonic()
    for job in jobs:
        assert peer.wait_end(job).seen is ObservedState.SUCCEEDED
    assert time.monotonic() - begun < 2.5 * PARK_S, "no job waited for a parked poll to run out: that would be three"
    running = 0
    for report in peer.reports:
        running += {ObservedState.RUNNING: 1}.get(report.seen, -1)
        assert running <= 1, "never more than fits"


def test_freed_room_is_offered_to_the_parked_poll(tmp_path: Path, peer: Peer, agent: Starter) -> None:
    """A job that needs the whole machine comes while another has just left it."""
    agent(peer.url, cores=2)
    took_s: list[float] = []
    while len(took_s) < TRIES and min(took_s, default=PARK_S) > PARK_S / 2:  # the best of them: the machine may be busy
        gate = tmp_path / f"gate-{len(took_s)}"
        small = a_lease("sh", "-c", waiting_for(gate))
        peer.lease(small)
        peer.wait_parked(want=63)
        large = a_lease("true", resources={"cores": 2})
        peer.lease(large)
        gate.touch()
        peer.wait_end(small)
        begun = time.monotonic()
        assert peer.wait_end(large).seen is ObservedState.SUCCEEDED
        took_s.append(time.monotonic() - begun)
        peer.wait_parked(want=64)
    assert min(took_s) < PARK_S / 2, "the large job did not wait for a parked poll to run out"


def test_lost_answer_is_followed_by_a_sync_and_nothing_runs_twice(tmp_path: Path, peer: Peer, agent: Starter) -> None:
    lost: list[PollAnswer] = []

    def lose(poll: Poll, answer: PollAnswer) -> bool:
        if answer.leases and poll.inventory is None and not lost:
            lost.append(answer)
            return True
        return False

    peer.lose = lose
    agent(peer.url)
    job = a_counted_job(tmp_path)
    peer.lease(job)
    assert peer.wait_end(job).seen is ObservedState.SUCCEEDED
    assert len(lost) == 1
    assert count_runs(tmp_path, job) == 1
    syncs = [poll for poll in peer.polls if poll.inventory is not None]
    assert len(syncs) >= 2


def test_every_other_answer_lost_still_runs_each_job_once(tmp_path: Path, peer: Peer, agent: Starter) -> None:
    turn = iter(range(10_000))
    peer.lose = lambda _poll, _answer: next(turn) % 2 == 0
    agent(peer.url)
    jobs = [a_counted_job(tmp_path, "0.05") for _ in range(6)]
    peer.lease(*jobs)
    for job in jobs:
        peer.wait_end(job)
    peer.reset()
    assert [count_runs(tmp_path, job) for job in jobs] == [1] * 6


def test_cancel_is_confirmed_when_it_is_gone(peer: Peer, agent: Starter) -> None:
    agent(peer.url)
    job = a_lease("sleep", "60")
    peer.lease(job)
    peer.wait_seen(job, ObservedState.RUNNING)
    peer.cancel(job)
    assert peer.wait_end(job).seen is ObservedState.CANCELLED
    known = [poll for poll in peer.polls if poll.cancelling]
    assert known[0].cancelling == [AttemptRef(job.job, job.fence)]
    assert all(poll.wait_s or poll.want for poll in known), "a poll that gets no cancels repeats none"


def test_cancel_of_what_waits_for_room_never_starts_it(tmp_path: Path, peer: Peer, agent: Starter) -> None:
    agent(peer.url, cores=1)
    first, second = a_lease("sleep", "60"), a_counted_job(tmp_path)
    peer.lease(first)
    peer.wait_seen(first, ObservedState.RUNNING)
    # Given beyond the room, as a sync does: it has to wait.
    peer.held[(second.job, second.fence)] = second
    peer.session += 1
    until(lambda: len([poll for poll in peer.polls if poll.inventory is not None]) > 1, PATIENCE_S, "a second sync")
    peer.cancel(second)
    assert peer.wait_end(second).seen is ObservedState.CANCELLED
    assert count_runs(tmp_path, second) == 0


def test_stop_ends_it_in_silence(tmp_path: Path, peer: Peer, agent: Starter) -> None:
    agent(peer.url)
    job = a_lease("sleep", "60")
    peer.stop_reports = True
    peer.lease(job)
    peer.wait_seen(job, ObservedState.RUNNING)
    peer.held.clear()
    until((jobdir(tmp_path, job) / "exit").exists, PATIENCE_S, "it has ended")
    peer.wait_parked(want=64)
    assert peer.seen(job) == [ObservedState.RUNNING]


def test_higher_fence_runs_only_when_the_lower_is_gone(tmp_path: Path, peer: Peer, agent: Starter) -> None:
    agent(peer.url)
    script = "trap 'sleep 0.5; exit 0' TERM; echo begin $SWITCHYARD_FENCE >> {0}; sleep {1} & wait; echo end >> {0}"
    old = a_lease("sh", "-c", script.format(tmp_path / "log", 60), fence=1)
    peer.lease(old)
    peer.wait_seen(old, ObservedState.RUNNING)
    until((tmp_path / "log").exists, PATIENCE_S, "the first has begun")
    new = a_lease("sh", "-c", script.format(tmp_path / "log", 0), job=old.job, fence=2, attempt=2)
    del peer.held[(old.job, 1)]
    peer.lease(new)
    peer.wait_end(new)
    assert (tmp_path / "log").read_text().split("\n")[:2] == ["begin 1", "begin 2"]
    first_gone = (jobdir(tmp_path, old) / "exit").stat().st_mtime_ns
    assert first_gone <= (jobdir(tmp_path, new) / "claim").stat().st_mtime_ns


def test_killed_agent_loses_nothing(tmp_path: Path, peer: Peer, agent: Starter) -> None:
    first = agent(peer.url)
    long, short = a_counted_job(tmp_path, "1.5"), a_counted_job(tmp_path, "0.5")
    peer.lease(long, short)
    peer.wait_seen(long, ObservedState.RUNNING)
    peer.wait_seen(short, ObservedState.RUNNING)
    first.kill()
    until((jobdir(tmp_path, short) / "exit").exists, PATIENCE_S, "one ends while nobody watches")
    agent(peer.url)
    assert peer.wait_end(short).seen is ObservedState.SUCCEEDED
    assert peer.wait_end(long).seen is ObservedState.SUCCEEDED
    assert (count_runs(tmp_path, long), count_runs(tmp_path, short)) == (1, 1)
    assert len(peer.joins) == 1


def test_agent_killed_again_and_again_runs_each_job_once(tmp_path: Path, peer: Peer, agent: Starter) -> None:
    jobs = [a_counted_job(tmp_path, "0.2") for _ in range(12)]
    peer.lease(*jobs)
    for wait_s in (0.45, 0.6, 0.75):
        running = agent(peer.url)
        time.sleep(wait_s)  # the moment of death is what differs
        running.kill()
    agent(peer.url)
    for job in jobs:
        assert peer.wait_end(job).seen is ObservedState.SUCCEEDED
    assert [count_runs(tmp_path, job) for job in jobs] == [1] * 12


def test_outage_of_the_server_kills_nothing(tmp_path: Path, peer: Peer, agent: Starter) -> None:
    running = agent(peer.url)
    job = a_counted_job(tmp_path, "0.6")
    peer.lease(job)
    peer.wait_seen(job, ObservedState.RUNNING)
    peer.refuse = Unavailable("going down")
    until((jobdir(tmp_path, job) / "exit").exists, PATIENCE_S, "it ends during the outage")
    peer.reset()
    assert peer.wait_end(job).seen is ObservedState.SUCCEEDED
    assert running.is_running


def test_joined_agent_waits_for_a_server_that_is_down(tmp_path: Path, agent: Starter) -> None:
    with Peer() as peer:
        url = peer.url
        first = agent(url)
        peer.wait_parked()
        assert first.terminate() == 0
    again = agent(url)
    again.wait_for(lambda: "event=trouble" in again.log, PATIENCE_S, "it finds nobody")
    assert again.is_running
    with Peer(port=int(url.rpartition(":")[2])) as back:
        back.wait_parked()


@pytest.mark.parametrize(("refusal", "code"), [(Gone("This agent was removed."), 6), (Unauthenticated("Unknown."), 4)])
def test_refused_credential_ends_the_agent(peer: Peer, agent: Starter, refusal: Exception, code: int) -> None:
    running = agent(peer.url)
    peer.wait_parked()
    peer.refuse = refusal  # type: ignore[assignment]
    assert running.wait(PATIENCE_S) == code
    assert f"error: The server refuses this agent: {refusal}" in running.log
    assert "next: Join again" in running.log


def test_intent_is_not_started_before_the_server_has_spoken(tmp_path: Path, peer: Peer, agent: Starter) -> None:
    """Killed with a lease that never began, and gone for long: meanwhile the job went to another cluster."""
    first = agent(peer.url, cores=1)
    busy, waiting = a_lease("sleep", "60"), a_counted_job(tmp_path)
    peer.lease(busy)
    peer.wait_seen(busy, ObservedState.RUNNING)
    peer.held[(waiting.job, waiting.fence)] = waiting
    peer.session += 1
    first.wait_for(lambda: f"leased job={waiting.job}" in first.log, PATIENCE_S, "it is leased")
    first.kill()
    peer.held.clear()
    peer.refuse = Unavailable("still down")
    again = agent(peer.url, cores=4)
    again.wait_for(lambda: "event=trouble" in again.log, PATIENCE_S, "it finds nobody")
    peer.reset()
    peer.wait_parked(want=64)
    assert count_runs(tmp_path, waiting) == 0
    assert (peer.seen(busy), peer.seen(waiting)) == ([ObservedState.RUNNING], [])


def test_frozen_agent_hears_the_server_before_it_starts_anything(tmp_path: Path, peer: Peer, agent: Starter) -> None:
    """Meanwhile room became free here, and the job that waited for it went to another cluster."""
    running = agent(peer.url, cores=1)
    gate = tmp_path / "gate"
    busy, waiting = a_lease("sh", "-c", waiting_for(gate)), a_counted_job(tmp_path)
    peer.lease(busy)
    peer.wait_seen(busy, ObservedState.RUNNING)
    peer.held[(waiting.job, waiting.fence)] = waiting
    peer.session += 1
    running.wait_for(lambda: f"leased job={waiting.job}" in running.log, PATIENCE_S, "it is leased")
    running.pause()
    del peer.held[(waiting.job, waiting.fence)]
    gate.touch()  # only now: on a busy machine the agent would otherwise see the end before it is paused
    until((jobdir(tmp_path, busy) / "exit").exists, PATIENCE_S, "it ends while the agent is frozen")
    time.sleep(3.2)  # longer than the agent can take for an ordinary wait
    running.resume()
    assert peer.wait_end(busy).seen is ObservedState.SUCCEEDED
    peer.wait_parked(want=64)
    assert count_runs(tmp_path, waiting) == 0


def test_damaged_journal_adopts_what_runs(tmp_path: Path, peer: Peer, agent: Starter) -> None:
    first = agent(peer.url)
    mine, foreign = a_counted_job(tmp_path, "1.2"), a_counted_job(tmp_path, "60")
    peer.lease(mine, foreign)
    peer.wait_seen(mine, ObservedState.RUNNING)
    peer.wait_seen(foreign, ObservedState.RUNNING)
    first.kill()
    del peer.held[(foreign.job, foreign.fence)]
    for path in (tmp_path / "data").glob("journal.db*"):
        path.write_bytes(b"no database" * 1000)
    agent(peer.url)
    assert peer.wait_end(mine).seen is ObservedState.SUCCEEDED
    until((jobdir(tmp_path, foreign) / "exit").exists, PATIENCE_S, "what is not ours any more is stopped")
    assert (count_runs(tmp_path, mine), count_runs(tmp_path, foreign)) == (1, 1)
    assert (tmp_path / "data/journal.corrupt-1").exists()
    assert len(peer.joins) == 1, "the credential still holds"


def test_signal_ends_it_promptly_and_jobs_go_on(tmp_path: Path, peer: Peer, agent: Starter) -> None:
    running = agent(peer.url)
    job = a_counted_job(tmp_path, "60")
    peer.lease(job)
    peer.wait_seen(job, ObservedState.RUNNING)
    running.signal(signal.SIGINT)
    assert running.wait(PATIENCE_S) == 0
    assert not (jobdir(tmp_path, job) / "exit").exists()


def test_paused_agent_goes_on_when_it_is_continued(tmp_path: Path, peer: Peer, agent: Starter) -> None:
    running = agent(peer.url)
    job = a_counted_job(tmp_path, "0.5")
    peer.lease(job)
    peer.wait_seen(job, ObservedState.RUNNING)
    running.pause()
    until((jobdir(tmp_path, job) / "exit").exists, PATIENCE_S, "it ends while the agent is frozen")
    time.sleep(0.5)  # past every short wait inside the agent
    running.resume()
    assert peer.wait_end(job).seen is ObservedState.SUCCEEDED
    assert running.terminate(PATIENCE_S) == 0


def test_large_output_goes_in_pieces_before_the_end(peer: Peer, agent: Starter) -> None:
    agent(peer.url)
    job = a_lease("sh", "-c", "head -c 3000000 /dev/zero; printf last; exit 2")
    peer.lease(job)
    assert peer.wait_end(job).exit_code == 2
    assert peer.text(job) == bytes(3_000_000) + b"last"
    letters = [sum(len(chunk.data) for chunk in poll.output) for poll in peer.polls if poll.output]
    assert max(letters) <= 2**20
    last_output = max(index for index, poll in enumerate(peer.polls) if poll.output)
    end_told = next(index for index, poll in enumerate(peer.polls) for each in poll.reports if each.exit_code == 2)
    assert last_output <= end_told


def test_letter_the_server_cannot_read_does_not_block_the_others(peer: Peer, agent: Starter) -> None:
    agent(peer.url)
    peer.wait_parked()
    job = a_lease("sh", "-c", "echo hello")
    real = peer._report

    def picky(poll: Poll, bearer: str) -> PollAnswer:
        if poll.output:
            raise Malformed("no output, please")
        return answer(poll, bearer)

    answer = peer._poll
    peer._poll = picky  # type: ignore[method-assign]
    peer.lease(job)
    assert peer.wait_end(job).seen is ObservedState.SUCCEEDED
    assert peer._report == real


def test_patience_asked_for_is_kept(peer: Peer, agent: Starter) -> None:
    agent(peer.url)
    peer.wait_parked()
    peer.retry_after = "1"
    peer.refuse = Busy("too much")
    seen, began = len(peer.polls), time.monotonic()
    time.sleep(0.9)  # the time in which it must keep still
    polls = len(peer.polls) - seen
    assert polls <= 2 + int(time.monotonic() - began), "one a second, however long the sleep really took"
    peer.reset()
    peer.wait_parked(want=64)


def test_job_of_an_unknown_form_fails_with_the_reason(peer: Peer, agent: Starter) -> None:
    import msgspec

    agent(peer.url)
    odd = a_lease()
    spec = msgspec.Raw(b'{"command": ["true"], "teleport": true}')
    fine = a_lease("true")
    odd_wire = msgspec.structs.replace(odd, spec=spec)
    with peer._changed:
        peer._fitting = lambda poll: [odd_wire, fine] if poll.want and fine not in given else []  # type: ignore[method-assign]
        given: list[Lease] = []
        peer.held = {(odd.job, 1): odd_wire, (fine.job, 1): fine}
    ended = peer.wait_end(odd)
    assert ended.seen is ObservedState.FAILED
    assert "cannot read the job" in ended.reason
    assert peer.wait_end(fine).seen is ObservedState.SUCCEEDED
