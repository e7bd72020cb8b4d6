"""The parent process of one local job: claims it, starts it, waits, ends all processes, writes the exit. Stdlib only.

Run as `python -I -S supervisor.py DIR [NOTIFY_FD [SEAL_FD]]`. It starts once per job and outlives the agent, so it must
not import the package: only agent_pipe.py, confine.py, job_mounts.py and proctable.py, which lie beside it. What the
job's directory holds:

    start    what to run, and under which account: NUL-separated `key=value` words, the last one `end=` (written by
             the agent)
    claim    `pid start-time boot-id` of the one supervisor that may run it; appears complete before the command starts;
             pid 0: the agent claimed the job so that it never starts
    started  `pid start-time age-clock stdout-inode stderr-inode` of the command's first process and its output
    exit     `key=value` lines: cause, code, signal, reason, left, memory_kills, at_ns, boot, seal; appears complete
             when every process is gone; `left` counts those that did not die; `memory_kills`: meanwhile the kernel
             ended a process for lack of memory, in the job's `group` or elsewhere on the `machine`. Of a job in a
             container also `container` (what `cleanup` printed) and `container_left` (1: `cleanup` failed)
    stdout, stderr, work/

If the job runs under another account than the agent, that account owns work/, stdout and stderr and can read nothing
else here. The supervisor keeps the agent's account; the command's process changes its own just before exec.

NOTIFY_FD gets `C` after the claim and `R` when the command runs, and closes when the supervisor ends. SEAL_FD holds a
secret of this attempt. It stays in this process and is written into the exit file when no process of the job is left
to read it, so the agent recognizes an exit file that a job wrote. SIGUSR1 to the supervisor is the agent's cancel;
SIGTERM, from anybody else, ends the job too and is reported as another cause. If the start file says `bound`, the end
of the agent ends the job, too: the other end of the pipe NOTIFY_FD is then closed. Such are the jobs of a pilot, whose
cluster is over when its agent is.

The supervisor and the job share one control group (`group`, if the agent has one) and one mark (`tag`): a hard limit on
RLIMIT_RTTIME, so large that it limits nothing. Every descendant inherits it, whatever its environment, session and
parent, and only root can raise it. With both, the agent finds the job's processes when the supervisor is dead.
"""

# pathlib and contextlib would double the imports of a process that starts once per job.
# ruff: noqa: PTH100, PTH104, PTH108, PTH112, PTH120, PTH123, SIM105

from __future__ import annotations

import errno
import os
import sys
import time

TYPE_CHECKING = False  # importing typing would cost more than all other imports together
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal  # without the enums, which take a quarter of the time from spawn to exec
if TYPE_CHECKING or __package__:
    from switchyard.features.local.agent.agent_pipe import CLAIMED, RUNNING, AgentPipe
    from switchyard.features.local.agent.confine import (
        EXECUTES,
        CgroupEntry,
        CommandRefused,
        exec_cleanup,
        exec_command,
        protect_supervisor,
        set_tag,
    )
    from switchyard.features.local.agent.proctable import (
        age_clock_ns,
        boot_id,
        descendants,
        memory_kills,
        read_tag,
        start_time,
        stop_and_kill,
    )
else:  # as a program: the files are beside it; they must not hide modules of the standard library
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    from agent_pipe import CLAIMED, RUNNING, AgentPipe
    from confine import EXECUTES, CgroupEntry, CommandRefused, exec_cleanup, exec_command, protect_supervisor, set_tag
    from proctable import age_clock_ns, boot_id, descendants, memory_kills, read_tag, start_time, stop_and_kill

GRACE_S = 5.0  # from TERM to KILL: enough to write a last file, short for a user who waits
# The same when the agent of a bound job is gone. Shorter than any time after which the server starts a next attempt.
BOUND_GRACE_S = 2.0
KILL_S_MAX = 10.0  # a process that survives KILL for so long hangs in the kernel; it is counted as left
OUTPUT_BYTES_PER_S = 2**30  # output that grows faster is found over its limit a little late
OUTPUT_LOOK_S_MIN = 0.05
OUTPUT_LOOK_S_MAX = 10.0
OUTPUT_GRACE_S = 0.5  # from TERM to KILL for a job that writes too much: it goes on writing meanwhile
EXIT_TRIES_MAX = 7200  # retries for an hour while the disk is full
EXIT_RETRY_S = 0.5
EXIT_BYTES = 4096  # reserved before the start, in case the job fills the disk
KILL_POLL_S = 0.01  # between checks of processes that were sent KILL
TERM_POLL_S = 0.05  # the same for TERM
EXIT_TRY_AGAIN = 75  # EX_TEMPFAIL: nothing was claimed; the agent starts the supervisor again
SEAL_BYTES_MAX = 256
CONTAINER_S_MAX = 5.0  # for the runtime's own processes to end after its client
CLEANUP_S_MAX = 30.0  # for `cleanup`, which removes the container
CLEANUP_BYTES_MAX = 512

CAUSE_BY_SIGNAL: dict[int, str] = {signal.SIGUSR1: "cancel", signal.SIGTERM: "stopped"}
SIGNALS = {signal.SIGCHLD, signal.SIGALRM, signal.SIGINT, signal.SIGHUP, signal.SIGIO, *CAUSE_BY_SIGNAL}


def main(argv: list[str]) -> int:
    os.chdir(argv[1])
    agent = AgentPipe(int(argv[2]) if len(argv) > 2 else -1)
    seal = read_seal(int(argv[3])) if len(argv) > 3 else ""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    start = read_start()
    if b"bound" in start:
        agent.watch()
    try:
        streams = [open_stream(name, start) for name in ("stdout", "stderr")]
        exit_fd = reserve_exit()
        if not claim_job():
            os.unlink(f"exit.{os.getpid()}")
            return 0  # another supervisor has it
    except OSError:
        return EXIT_TRY_AGAIN
    agent.notify(CLAIMED)
    entry = CgroupEntry(start[b"group"][0]) if b"group" in start else None
    protect_supervisor()
    set_tag(int(start.get(b"tag", [b"0"])[0]))  # not through a float: every bit matters
    if entry is not None and (trouble := entry.wait()):
        return write_exit(exit_fd, {"cause": "group", "code": "", "reason": trouble, "left": 0, "seal": seal})
    if agent.is_agent_gone():
        return write_exit(exit_fd, {"cause": "agent", "code": "", "reason": "", "left": 0, "seal": seal})
    failure = mount_folders(start)
    if not failure:
        pid, failure = spawn_command(start, streams)
    if failure:
        release_folders(start)
        try:
            os.write(streams[1], f"switchyard: {failure['reason']}\n".encode())
        except OSError:
            pass  # a full disk: the exit file says it, too
        return write_exit(exit_fd, {**failure, "left": 0, "seal": seal})
    group = os.fsdecode(start.get(b"group", [b""])[0])
    kills = memory_kills(group)
    write_started(pid, streams)
    agent.notify(RUNNING)
    limit_s, grace_s = float_of(start, b"limit_s", 0.0), float_of(start, b"grace_s", GRACE_S)
    settle_s = CONTAINER_S_MAX if b"cleanup" in start else 0.0
    output = OutputLimit(streams, int(start.get(b"output_bytes", [b"0"])[0]))
    facts = wait_for_end(pid, limit_s=limit_s, grace_s=grace_s, settle_s=settle_s, agent=agent, output=output)
    in_group, on_machine = (now - before for now, before in zip(memory_kills(group), kills, strict=True))
    facts["memory_kills"] = "group" if in_group else "machine" if on_machine else ""
    if b"cleanup" in start:
        facts.update(remove_container(start))
        release_folders(start)
    return write_exit(exit_fd, {**facts, "seal": seal})


def read_seal(fd: int) -> str:
    with open(fd, "rb") as file:
        return file.read(SEAL_BYTES_MAX).decode()


def read_start() -> dict[bytes, list[bytes]]:
    with open("start", "rb") as file:
        words = file.read().split(b"\0")
    if words[-1] != b"end=":
        raise SystemExit(EXIT_TRY_AGAIN)  # incomplete after a crash of the machine; the agent writes it again
    fields: dict[bytes, list[bytes]] = {}
    for word in words:
        key, _, value = word.partition(b"=")
        fields.setdefault(key, []).append(value)
    return fields


def float_of(start: dict[bytes, list[bytes]], key: bytes, otherwise: float) -> float:
    return float(start[key][0]) if key in start else otherwise


def open_stream(name: str, start: dict[bytes, list[bytes]]) -> int:
    """Open an output file, which must be a plain file with one name. A pipe would block, a link would redirect output.

    It belongs to the job's account, so that the job can open /dev/stdout.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = os.open(name, flags, 0o600)
    status = os.fstat(fd)
    if status.st_mode & 0o170000 != 0o100000 or status.st_nlink != 1:
        raise OSError(errno.EPERM, "not a plain file", name)
    if b"uid" in start:
        os.fchown(fd, int(start[b"uid"][0]), int(start[b"gid"][0]))
    os.set_blocking(fd, True)
    return fd


def create_file(name: str) -> int:
    """Create a new file in place of whatever has that name."""
    try:
        os.unlink(name)
    except FileNotFoundError:
        pass
    return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)


def reserve_exit() -> int:
    fd = create_file(f"exit.{os.getpid()}")
    os.posix_fallocate(fd, 0, EXIT_BYTES)
    return fd


def claim_job() -> bool:
    """Claim the job for this process. False: it is claimed already. A hard link appears complete and only once."""
    pid = os.getpid()
    own_claim = f"claim.{pid}"
    with open(create_file(own_claim), "w") as file:
        file.write(f"{pid} {start_time(pid)} {boot_id()}\n")
    try:
        os.link(own_claim, "claim")
    except FileExistsError:
        return False
    finally:
        os.unlink(own_claim)
    sync_directory()  # else a power cut could lose the claim but not the effects of the command
    return True


def mount_folders(start: dict[bytes, list[bytes]]) -> dict[str, object]:
    """Mount the folders that a container sees under other paths, and add them to the runtime's command line.

    Returns how that failed as facts of the exit; empty: they are mounted.
    """
    if b"mount" not in start:
        return {}
    if TYPE_CHECKING or __package__:
        from switchyard.features.local.agent.job_mounts import MountRefused, volume_options
    else:
        from job_mounts import MountRefused, volume_options
    try:
        start[b"arg"][2:2] = volume_options(start)  # after `podman run`
    except MountRefused as exc:
        return {"cause": "start", "code": "126", "reason": str(exc)}
    except OSError as exc:
        return {"cause": "setup", "code": "", "reason": f"cannot mount the job's folders: {exc}"}
    return {}


def release_folders(start: dict[bytes, list[bytes]]) -> None:
    if b"mount" in start:
        if TYPE_CHECKING or __package__:
            from switchyard.features.local.agent.job_mounts import release_mounts
        else:
            from job_mounts import release_mounts
        release_mounts(start[b"mount_at"][0])


def spawn_command(start: dict[bytes, list[bytes]], streams: list[int]) -> tuple[int, dict[str, object]]:
    """Fork and exec. Returns the pid, and how the command failed to start as facts of the exit; empty: it started."""
    read_end, write_end = os.pipe()  # gets EXECUTES just before exec, and is closed by a successful exec
    pid = os.fork()
    if pid == 0:
        try:
            exec_command(start, streams, write_end)
        except CommandRefused as exc:
            os.write(write_end, f"{exc.code} {exc.reason}".encode())
        except (ImportError, MemoryError, OSError, ValueError) as exc:
            os.write(write_end, f" cannot set the process up: {exc}".encode())
        finally:
            os._exit(126)
    os.close(write_end)
    with open(read_end, "rb") as file:
        failure = start_failure(file.read())
    if failure:
        os.waitpid(pid, 0)
    return pid, failure


def start_failure(said: bytes) -> dict[str, object]:
    """Facts of the exit from what the command's process said before exec; empty: it executes the command."""
    if said == EXECUTES:
        return {}
    text = said.removeprefix(EXECUTES) or b" its process was ended before the command began"
    code, _, reason = text.decode(errors="replace").replace("\n", " ").partition(" ")
    return {"cause": "start" if code else "setup", "code": code, "reason": reason}


def write_started(pid: int, streams: list[int]) -> None:
    inodes = " ".join(str(os.fstat(fd).st_ino) for fd in streams)
    try:
        with open(create_file("started.new"), "w") as file:
            file.write(f"{pid} {start_time(pid)} {age_clock_ns()} {inodes}\n")
        os.rename("started.new", "started")
    except OSError:
        pass  # a full disk, or the job created the name: only the times are a little off


class ProcessFamily:
    """The command's first process and all its descendants."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None  # wait status of the first process, once it has ended

    def reap(self) -> bool:
        """Reap ended processes, including orphans, whose subreaper this is. True: some are left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.pid:
                self.status = status

    def group_lives(self) -> bool:
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def end_gently(self, grace_s: float) -> None:
        """Send TERM to the command's process group and wait."""
        for signo in (signal.SIGTERM, signal.SIGCONT):  # a stopped process does not handle TERM
            try:
                os.killpg(self.pid, signo)
            except ProcessLookupError:
                return
        until = time.monotonic() + grace_s
        while self.reap() and self.group_lives() and (left := until - time.monotonic()) > 0:
            # No signal comes for a member whose parent lives: check again soon.
            wait_signal(min(left, TERM_POLL_S))

    def settle(self, settle_s: float) -> None:
        """Wait until no process is left, or the time is over."""
        until = time.monotonic() + settle_s
        while self.reap() and (left := until - time.monotonic()) > 0:
            wait_signal(min(left, TERM_POLL_S))

    def end_all(self) -> int:
        """KILL every descendant, also outside the group or session. Returns how many did not die."""
        until = time.monotonic() + KILL_S_MAX
        while self.reap():
            if time.monotonic() > until:
                return len(descendants(os.getpid()))
            stop_and_kill(lambda: descendants(os.getpid()), read_tag(os.getpid()))
            wait_signal(KILL_POLL_S)
        return 0


class OutputLimit:
    """How many bytes the output files may have together. `bytes_max` 0: no limit."""

    def __init__(self, streams: list[int], bytes_max: int) -> None:
        self._streams, self._bytes_max = streams, bytes_max

    def look_s(self) -> float | None:
        """Seconds until the output may be over its limit; 0: it is. None: there is no limit."""
        if not self._bytes_max:
            return None
        room = self._bytes_max - sum(os.fstat(fd).st_size for fd in self._streams)
        return 0.0 if room < 0 else min(max(room / OUTPUT_BYTES_PER_S, OUTPUT_LOOK_S_MIN), OUTPUT_LOOK_S_MAX)


def wait_for_end(
    pid: int, *, limit_s: float, grace_s: float, settle_s: float, agent: AgentPipe, output: OutputLimit
) -> dict[str, object]:
    """Wait until the command ends or is ended; then end all processes it left.

    `settle_s`: how long these may go on first. A container's runtime writes down the end and unmounts its files.
    """
    family = ProcessFamily(pid)
    limit_at = time.monotonic() + limit_s if limit_s else None
    cause = "exit"
    while family.reap() and family.status is None:
        if agent.is_agent_gone():
            cause, grace_s = "agent", min(grace_s, BOUND_GRACE_S)
            break
        left = None if limit_at is None else limit_at - time.monotonic()
        if left is not None and left <= 0:
            cause = "time-limit"
            break
        look_s = output.look_s()
        if look_s == 0.0:
            cause, grace_s = "output-limit", min(grace_s, OUTPUT_GRACE_S)
            break
        signo = wait_signal(min((wait for wait in (left, look_s) if wait is not None), default=None))
        if signo in CAUSE_BY_SIGNAL:
            family.reap()
            if family.status is None:  # else the command just ended by itself, which counts
                cause = CAUSE_BY_SIGNAL[signo]
            break
    if family.status is None:
        family.end_gently(grace_s)
    if settle_s and family.status is not None:
        family.settle(settle_s)
    stubborn = family.end_all()
    code = os.waitstatus_to_exitcode(family.status) if family.status is not None else -signal.SIGKILL
    return {
        "cause": cause,
        "code": code if code >= 0 else "",
        "signal": -code if code < 0 else "",
        "reason": f"{stubborn} of its processes did not die" if stubborn else "",
        "left": stubborn,
    }


def remove_container(start: dict[bytes, list[bytes]]) -> dict[str, object]:
    """Run `cleanup`, whose one line of output says how the container ended. All processes of the job are gone."""
    import select

    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            exec_cleanup(start, write_end)
        except OSError:
            pass
        finally:
            os._exit(127)
    os.close(write_end)
    until, text = time.monotonic() + CLEANUP_S_MAX, b""
    while select.select([read_end], [], [], max(0.0, until - time.monotonic()))[0]:
        piece = os.read(read_end, CLEANUP_BYTES_MAX)
        if not piece:
            break
        text = (text + piece)[:CLEANUP_BYTES_MAX]
    os.close(read_end)
    family = ProcessFamily(pid)
    while family.reap() and family.status is None and (left := until - time.monotonic()) > 0:
        wait_signal(min(left, TERM_POLL_S))
    family.settle(max(0.0, min(CONTAINER_S_MAX, until - time.monotonic())))
    family.end_all()
    line = text.decode(errors="replace").partition("\n")[0].strip()
    return {"container": line, "container_left": 0 if family.status == 0 else 1}


def wait_signal(timeout_s: float | None) -> int:
    """Return the next signal, or SIGALRM when the time is over. It may be outdated, so callers check the state.

    Not sigtimedwait: if the process is stopped past the time-out, Python 3.11 returns a signal that never came.
    """
    signal.setitimer(signal.ITIMER_REAL, 0 if timeout_s is None else max(timeout_s, 0.001))
    return signal.sigwait(SIGNALS)


def write_exit(fd: int, facts: dict[str, object]) -> int:
    """Write the exit file, complete or not at all. No process of the job is left that could interfere."""
    facts = {**facts, "at_ns": age_clock_ns(), "boot": boot_id()}
    text = "".join(f"{key}={value}\n" for key, value in facts.items()).encode()
    name = f"exit.{os.getpid()}"
    for _ in range(EXIT_TRIES_MAX):
        try:
            if not is_same_file(fd, name):  # the job moved or replaced the file
                move_folder_aside(name)
                fd = create_file(name)
            os.pwrite(fd, text, 0)
            os.ftruncate(fd, len(text))
            os.fsync(fd)
            if os.path.isdir("exit"):
                move_folder_aside("exit")
            os.rename(name, "exit")
            sync_directory()
        except FileNotFoundError:
            return 1  # the directory was removed: there is nowhere to write
        except OSError:
            time.sleep(EXIT_RETRY_S)
        else:
            return 0
    return 1


def is_same_file(fd: int, name: str) -> bool:
    try:
        named = os.lstat(name)
    except FileNotFoundError:
        return False
    opened = os.fstat(fd)
    return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)


def move_folder_aside(name: str) -> None:
    """Move a folder away; a file would be replaced by the rename."""
    if os.path.isdir(name):
        os.rename(name, f"aside.{age_clock_ns()}")


def sync_directory() -> None:
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
