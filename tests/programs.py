"""Whole programs for tests: start, watch, stop, kill by pid. Knows the command line, nothing of what is inside.

    with start_server(tmp_path) as server, start_agent(tmp_path, server.url, "alpha", graph=NODES) as agent:
        done = yard("submit", "--wait", "hostname", env=isolated_env(tmp_path, url=server.url))

Every wait is on a condition with a deadline; a failure shows the end of the program's log. Nothing outlives the test:
the kernel ends a program when the process that started it dies, and `end_strays` ends what the jobs left behind.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.processes import PATIENCE_S, STRAY_MARK, children_of, free_port, spawn, until
from tests.services import need_faketime
from tests.store.prepared import migrated_file
from tests.warm_programs import WarmProcess, is_warm_start_allowed, run_script, start_warm

T = TypeVar("T")

START_S = PATIENCE_S
STOP_S = 60.0  # a server ends its waiting polls itself, within 2 s on a quiet machine
COMMAND_S = PATIENCE_S
CALL_S = 60.0 + PATIENCE_S  # the longest parked call takes 60 s
PROBE_S = 20.0  # one look, which is repeated
# What a failure shows is kept by whoever ran the tests: no secret may be in it, not even a test's.
SECRET = re.compile(r"\b((?:yard|join|agent|submit)_[0-9A-Z]{26})_\S+")
LOG_LINES = 40  # what a failure shows of a log
# The command as a user has it: the script beside the Python that runs the tests.
YARD = [str(Path(sys.executable).with_name("yard"))]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# The graph of a small cluster: enough for a few jobs at a time.
NODES: Mapping[str, Any] = {"nodes": 2, "each": {"core": 4, "memory": "8GiB"}}


class Program:
    """One started process, its own session, its log in a file. Used as a context, it is gone at the end."""

    def __init__(
        self,
        argv: Sequence[str],
        folder: Path,
        *,
        name: str,
        env: Mapping[str, str],
        cwd: Path | None = None,
        is_warm: bool = True,
    ) -> None:
        self.argv, given = without_password(argv)
        self.name = name
        self.folder = folder
        self.log_file = folder / f"{name}.log"
        self._env = {**env, **given}
        self._cwd = cwd or folder
        self._is_warm = is_warm and is_warm_start_allowed(self.argv, self._env)
        self._popen: subprocess.Popen[bytes] | WarmProcess | None = None

    @property
    def env(self) -> dict[str, str]:
        return dict(self._env)

    def start(self) -> Self:
        assert not self.is_running, f"{self.name} is running already"
        self.folder.mkdir(parents=True, exist_ok=True)
        start = start_warm if self._is_warm else spawn
        self._popen = start(self.argv, log_file=self.log_file, env=self._env, cwd=self._cwd)
        return self

    @property
    def pid(self) -> int:
        assert self._popen is not None, f"{self.name} was never started"
        return self._popen.pid

    @property
    def is_running(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return None if self._popen is None else self._popen.poll()

    @property
    def log(self) -> str:
        return self.log_file.read_text(encoding="utf-8", errors="replace") if self.log_file.exists() else ""

    def tail(self) -> str:
        shown = SECRET.sub(r"\1_…", "\n".join(self.log.splitlines()[-LOG_LINES:]))
        return f"--- end of {self.log_file} ---\n{shown}"

    def wait_for(self, predicate: Callable[[], T], timeout_s: float, what: str) -> T:
        """As `until`, but fail at once if the program ends, and show its log."""

        def alive_and_so() -> T:
            if value := predicate():
                return value
            if not self.is_running:
                raise AssertionError(f"{self.name} ended with {self.exit_code} while waiting for: {what}")
            return value

        try:
            return until(alive_and_so, timeout_s, what)
        except AssertionError as exc:
            raise AssertionError(f"{exc}\n{self.tail()}") from None

    def wait(self, timeout_s: float = STOP_S) -> int:
        """Wait for its end by itself; its exit code."""
        assert self._popen is not None, f"{self.name} was never started"
        try:
            until(lambda: not self.is_running, timeout_s, f"{self.name} (pid {self.pid}) ends")
        except AssertionError as exc:
            raise AssertionError(f"{exc}\n{self.tail()}") from None
        return self._popen.wait()

    def signal(self, number: signal.Signals) -> None:
        assert self.is_running, f"{self.name} is not running, so it cannot get {number.name}\n{self.tail()}"
        os.kill(self.pid, number)

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def terminate(self, timeout_s: float = STOP_S) -> int:
        """Ask it to end (SIGTERM) and wait; its exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone. What it started lives on: that is often the point."""
        self._send(signal.SIGKILL)
        if self._popen is not None:
            self._popen.wait(STOP_S)

    def close(self) -> None:
        """End it: kindly first, then not. Children still hanging on it go too."""
        if not self.is_running:
            return
        children = children_of(self.pid)
        self._send(signal.SIGCONT)
        self._send(signal.SIGTERM)
        try:
            self.wait(STOP_S)
        except AssertionError:
            self.kill()
        for child in children:
            child.kill()

    def _send(self, number: int) -> None:
        """Signal it, unless it has ended: it may end by itself between a look and the signal."""
        with contextlib.suppress(ProcessLookupError):
            if self.is_running:
                os.kill(self.pid, number)

    def __enter__(self) -> Self:
        return self if self.is_running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if exc is not None:
            exc.add_note(self.tail())


class Server(Program):
    """A running `yard server`."""

    url: str

    @property
    def admin_token(self) -> str:
        """The administrator's token: without a terminal the first start puts it into a file, which its log names."""
        named = re.search(r"\btoken_file=(\S+)", self.log)
        assert named, f"{self.name} named no file with a token\n{self.tail()}"
        return Path(named[1]).read_text(encoding="utf-8").strip()

    def wait_ready(self, timeout_s: float = START_S) -> Self:
        self.wait_for(lambda: is_ready(self.url), timeout_s, f"{self.url}/readyz answers 200")
        return self

    def restart(self) -> Self:
        """Start it again on the same port and data, after it ended or was killed."""
        self.close()
        return self.start().wait_ready()


class Agent(Program):
    """A running `yard agent`."""

    cluster: str
    data: Path


def start_server(
    tmp: Path,
    *,
    database: str | None = None,
    port: int | None = None,
    auth: bool = False,
    extra: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    name: str = "server",
    is_prepared: bool = True,
    is_warm: bool = True,
) -> Server:
    """`yard server` on a free port of loopback, its data under `tmp`; returns when it is ready.

    `is_prepared`: a new data folder has an SQLite file with the schema, and no row. Otherwise the server makes it.
    """
    port = port or free_port()
    data = tmp / f"{name}-data"
    if is_prepared and database is None and not data.exists():
        data.mkdir(parents=True, mode=0o700)
        (data / "switchyard.db").touch(mode=0o600)
        (data / "switchyard.db").write_bytes(migrated_file())
    argv = [*YARD, "server", "--data", str(data), "--http", f"127.0.0.1:{port}"]
    argv += ["--database", database] if database else []
    argv += [] if auth else ["--no-auth"]
    server = Server([*argv, *extra], tmp, name=name, env={**isolated_env(tmp), **(env or {})}, is_warm=is_warm)
    server.url = f"http://127.0.0.1:{port}"
    try:
        return server.start().wait_ready()
    except BaseException:
        server.close()
        raise


def start_agent(
    tmp: Path,
    server_url: str,
    cluster: str,
    *,
    graph: Path | Mapping[str, Any] | Sequence[Any] | None,
    token: str | None = None,
    backend: str = "local",
    data: Path | None = None,
    extra: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    reader: str | None = None,
    wait: bool = True,
    is_root_allowed: bool = True,
    is_warm: bool = True,
) -> Agent:
    """`yard agent` of a cluster; returns when the server says the cluster is up.

    Tests run as root on machines of their own, and most are not about accounts: so their agents start everybody's jobs
    unless `is_root_allowed` is false.

    With authentication, seeing that needs `reader`, the token of a user who may view the cluster; without one the agent
    is returned as soon as it is started. `wait=False` is for agents that are meant not to come up.
    """
    data = data or tmp / f"{cluster}-agent"
    argv = [*YARD, "agent", "--server", server_url, "--cluster", cluster, "--backend", backend, "--data", str(data)]
    if graph is not None:  # none: the agent finds out itself
        file = graph if isinstance(graph, Path) else _write_graph(tmp / f"{cluster}-graph.yaml", graph)
        argv += ["--graph", str(file)]
    argv += ["--token", token] if token else []
    argv += ["--allow-root"] if is_root_allowed else []
    # The log's name is unique per data folder, so two agents of one cluster do not share one.
    env = {**isolated_env(tmp), **(env or {})}
    agent = Agent([*argv, *extra], tmp, name=f"agent-{data.name}", env=env, is_warm=is_warm)
    agent.cluster, agent.data = cluster, data
    agent.start()
    if not wait or (token and not reader):
        return agent
    try:
        agent.wait_for(lambda: _is_up(server_url, cluster, reader), START_S, f"cluster {cluster} is up")
    except BaseException:
        agent.close()
        raise
    return agent


def yard(
    *args: str, env: Mapping[str, str], stdin: str | None = None, timeout_s: float = COMMAND_S, check: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run one `yard` command as a user would, without a terminal. `check`: a failure fails the test, with its words."""
    words, given = without_password(args)
    done = run_script([*YARD, *words], env={**env, **given}, stdin=stdin, timeout_s=timeout_s)
    if check and done.returncode != 0:
        raise AssertionError(f"yard {' '.join(args)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def without_password(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The words of a command, and the environment for its database: a URL with a password is refused as a word."""
    words = list(argv)
    if "--database" in words:
        at = words.index("--database")
        if urllib.parse.urlsplit(words[at + 1]).password:
            return words[:at] + words[at + 2 :], {"YARD_DATABASE_URL": words[at + 1]}
    return words, {}


def isolated_env(tmp: Path, *, url: str | None = None, token: str | None = None) -> dict[str, str]:
    """An environment with nothing of the person who runs the tests: own HOME, own YARD_CONFIG, no colours."""
    home = tmp / "home"
    home.mkdir(parents=True, exist_ok=True)
    env = {
        "PATH": f"{Path(sys.executable).parent}:{PATH}",
        "HOME": str(home),
        "YARD_CONFIG": str(home / "yard.yaml"),
        "LANG": "C.UTF-8",
        "NO_COLOR": "1",
        "COLUMNS": "200",
        "PYTHONUNBUFFERED": "1",
        STRAY_MARK: str(tmp),
    }
    if url:
        env["YARD_URL"] = url
    if token:
        env["YARD_TOKEN"] = token
    return env


def off_clock(offset: str) -> dict[str, str]:
    """Environment for a program whose wall clock is off, e.g. "+1h" or "-90m". Its monotonic clock stays true."""
    # The library directly, not the `faketime` command, which forks: the pid would be the wrapper's.
    # Its "monotonic fix" (of condition variables) now and then crashes a program with several threads; the monotonic
    # clock is left alone anyway.
    alone = {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_FORCE_MONOTONIC_FIX": "0"}
    return {"LD_PRELOAD": str(need_faketime()), "FAKETIME": offset, **alone}


@dataclass(frozen=True)
class MovableClock:
    """A wall clock for programs that can be moved while they run; their monotonic clock stays true."""

    file: Path

    @property
    def env(self) -> dict[str, str]:
        if not self.file.exists():
            self.move("+0")
        read_each_time = {"FAKETIME_TIMESTAMP_FILE": str(self.file), "FAKETIME_NO_CACHE": "1"}
        return {name: value for name, value in off_clock("").items() if name != "FAKETIME"} | read_each_time

    def move(self, offset: str) -> None:
        """How far it is off from now on, e.g. "+3600" (seconds) or "-1h"."""
        part = self.file.with_suffix(".part")
        part.write_text(f"{offset}\n", encoding="utf-8")
        part.chmod(0o644)
        part.replace(self.file)  # whoever reads it sees the old one or the new one, never half


@dataclass(frozen=True)
class Answer:
    """What the server said to one call."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def call(
    method: str,
    url: str,
    body: Any = None,
    *,
    token: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = CALL_S,
) -> Answer:
    """One HTTP call, past the SDK. `body`: bytes as they are, anything else as JSON. No answer is an OSError."""
    parts = urllib.parse.urlsplit(url)
    sent = {"Content-Type": "application/json", **(headers or {})}
    if token:
        sent["Authorization"] = f"Bearer {token}"
    payload = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    line = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=timeout_s)
    try:
        line.request(method, f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/", payload, sent)
        answer = line.getresponse()
        return Answer(answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read())
    except http.client.HTTPException as exc:
        raise ConnectionError(f"{method} {url}: {exc!r}") from exc
    finally:
        line.close()


def is_ready(url: str) -> bool:
    """Whether a server answers that it is ready."""
    try:
        return call("GET", f"{url}/readyz", timeout_s=PROBE_S).status == 200
    except OSError:
        return False


def _is_up(url: str, cluster: str, token: str | None) -> bool:
    try:
        answer = call("GET", f"{url}/v1/clusters/{cluster}", token=token, timeout_s=PROBE_S)
    except OSError:
        return False
    return answer.status == 200 and bool(answer.json["health"] == "up")


def _write_graph(file: Path, graph: Mapping[str, Any] | Sequence[Any]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(graph), encoding="utf-8")  # JSON is YAML
    return file
