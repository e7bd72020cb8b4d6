from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from switchyard.agent.backends import Status
from switchyard.agent.backends.shared.returns import NotTakenNow
from switchyard.agent.journal.attempt import Attempt, Stage
from switchyard.agent.journal.journal import Journal
from switchyard.agent.loop import runner as runners
from switchyard.agent.loop.batch_silence import BatchSilence
from switchyard.agent.loop.runner import Runner
from switchyard.agent.site.site import OutageSite
from switchyard.errors import Unavailable
from switchyard.features.fake.agent.backend import FakeBackend
from switchyard.features.local.agent.backend import LocalBackend
from switchyard.model.cluster.poll import Lease
from switchyard.model.graph import Graph
from switchyard.model.graph.graph_compiler import compile_graph
from switchyard.model.job.job import Native
from switchyard.model.job.lifecycle import ObservedState, ReportAnswer
from switchyard.model.job.retry import Cause
from tests.agent.builders import a_graph, a_lease, a_setting
from tests.processes import PATIENCE_S, until


class Bench:
    """A runner with a fake cluster, turned by hand."""

    def __init__(self, tmp_path: Path, cores: int = 4) -> None:
        self.journal = Journal(tmp_path / "journal.db")
        self.backend = FakeBackend(a_setting(tmp_path, a_graph(cores=cores)))
        self.runner = Runner(self.journal, self.backend)

    def seen(self, lease: Lease) -> list[ObservedState]:
        return [each.timed.report.seen for each in self.journal.queued() if each.key[0] == lease.job]

    def turn_until(self, lease: Lease, seen: ObservedState) -> None:
        def turned() -> bool:
            self.runner.run_once(may_start=True)
            return seen in self.seen(lease)

        until(turned, PATIENCE_S, f"{seen} is said")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_doubtful_submit_is_looked_up_not_repeated(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster took it but did not answer: the fake raises if it is submitted twice."""
    monkeypatch.setattr(runners, "RESUBMIT_AFTER_S", 0.05)
    lease = a_lease("x", env={"FAKE_DOUBT": "1"})
    bench.journal.take([lease])
    bench.turn_until(lease, ObservedState.SUCCEEDED)


def test_crash_between_submit_and_its_note_is_looked_up(tmp_path: Path, bench: Bench) -> None:
    lease = a_lease("sleep", "60")
    bench.journal.take([lease])
    bench.backend.submit(lease)  # and the agent dies
    again = Bench(tmp_path)
    again.turn_until(lease, ObservedState.RUNNING)


def test_what_filled_the_cluster_before_a_crash_ends_and_makes_room(tmp_path: Path) -> None:
    """It waited for room that only its own end could give back."""
    gate, setting = tmp_path / "gate", a_setting(tmp_path, a_graph(cores=2))
    wait = f"until [ -e {gate} ]; do sleep 0.02; done"
    first, second, waiting = (a_lease("sh", "-c", wait), a_lease("sh", "-c", wait), a_lease("true"))
    journal = Journal(tmp_path / "journal.db")
    journal.take([first, second, waiting])
    before = LocalBackend(setting)
    names = [before.submit(first), before.submit(second)]
    until(
        lambda: all(each.seen is ObservedState.RUNNING for each in before.status(names).values()),
        PATIENCE_S,
        "both run",
    )
    before.close()  # the agent dies here
    backend = LocalBackend(setting)
    again = Runner(journal, backend)
    again.adopt()
    gate.touch()

    def turned() -> bool:
        again.run_once(may_start=True)
        ended = {queued.key[0] for queued in journal.queued() if queued.timed.report.seen is ObservedState.SUCCEEDED}
        return ended == {first.job, second.job, waiting.job}

    until(turned, PATIENCE_S, "all three end")
    backend.close()


def test_cancel_of_what_was_submitted_before_a_crash_reaches_it(tmp_path: Path, bench: Bench) -> None:
    lease = a_lease("sleep", "60")
    [attempt] = bench.journal.take([lease])
    bench.backend.submit(lease)
    again = Bench(tmp_path)
    again.journal.request_end([attempt.key], cancel=True)
    again.turn_until(lease, ObservedState.CANCELLED)
    assert again.backend.status([attempt.marker])[attempt.marker].seen is ObservedState.CANCELLED


def test_refusal_of_the_cluster_fails_the_attempt_with_its_reason(bench: Bench) -> None:
    lease = a_lease("x", env={"FAKE_DENY": "account expired"})
    bench.journal.take([lease])
    bench.turn_until(lease, ObservedState.FAILED)
    assert bench.journal.queued()[0].timed.report.reason == "the cluster refused it: account expired"


def test_a_job_that_the_cluster_does_not_take_now_is_returned(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Lease) -> str:
        raise NotTakenNow("the queue is closed")

    monkeypatch.setattr(bench.backend, "submit", refuse)
    lease = a_lease("x")
    bench.journal.take([lease])
    bench.turn_until(lease, ObservedState.RETURNED)
    assert bench.journal.queued()[0].timed.report.reason == "the queue is closed"


def test_unknown_state_changes_nothing_and_lost_is_reported(bench: Bench) -> None:
    odd = a_lease("sleep", "60", env={"FAKE_UNKNOWN": "SPECIAL_EXIT"})
    lost = a_lease("x", env={"FAKE_LOSE": "1"})
    bench.journal.take([odd, lost])
    bench.turn_until(lost, ObservedState.LOST)
    assert bench.seen(odd) == []
    assert [each.stage for each in bench.journal.attempts()] == [Stage.SUBMITTED, Stage.ENDED]


def test_waiting_at_the_cluster_is_reported_as_submitted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners, "QUEUED_AFTER_S", 0.0)
    lease = a_lease("x", env={"FAKE_DELAY_S": "0.2", "FAKE_RUN_S": "0.2"})
    bench.journal.take([lease])
    bench.turn_until(lease, ObservedState.SUCCEEDED)
    assert bench.seen(lease) == [ObservedState.SUBMITTED, ObservedState.RUNNING, ObservedState.SUCCEEDED]


def test_a_short_job_still_tells_when_it_began(bench: Bench) -> None:
    lease = a_lease("x")
    bench.journal.take([lease])
    bench.turn_until(lease, ObservedState.SUCCEEDED)
    assert bench.seen(lease) == [ObservedState.RUNNING, ObservedState.SUCCEEDED]


def test_room_counts_what_is_promised_and_order_is_kept(tmp_path: Path) -> None:
    bench = Bench(tmp_path, cores=2)
    first, large, small = (a_lease("sleep", "60", resources={"cores": cores}) for cores in (1, 2, 1))
    bench.journal.take([first, large, small])
    room = bench.runner.room()
    assert room is not None
    assert room.cores == 0
    bench.runner.run_once(may_start=True)
    assert [each.lease.job for each in bench.journal.attempts() if each.native_id] == [first.job]


def test_larger_than_the_cluster_starts_when_it_is_empty(tmp_path: Path) -> None:
    bench = Bench(tmp_path, cores=2)
    huge = a_lease("x", resources={"cores": 8})
    bench.journal.take([huge])
    bench.turn_until(huge, ObservedState.SUCCEEDED)


def test_nothing_starts_before_it_may(bench: Bench) -> None:
    bench.journal.take([a_lease("x")])
    bench.runner.run_once(may_start=False)
    assert bench.backend.held() == []


def test_old_ones_are_cleaned_up_with_what_the_backend_keeps(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from switchyard.agent.journal import journal as journals
    from switchyard.model.job.lifecycle import ReportAnswer

    monkeypatch.setattr(journals, "SETTLED_DAYS_MAX", 0)
    monkeypatch.setattr(runners, "PURGE_EVERY_S", 0)
    done, live = a_lease("x"), a_lease("sleep", "60")
    bench.journal.take([done, live])
    bench.turn_until(done, ObservedState.SUCCEEDED)
    bench.journal.settle([(queued, ReportAnswer.TAKEN) for queued in bench.journal.queued()])
    bench.runner.run_once(may_start=True)
    assert [each.job for each in bench.backend.held()] == [live.job]
    assert not bench.journal.knows((done.job, done.fence))


def test_a_lease_that_arrives_in_the_middle_of_a_turn_starts_in_the_next(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The poller writes to the journal while the runner chooses what to start."""
    lease = a_lease("x")
    waiting = bench.runner._waiting_attempts

    def late() -> list[Attempt]:
        bench.journal.take([lease])
        return waiting()

    monkeypatch.setattr(bench.runner, "_waiting_attempts", late)
    assert bench.runner._start() == []
    bench.turn_until(lease, ObservedState.SUCCEEDED)


def test_of_an_agent_that_lost_its_place_only_what_the_server_does_not_know_of_is_ended(bench: Bench) -> None:
    told, untold, copied = (a_lease("sleep", "60") for _ in range(3))
    bench.journal.take([told, untold])
    bench.turn_until(told, ObservedState.RUNNING)
    bench.turn_until(untold, ObservedState.RUNNING)
    bench.journal.settle((each, ReportAnswer.TAKEN) for each in bench.journal.queued() if each.key[0] == told.job)
    [not_ours] = bench.journal.take([copied])
    bench.backend.submit(copied)  # by another process: in a copied journal it looks like this
    assert bench.runner.withdraw() == 1
    markers = {each.lease.job: each.marker for each in bench.journal.attempts()}
    seen = bench.backend.status(markers.values())
    until(
        lambda: bench.backend.status([markers[untold.job]])[markers[untold.job]].seen is ObservedState.CANCELLED,
        10,
        "ended",
    )
    assert [seen[markers[lease.job]].seen for lease in (told, not_ours.lease)] == [
        ObservedState.RUNNING,
        ObservedState.RUNNING,
    ]


def test_a_held_attempt_says_why_and_starts_when_it_may(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    held, free = a_lease("x", env={"WAITS": "1"}), a_lease("y")
    reasons = ["waits for its namespace: ResourceQuota/q is not applied: 403"]
    bench.runner = Runner(
        bench.journal, bench.backend, hold=lambda lease: reasons[0] if lease.job == held.job and reasons else ""
    )
    bench.journal.take([held, free])
    bench.turn_until(free, ObservedState.SUCCEEDED)  # others go on
    bench.turn_until(held, ObservedState.SUBMITTED)
    [report] = [each.timed.report for each in bench.journal.queued() if each.key[0] == held.job]
    assert (report.seen, report.reason) == (ObservedState.SUBMITTED, reasons[0])
    reasons.clear()
    bench.turn_until(held, ObservedState.SUCCEEDED)


def test_a_held_attempt_can_be_cancelled_and_one_that_may_run_already_is_not_held(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    cancelled, submitted = a_lease("x"), a_lease("sleep", "60")
    [attempt, _] = bench.journal.take([cancelled, submitted])
    bench.backend.submit(submitted)  # and the agent dies
    bench.runner = Runner(bench.journal, bench.backend, hold=lambda _: "never")
    bench.turn_until(submitted, ObservedState.RUNNING)
    bench.journal.request_end([attempt.key], cancel=True)
    bench.turn_until(cancelled, ObservedState.CANCELLED)


def test_why_a_submit_is_tried_again_is_reported_as_the_reason_for_waiting(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runners, "RESUBMIT_AFTER_S", 0.0)
    monkeypatch.setattr(runners, "QUEUED_AFTER_S", 0.0)
    real, lease = bench.backend.submit, a_lease("x")

    def refuse(_: Lease) -> str:
        raise Unavailable("the controller does not answer")

    monkeypatch.setattr(bench.backend, "submit", refuse)
    bench.journal.take([lease])
    bench.turn_until(lease, ObservedState.SUBMITTED)
    assert [queued.timed.report.reason for queued in bench.journal.queued()] == ["the controller does not answer"]
    monkeypatch.setattr(bench.backend, "submit", real)
    bench.turn_until(lease, ObservedState.SUCCEEDED)


def test_the_note_of_a_running_attempt_is_reported_when_it_changes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runners, "REPORT_EVERY_S", 0.0)
    real, lease, notes = bench.backend.status, a_lease("sleep", "60"), [""]

    def noted(native_ids: Iterable[str]) -> dict[str, Status]:
        return {key: replace(status, note=notes[0]) for key, status in real(native_ids).items()}

    monkeypatch.setattr(bench.backend, "status", noted)
    bench.journal.take([lease])
    bench.turn_until(lease, ObservedState.RUNNING)
    for note in ("its node n1 does not answer", "its node n1 does not answer", ""):
        notes[0] = note
        bench.runner.run_once(may_start=True)
    reports = [each.timed.report for each in bench.journal.queued()]
    assert [report.reason for report in reports if report.seen is ObservedState.RUNNING] == [
        "",
        "its node n1 does not answer",
        "",
    ]


def test_a_job_that_meets_a_defect_waits_and_the_other_jobs_go_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runners, "QUEUED_AFTER_S", 0.0)
    real, bad, good = bench.backend.submit, a_lease("bad"), a_lease("good")

    def submit(lease: Lease) -> str:
        if lease.job == bad.job:
            raise TypeError("unhashable type: 'dict'")
        return real(lease)

    monkeypatch.setattr(bench.backend, "submit", submit)
    [attempt, _] = bench.journal.take([bad, good])
    bench.turn_until(good, ObservedState.SUCCEEDED)
    reasons = [each.timed.report.reason for each in bench.journal.queued() if each.key == attempt.key]
    assert reasons == ["a defect of the agent: TypeError"]
    bench.journal.request_end([attempt.key], cancel=True)
    bench.turn_until(bad, ObservedState.CANCELLED)


def a_graph_of(*devices: str) -> Graph:
    return compile_graph({"nodes": 1, "each": {"core": 4, "devices": list(devices)}})


class HardwareBench(Bench):
    """A runner whose cluster has other devices when the test says so. None: its graph is not known."""

    def __init__(self, tmp_path: Path, *devices: str) -> None:
        super().__init__(tmp_path)
        self.graph: Graph | None = a_graph_of(*devices)
        self.runner = Runner(self.journal, self.backend, graph=lambda: self.graph)

    def reason(self, lease: Lease) -> str:
        [report] = [each.timed.report for each in self.journal.queued() if each.key[0] == lease.job]
        assert (report.seen, report.cause) == (ObservedState.RETURNED, Cause.CLUSTER)
        return report.reason


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"resources": {"gpus": 2, "gpu_type": "nvidia_h100_pcie"}}, "gpu of type h100"),
        ({"resources": {"gpus": 1}, "native": Native(gpu_type="h100")}, "gpu of type h100"),
        ({"resources": {"gpus": 1, "gpu_memory": "80GB"}}, "gpu with at least 80 GB"),
        ({"resources": {"gpus": 1, "gpu_type": "v100-32gb"}}, "gpu of type v100 with at least 32 GB"),
        ({"resources": {"devices": ("gpu:v100:1", "fpga:u250:1")}}, "fpga of type u250"),
    ],
)
def test_a_job_whose_hardware_the_cluster_has_not_any_more_is_returned(
    tmp_path: Path, spec: dict[str, Any], reason: str
) -> None:
    bench = HardwareBench(tmp_path, "gpu:v100:4", "fpga:u280:1")
    lease = a_lease("x", **spec)
    bench.journal.take([lease])
    bench.turn_until(lease, ObservedState.RETURNED)
    assert bench.reason(lease) == f"its cluster has no {reason} any more"
    assert bench.backend.held() == []


def test_jobs_whose_hardware_is_there_or_that_name_none_start(tmp_path: Path) -> None:
    bench = HardwareBench(tmp_path, "gpu:v100-32gb:4", "fpga:u280:1")
    leases = [
        a_lease("x", resources={"gpus": 1, "gpu_type": "Tesla-V100-SXM2-32GB"}),
        a_lease("x", resources={"gpus": 1, "gpu_memory": "32GB"}),
        a_lease("x", resources={"devices": ("fpga:xilinx-u280:1",)}),
        a_lease("x", resources={"gpus": 1}),
        a_lease("x"),
    ]
    bench.journal.take(leases)
    for lease in leases:
        bench.turn_until(lease, ObservedState.SUCCEEDED)
    # Nobody told the agent, or it does not know types: the server has them from an operator.
    for graph in (None, a_graph_of("nic:4")):
        bench.graph = graph
        unknown = a_lease("x", resources={"gpus": 1, "gpu_type": "h100"})
        bench.journal.take([unknown])
        bench.turn_until(unknown, ObservedState.SUCCEEDED)


def test_hardware_that_changes_while_a_job_waits_for_room_keeps_the_job_from_starting(tmp_path: Path) -> None:
    bench, gpu = HardwareBench(tmp_path, "gpu:h100:4"), {"gpus": 1, "gpu_type": "h100"}
    running, waiting = (a_lease("sleep", "60", resources={"cores": 4, **gpu}) for _ in range(2))
    bench.journal.take([running, waiting])
    bench.turn_until(running, ObservedState.RUNNING)
    bench.graph = a_graph_of("gpu:v100:4")
    bench.turn_until(waiting, ObservedState.RETURNED)
    assert bench.reason(waiting) == "its cluster has no gpu of type h100 any more"
    assert bench.seen(running) == [ObservedState.RUNNING], "what runs goes on"


def test_a_lease_for_missing_hardware_that_arrives_in_the_middle_of_a_turn_does_not_start(tmp_path: Path) -> None:
    bench = HardwareBench(tmp_path, "gpu:v100:4")
    lease = a_lease("x", resources={"gpus": 1, "gpu_type": "h100"})
    bench.journal.take([lease])
    assert bench.runner._start() == []
    assert bench.backend.held() == []
    bench.turn_until(lease, ObservedState.RETURNED)


def test_after_a_restart_with_other_hardware_only_what_the_cluster_does_not_have_is_returned(tmp_path: Path) -> None:
    before, gpu = Bench(tmp_path), {"gpus": 1, "gpu_type": "h100"}
    submitted, leased = (a_lease("sleep", "60", resources=gpu) for _ in range(2))
    before.journal.take([submitted, leased])
    before.backend.submit(submitted)  # and the agent dies
    silence = tmp_path / "silence"
    silence.write_text("connection refused")
    again = HardwareBench(tmp_path, "gpu:v100:4")
    again.runner.run_once(may_start=True)
    assert again.seen(leased) == [], "a silent batch system cannot say whether it has the job"
    silence.unlink()
    again.turn_until(leased, ObservedState.RETURNED)
    again.turn_until(submitted, ObservedState.RUNNING)


class SilentBench(Bench):
    """A runner whose batch system can fall silent, and that gives back at once or much later."""

    def __init__(self, tmp_path: Path, give_back_after_s: float) -> None:
        super().__init__(tmp_path)
        self.silence_file = tmp_path / "silence"
        site = OutageSite(give_back_after_s=give_back_after_s)
        self.runner = Runner(self.journal, self.backend, silence=BatchSilence(self.backend.trouble, site))

    def reasons(self, lease: Lease) -> list[str]:
        return [each.timed.report.reason for each in self.journal.queued() if each.key[0] == lease.job]


def test_nothing_is_submitted_to_a_silent_batch_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was submitted would be in doubt. It waits, says why, and starts when the batch system answers again."""
    monkeypatch.setattr(runners, "QUEUED_AFTER_S", 0.0)
    bench, lease = SilentBench(tmp_path, 3600), a_lease("sleep", "60")
    bench.silence_file.write_text("connection refused")
    bench.journal.take([lease])
    until(lambda: bench.runner.run_once(may_start=True) or bench.reasons(lease), PATIENCE_S, "the reason is said")
    assert bench.reasons(lease) == ["The fake cluster does not answer"]
    assert bench.backend.held() == []
    bench.silence_file.unlink()
    bench.turn_until(lease, ObservedState.RUNNING)


def test_a_silent_batch_system_gives_back_what_it_surely_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attempts that run, wait there or are in doubt stay. One that an earlier process leased is looked up first."""
    monkeypatch.setattr(runners, "SILENT_LOOKUP_S", 0.0)
    doubtful, running, queued, fresh = (
        a_lease("sleep", "60", env={"FAKE_DOUBT": "1"}),
        a_lease("sleep", "60"),
        a_lease("sleep", "60", env={"FAKE_DELAY_S": "60"}),
        a_lease("x"),
    )
    bench = SilentBench(tmp_path, 0.001)
    bench.journal.take([doubtful, running, queued])
    bench.runner.run_once(may_start=True)
    bench.silence_file.write_text("connection refused")
    bench.journal.take([fresh])
    again = SilentBench(tmp_path, 0.001)  # a new process: whatever has no native id may have been submitted
    again.turn_until(fresh, ObservedState.RETURNED)
    assert again.reasons(fresh)[-1].startswith("The fake cluster does not answer: connection refused (for ")
    for kept in (doubtful, running, queued):
        assert ObservedState.RETURNED not in again.seen(kept)
    again.silence_file.unlink()
    again.turn_until(doubtful, ObservedState.RUNNING)


class WithdrawingFake(FakeBackend):
    """A batch system whose queued jobs can be kept from beginning although it is silent, as Flux's."""

    def withdraw(self, native_ids: Iterable[str]) -> list[str]:
        statuses = super().status(native_ids)
        return [native_id for native_id, status in statuses.items() if status.seen is ObservedState.SUBMITTED]


def test_a_silent_batch_system_gives_back_queued_jobs_that_can_be_withdrawn(tmp_path: Path) -> None:
    running, queued = a_lease("sleep", "60"), a_lease("sleep", "60", env={"FAKE_DELAY_S": "60"})
    bench = SilentBench(tmp_path, 0.001)
    bench.backend = WithdrawingFake(a_setting(tmp_path, a_graph()))
    site = OutageSite(give_back_after_s=0.001)
    bench.runner = Runner(bench.journal, bench.backend, silence=BatchSilence(bench.backend.trouble, site))
    bench.journal.take([running, queued])
    bench.turn_until(running, ObservedState.RUNNING)
    bench.silence_file.write_text("connection refused")
    bench.turn_until(queued, ObservedState.RETURNED)
    assert ObservedState.RETURNED not in bench.seen(running)
