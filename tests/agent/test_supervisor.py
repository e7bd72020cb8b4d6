from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from switchyard.features.local.agent import proctable, supervisor
from switchyard.features.local.agent.jobdir import ExitRecord, JobDir, SupervisorClaim
from switchyard.features.local.agent.local_status import ended_status
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause
from tests.processes import PATIENCE_S, Process, started_of, until

PROGRAM = [sys.executable, "-I", "-S", supervisor.__file__]


def a_jobdir(path: Path, *command: str, **words: object) -> JobDir:
    (path / "work").mkdir(parents=True)
    given = {"cwd": path / "work", "grace_s": 0.5, **words}
    lines = [f"arg={word}" for word in command] + ["env=PATH=/usr/local/bin:/usr/bin:/bin", "env=MARK=x"]
    lines += [f"{key}={value}" for key, value in given.items()] + ["end="]
    (path / "start").write_bytes("\0".join(lines).encode())
    return JobDir(path)


def start(job: JobDir, *, pipe: int | None = None) -> subprocess.Popen[bytes]:
    """`pipe`: the supervisor's end of the pipe to its agent."""
    given = [] if pipe is None else [pipe]
    return subprocess.Popen([*PROGRAM, str(job.path), *map(str, given)], start_new_session=True, pass_fds=given)


def supervise(job: JobDir) -> ExitRecord:
    assert start(job).wait(PATIENCE_S) == 0
    ended = job.exit()
    assert ended is not None
    return ended


def pid_in(path: Path) -> Process:
    pid = int(until(lambda: path.read_text().strip() if path.exists() else "", PATIENCE_S, f"a pid in {path}"))
    born = started_of(pid)
    assert born is not None
    return Process(pid, born)


@pytest.mark.parametrize(
    ("script", "code", "number"),
    [("exit 0", 0, None), ("exit 3", 3, None), ("kill -9 $$", None, 9), ("kill -TERM $$", None, 15)],
)
def test_how_it_ended_is_written(tmp_path: Path, script: str, code: int | None, number: int | None) -> None:
    ended = supervise(a_jobdir(tmp_path / "job", "sh", "-c", script))
    assert (ended.cause, ended.code, ended.signal) == ("exit", code, number)


def test_output_goes_to_files_and_stdin_is_empty(tmp_path: Path) -> None:
    job = a_jobdir(tmp_path / "job", "sh", "-c", "cat; echo out; echo err >&2; pwd")
    supervise(job)
    assert (job.path / "stdout").read_text() == f"out\n{job.path / 'work'}\n"
    assert (job.path / "stderr").read_text() == "err\n"


def test_command_starts_with_default_signals_and_only_its_own_files(tmp_path: Path) -> None:
    job = a_jobdir(tmp_path / "job", "sh", "-c", "grep -E 'Sig(Blk|Ign)' /proc/self/status; ls /proc/self/fd; env")
    under_nohup = ["env", "--ignore-signal=HUP,INT,QUIT,TERM", *PROGRAM, str(job.path)]
    subprocess.run(under_nohup, check=True, start_new_session=True, timeout=PATIENCE_S)
    lines = (job.path / "stdout").read_text().split()
    own = ~(1 << 31 | 1 << 32)  # 32 and 33 are the C library's: whoever started the tests may have left them ignored
    assert (lines[0], int(lines[1], 16) & own, lines[2], int(lines[3], 16) & own) == ("SigBlk:", 0, "SigIgn:", 0)
    assert lines[4:8] == ["0", "1", "2", "3"], "stdin, stdout, stderr and ls's own"
    assert "MARK=x" in lines


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        (("no-such-command",), 127, "command not found: no-such-command"),
        (("/no/such/file",), 127, "command not found: /no/such/file"),
        (("./plain",), 126, "not executable: ./plain"),
        (("./no-shebang",), 126, "no first line such as #!/bin/sh"),
        (("./no-interpreter",), 126, "the interpreter named in its first line does not exist"),
    ],
)
def test_what_cannot_start_says_why(tmp_path: Path, command: tuple[str, ...], code: int, says: str) -> None:
    job = a_jobdir(tmp_path / "job", *command)
    for name, text in (("no-shebang", "echo hi\n"), ("no-interpreter", "#!/no/such/shell\n")):
        (job.path / "work" / name).write_text(text)
        (job.path / "work" / name).chmod(0o755)
    (job.path / "work/plain").write_text("data")
    ended = supervise(job)
    assert (ended.cause, ended.code) == ("start", code)
    assert says in ended.reason
    assert says in (job.path / "stderr").read_text()


def test_a_process_that_cannot_be_made_ready_is_no_end_of_the_command(tmp_path: Path) -> None:
    too_many = ",".join(map(str, range(1, 70_000)))
    job = a_jobdir(tmp_path / "job", "true", uid=65534, gid=65534, groups=too_many)
    ended = supervise(job)
    assert (ended.cause, ended.code, ended.signal) == ("setup", None, None)
    assert ended.reason == "cannot set the process up: too many groups"
    told = ended_status(job, ended, None)
    assert (told.seen, told.cause, told.is_unbegun) == (ObservedState.FAILED, Cause.CLUSTER, True), told


@pytest.mark.parametrize(
    ("said", "facts"),
    [
        (supervisor.EXECUTES, None),
        (b"", ("setup", "", "its process was ended before the command began")),
        (b" cannot set the process up: x", ("setup", "", "cannot set the process up: x")),
        (b".127 command not found: x", ("start", "127", "command not found: x")),
        (b"126 cannot enter the working directory", ("start", "126", "cannot enter the working directory")),
    ],
)
def test_what_a_process_says_before_exec(said: bytes, facts: tuple[str, str, str] | None) -> None:
    """A process that was killed before exec says nothing, and its signal is not the command's."""
    wanted = {} if facts is None else dict(zip(("cause", "code", "reason"), facts, strict=True))
    assert supervisor.start_failure(said) == wanted


def test_missing_working_directory_says_so(tmp_path: Path) -> None:
    ended = supervise(a_jobdir(tmp_path / "job", "true", cwd="/no/such/place"))
    assert (ended.cause, ended.code) == ("start", 126)
    assert ended.reason == "cannot enter the working directory /no/such/place: No such file or directory"


def test_time_limit_ends_it_even_if_it_ignores_term(tmp_path: Path) -> None:
    begun = time.monotonic()
    ended = supervise(a_jobdir(tmp_path / "job", "sh", "-c", "trap '' TERM; sleep 60 & wait; wait", limit_s=0.3))
    assert (ended.cause, ended.signal) == ("time-limit", 9)
    assert time.monotonic() - begun < 50, "before its sleep is over"


def test_cancel_gives_time_to_leave(tmp_path: Path) -> None:
    script = "trap 'sleep 0.2; echo bye; exit 7' TERM; echo $$ > pid; while :; do sleep 0.05; done"
    job = a_jobdir(tmp_path / "job", "sh", "-c", script, grace_s=60)
    process = start(job)
    pid_in(job.path / "work/pid")
    claim = job.claim()
    assert claim is not None
    assert claim.send(signal.SIGUSR1)
    assert process.wait(PATIENCE_S) == 0
    ended = job.exit()
    assert ended is not None
    assert (ended.cause, ended.code) == ("cancel", 7)
    assert (job.path / "stdout").read_text() == "bye\n"


def test_stopped_process_hears_the_cancel(tmp_path: Path) -> None:
    job = a_jobdir(tmp_path / "job", "sh", "-c", "echo $$ > pid; kill -STOP $$; sleep 600", grace_s=300)
    process = start(job)
    pid_in(job.path / "work/pid")
    claim = job.claim()
    assert claim is not None
    claim.send(signal.SIGUSR1)
    assert process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("limit_s", ["0", "30"])
def test_paused_and_continued_supervisor_goes_on_waiting(tmp_path: Path, limit_s: str) -> None:
    """Python's sigtimedwait would return a signal that never came."""
    job = a_jobdir(tmp_path / "job", "sh", "-c", "echo $$ > pid; sleep 1; exit 4", limit_s=limit_s)
    process = start(job)
    pid_in(job.path / "work/pid")
    for _ in range(3):
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.1)  # the time stopped is the subject
        process.send_signal(signal.SIGCONT)
    assert process.wait(PATIENCE_S) == 0
    ended = job.exit()
    assert ended is not None
    assert (ended.cause, ended.code) == ("exit", 4)


def test_time_limit_passed_while_the_supervisor_was_paused_holds(tmp_path: Path) -> None:
    job = a_jobdir(tmp_path / "job", "sh", "-c", "echo $$ > pid; sleep 60", limit_s=0.3)
    process = start(job)
    pid_in(job.path / "work/pid")
    process.send_signal(signal.SIGSTOP)
    time.sleep(0.5)  # longer than the limit: the limit passes while it is stopped
    process.send_signal(signal.SIGCONT)
    assert process.wait(PATIENCE_S) == 0
    ended = job.exit()
    assert ended is not None
    assert ended.cause == "time-limit"


def test_foreign_term_is_told_apart_from_a_cancel(tmp_path: Path) -> None:
    job = a_jobdir(tmp_path / "job", "sh", "-c", "echo $$ > pid; sleep 60")
    process = start(job)
    pid_in(job.path / "work/pid")
    process.terminate()
    assert process.wait(PATIENCE_S) == 0
    ended = job.exit()
    assert ended is not None
    assert ended.cause == "stopped"


@pytest.mark.parametrize("how", ["at its end", "at a cancel"])
def test_escaped_children_are_ended(tmp_path: Path, how: str) -> None:
    last = "while [ ! -e seen ]; do sleep 0.02; done" if how == "at its end" else "sleep 60"
    script = f"(setsid sh -c 'echo $$ > daemon; exec sleep 60' &); sleep 60 & echo $! > child; {last}"
    job = a_jobdir(tmp_path / "job", "sh", "-c", script)
    process = start(job)
    escaped = [pid_in(job.path / "work" / name) for name in ("daemon", "child")]
    (job.path / "work/seen").touch()
    if how == "at a cancel":
        claim = job.claim()
        assert claim is not None
        claim.send(signal.SIGUSR1)
    assert process.wait(PATIENCE_S) == 0
    assert job.exit() is not None
    assert not any(each.is_alive for each in escaped), "the exit is written when every process is gone"


def test_started_twice_runs_once(tmp_path: Path) -> None:
    job = a_jobdir(tmp_path / "job", "sh", "-c", "echo ran >> count; sleep 0.2")
    processes = [start(job) for _ in range(5)]
    assert [process.wait(PATIENCE_S) for process in processes] == [0] * 5
    assert start(job).wait(PATIENCE_S) == 0
    assert (job.path / "work/count").read_text() == "ran\n"
    assert sorted(path.name for path in job.path.glob("exit*")) == ["exit"]


def test_it_outlives_whoever_started_it(tmp_path: Path) -> None:
    job = a_jobdir(tmp_path / "job", "sh", "-c", "sleep 0.5; exit 5")
    code = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:], start_new_session=True); time.sleep(60)"
    starter = subprocess.Popen([sys.executable, "-c", code, *PROGRAM, str(job.path)], start_new_session=True)
    until(job.started, PATIENCE_S, "the command runs")
    starter.kill()
    starter.wait()
    ended = until(job.exit, PATIENCE_S, "its exit is written")
    assert ended is not None
    assert ended.code == 5


def test_removed_directory_leaves_nobody_behind(tmp_path: Path) -> None:
    job = a_jobdir(tmp_path / "job", "sleep", "0.3")
    process = start(job)
    until(job.started, PATIENCE_S, "the command runs")
    shutil.rmtree(job.path)
    assert process.wait(PATIENCE_S) == 1


def test_start_file_cut_short_claims_nothing(tmp_path: Path) -> None:
    job = a_jobdir(tmp_path / "job", "true")
    (job.path / "start").write_bytes(b"arg=true\0env=PA")
    assert start(job).wait(PATIENCE_S) == supervisor.EXIT_TRY_AGAIN
    assert job.claim() is None


def test_memory_bound_holds(tmp_path: Path) -> None:
    job = a_jobdir(tmp_path / "job", sys.executable, "-S", "-c", "bytearray(200_000_000)", data_bytes=100_000_000)
    assert supervise(job).code == 1
    assert "MemoryError" in (job.path / "stderr").read_text()


def test_a_reused_pid_is_never_signalled(tmp_path: Path) -> None:
    bystander = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        born = supervisor.start_time(bystander.pid)
        other = SupervisorClaim(bystander.pid, str(int(born) - 1), supervisor.boot_id())
        assert not other.lives()
        assert not other.send(signal.SIGKILL)
        proctable.signal_process(bystander.pid, str(int(born) - 1), signal.SIGKILL)
        assert not SupervisorClaim(bystander.pid, born, "another-boot").lives()
        assert bystander.poll() is None
    finally:
        os.kill(bystander.pid, signal.SIGKILL)
        bystander.wait()


DEAF = (
    "trap '' TERM; setsid sh -c 'trap \"\" TERM; echo $$ > child; exec sleep 600' & "
    "echo $$ > pid; while :; do wait; done"
)


def test_a_bound_job_ends_with_its_agent_and_another_runs_on(tmp_path: Path) -> None:
    """The agent's end closes its end of the pipe. The jobs ignore TERM, and each has a child that left its session."""
    read_end, write_end = os.pipe()
    bound = a_jobdir(tmp_path / "bound", "sh", "-c", DEAF, bound=1)
    free = a_jobdir(tmp_path / "free", "sh", "-c", DEAF)
    supervisors = [start(job, pipe=write_end) for job in (bound, free)]
    os.close(write_end)
    families = [[pid_in(job.path / "work" / name) for name in ("pid", "child")] for job in (bound, free)]
    assert os.read(read_end, 2)  # the supervisors get a signal for that, which means nothing
    assert supervisors[0].poll() is None
    os.close(read_end)
    assert supervisors[0].wait(PATIENCE_S) == 0
    ended = bound.exit()
    assert ended is not None
    assert (ended.cause, ended.signal, ended.left) == ("agent", 9, 0)
    assert not any(process.is_alive for process in families[0])
    assert all(process.is_alive for process in families[1])
    supervisors[1].send_signal(signal.SIGUSR1)
    assert supervisors[1].wait(PATIENCE_S) == 0


def test_a_bound_job_whose_agent_is_gone_before_its_start_never_runs(tmp_path: Path) -> None:
    job = a_jobdir(tmp_path / "job", "touch", "ran", bound=1)
    read_end, write_end = os.pipe()
    os.close(read_end)
    supervisor_process = start(job, pipe=write_end)
    os.close(write_end)
    assert supervisor_process.wait(PATIENCE_S) == 0
    ended = job.exit()
    assert ended is not None
    assert ended.cause == "agent"
    assert not (job.path / "work/ran").exists()


def test_kills_for_lack_of_memory_are_counted_in_the_group_and_on_the_machine(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    (tmp_path / "vmstat").write_text("pgfault 17\noom_kill 5\n")
    assert proctable.memory_kills(str(tmp_path), str(tmp_path / "vmstat")) == (2, 5)
    assert proctable.memory_kills("", str(tmp_path / "absent")) == (0, 0)


# In place of a runtime: it gets `run --volume SOURCE:PATH:rw`, and puts a link where the folder was.
SWAPPING_RUNTIME = """\
#!/bin/sh
mv io/in io/away && ln -s /etc io/in
cat "${3%%:*}/mine"
echo "${3#*:}"
"""


def a_job_with_mount(tmp_path: Path) -> tuple[JobDir, Path]:
    runtime, place = tmp_path / "runtime", tmp_path / "mounts" / "job"
    runtime.write_text(SWAPPING_RUNTIME)
    runtime.chmod(0o755)
    words = {"mount": "io/in:/var/in", "mount_from": tmp_path / "job" / "work", "mount_at": place}
    job = a_jobdir(tmp_path / "job", str(runtime), "run", cleanup="/bin/true", **words)
    (job.work / "io" / "in").mkdir(parents=True)
    (job.work / "io" / "in" / "mine").write_text("mine\n")
    return job, place


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_a_link_that_comes_late_does_not_lead_a_mount_away(tmp_path: Path) -> None:
    job, place = a_job_with_mount(tmp_path)
    assert supervise(job).code == 0
    assert (job.path / "stdout").read_text() == "mine\n/var/in:rw\n"
    assert (job.work / "io" / "away" / "mine").exists(), "the mount is gone, and its files are not"
    assert not place.exists()


@pytest.mark.parametrize("step", ["io", "io/in"])
def test_a_link_that_is_there_before_is_refused(tmp_path: Path, step: str) -> None:
    job, place = a_job_with_mount(tmp_path)
    (job.work / step).rename(tmp_path / "away")
    (job.work / step).symlink_to(tmp_path / "away")
    ended = supervise(job)
    assert (ended.cause, ended.code) == ("start", 126)
    assert "the folder io/in of `mounts` cannot be mounted" in ended.reason
    assert not place.exists()
