"""Files of jobs: up and down against `cp`, the second time, and what staging adds to a job."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from tests.programs import start_agent

from bench import bed
from bench.table import Table
from switchyard import Client

SMALL_FILES = int(os.environ.get("BENCH_FILES_SMALL", "10000"))
SMALL_BYTES = 4096
LARGE_BYTES = int(os.environ.get("BENCH_FILES_LARGE_MIB", "2048")) * 2**20
GRAPH = {"nodes": 1, "each": {"core": 4, "memory": "8GiB"}}
JOBS = 20
ENDS_S = 1800.0
ABOUT_TRANSFER = (
    f"{SMALL_FILES:,} files of 4 kB and one file of {LARGE_BYTES // 2**20:,} MiB, on one disk. *cp*: `cp -r`, then "
    "`sync` of the copy. *up*: hash, upload and seal. *again*: the same folder a second time. *job*: from the submit "
    "until the outputs are ready. The job does nothing and gives its folder back: the agent stages in, collects and "
    "uploads. *down*: fetch them."
)
ABOUT_STAGING = (
    f"One job after the other, {JOBS} of each: from the submit to the end of `true`, "
    "with and without 1 MB of new input."
)


def measure(folder: Path) -> list[Table]:
    columns = ["what", "cp s", "up s", "cp/up", "again s", "job s", "down s", "cp/down"]
    transfers = Table("Files against cp", ABOUT_TRANSFER, columns)
    staging = Table("What staging adds to a job", ABOUT_STAGING, ["job", "p50 ms", "max ms"])
    with ExitStack() as stack:
        url = stack.enter_context(bed.database("sqlite"))
        server = stack.enter_context(bed.server(folder / "yard", url))
        stack.enter_context(start_agent(folder / "yard", server.url, "alpha", graph=GRAPH))
        client = stack.enter_context(Client(server.url))
        for name, make in (("small", _small_files), ("large", _large_file)):
            source = folder / name
            source.mkdir()
            make(source)
            transfers.add(*_transfer(client, name, source, folder))
        for name, has_input in (("without files", False), ("1 MB in", True)):
            times = [_job_s(client, folder / "input", has_input=has_input) for _ in range(JOBS)]
            staging.add(name, f"{median(times) * 1e3:.0f}", f"{max(times) * 1e3:.0f}")
    return [transfers, staging]


def _small_files(folder: Path) -> None:
    for number in range(SMALL_FILES):
        place = folder / str(number % 100)
        place.mkdir(exist_ok=True)
        (place / f"{number}.dat").write_bytes(os.urandom(SMALL_BYTES))


def _large_file(folder: Path) -> None:
    with (folder / "large.dat").open("wb") as file:
        for _ in range(LARGE_BYTES // 2**20):
            file.write(os.urandom(2**20))


def _transfer(client: Client, name: str, source: Path, folder: Path) -> list[str]:
    # The copy stays: for a minute, ext4 looks at every inode that was just removed before it makes a new one.
    cp_s = _timed(lambda: _copy(source, folder / f"{name}-copy"))
    up_s = _timed(lambda: client.upload(workdir=source))
    again_s = _timed(lambda: client.upload(workdir=source))
    began = time.monotonic()
    job = client.submit(["true"], workdir=source, out=["**"])
    assert job.wait(timeout_s=ENDS_S).state.value == "SUCCEEDED"
    client.wait_for_outputs(job.id, timeout_s=ENDS_S)
    job_s = time.monotonic() - began
    down_s = _timed(lambda: client.fetch(job.id, to=folder / "fetched"))
    _require_equal(source, folder / "fetched")
    shutil.rmtree(folder / "fetched")
    figures = (cp_s, up_s, cp_s / up_s, again_s, job_s, down_s, cp_s / down_s)
    return [name, *(f"{figure:.2f}" for figure in figures)]


def _copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-r", str(source), str(target)], check=True)
    subprocess.run(["sync", "-f", str(target)], check=True)


def _require_equal(source: Path, fetched: Path) -> None:
    subprocess.run(["diff", "-rq", str(source), str(fetched)], check=True)


def _job_s(client: Client, file: Path, *, has_input: bool) -> float:
    file.write_bytes(os.urandom(1_000_000))
    began = time.monotonic()
    job = client.submit(["true"], files={"input": file} if has_input else None)
    assert job.wait(timeout_s=ENDS_S).state.value == "SUCCEEDED"
    return time.monotonic() - began


def _timed(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began
