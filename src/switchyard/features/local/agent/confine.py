"""Confines the supervisor and its job before the command runs. Part of the supervisor's program: stdlib only."""

# pathlib and contextlib would double the imports of a process that starts once per job.
# ruff: noqa: PTH102, PTH110, SIM105, S606

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False  # as in supervisor.py
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal

ENTER_TRIES_MAX = 5  # an agent may remove the empty group just before it is entered
EXECUTES = b"."  # what the command's process says just before exec: from here on, an end is the command's own
NODE_ERRNOS = (errno.EAGAIN, errno.EIO, errno.ENFILE, errno.ENOMEM)  # of exec: not the command's fault
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36


class CgroupEntry:
    """Moves this process into its control group on a thread, since the kernel may take 20 ms."""

    def __init__(self, group: bytes) -> None:
        import _thread

        self._group = group
        self._trouble = ""
        self._done = _thread.allocate_lock()
        self._done.acquire()
        _thread.start_new_thread(self._enter, ())

    def wait(self) -> str:
        """Wait, and return why the group was not entered; empty: it was."""
        self._done.acquire()
        return self._trouble

    def _enter(self) -> None:
        for _ in range(ENTER_TRIES_MAX):
            try:
                enter_cgroup(self._group)
            except OSError as exc:
                self._trouble = f"cannot enter the control group {self._group.decode(errors='replace')}: {exc.strerror}"
            else:
                self._trouble = ""
                break
        self._done.release()


def enter_cgroup(group: bytes) -> None:
    try:
        os.mkdir(group)
    except FileExistsError:
        pass
    fd = os.open(group + b"/cgroup.procs", os.O_WRONLY)
    try:
        os.write(fd, b"0")
    finally:
        os.close(fd)


def protect_supervisor() -> None:
    """Adopt orphans, and forbid processes of the same account to trace this one or read its memory."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    for option, value in ((PR_SET_CHILD_SUBREAPER, 1), (PR_SET_DUMPABLE, 0)):
        if libc.prctl(option, value, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), f"prctl({option})")


def set_tag(tag: int) -> None:
    import resource

    if tag:
        try:
            resource.setrlimit(resource.RLIMIT_RTTIME, (tag, tag))
        except (OSError, ValueError):
            pass  # a lower limit was set before: the job is then known only by group, session and environment


class CommandRefused(Exception):
    """The command cannot be started."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def switch_account(start: dict[bytes, list[bytes]]) -> None:
    """Switch from the agent's account to the job's for good: real, effective and saved ids, and all groups."""
    uid, gid = int(start[b"uid"][0]), int(start[b"gid"][0])
    if uid == 0:
        raise CommandRefused(126, "no job runs as root by an account map")
    os.setgroups([int(word) for word in start[b"groups"][0].split(b",") if word])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def exec_command(start: dict[bytes, list[bytes]], streams: list[int], notice: int) -> None:
    """Execute the command. Returns only by raising: CommandRefused for a fault of the job's, else one of the machine's.

    `notice`: a pipe that gets EXECUTES.
    """
    os.setsid()
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    os.dup2(streams[0], 1)
    os.dup2(streams[1], 2)
    set_limits(
        int(start.get(b"data_bytes", [b"0"])[0])
    )  # before the switch: it imports a module that the job's account may not read
    if b"uid" in start:
        switch_account(start)
    cwd = start[b"cwd"][0]
    try:
        os.chdir(cwd)
    except OSError as exc:
        raise CommandRefused(
            126, f"cannot enter the working directory {cwd.decode(errors='replace')}: {exc.strerror}"
        ) from exc
    reset_signals()
    os.write(notice, EXECUTES)
    exec_by_path(start[b"arg"], environment_of(start))


def exec_cleanup(start: dict[bytes, list[bytes]], output: int) -> None:
    """Execute the command that removes the job's container, with its output to this file."""
    os.setsid()
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    os.dup2(output, 1)
    reset_signals()
    argv = start[b"cleanup"]
    os.execve(argv[0], argv, environment_of(start))


def environment_of(start: dict[bytes, list[bytes]]) -> dict[bytes, bytes]:
    return dict(item.split(b"=", 1) for item in start.get(b"env", []))


def reset_signals() -> None:
    """A command expects default signals: Python ignores some, and nohup of the agent others."""
    for signo in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(signo, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def set_limits(data_bytes: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if data_bytes > 0:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        bound = data_bytes if hard == resource.RLIM_INFINITY else min(data_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))


def exec_by_path(argv: list[bytes], env: dict[bytes, bytes]) -> None:
    """Execute the command by the job's PATH, without a shell. Returns only by raising CommandRefused or OSError."""
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
        raise CommandRefused(126, f"cannot run {shown}: the interpreter named in its first line does not exist")
    if worst == errno.ENOENT:
        raise CommandRefused(127, f"command not found: {shown}")
    if worst in NODE_ERRNOS:
        raise OSError(worst, f"cannot run {shown}: {os.strerror(worst)}")
    if worst == errno.EACCES:
        raise CommandRefused(126, f"not executable: {shown}")
    if worst == errno.ENOEXEC:
        raise CommandRefused(126, f"cannot run {shown}: not a program, and no first line such as #!/bin/sh")
    raise CommandRefused(126, f"cannot run {shown}: {os.strerror(worst)}")
