"""Python programs that start fast: a process that has imported everything forks, instead of a Python that begins anew.

Starting `yard server` costs 1.3 s of a core and starting flytekit 1.4 s, nearly all of it imports, and the tests start
thousands of programs. Each worker of a run therefore has a starter (`tests/warm_starter.py`) for `yard`, and one for
flytekit. A program that it forks is a process of its own, with the words, environment, folder and files that it was
given, and can be signalled, paused and killed like any other. Three things differ: /proc/PID/cmdline and
/proc/PID/environ are the starter's, what an import does happened before, and a server measures the pauses of its event
loops to 100 ms instead of 10. Tests about those start their program cold (`Program(..., is_warm=False)`), and `make
soak` starts every program cold.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.processes import spawn, until

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
YARD_MODULES = (
    "alembic.command",
    "grpc",
    "psycopg",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite",
    "switchyard.*",
)
FLYTEKIT_MODULES = ("flytekit", "flytekit.bin.entrypoint", "flytekit.clis.sdk_in_container.pyflyte", "flytekit.remote")
FLYTEKIT_PROGRAMS = ("pyflyte", "pyflyte-execute", "pyflyte-fast-execute", "pyflyte-map-execute")
SCRIPTS = frozenset(str(BIN / name) for name in ("yard", *FLYTEKIT_PROGRAMS))
# What Python reads at its start, or a library that replaces functions of libc: a fork would not notice it.
COLD_PREFIXES = ("PYTHON", "LD_", "FAKETIME", "OPENBLAS", "MALLOC")
WARM_NAMES = frozenset({"PYTHONUNBUFFERED"})
UP_S = 120.0

# The words of a job's command that asks a starter for the program of its own name. It ends as that program ends.
CALLER = """\
#!{python} -IS
import os, socket, sys
name = os.path.basename(sys.argv[0])
real = os.path.join({bin!r}, name)
request = {{"argv": [os.fsencode(word).decode("latin-1") for word in [real, *sys.argv[1:]]], "env": dict(os.environ)}}
request |= {{"cwd": os.getcwd(), "own_session": False, "ends_with_caller": True, "umask": os.umask(0o022)}}
line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
try:
    import json
    if any(name.startswith({cold!r}) for name in os.environ.keys() - {warm!r}):
        raise OSError
    line.connect({place!r})
    socket.send_fds(line, [json.dumps(request).encode()], [0, 1, 2])
    if line.recv(20) in (b"0", b""):
        raise OSError
except OSError:
    os.umask(request["umask"])
    os.execv(real, [real, *sys.argv[1:]])
code = int(line.recv(20) or b"-9")
if code < 0:
    os.kill(os.getpid(), -code)
os._exit(code)
"""


def is_warm_start_allowed(argv: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether a forked program behaves as one that Python starts: a script of ours, in a plain environment."""
    is_script = argv[0] in SCRIPTS or argv[0].endswith(".py")
    is_plain = all(name in WARM_NAMES or not name.startswith(COLD_PREFIXES) for name in env)
    return is_script and is_plain and not os.environ.get("SOAK")


class WarmProcess:
    """A forked program, with the part of Popen's interface that tests use."""

    def __init__(self, pid: int, line: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._line = line
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        return self._read_end(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._read_end(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"pid {self.pid}", timeout or 0.0)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _read_end(self, timeout: float | None) -> int | None:
        with self._lock:
            if self.returncode is None:
                self._line.settimeout(timeout)
                with contextlib.suppress(TimeoutError, BlockingIOError):
                    code = self._line.recv(20)
                    # Nothing: the starter was killed, and the program with it.
                    self.returncode = int(code) if code else -signal.SIGKILL
                    self._line.close()
            return self.returncode


class StarterProcess:
    """A process that forks programs, as this worker sees it. It ends with the worker."""

    def __init__(self, modules: Sequence[str]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="yard-warm-"))
        self.place = self.folder / "socket"
        env = {name: value for name, value in os.environ.items() if not name.startswith(("YARD_", "PYTEST_"))}
        env |= {"OPENBLAS_NUM_THREADS": "1", "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT)}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        words = [sys.executable, "-m", "tests.warm_starter", str(self.place), *modules]
        self.popen = spawn(words, log_file=self.folder / "log", env=env, cwd=self.folder)

    def start(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path | str, files: Sequence[int], own_session: bool
    ) -> WarmProcess:
        """Fork a program with these files as 0, 1 and 2."""
        words = [os.fsencode(word).decode("latin-1") for word in argv]
        request = {"argv": words, "env": dict(env), "cwd": str(cwd), "umask": _umask()}
        request |= {"own_session": own_session, "ends_with_caller": False}
        line = self._connect()
        socket.send_fds(line, [json.dumps(request).encode()], list(files))
        return WarmProcess(int(line.recv(20)), line)

    def wait_up(self) -> None:
        self._connect().close()

    def close(self) -> None:
        self.popen.kill()
        self.popen.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def cpu_s(self) -> float:
        """The processor time of this process and of the programs that have ended."""
        try:
            stat = Path(f"/proc/{self.popen.pid}/stat").read_text(encoding="utf-8")
        except OSError:
            return 0.0
        ticks = stat.rsplit(")", 1)[1].split()[11:15]
        return sum(int(part) for part in ticks) / os.sysconf("SC_CLK_TCK")

    def _connect(self) -> socket.socket:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)

        def is_connected() -> bool:
            assert self.popen.poll() is None, f"the starter has ended: {(self.folder / 'log').read_text()}"
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                line.connect(str(self.place))
                return True
            return False

        until(is_connected, UP_S, "the starter of programs takes requests")
        return line


_starters: dict[tuple[str, ...], StarterProcess] = {}
_starters_lock = threading.Lock()


def starter(modules: tuple[str, ...]) -> StarterProcess:
    """The starter of this worker with these modules."""
    with _starters_lock:
        if modules not in _starters:
            _starters[modules] = StarterProcess(modules)
        return _starters[modules]


def close_starters() -> None:
    """End the starters of this worker, at the end of its run."""
    for process in _starters.values():
        process.close()


def starters_cpu_s() -> float:
    return sum(process.cpu_s() for process in _starters.values())


def start_warm(argv: Sequence[str], *, log_file: Path, env: Mapping[str, str], cwd: Path) -> WarmProcess:
    """As `processes.spawn`: `yard` in a session of its own that writes to a log file."""
    with log_file.open("ab") as log, Path(os.devnull).open("rb") as nothing:
        files = (nothing.fileno(), log.fileno(), log.fileno())
        return starter(YARD_MODULES).start(argv, env=env, cwd=cwd, files=files, own_session=True)


def run_script(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    stdin: str | None = None,
    timeout_s: float,
    cwd: Path | None = None,
    modules: tuple[str, ...] = YARD_MODULES,
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` with captured text: run one Python script to its end."""
    if not is_warm_start_allowed(argv, env):
        return subprocess.run(
            [sys.executable, *argv] if argv[0].endswith(".py") else argv,
            env=env,
            cwd=cwd,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, _input(stdin) as given:
        files = (given.fileno(), out.fileno(), err.fileno())
        process = starter(modules).start(argv, env=env, cwd=cwd or Path.cwd(), files=files, own_session=False)
        try:
            code = process.wait(timeout_s)
        except BaseException:
            process.kill()
            raise
        return subprocess.CompletedProcess(list(argv), code, _text(out), _text(err))


def flytekit_folder() -> Path:
    """A folder with flytekit's programs that start fast, for the PATH of jobs on this machine."""
    return _callers(FLYTEKIT_MODULES, FLYTEKIT_PROGRAMS)


def yard_folder() -> Path:
    """A folder with a `yard` that starts fast, for the PATH of a shell."""
    return _callers(YARD_MODULES, ("yard",), cold=COLD_PREFIXES)


def warm_yard() -> str:
    """This `yard` itself, for commands whose bytes or pipes a test needs."""
    return str(yard_folder() / "yard")


def _callers(modules: tuple[str, ...], names: Sequence[str], *, cold: tuple[str, ...] = ()) -> Path:
    if os.environ.get("SOAK"):
        return BIN
    process = starter(modules)
    folder = process.folder / "bin"
    if not folder.exists():
        process.wait_up()
        folder.mkdir()
        given = {"bin": str(BIN), "place": str(process.place), "cold": cold, "warm": set(WARM_NAMES)}
        for name in names:
            program = folder / name
            program.write_text(CALLER.format(python=sys.executable, **given))
            program.chmod(0o755)
    return folder


@contextlib.contextmanager
def _input(text: str | None) -> Iterator[IO[bytes]]:
    if text is None:
        with Path(os.devnull).open("rb") as nothing:
            yield nothing
        return
    with tempfile.TemporaryFile() as file:
        file.write(text.encode())
        file.seek(0)
        yield file


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def _umask() -> int:
    umask = os.umask(0o022)
    os.umask(umask)
    return umask
