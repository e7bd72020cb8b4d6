from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from switchyard.agent.backends import LocalMachine, marker_of
from switchyard.agent.site.job_accounts import own_account_name
from switchyard.agent.site.site import ImageRule, Site
from switchyard.errors import Unavailable
from switchyard.features.local.agent import local_status
from switchyard.features.local.agent.backend import LocalBackend
from switchyard.features.local.agent.jobdir import ExitRecord, JobDir, Stamp
from switchyard.features.local.agent.launch import start_files
from switchyard.features.local.agent.local_status import ended_status, show_duration
from switchyard.model.cluster.hardware import Hardware
from switchyard.model.cluster.poll import Lease
from switchyard.model.files.files import JobFiles
from switchyard.model.graph.graph_compiler import compile_graph
from switchyard.model.job.image_rules import ImageRun
from switchyard.model.job.lifecycle import ObservedState
from tests.agent.builders import a_lease, a_local, a_setting, end_of, status_when
from tests.processes import PATIENCE_S, Process, started_of, until


def running(backend: LocalBackend, native_id: str) -> None:
    status_when(backend, native_id, lambda status: status.seen is ObservedState.RUNNING)


def process_in(path: Path) -> Process:
    pid = int(until(lambda: path.read_text().strip() if path.exists() else "", PATIENCE_S, f"a pid in {path}"))
    born = started_of(pid)
    assert born is not None
    return Process(pid, born)


def test_job_has_a_minimal_environment_of_its_own(tmp_path: Path) -> None:
    site = Site(images=[ImageRule("ubuntu:*", ImageRun.HOST)])
    backend = LocalBackend(a_setting(tmp_path, site=site))
    lease = a_lease("env", fence=7, attempt=2, env={"MINE": "yes", "SWITCHYARD_FENCE": "0"}, image="ubuntu:24.04")
    native_id = backend.submit(lease)
    end_of(backend, native_id)
    text = backend.output(native_id, "stdout", offset=0, size=10_000).data.decode()
    env = dict(each.split("=", 1) for each in text.splitlines())
    assert env.pop("PATH") == os.environ["PATH"]
    assert env == {
        "HOME": str(tmp_path / "jobs" / native_id / "work"),
        "USER": own_account_name(),
        "LOGNAME": own_account_name(),
        "MINE": "yes",
        "SWITCHYARD_JOB_ID": lease.job,
        "SWITCHYARD_ATTEMPT": "2",
        "SWITCHYARD_FENCE": "7",
        "SWITCHYARD_CLUSTER": "alpha",
        "SWITCHYARD_TASKS": "1",
        "SWITCHYARD_CORES": "1",
        "SWITCHYARD_PROJECT": "physics",
        "SWITCHYARD_DOMAIN": "development",
        "SWITCHYARD_IMAGE": "ubuntu:24.04",
    }
    backend.close()


def test_a_job_sees_the_gpus_of_its_type_alone_also_after_the_agent_began_again(tmp_path: Path) -> None:
    gpus = (Hardware("a100", 40_000), Hardware("h100", 80_000), Hardware("a100", 40_000))
    each = {"core": 8, "devices": ["gpu:a100:2", "gpu:h100:1"]}
    setting = a_setting(tmp_path, compile_graph({"nodes": 1, "each": each}), gpus=gpus)
    backend = LocalBackend(setting)

    def lease(spelling: str, fence: int, *, shown: str = "echo $CUDA_VISIBLE_DEVICES; sleep 600"):
        return a_lease("sh", "-c", shown, fence=fence, resources={"gpus": 1, "gpu_type": spelling})

    held = backend.submit(lease("nvidia_h100_pcie", 1))
    running(backend, held)
    free = backend.state().free
    assert free is not None
    assert free[0].types == {"a100": 2, "h100": 0}
    again = LocalBackend(setting)
    with pytest.raises(Unavailable, match="Only 0 of 1 h100 are free"):
        again.submit(lease("h100", 2))
    other = again.submit(lease("", 3, shown="echo $CUDA_VISIBLE_DEVICES"))
    end_of(again, other)
    assert again.output(other, "stdout", offset=0, size=100).data == b"0\n", "a card that nobody named"
    again.cancel([held])
    end_of(again, held)
    end_of(backend, held)
    assert again.output(held, "stdout", offset=0, size=100).data == b"1\n"
    third = again.submit(lease("h100", 4, shown="echo $CUDA_VISIBLE_DEVICES"))
    end_of(again, third)
    assert again.output(third, "stdout", offset=0, size=100).data == b"1\n", "it is free again"
    backend.close()
    again.close()


def test_after_a_look_jobs_get_the_gpus_of_their_type_by_the_new_indexes(tmp_path: Path) -> None:
    """A card was taken out, and the order changed. A job that holds an index keeps it."""

    def machine(*names: str) -> LocalMachine:
        devices = [f"gpu:{name}:{names.count(name)}" for name in sorted(set(names))]
        graph = compile_graph({"nodes": 1, "each": {"core": 8, "devices": devices}})
        return LocalMachine(graph, tuple(Hardware(name) for name in names))

    def lease(spelling: str, count: int, command: str) -> Lease:
        shown = f"echo $CUDA_VISIBLE_DEVICES; {command}"
        return a_lease("sh", "-c", shown, resources={"gpus": count, "gpu_type": spelling})

    def shown(native_id: str) -> bytes:
        return backend.output(native_id, "stdout", offset=0, size=100).data

    first, second = machine("a100", "a100", "h100", "t4", "t4"), machine("t4", "h100", "t4", "a100", "a100")
    backend = LocalBackend(a_setting(tmp_path, first.graph, gpus=first.gpus, look=lambda: second))
    held = backend.submit(lease("t4", 1, "sleep 600"))
    running(backend, held)
    assert not backend.look(), "the counts are the same"
    for spelling, indexes in (("h100", b"1\n"), ("t4", b"0\n"), ("a100", b"4\n")):
        job = backend.submit(lease(spelling, 1, "true"))
        end_of(backend, job)
        assert shown(job) == indexes, f"{spelling}; index 3 is held"
    second = machine("h100", "a100", "a100")
    assert backend.look(), "cards are gone"
    job = backend.submit(lease("a100", 2, "true"))
    end_of(backend, job)
    assert shown(job) == b"1,2\n"
    free = backend.state().free
    assert free is not None
    assert free[0].types == {"a100": 2, "h100": 1}
    backend.cancel([held])
    end_of(backend, held)
    assert shown(held) == b"3\n"
    backend.close()


def test_words_with_any_bytes_survive(tmp_path: Path) -> None:
    backend = a_local(tmp_path)
    odd = "zwei Wörter\n=\t'\"$HOME \\ \u2028"
    native_id = backend.submit(a_lease("printf", "%s|%s", odd, "", env={"ODD": odd}))
    end_of(backend, native_id)
    assert backend.output(native_id, "stdout", offset=0, size=1000).data.decode() == odd + "|"
    backend.close()


def test_time_limit_names_the_limit(tmp_path: Path) -> None:
    backend = a_local(tmp_path)
    ended = end_of(backend, backend.submit(a_lease("sleep", "60", resources={"time_limit": "1s"})))
    assert (ended.seen, ended.reason) == (ObservedState.FAILED, "time limit of 1s reached")
    backend.close()


def test_a_job_that_gets_no_more_memory_says_so(tmp_path: Path) -> None:
    backend = a_local(tmp_path)
    limited = {"memory": "256MiB"}
    greedy = a_lease(sys.executable, "-I", "-S", "-c", "bytearray(2**30)", resources=limited)
    plain = a_lease("sh", "-c", "echo MemoryErrors are rare >&2; exit 1", job="j2", resources=limited)
    for lease, reason in (
        (greedy, "exit code 1; out of memory, as its stderr says: it may use 256MiB"),
        (plain, "exit code 1"),
    ):
        ended = end_of(backend, backend.submit(lease))
        assert (ended.seen, ended.exit_code, ended.reason) == (ObservedState.FAILED, 1, reason)
    backend.close()


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (
            {"signal": 9, "memory_kills": "group"},
            "killed by SIGKILL (signal 9); out of memory: the kernel",
        ),
        ({"signal": 9, "memory_kills": "machine"}, "killed by SIGKILL (signal 9); perhaps out of memory"),
        ({"code": 1, "memory_kills": "machine"}, "exit code 1"),
        ({"signal": 9}, "killed by SIGKILL"),
    ],
)
def test_a_kill_for_lack_of_memory_is_told_from_the_kernels_count(
    tmp_path: Path, ended: dict[str, Any], words: str
) -> None:
    facts = {"cause": "exit", "code": None, "signal": None, "reason": "", "left": 0, "at": Stamp("", 0), **ended}
    assert ended_status(JobDir(tmp_path), ExitRecord(**facts), None).reason.startswith(words)


def test_a_failed_job_on_a_full_disk_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = a_local(tmp_path)
    native_id = backend.submit(a_lease("sh", "-c", "exit 1"))
    disk = shutil.disk_usage(tmp_path)._replace(free=4096)
    monkeypatch.setattr(local_status.shutil, "disk_usage", lambda _: disk)
    assert end_of(backend, native_id).reason == "exit code 1; perhaps for lack of room: its disk has 4KiB free"
    backend.close()


@pytest.mark.parametrize(("seconds", "text"), [(10, "10s"), (90, "1m30s"), (7200, "2h"), (90061, "1d1h1m1s")])
def test_durations_read_as_people_write_them(seconds: int, text: str) -> None:
    assert show_duration(seconds) == text


def test_supervisor_killed_is_lost_and_nothing_of_it_runs_on(tmp_path: Path) -> None:
    backend = a_local(tmp_path)
    script = "echo $$ > main; (setsid sh -c 'echo $$ > daemon; exec sleep 60' &); sleep 60"
    native_id = backend.submit(a_lease("sh", "-c", script))
    work = tmp_path / "jobs" / native_id / "work"
    left = [process_in(work / name) for name in ("main", "daemon")]
    claim = JobDir(work.parent).claim()
    assert claim is not None
    os.kill(claim.pid, signal.SIGKILL)
    ended = end_of(backend, native_id)
    assert ended.seen is ObservedState.LOST
    assert f"its supervisor (pid {claim.pid}) was killed" in ended.reason
    until(lambda: not any(each.is_alive for each in left), PATIENCE_S, "what it left is gone")
    assert backend.state().free_cores == 4
    backend.close()


def test_claim_of_another_boot_is_lost_and_its_pid_unharmed(tmp_path: Path) -> None:
    backend = a_local(tmp_path)
    lease = a_lease("true")
    job = JobDir(tmp_path / "jobs" / marker_of(lease))
    job.write_start(lease, start_files(lease, job.work, a_setting(tmp_path), None, directory=job.path).words)
    (job.path / "claim").write_text(f"{os.getpid()} 1 another-boot\n")
    ended = end_of(backend, marker_of(lease))
    assert (ended.seen, ended.reason) == (ObservedState.LOST, "the machine was restarted while it ran")
    backend.close()


def test_submitted_and_never_claimed_is_started_again(tmp_path: Path) -> None:
    """The agent died between the submit and the supervisor's claim."""
    backend = a_local(tmp_path)
    lease = a_lease("true")
    job = JobDir(tmp_path / "jobs" / marker_of(lease))
    job.write_start(lease, start_files(lease, job.work, a_setting(tmp_path), None, directory=job.path).words)
    assert end_of(backend, marker_of(lease)).seen is ObservedState.SUCCEEDED
    backend.close()


def test_cancelled_before_it_is_claimed_never_starts(tmp_path: Path) -> None:
    backend = a_local(tmp_path)
    lease = a_lease("sh", "-c", "echo ran > ran")
    job = JobDir(tmp_path / "jobs" / marker_of(lease))
    job.write_start(lease, start_files(lease, job.work, a_setting(tmp_path), None, directory=job.path).words)
    backend.cancel([marker_of(lease)])
    assert end_of(backend, marker_of(lease)).seen is ObservedState.CANCELLED
    backend.submit(lease)
    assert end_of(backend, marker_of(lease)).seen is ObservedState.CANCELLED
    assert not (job.path / "work/ran").exists()
    backend.close()


def test_submit_repeated_runs_once(tmp_path: Path) -> None:
    backend = a_local(tmp_path)
    lease = a_lease("sh", "-c", "echo ran >> count")
    for _ in range(3):
        native_id = backend.submit(lease)
    end_of(backend, native_id)
    backend.submit(lease)
    time.sleep(0.1)  # that nothing more is written is the subject
    assert (tmp_path / "jobs" / native_id / "work/count").read_text() == "ran\n"
    backend.close()


def test_end_is_noticed_at_once(tmp_path: Path) -> None:
    backend = a_local(tmp_path)
    native_id = backend.submit(a_lease("sleep", "0.3"))
    running(backend, native_id)
    again = a_local(tmp_path)  # by the pipe and, after a restart, by the pidfd
    for each in (backend, again):
        ended = end_of(each, native_id)
        assert ended.seen is ObservedState.SUCCEEDED
    assert ended.ago_us < 1_000_000
    backend.close()
    again.close()


def test_disk_that_cannot_be_written_is_a_passing_trouble(tmp_path: Path) -> None:
    backend = a_local(tmp_path)
    lease = a_lease("true")
    (tmp_path / "jobs" / marker_of(lease)).write_text("in the way")
    with pytest.raises(Unavailable):
        backend.submit(lease)
    assert backend.state().free_cores == 4
    backend.close()


def test_supervisor_that_claims_while_the_agent_looks_is_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent looks for a claim, then for an end. A supervisor may claim the job, and even end, in between."""
    backend = a_local(tmp_path)
    look_for_exit = JobDir.exit

    def exit_seen_before_the_claim(job: JobDir, *, seal: str = "") -> ExitRecord | None:
        found = look_for_exit(job, seal=seal)
        until(lambda: (job.path / "exit").exists(), 60, "the supervisor has claimed the job and ended")
        return found

    native_id = backend.submit(a_lease("true"))
    with monkeypatch.context() as slowed:
        slowed.setattr(LocalBackend, "_read_pipe", lambda *_words: None)  # nor is its pipe read
        slowed.setattr(JobDir, "exit", exit_seen_before_the_claim)
        seen = backend.status([native_id])[native_id]
    assert seen.seen is ObservedState.SUBMITTED, seen
    assert end_of(backend, native_id).seen is ObservedState.SUCCEEDED
    backend.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_mounts_of_a_killed_supervisor_are_unmounted_and_their_files_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    podman = tmp_path / "podman"
    podman.write_text('#!/bin/sh\n[ "$1" != run ] || exec sleep 600\n')
    podman.chmod(0o755)
    site = Site(images=[ImageRule("*", ImageRun.PODMAN)])
    backend = LocalBackend(a_setting(tmp_path / "agent", site=site))
    lease = a_lease("true", image="busybox", files=JobFiles(mounts={"/in": "io/in"}))
    mine = backend.work_folder(lease).path / "io" / "in" / "mine"
    mine.parent.mkdir(parents=True)
    mine.touch()
    native_id = backend.submit(lease)
    running(backend, native_id)
    place = tmp_path / "agent" / "mounts" / native_id
    assert (place / "0" / "mine").exists()
    claim = JobDir(tmp_path / "agent" / "jobs" / native_id).claim()
    assert claim is not None
    os.kill(claim.pid, signal.SIGKILL)
    assert end_of(backend, native_id).seen is ObservedState.LOST
    assert (place.exists(), mine.exists()) == (False, True)
    backend.close()


def test_an_image_that_apptainer_cannot_start_is_told_in_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends with 255, as a command may: so the job is not run again."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    apptainer = tmp_path / "apptainer"
    apptainer.write_text("#!/bin/sh\necho 'FATAL:   could not open image team/x' >&2; exit 255\n")
    apptainer.chmod(0o755)
    backend = LocalBackend(a_setting(tmp_path / "agent", site=Site(images=[ImageRule("*", ImageRun.APPTAINER)])))
    ended = end_of(backend, backend.submit(a_lease("true", image="team/x:1")))
    words = "perhaps its container did not start: FATAL:   could not open image team/x"
    assert (ended.seen, ended.reason) == (ObservedState.FAILED, f"exit code 255; {words}")
    backend.close()
