"""The process behind `tests/warm_programs.py`: it has imported what programs need, and forks one for each request.

    python -m tests.warm_starter SOCKET MODULE...

A request is one connection with one message: the words of a Python script, its environment and folder, and the files
0, 1 and 2. The answers are its pid, and at its end its exit code. This process has no threads and opens nothing that
a program must not share.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

REQUEST_BYTES_MAX = 200_000  # what a socket takes as one message: words, environment and folder
PR_SET_PDEATHSIG = 1
PAUSE_TICK_S = 0.1
UNSUITABLE = b"0"  # the answer instead of a pid: start the program yourself


def serve(place: Path, modules: Sequence[str]) -> NoReturn:
    """Fork a program for each request, and send each program's exit code on its own connection."""
    import_all(modules)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(place))
    listener.listen(100)
    Starter(listener).run()


def import_all(modules: Sequence[str]) -> None:
    """Import these modules; of one that ends in `.*`, everything inside."""
    gc.disable()
    for name in modules:
        package = importlib.import_module(name.removesuffix(".*"))
        if name.endswith(".*"):
            for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
                if ".migrations" not in module.name and not module.name.endswith("_program"):
                    importlib.import_module(module.name)
    if "switchyard.server.app" in sys.modules:
        prepare_yard()
    gc.freeze()
    gc.enable()
    assert threading.active_count() == 1, f"an import has started threads: {threading.enumerate()}"


def prepare_yard() -> None:
    """Make what each `yard` makes at its start and never changes: decoders, patterns of addresses, names of plugins.

    And look for pauses of event loops more rarely: a third of what a server without work takes of a core.
    """
    from starlette.routing import compile_path

    from switchyard.agent.backends.registry import BACKENDS
    from switchyard.decoder_warmup import warm_loaded_types
    from switchyard.plugins import read_entry_points
    from switchyard.server.http.endpoints import ENDPOINTS
    from switchyard.server.loops import runtime
    from switchyard.service.rules.kinds import ATTRIBUTE_KINDS

    runtime.TICK_S = PAUSE_TICK_S
    warm_loaded_types()
    for endpoint in ENDPOINTS:
        compile_path(endpoint.path)
    path = (str(Path(sys.executable).parent), *sys.path[2:])  # of `be_program`
    for plugins in (ATTRIBUTE_KINDS, BACKENDS):
        read_entry_points(plugins.entry_point_group, path=path)


class Starter:
    """The loop: new connections, ended programs, callers who went away."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._lines: dict[int, socket.socket] = {}  # by the program's pid
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> NoReturn:
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._take_request)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._reap)
        while True:
            for key, _ in self._selector.select():
                key.data()

    def _take_request(self) -> None:
        line, _ = self._listener.accept()
        line.settimeout(10.0)  # whoever connects sends at once
        with contextlib.suppress(OSError):
            message, files, _, _ = socket.recv_fds(line, REQUEST_BYTES_MAX, 3)
            if not message:
                return
            request = json.loads(message)
            if _uid_of(line) != os.getuid():
                line.send(UNSUITABLE)
                return
            pid = os.fork()
            if pid == 0:
                self._forget_all(line)
                be_program(request, files)
            for file in files:
                os.close(file)
            self._lines[pid] = line
            line.send(str(pid).encode())
            if request["ends_with_caller"]:
                self._selector.register(line, selectors.EVENT_READ, lambda: self._end(pid))

    def _end(self, pid: int) -> None:
        """The caller is gone: a job was cancelled, or its machine killed it."""
        self._selector.unregister(self._lines[pid])
        os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        while self._lines:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            with contextlib.suppress(OSError, KeyError), self._lines.pop(pid) as line:
                with contextlib.suppress(KeyError, ValueError):
                    self._selector.unregister(line)
                line.send(str(os.waitstatus_to_exitcode(status)).encode())

    def _forget_all(self, line: socket.socket) -> None:
        """In a new program: close what belongs to this process."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for file in (self._listener, line, *self._lines.values()):
            file.close()
        os.close(self._wake_read)
        os.close(self._wake_write)


def be_program(request: Mapping[str, Any], files: Sequence[int]) -> NoReturn:
    """Become the Python script of this request. Never returns."""
    code: object = 1
    try:
        if request["own_session"]:
            os.setsid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)  # no program outlives the starter
        _take_files(files)
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        os.umask(request["umask"])
        time.tzset()
        _open_standard_files(is_unbuffered="PYTHONUNBUFFERED" in os.environ)
        sys.argv = [os.fsdecode(word.encode("latin-1")) for word in request["argv"]]
        searched = os.environ.get("PYTHONPATH", "")
        renew_flytekit()
        sys.path[:2] = [str(Path(sys.argv[0]).parent), *filter(None, searched.split(":"))]
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as exc:
        code = exc.code
        if not isinstance(code, int | None):
            print(code, file=sys.stderr)
            code = 1
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except BaseException:  # noqa: BLE001 - as Python does at its top
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    _leave(code if isinstance(code, int) else 0)


def renew_flytekit() -> None:
    """Give this program a folder and random names of its own, which flytekit takes when it is imported."""
    if "flytekit" in sys.modules:
        folder = Path(tempfile.mkdtemp(prefix="flyte-"), "sandbox", "local_flytekit")
        folder.mkdir(parents=True)
        sys.modules["flytekit.core.data_persistence"].default_local_file_access_provider._local_sandbox_dir = folder
        sys.modules["flytekit.interfaces.random"].random.seed()


def _take_files(files: Sequence[int]) -> None:
    for number, file in enumerate(files):
        os.dup2(file, number)
    for file in files:
        if file > 2:
            os.close(file)


def _open_standard_files(*, is_unbuffered: bool) -> None:
    """Make sys.stdin, stdout and stderr as Python does in the locale C.UTF-8."""
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    for name, number, errors in (("stdout", 1, "surrogateescape"), ("stderr", 2, "backslashreplace")):
        raw = open(number, "wb", buffering=0 if is_unbuffered else -1, closefd=False)  # noqa: SIM115
        is_by_line = number == 2 or os.isatty(number)
        text = io.TextIOWrapper(
            raw, encoding="utf-8", errors=errors, line_buffering=is_by_line, write_through=is_unbuffered
        )
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)


def _leave(code: int) -> NoReturn:
    """End as Python does: wait for threads, run what was registered, write out what is buffered."""
    for last_thing in (threading._shutdown, atexit._run_exitfuncs, sys.stdout.flush, sys.stderr.flush):  # type: ignore[attr-defined]
        with contextlib.suppress(BaseException):
            last_thing()
    os._exit(code & 0xFF)


def _uid_of(line: socket.socket) -> int:
    credentials = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    return int(uid)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2:])
