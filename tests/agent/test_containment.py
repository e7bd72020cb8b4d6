"""Jobs that attack their supervisor, their control files or their output: each is ended, and nothing of it is left."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from switchyard.agent.backends import OutputPiece, Status, marker_of
from switchyard.agent.site.site import ContainmentMode, LocalSite, Site
from switchyard.errors import Unavailable
from switchyard.features.local.agent import proctable
from switchyard.features.local.agent.backend import LocalBackend
from switchyard.features.local.agent.containment import find_cgroup_base
from switchyard.features.local.agent.jobdir import JobDir, SupervisorClaim
from switchyard.model.job.lifecycle import ObservedState
from tests.agent.builders import a_job_id, a_lease, a_local, a_setting, end_of
from tests.processes import PATIENCE_S, started_of, until

CANCEL_S = 60.0  # ten times the grace of a job that leaves by itself
_numbers = itertools.count(1)

# Shell text; `$SLEEP` is a sleep that is known by its argument, `$HERE` the job's working folder in its `$FOLDER`.
ESCAPE = "(env -i setsid sh -c 'cd /; exec $SLEEP' </dev/null >/dev/null 2>&1 &)"
SEEN = "until pgrep -f '^$SLEEP' >/dev/null; do sleep 0.05; done"
FORGED = (
    "printf 'cause=exit\\ncode=0\\nsignal=\\nreason=\\nat_ns=1\\nboot=%s\\n' $(cat /proc/sys/kernel/random/boot_id)"
)
ATTACKS = {
    "stops its supervisor": "kill -STOP $PPID; $SLEEP",
    "keeps its supervisor stopped": "while :; do kill -STOP $PPID; sleep 0.01; done & $SLEEP",
    "ignores TERM in a session of its own": f"trap '' TERM; {ESCAPE}; {SEEN}; while :; do sleep 0.05; done",
    "writes its own exit file": f"{FORGED} > $HERE/../exit; $SLEEP",
    "puts pipes in place of its control files": "cd ..; for name in claim started exit lease.json exit.$PPID; do "
    "rm -rf $name; mkfifo $name; done; $SLEEP",
    "puts folders in place of its control files": "cd ..; for name in claim started exit lease.json; do "
    "rm -rf $name; mkdir -p $name/full; done; $SLEEP",
    "removes its claim": "rm $HERE/../claim; $SLEEP",
    "writes nonsense into its control files": "cd ..; for name in claim started exit lease.json; do "
    "head -c 9000 /dev/zero | tr '\\0' 7 > $name; echo 99999999999999999999999 1 1 > claim; done; $SLEEP",
    "claims that it was never started": "echo 0 0 $(cat /proc/sys/kernel/random/boot_id) > $HERE/../claim; $SLEEP",
    "claims to be of another boot": "echo 1 1 another-boot > $HERE/../claim; $SLEEP",
    "removes its control folder": "cd /; rm -rf $FOLDER; $SLEEP",
    "forks 150 processes": f"{sys.executable} -S $BOMB $SLEEP",
}
KILLING = {
    "in a session of its own without an environment": f"{ESCAPE}; {SEEN}; kill -9 $PPID",
    "and writes an exit file": f"{ESCAPE}; {SEEN}; {FORGED} > ../exit; kill -9 $PPID",
    "and removes its claim": f"{ESCAPE}; {SEEN}; rm ../claim; kill -9 $PPID",
    "and removes its control folder": f"{ESCAPE}; {SEEN}; rm -rf $FOLDER; kill -9 $PPID",
    "and forks 150 processes": f"kill -9 $PPID; {sys.executable} -S $BOMB $SLEEP",
}
# Keeps 150 children alive in sessions of their own, all of them deaf to TERM: who is killed is replaced.
BOMB = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
living = 0
while True:
    while living < 150:
        if os.fork() == 0:
            os.setsid()
            os.execvp(sys.argv[1], sys.argv[1:])
        living += 1
    os.wait()
    living -= 1
"""
# Never the same process for longer than it takes to start another one; each says that it lived.
HOP = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    if os.fork():
        os._exit(0)
    if "sessions" in sys.argv:
        os.setsid()
    os.utime(sys.argv[1])
"""


class Attack:
    """One attacking attempt, and a way to see everything that is left of it."""

    def __init__(self, folder: Path, text: str, *, mode: ContainmentMode, time_limit: str | None = None) -> None:
        self.folder, self.mode = folder, mode
        self.sleep = f"sleep 8{os.getpid()}.{next(_numbers)}"
        job = a_job_id()
        here = folder / "jobs" / marker_of(a_lease("true", job=job)) / "work"
        (folder / "bomb.py").write_text(BOMB)
        (folder / "hop.py").write_text(HOP)
        (folder / "hopped").touch()
        names = {
            "HOP": f"{sys.executable} -S {folder}/hop.py {folder}/hopped",
            "SLEEP": self.sleep,
            "GATE": folder / "gate",
            "HERE": here,
            "FOLDER": here.parent,
            "BOMB": folder / "bomb.py",
        }
        script = text
        for name, value in names.items():
            script = script.replace(f"${name}", str(value))
        self.lease = a_lease("sh", "-c", script, job=job, resources={"time_limit": time_limit})
        self.backend = self.restarted()
        self.native_id = self.backend.submit(self.lease)

    def restarted(self) -> LocalBackend:
        return LocalBackend(a_setting(self.folder, site=Site(local=LocalSite(containment=self.mode))))

    @property
    def left(self) -> list[int]:
        """Every process of the attack: its shells and its sleeps have these words."""
        found = []
        for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()):
            words = proctable.command_line(pid).replace(b"\0", b" ").decode(errors="replace")
            if self.sleep in words and started_of(pid) is not None:
                found.append(pid)
        return found

    def until_begun(self) -> None:
        def begun() -> bool:
            self.backend.status([self.native_id])
            return any(proctable.command_line(pid).startswith(b"sleep") for pid in self.left)

        until(begun, PATIENCE_S, "the attack has begun")

    def supervisor(self) -> SupervisorClaim:
        return until(JobDir(self.folder / "jobs" / self.native_id).claim, PATIENCE_S, "the claim")  # type: ignore[return-value]

    def cancelled(self) -> Status:
        self.backend.cancel([self.native_id])
        return end_of(self.backend, self.native_id, CANCEL_S)


Attacker = Callable[..., Attack]


@pytest.fixture(params=[ContainmentMode.CGROUP, ContainmentMode.PROCESS])
def mode(request: pytest.FixtureRequest) -> ContainmentMode:
    if request.param is ContainmentMode.CGROUP and find_cgroup_base() is None:
        pytest.skip("this account may make no control groups here")
    return ContainmentMode(request.param)


@pytest.fixture
def attack(tmp_path: Path, mode: ContainmentMode) -> Iterator[Attacker]:
    made: list[Attack] = []

    def start(text: str, **rest: str) -> Attack:
        made.append(Attack(tmp_path, text, mode=mode, **rest))
        return made[-1]

    yield start
    for each in made:
        for pid in each.left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        each.backend.close()


@pytest.mark.parametrize("text", ATTACKS.values(), ids=ATTACKS.keys())
@pytest.mark.parametrize("is_restarted", [False, True], ids=["agent lives", "agent restarted"])
def test_attacker_is_cancelled_and_nothing_of_it_is_left(attack: Attacker, text: str, is_restarted: bool) -> None:
    job = attack(text)
    job.until_begun()
    if is_restarted:
        job.backend.close()
        job.backend = job.restarted()
    ended = job.cancelled()
    assert ended.seen is ObservedState.CANCELLED, ended
    assert job.left == []
    assert job.backend.state().free_cores == 4


@pytest.mark.parametrize("text", KILLING.values(), ids=KILLING.keys())
@pytest.mark.parametrize("is_restarted", [False, True], ids=["agent lives", "agent restarted"])
def test_job_that_kills_its_supervisor_is_over_only_when_nothing_of_it_is_left(
    attack: Attacker, text: str, is_restarted: bool
) -> None:
    job = attack(f"until [ -e $GATE ]; do sleep 0.05; done; {text}")
    supervisor = job.supervisor()
    (job.folder / "gate").touch()
    if is_restarted:
        job.backend.close()
        until(lambda: not supervisor.lives() and job.left, PATIENCE_S, "the job has killed its supervisor")
        job.backend = job.restarted()
    ended = end_of(job.backend, job.native_id, CANCEL_S)
    assert ended.seen is ObservedState.LOST, ended
    assert job.left == []
    assert job.backend.state().free_cores == 4


@pytest.mark.parametrize("is_restarted", [False, True], ids=["agent lives", "agent restarted"])
def test_exit_file_that_a_job_wrote_is_not_believed(attack: Attacker, is_restarted: bool) -> None:
    job = attack(f"{FORGED} > ../exit; until [ -e gate ]; do sleep 0.05; done; exit 7")
    until((job.folder / "jobs" / job.native_id / "exit").exists, PATIENCE_S, "the forged exit")
    if is_restarted:
        job.backend.close()
        job.backend = job.restarted()
    assert job.backend.status([job.native_id])[job.native_id].seen is not ObservedState.SUCCEEDED
    (job.folder / "jobs" / job.native_id / "work/gate").touch()
    ended = end_of(job.backend, job.native_id)
    assert (ended.seen, ended.exit_code) == (ObservedState.FAILED, 7)


@pytest.mark.parametrize("name", ["exit", "exit.$PPID"])
@pytest.mark.parametrize("how", ["mkdir -p {name}/full", "mkfifo {name}", "ln -s /dev/null {name}", "rm -f {name}"])
def test_true_exit_is_written_whatever_is_in_its_way(attack: Attacker, name: str, how: str) -> None:
    job = attack(f"cd ..; rm -f {name}; {how.format(name=name)}; exit 7")
    ended = end_of(job.backend, job.native_id)
    assert (ended.seen, ended.exit_code) == (ObservedState.FAILED, 7)


@pytest.mark.parametrize(
    "how",
    [
        "mkfifo stdout",
        "mkdir stdout",
        "ln -s /etc/passwd stdout",
        "ln -s /dev/zero stdout",
        "ln start stdout",
        "cp /etc/passwd stdout",
    ],
)
def test_output_that_was_replaced_neither_hangs_nor_leaks(attack: Attacker, how: str) -> None:
    job = attack(f"cd ..; rm stdout; {how}; touch work/done; exec $SLEEP")
    until((job.folder / "jobs" / job.native_id / "work/done").exists, PATIENCE_S, "the output is replaced")
    assert job.backend.output(job.native_id, "stdout", offset=0, size=1000) == OutputPiece(b"", 0)
    assert job.cancelled().seen is ObservedState.CANCELLED
    assert job.left == []


def test_stopped_supervisor_does_not_lift_the_time_limit(attack: Attacker) -> None:
    job = attack("kill -STOP $PPID; exec $SLEEP", time_limit="1s")
    ended = end_of(job.backend, job.native_id, CANCEL_S)
    assert (ended.seen, ended.reason) == (ObservedState.FAILED, "time limit of 1s reached")
    assert job.left == []


def test_attempt_whose_files_are_gone_is_not_started_again(attack: Attacker) -> None:
    """The agent died before it wrote down that it had submitted, and the job removed its folder."""
    job = attack("rm -rf $FOLDER; cd /; exec $SLEEP")
    job.until_begun()
    job.backend.close()
    job.backend = job.restarted()
    assert job.backend.find(job.native_id) == job.native_id
    job.backend.submit(job.lease)
    assert len(job.left) == 1
    assert end_of(job.backend, job.native_id).seen is ObservedState.LOST
    assert job.left == []


def test_ended_attempt_leaves_no_control_group(tmp_path: Path) -> None:
    if (base := find_cgroup_base()) is None:
        pytest.skip("this account may make no control groups here")
    backend = a_local(tmp_path)
    native_id = backend.submit(a_lease("sh", "-c", "cat /proc/self/cgroup"))
    assert end_of(backend, native_id).seen is ObservedState.SUCCEEDED
    assert f"{base.name}/{native_id}" in backend.output(native_id, "stdout", offset=0, size=10_000).data.decode()
    assert not (base / native_id).exists()
    backend.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="takes another account")
def test_another_account_does_not_list_the_control_groups_of_jobs() -> None:
    if (base := find_cgroup_base()) is None:
        pytest.skip("this account may make no control groups here")
    done = subprocess.run(["ls", str(base)], check=False, capture_output=True, user=65534, group=65534, extra_groups=[])
    assert done.returncode != 0
    assert done.stdout == b""


def test_agent_that_must_have_control_groups_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "switchyard.features.local.agent.containment._own_cgroup_folders", lambda: iter([tmp_path / "no/such/folder"])
    )
    with pytest.raises(Unavailable, match="control groups"):
        LocalBackend(a_setting(tmp_path, site=Site(local=LocalSite(containment=ContainmentMode.CGROUP))))
    a_local(tmp_path).close()


def test_control_groups_of_version_1_hold_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    freezer = Path("/sys/fs/cgroup/freezer")
    monkeypatch.setattr("switchyard.features.local.agent.containment._own_cgroup_folders", lambda: iter([freezer]))
    if find_cgroup_base() is None:
        pytest.skip("this account may make no control groups of version 1 here")
    killing = Attack(tmp_path, KILLING["and forks 150 processes"], mode=ContainmentMode.CGROUP)
    until(lambda: len(killing.left) > 150, PATIENCE_S, "the bomb")
    assert end_of(killing.backend, killing.native_id, CANCEL_S).seen is ObservedState.LOST
    killing.backend.close()
    stopping = Attack(tmp_path, ATTACKS["keeps its supervisor stopped"], mode=ContainmentMode.CGROUP)
    stopping.until_begun()
    assert stopping.cancelled().seen is ObservedState.CANCELLED
    stopping.backend.close()
    assert killing.left == stopping.left == []
    for job in (killing, stopping):
        assert not (freezer / f"switchyard-{os.geteuid()}" / job.native_id).exists()


def test_claim_that_names_a_bystander_does_not_harm_it(attack: Attacker) -> None:
    bystander = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        claim = f"{bystander.pid} {proctable.start_time(bystander.pid)} {proctable.boot_id()}"
        job = attack(f"echo {claim} > ../claim; exec $SLEEP")
        job.supervisor()
        until(
            lambda: claim in (job.folder / "jobs" / job.native_id / "claim").read_text(), PATIENCE_S, "the forged claim"
        )
        job.backend.close()
        job.backend = job.restarted()
        assert job.cancelled().seen is ObservedState.CANCELLED
        assert job.left == []
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_exit_of_an_attempt_from_before_there_were_seals_counts(tmp_path: Path) -> None:
    lease = a_lease("true")
    folder = tmp_path / "jobs" / marker_of(lease)
    folder.mkdir(parents=True)
    (folder / "claim").write_text(f"1 1 {proctable.boot_id()}\n")
    (folder / "exit").write_text("cause=exit\ncode=3\nsignal=\nreason=\n")
    for _ in range(2):  # the second agent finds the key
        backend = a_local(tmp_path)
        ended = end_of(backend, marker_of(lease))
        assert (ended.seen, ended.exit_code) == (ObservedState.FAILED, 3)
        backend.close()


@pytest.mark.parametrize("hop", ["$HOP", "$HOP sessions"], ids=["in its session", "in sessions of their own"])
@pytest.mark.parametrize("is_killing", [False, True], ids=["under its supervisor", "after killing it"])
def test_process_that_always_moves_on_into_a_child_is_caught(attack: Attacker, is_killing: bool, hop: str) -> None:
    job = attack(f"kill -9 $PPID; {hop}" if is_killing else f"{hop} & exec $SLEEP")
    hopped = job.folder / "hopped"
    first = hopped.stat().st_mtime_ns
    until(lambda: hopped.stat().st_mtime_ns != first, PATIENCE_S, "it moves")
    assert job.cancelled().seen is ObservedState.CANCELLED
    last = hopped.stat().st_mtime_ns
    with pytest.raises(AssertionError):
        until(lambda: hopped.stat().st_mtime_ns != last, 1, "it moves no more")


def test_output_is_read_once_it_is_known_which_file_it_is(tmp_path: Path) -> None:
    """A quick command may replace the file before its supervisor has told which one it opened."""
    job, stdout = JobDir(tmp_path), tmp_path / "stdout"
    stdout.write_bytes(b"replaced")
    read = functools.partial(job.read, "stdout", offset=0, size=100)
    assert read() == OutputPiece(b"", 0)
    (tmp_path / "started").write_text(f"1 2 3 {stdout.stat().st_ino + 1} 5\n")
    assert read() == OutputPiece(b"", 0)
    (tmp_path / "started").write_text(f"1 2 3 {stdout.stat().st_ino} 5\n")
    assert read() == OutputPiece(b"replaced", 8)
    (tmp_path / "started").unlink()
    (tmp_path / "exit").touch()  # on a full disk the first file is missing
    assert read() == OutputPiece(b"replaced", 8)
