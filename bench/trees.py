"""What a submit costs the servers of two trees, in turn: `python -m bench.trees BEFORE AFTER`, each with a `.venv`.

Processor time, so another program on the machine changes little. The servers run side by side on SQLite.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from subprocess import DEVNULL, Popen

from tests.processes import free_port, until
from tests.programs import call

ROUNDS = 8
CLUSTERS = 20
BULKS, BULK_JOBS, SINGLES = 5, 1000, 300  # of a round
START_S = 60.0
JOB = {"spec": {"command": ["true"]}}


@dataclass(frozen=True, slots=True)
class TreeServer:
    url: str
    pid: int

    def us_per_job(self, path: str, body: object, *, requests: int, jobs: int) -> float:
        """Microseconds of a core for each job of so many equal requests."""
        before = self._cpu_s()
        for _ in range(requests):
            answer = call("POST", f"{self.url}{path}", body)
            assert answer.status < 300, answer.body
        return (self._cpu_s() - before) / jobs * 1e6

    def _cpu_s(self) -> float:
        words = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def tree_server(tree: Path, folder: Path) -> Iterator[TreeServer]:
    address = f"127.0.0.1:{free_port()}"
    command: list[str | Path] = [tree / ".venv/bin/python", "-m", "switchyard.main", "server", "--no-auth"]
    with Popen([*command, "--data", folder, "--http", address], cwd=folder, stdout=DEVNULL, stderr=DEVNULL) as process:
        try:
            url = f"http://{address}"
            until(lambda: _answers(url), START_S, f"the server of {tree} answers")
            for number in range(CLUSTERS):
                call("POST", f"{url}/v1/clusters", {"name": f"c{number}"})
                call("PUT", f"{url}/v1/clusters/c{number}/graph", {"nodes": 4, "each": {"core": 8}})
            yield TreeServer(url, process.pid)
        finally:
            process.kill()


def _answers(url: str) -> bool:
    with contextlib.suppress(OSError):
        return call("GET", f"{url}/v1/clusters").status == 200
    return False


def main(trees: list[Path]) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        servers = [stack.enter_context(tree_server(tree, Path(tempfile.mkdtemp(dir=folder)))) for tree in trees]
        bulks: dict[int, list[float]] = {server.pid: [] for server in servers}
        singles: dict[int, list[float]] = {server.pid: [] for server in servers}
        for number in range(-1, ROUNDS):
            for server in servers if number % 2 else reversed(servers):
                body = {"jobs": [JOB] * BULK_JOBS}
                bulk = server.us_per_job("/v1/jobs/bulk", body, requests=BULKS, jobs=BULKS * BULK_JOBS)
                single = server.us_per_job("/v1/jobs", JOB, requests=SINGLES, jobs=SINGLES)
                if number >= 0:  # the first round warms up
                    bulks[server.pid].append(bulk)
                    singles[server.pid].append(single)
        for tree, server in zip(trees, servers, strict=True):
            for what, times in (("bulk", bulks[server.pid]), ("single", singles[server.pid])):
                print(f"{tree} {what}: smallest {min(times):.0f}, median {median(times):.0f} µs of a core for each job")


if __name__ == "__main__":
    main([Path(tree).resolve() for tree in sys.argv[1:]])
