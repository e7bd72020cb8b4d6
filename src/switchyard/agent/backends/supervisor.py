"""The process above one local job: claims it, starts it, waits, ends what is left, writes how it ended. Stdlib only.

Run as `python -I -S supervisor.py DIR [NOTIFY_FD [SEAL_FD]]`. It starts once per job and outlives the agent, so it must
not import the package: only confine.py and proctable.py, which lie beside it. What the job's directory holds:

    start    what to run, and under which account: NUL-separated `key=value` words, the last one `end=` (written by
             the agent)
    claim    `pid start-time boot-id` of the one supervisor that may run it; appears whole, before the command starts;
             pid 0: the agent took it, so that it never starts
    started  `pid start-time age-clock stdout-inode stderr-inode` of the command's first process and its output
    exit     `key=value` lines: cause, code, signal, reason, left, at_ns, boot, seal; appears whole, when every process
             is gone; `left` counts those that did not die
    stdout, stderr, work/

If the job runs under another account than the agent, that account owns work/, stdout and stderr and can read nothing
else here. The supervisor keeps the agent's account; the command's process changes its own just before exec.

NOTIFY_FD gets `C` after the claim and `R` when the command runs, and closes when the supervisor ends. SEAL_FD holds a
secret of this attempt: it stays in this process, and is written into the exit file when no process of the job is left
to read it. So the agent knows an exit file that a job wrote itself. SIGUSR1 to the supervisor is the agent's cancel;
SIGTERM ends the job too, but is somebody else's doing and told apart.

The supervisor and the job share one control group (`group`, if the agent has one) and one mark (`tag`): a hard limit on
RLIMIT_RTTIME, so large that it bounds nothing. Every descendant inherits it, whatever becomes of its environment,
session and parent, and only root can raise it again. By both the agent finds what is left when the supervisor is dead.
"""

# pathlib and contextlib would double the imports of a process that starts once per job.
# ruff: noqa: PTH100, PTH104, PTH108, PTH112, PTH120, PTH123, SIM105

from __future__ import annotations

import errno
import os
import sys
import time

TYPE_CHECKING = False  # importing typing for it would cost more than the rest together
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal  # the same functions without the enums, which are a quarter of the way from spawn to exec
if TYPE_CHECKING or __package__:
    from switchyard.agent.backends.confine import CgroupEntry, CommandRefused, exec_command, protect_supervisor, set_tag
    from switchyard.agent.backends.proctable import (
        age_clock_ns,
        boot_id,
        descendants,
        read_tag,
        start_time,
        stop_and_kill,
    )
else:  # as a program: the two lie beside it, and nothing of the standard library may be hidden by them
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    from confine import CgroupEntry, CommandRefused, exec_command, protect_supervisor, set_tag
    from proctable import age_clock_ns, boot_id, descendants, read_tag, start_time, stop_and_kill

GRACE_S = 5.0  # from TERM to KILL: long enough to write a last file, short enough for a user who waits
KILL_S_MAX = 10.0  # a process that outlives KILL this long hangs in the kernel; we say so and go
EXIT_TRIES_MAX = 7200  # a full disk may be cleared within the hour; until then the exit code waits here
EXIT_RETRY_S = 0.5
EXIT_BYTES = 4096  # set aside before the start, so that a disk filled by the job can still take its exit
KILL_POLL_S = 0.01  # between looks at processes that were sent KILL
TERM_POLL_S = 0.05  # the same for TERM
EXIT_TRY_AGAIN = 75  # EX_TEMPFAIL: nothing was claimed, start me again later
SEAL_BYTES_MAX = 256

CAUSE_BY_SIGNAL: dict[int, str] = {signal.SIGUSR1: "cancel", signal.SIGTERM: "stopped"}
SIGNALS = {signal.SIGCHLD, signal.SIGALRM, signal.SIGINT, signal.SIGHUP, *CAUSE_BY_SIGNAL}


def main(argv: list[str]) -> int:
    os.chdir(argv[1])
    notify = int(argv[2]) if len(argv) > 2 else -1
    if notify >= 0:
        os.set_inheritable(notify, False)
    seal = read_seal(int(argv[3])) if len(argv) > 3 else ""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    start = read_start()
    try:
        streams = [open_stream(name, start) for name in ("stdout", "stderr")]
        exit_fd = reserve_exit()
        if not claim_job():
            os.unlink(f"exit.{os.getpid()}")
            return 0  # another supervisor has it
    except OSError:
        return EXIT_TRY_AGAIN
    notify_agent(notify, b"C")
    entry = CgroupEntry(start[b"group"][0]) if b"group" in start else None
    protect_supervisor()
    set_tag(int(start.get(b"tag", [b"0"])[0]))  # not by way of a float: every bit counts
    if entry is not None and (trouble := entry.wait()):
        return write_exit(exit_fd, {"cause": "group", "code": "", "reason": trouble, "left": 0, "seal": seal})
    pid, trouble = spawn_command(start, streams)
    if trouble:
        code, _, reason = trouble.partition(" ")
        os.waitpid(pid, 0)
        os.write(streams[1], f"switchyard: {reason}\n".encode())
        return write_exit(exit_fd, {"cause": "start", "code": code, "reason": reason, "left": 0, "seal": seal})
    write_started(pid, streams)
    notify_agent(notify, b"R")
    limit_s, grace_s = float_of(start, b"limit_s", 0.0), float_of(start, b"grace_s", GRACE_S)
    return write_exit(exit_fd, {**wait_for_end(pid, limit_s=limit_s, grace_s=grace_s), "seal": seal})


def read_seal(fd: int) -> str:
    with open(fd, "rb") as file:
        return file.read(SEAL_BYTES_MAX).decode()


def read_start() -> dict[bytes, list[bytes]]:
    with open("start", "rb") as file:
        words = file.read().split(b"\0")
    if words[-1] != b"end=":
        raise SystemExit(EXIT_TRY_AGAIN)  # cut short by a crash of the machine; the agent writes it again
    found: dict[bytes, list[bytes]] = {}
    for word in words:
        key, _, value = word.partition(b"=")
        found.setdefault(key, []).append(value)
    return found


def float_of(start: dict[bytes, list[bytes]], key: bytes, otherwise: float) -> float:
    return float(start[key][0]) if key in start else otherwise


def open_stream(name: str, start: dict[bytes, list[bytes]]) -> int:
    """A plain file with this one name. A pipe would hang us, a link would lead the job's output elsewhere.

    It belongs to the job's account, so that the job can open it once more as /dev/stdout.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = os.open(name, flags, 0o600)
    found = os.fstat(fd)
    if found.st_mode & 0o170000 != 0o100000 or found.st_nlink != 1:
        raise OSError(errno.EPERM, "not a plain file", name)
    if b"uid" in start:
        os.fchown(fd, int(start[b"uid"][0]), int(start[b"gid"][0]))
    os.set_blocking(fd, True)
    return fd


def create_file(name: str) -> int:
    """A new file, whatever was there under that name."""
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
    """Take the job for this process, or learn that it is taken. A link appears whole and only once."""
    pid = os.getpid()
    mine = f"claim.{pid}"
    with open(create_file(mine), "w") as file:
        file.write(f"{pid} {start_time(pid)} {boot_id()}\n")
    try:
        os.link(mine, "claim")
    except FileExistsError:
        return False
    finally:
        os.unlink(mine)
    sync_directory()  # else a power cut could forget the claim but not what the command did
    return True


def spawn_command(start: dict[bytes, list[bytes]], streams: list[int]) -> tuple[int, str]:
    """Fork and exec. The second value says why it could not be started: `exit-code reason`."""
    read_end, write_end = os.pipe()  # closes by itself when exec succeeds
    pid = os.fork()
    if pid == 0:
        code = 126
        try:
            exec_command(start, streams)
        except CommandRefused as exc:
            code = exc.code
            os.write(write_end, f"{code} {exc.reason}".encode())
        except OSError as exc:
            os.write(write_end, f"126 cannot set the process up: {exc}".encode())
        finally:
            os._exit(code)
    os.close(write_end)
    with open(read_end, "rb") as file:
        return pid, file.read().decode(errors="replace").replace("\n", " ")


def write_started(pid: int, streams: list[int]) -> None:
    inodes = " ".join(str(os.fstat(fd).st_ino) for fd in streams)
    try:
        with open(create_file("started.new"), "w") as file:
            file.write(f"{pid} {start_time(pid)} {age_clock_ns()} {inodes}\n")
        os.rename("started.new", "started")
    except OSError:
        pass  # a full disk, or the job was there first: the times are then a little off, nothing else


def notify_agent(notify: int, what: bytes) -> None:
    if notify < 0:
        return
    try:
        os.write(notify, what)
    except OSError:
        pass  # the agent is gone; the next one reads the files


class ProcessFamily:
    """The command's first process and everything that descends from it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None  # of the first process, once it has ended

    def reap(self) -> bool:
        """Collect who has ended. True while somebody is left; orphans come to us, the subreaper."""
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
        """TERM to the command's process group, then time to leave."""
        for signo in (signal.SIGTERM, signal.SIGCONT):  # a stopped process would not hear TERM
            try:
                os.killpg(self.pid, signo)
            except ProcessLookupError:
                return
        until = time.monotonic() + grace_s
        while self.reap() and self.group_lives() and (left := until - time.monotonic()) > 0:
            # A member whose parent lives is not ours to be told of: look again soon.
            wait_signal(min(left, TERM_POLL_S))

    def end_all(self) -> int:
        """KILL to every descendant, those that left the group or session too. Returns how many did not die."""
        until = time.monotonic() + KILL_S_MAX
        while self.reap():
            if time.monotonic() > until:
                return len(descendants(os.getpid()))
            stop_and_kill(lambda: descendants(os.getpid()), read_tag(os.getpid()))
            wait_signal(KILL_POLL_S)
        return 0


def wait_for_end(pid: int, *, limit_s: float, grace_s: float) -> dict[str, object]:
    """Wait for the command's end, by itself or by our hand; then end every process it left."""
    family = ProcessFamily(pid)
    limit_at = time.monotonic() + limit_s if limit_s else None
    cause = "exit"
    while family.reap() and family.status is None:
        left = None if limit_at is None else limit_at - time.monotonic()
        if left is not None and left <= 0:
            cause = "time-limit"
            break
        signo = wait_signal(left)
        if signo in CAUSE_BY_SIGNAL:
            family.reap()
            if family.status is None:  # else it ended by itself just before: that is the true end
                cause = CAUSE_BY_SIGNAL[signo]
            break
    if family.status is None:
        family.end_gently(grace_s)
    stubborn = family.end_all()
    code = os.waitstatus_to_exitcode(family.status) if family.status is not None else -signal.SIGKILL
    return {
        "cause": cause,
        "code": code if code >= 0 else "",
        "signal": -code if code < 0 else "",
        "reason": f"{stubborn} of its processes did not die" if stubborn else "",
        "left": stubborn,
    }


def wait_signal(timeout_s: float | None) -> int:
    """The next signal, SIGALRM when the time is over. It may be an old one: every caller looks for itself.

    Not sigtimedwait: stopped and continued past its time-out, Python 3.11 returns a signal that never came.
    """
    signal.setitimer(signal.ITIMER_REAL, 0 if timeout_s is None else max(timeout_s, 0.001))
    return signal.sigwait(SIGNALS)


def write_exit(fd: int, facts: dict[str, object]) -> int:
    """How it ended, whole or not at all. No process of the job is left: what it put into our way stays out of it."""
    facts = {**facts, "at_ns": age_clock_ns(), "boot": boot_id()}
    text = "".join(f"{key}={value}\n" for key, value in facts.items()).encode()
    name = f"exit.{os.getpid()}"
    for _ in range(EXIT_TRIES_MAX):
        try:
            if not is_same_file(fd, name):  # the job moved it away, or put another file there
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
            return 1  # somebody removed the directory: nobody is left to tell
        except OSError:
            time.sleep(EXIT_RETRY_S)
        else:
            return 0
    return 1


def is_same_file(fd: int, name: str) -> bool:
    try:
        found = os.lstat(name)
    except FileNotFoundError:
        return False
    mine = os.fstat(fd)
    return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)


def move_folder_aside(name: str) -> None:
    """Move a folder out of the way; a file needs no care."""
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
