"""Starts and stops the processes of the demo: the server and the agents. It knows no jobs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from switchyard.errors import YardError

START_S = 30.0  # the server's promise is 30 s; it takes about two
STOP_S = 5.0  # then SIGKILL
POLL_S = 0.05
LOG_LINES = 15  # of a program that failed
PORT_DEFAULT = 8080  # where `yard` looks when nobody says otherwise


class DemoProcesses:
    """The processes that the demo started. All of them end with the demo."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        # The demo must not touch the user's own file.
        self._env = {key: value for key, value in os.environ.items() if not key.startswith("YARD_")}
        self._env["YARD_CONFIG"] = str(folder / "yard.yaml")

    def server(self, port: int) -> str:
        """Start the server. Return its URL."""
        data = str(self._folder / "server")
        self._start("server", "server", "--data", data, "--http", f"127.0.0.1:{port}", "--no-auth")
        return f"http://127.0.0.1:{port}"

    def agent(self, cluster: str, graph: Mapping[str, Any], *, url: str) -> None:
        """Start the agent of a cluster with this resource graph."""
        has = self._folder / f"{cluster}.yaml"
        has.write_text(json.dumps(graph))  # JSON is YAML
        options = ("--server", url, "--cluster", cluster, "--backend", "local", "--graph", str(has))
        self._start(cluster, "agent", *options, "--data", str(self._folder / cluster))

    def _start(self, name: str, *args: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            # A session of its own: the terminal's Ctrl-C reaches the demo alone, which then ends all in order.
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", "switchyard.main", *args],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env,
                start_new_session=True,
            )

    def wait_for(self, condition: str, is_so: Callable[[], bool]) -> None:
        """Wait until `is_so` returns true. Raise if a process ends meanwhile, or after START_S."""
        end = time.monotonic() + START_S
        while not is_so():
            self.check()
            if time.monotonic() > end:
                raise YardError(
                    f"{condition}: not within {START_S:g} s.", next_step=f"Look at the logs in {self._folder}."
                )
            time.sleep(POLL_S)

    def check(self) -> None:
        """Raise if a process has ended."""
        for name, process in self._running.items():
            if process.poll() is not None:
                lines = (self._folder / f"{name}.log").read_text(errors="replace").splitlines()[-LOG_LINES:]
                tail = "\n".join(f"  {line}" for line in lines)
                raise YardError(
                    f"The demo's {name} ended with {process.returncode}; it said:\n{tail}",
                    next_step=f"Look at the logs in {self._folder}.",
                )

    def stop(self) -> None:
        """Stop all processes, the last started first."""
        for process in reversed(self._running.values()):
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        end = time.monotonic() + STOP_S
        for process in reversed(self._running.values()):
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()


def choose_port(*, usual: bool) -> int:
    """Return a free port. `usual`: prefer the default port."""
    for port in (PORT_DEFAULT, 0) if usual else (0,):
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            free_port: int = probe.getsockname()[1]
            return free_port
    raise YardError("There is no free port on 127.0.0.1.", next_step="Name one with --port.")
