"""The process above one local job: claims it, starts it, waits, ends what is left, writes how it ended. Stdlib only.

Run as `python -I -S supervisor.py DIR [FD]`; it must not import the package, since it starts once per job and outlives
the agent. What the job's directory holds:

    start    what to run: NUL-separated `key=value` words, the last one `end=` (written by the agent)
    claim    `pid start-time boot-id` of the one supervisor that may run it; appears whole, before the command starts;
             pid 0: the agent took it, so that it never starts
    started  `pid start-time age-clock` of the command's first process
    exit     `key=value` lines: cause, code, signal, reason, at_ns, boot; appears whole, when every process is gone
    stdout, stderr, work/

FD gets one byte when the command runs, and closes when the supervisor ends. SIGUSR1 to the supervisor is the agent's
cancel; SIGTERM ends the job too, but is somebody else's doing and told apart.
"""

# pathlib and contextlib would double the imports of a process that starts once per job.
# ruff: noqa: PTH104, PTH108, PTH110, PTH123, PTH208, SIM105, S606

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

GRACE_S = 5.0  # from TERM to KILL: long enough to write a last file, short enough for a user who waits
KILL_S_MAX = 10.0  # a process that outlives KILL this long hangs in the kernel; we say so and go
EXIT_TRIES_MAX = 7200  # a full disk may be cleared within the hour; until then the exit code waits here
EXIT_RETRY_S = 0.5
EXIT_BYTES = 4096  # set aside before the start, so that a disk filled by the job can still take its exit
NAP_S = 0.01  # between looks at processes that were sent KILL
LOOK_S = 0.05  # the same for TERM
END_AGAIN = 75  # EX_TEMPFAIL: nothing was claimed, start me again later

PR_SET_CHILD_SUBREAPER = 36
ENDINGS: dict[int, str] = {signal.SIGUSR1: "cancel", signal.SIGTERM: "stopped"}
SIGNALS = {signal.SIGCHLD, signal.SIGALRM, signal.SIGINT, signal.SIGHUP, *ENDINGS}


def main(argv: list[str]) -> int:
    os.chdir(argv[1])
    notify = int(argv[2]) if len(argv) > 2 else -1
    if notify >= 0:
        os.set_inheritable(notify, False)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    start = read_start()
    try:
        streams = [os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) for name in ("stdout", "stderr")]
        exit_fd = reserve_exit()
        if not claim():
            os.unlink(f"exit.{os.getpid()}")
            return 0  # another supervisor has it
    except OSError:
        return END_AGAIN
    become_subreaper()
    pid, trouble = spawn(start, streams)
    if trouble:
        code, _, reason = trouble.partition(" ")
        os.waitpid(pid, 0)
        os.write(streams[1], f"switchyard: {reason}\n".encode())
        return write_exit(exit_fd, {"cause": "start", "code": code, "reason": reason})
    note_started(pid)
    if notify >= 0:
        tell(notify)
    limit_s, grace_s = number(start, b"limit_s", 0.0), number(start, b"grace_s", GRACE_S)
    return write_exit(exit_fd, follow(pid, limit_s=limit_s, grace_s=grace_s))


def read_start() -> dict[bytes, list[bytes]]:
    with open("start", "rb") as file:
        words = file.read().split(b"\0")
    if words[-1] != b"end=":
        raise SystemExit(END_AGAIN)  # cut short by a crash of the machine; the agent writes it again
    found: dict[bytes, list[bytes]] = {}
    for word in words:
        key, _, value = word.partition(b"=")
        found.setdefault(key, []).append(value)
    return found


def number(start: dict[bytes, list[bytes]], key: bytes, otherwise: float) -> float:
    return float(start[key][0]) if key in start else otherwise


def reserve_exit() -> int:
    fd = os.open(f"exit.{os.getpid()}", os.O_WRONLY | os.O_CREAT, 0o600)
    os.posix_fallocate(fd, 0, EXIT_BYTES)
    return fd


def claim() -> bool:
    """Take the job for this process, or learn that it is taken. A link appears whole and only once."""
    pid = os.getpid()
    mine = f"claim.{pid}"
    with open(mine, "w") as file:
        file.write(f"{pid} {start_time(pid)} {boot_id()}\n")
    try:
        os.link(mine, "claim")
    except FileExistsError:
        return False
    finally:
        os.unlink(mine)
    sync_directory()  # else a power cut could forget the claim but not what the command did
    return True


def become_subreaper() -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def spawn(start: dict[bytes, list[bytes]], streams: list[int]) -> tuple[int, str]:
    """Fork and exec. The second value says why it could not be started: `exit-code reason`."""
    read_end, write_end = os.pipe()  # closes by itself when exec succeeds
    pid = os.fork()
    if pid == 0:
        code = 126
        try:
            execute(start, streams)
        except Refused as exc:
            code = exc.code
            os.write(write_end, f"{code} {exc.reason}".encode())
        except OSError as exc:
            os.write(write_end, f"126 cannot set the process up: {exc}".encode())
        finally:
            os._exit(code)
    os.close(write_end)
    with open(read_end, "rb") as file:
        return pid, file.read().decode(errors="replace").replace("\n", " ")


class Refused(Exception):
    """The command cannot be started."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def execute(start: dict[bytes, list[bytes]], streams: list[int]) -> None:
    os.setsid()
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    os.dup2(streams[0], 1)
    os.dup2(streams[1], 2)
    cwd = start[b"cwd"][0]
    try:
        os.chdir(cwd)
    except OSError as exc:
        raise Refused(
            126, f"cannot enter the working directory {cwd.decode(errors='replace')}: {exc.strerror}"
        ) from exc
    set_limits(int(number(start, b"data_bytes", 0)))
    # A command expects the defaults: Python ignores some signals, and an agent under nohup was told to ignore others.
    for signo in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(signo, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    env = dict(item.split(b"=", 1) for item in start.get(b"env", []))
    replace_process(start[b"arg"], env)


def set_limits(data_bytes: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if data_bytes > 0:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        bound = data_bytes if hard == resource.RLIM_INFINITY else min(data_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))


def replace_process(argv: list[bytes], env: dict[bytes, bytes]) -> None:
    """exec by the job's own PATH, never through a shell. Returns only by raising Refused."""
    command = argv[0]
    shown = command.decode(errors="replace")
    places = [command] if b"/" in command else [place + b"/" + command for place in env[b"PATH"].split(b":") if place]
    worst = errno.ENOENT
    for place in places:
        try:
            os.execve(place, argv, env)
        except OSError as exc:
            if exc.errno not in (errno.ENOENT, errno.ENOTDIR):
                worst = exc.errno or worst
                if worst != errno.EACCES:
                    break
    if worst == errno.ENOENT and os.path.exists(places[-1]):
        raise Refused(126, f"cannot run {shown}: the interpreter named in its first line does not exist")
    if worst == errno.ENOENT:
        raise Refused(127, f"command not found: {shown}")
    if worst == errno.EACCES:
        raise Refused(126, f"not executable: {shown}")
    if worst == errno.ENOEXEC:
        raise Refused(126, f"cannot run {shown}: not a program, and no first line such as #!/bin/sh")
    raise Refused(126, f"cannot run {shown}: {os.strerror(worst)}")


def note_started(pid: int) -> None:
    try:
        with open("started.new", "w") as file:
            file.write(f"{pid} {start_time(pid)} {age_clock_ns()}\n")
        os.rename("started.new", "started")
    except OSError:
        pass  # a full disk: the times are then a little off, nothing else


def tell(notify: int) -> None:
    try:
        os.write(notify, b"R")
    except OSError:
        pass  # the agent is gone; the next one reads the files


class Family:
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
            wait_signal(min(left, LOOK_S))

    def end_all(self) -> int:
        """KILL to every descendant, those that left the group or session too. Returns how many did not die."""
        until = time.monotonic() + KILL_S_MAX
        while self.reap():
            left = descendants(os.getpid())
            if time.monotonic() > until:
                return len(left)
            for pid, born in left:
                kill_same(pid, born)
            wait_signal(NAP_S)
        return 0


def follow(pid: int, *, limit_s: float, grace_s: float) -> dict[str, object]:
    """Wait for the command's end, by itself or by our hand; then end every process it left."""
    family = Family(pid)
    limit_at = time.monotonic() + limit_s if limit_s else None
    cause = "exit"
    while family.reap() and family.status is None:
        left = None if limit_at is None else limit_at - time.monotonic()
        if left is not None and left <= 0:
            cause = "time-limit"
            break
        signo = wait_signal(left)
        if signo in ENDINGS:
            family.reap()
            if family.status is None:  # else it ended by itself just before: that is the true end
                cause = ENDINGS[signo]
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
    }


def wait_signal(timeout_s: float | None) -> int:
    """The next signal, SIGALRM when the time is over. It may be an old one: every caller looks for itself.

    Not sigtimedwait: stopped and continued past its time-out, Python 3.11 returns a signal that never came.
    """
    signal.setitimer(signal.ITIMER_REAL, 0 if timeout_s is None else max(timeout_s, 0.001))
    return signal.sigwait(SIGNALS)


def descendants(root: int) -> list[tuple[int, str]]:
    """Everybody under `root`, with the start time that makes a pid an identity."""
    children: dict[int, list[tuple[int, str]]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := stat_fields(int(name))):
            children.setdefault(int(fields[1]), []).append((int(name), fields[19]))
    found: list[tuple[int, str]] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += [pid for pid, _ in below]
    return found


def kill_same(pid: int, born: str) -> None:
    """KILL the process that was seen, never a later one that got its pid."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if start_time(pid) == born:
            signal.pidfd_send_signal(fd, signal.SIGKILL)
    except OSError:
        pass  # it has just ended
    finally:
        os.close(fd)


def write_exit(fd: int, facts: dict[str, object]) -> int:
    """How it ended, whole or not at all."""
    facts = {**facts, "at_ns": age_clock_ns(), "boot": boot_id()}
    text = "".join(f"{key}={value}\n" for key, value in facts.items()).encode()
    for _ in range(EXIT_TRIES_MAX):
        try:
            os.pwrite(fd, text, 0)
            os.ftruncate(fd, len(text))
            os.fsync(fd)
            os.rename(f"exit.{os.getpid()}", "exit")
            sync_directory()
        except FileNotFoundError:
            return 1  # somebody removed the directory: nobody is left to tell
        except OSError:
            time.sleep(EXIT_RETRY_S)
        else:
            return 0
    return 1


def sync_directory() -> None:
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def stat_fields(pid: int) -> list[str]:
    """/proc/PID/stat from its third field on: [0] state, [1] parent, [19] start time. Empty: no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return []


def start_time(pid: int) -> str:
    fields = stat_fields(pid)
    return fields[19] if fields else ""


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def age_clock_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
