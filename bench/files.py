"""Files of jobs: up and down against `cp` and `rsync`, the second time, and what staging adds to a job."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from tests.processes import free_port, until
from tests.programs import start_agent
from tests.slurm_daemon import answers

from bench import bed
from bench.table import Table
from switchyard import Client

SMALL_FILES = int(os.environ.get("BENCH_FILES_SMALL", "10000"))
SMALL_BYTES = 4096
LARGE_BYTES = int(os.environ.get("BENCH_FILES_LARGE_MIB", "2048")) * 2**20
GRAPH = {"nodes": 1, "each": {"core": 4, "memory": "8GiB"}}
JOBS = 20
ENDS_S = 1800.0
START_S = 60.0
ABOUT_TRANSFER = (
    f"{SMALL_FILES:,} files of 4 kB and one file of {LARGE_BYTES // 2**20:,} MiB, on one disk. Before each figure all "
    "dirty pages are written. *cp*: `cp -r`, then `sync` of the copy. *rsync*: the same by an rsync daemon over the "
    "loopback. *up*: hash, upload and seal. *again*: the same folder a second time. *job*: from the submit until the "
    "outputs are ready. The job does nothing and gives its folder back: the agent stages in, collects and uploads. "
    "*down*: fetch them."
)
ABOUT_STAGING = (
    f"One job after the other, {JOBS} of each: from the submit to the end of `true`, "
    "with and without 1 MB of new input."
)


def measure(folder: Path) -> list[Table]:
    columns = ["what", "cp s", "rsync s", "up s", "cp/up", "rsync/up", "again s", "job s", "down s"]
    transfers = Table("Files against cp and rsync", ABOUT_TRANSFER, [*columns, "cp/down", "rsync/down"])
    staging = Table("What staging adds to a job", ABOUT_STAGING, ["job", "p50 ms", "max ms"])
    with ExitStack() as stack:
        url = stack.enter_context(bed.database("sqlite"))
        server = stack.enter_context(bed.server(folder / "yard", url))
        stack.enter_context(start_agent(folder / "yard", server.url, "alpha", graph=GRAPH))
        client = stack.enter_context(Client(server.url))
        copies = stack.enter_context(_rsync_daemon(folder))
        for name, make in (("small", _small_files), ("large", _large_file)):
            source = folder / name
            source.mkdir()
            make(source)
            transfers.add(*_transfer(client, copies, name, source, folder))
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


def _transfer(client: Client, copies: str, name: str, source: Path, folder: Path) -> list[str]:
    # The copies stay: for a minute, ext4 looks at every inode that was just removed before it makes a new one.
    cp_s = _timed(lambda: _copy(["cp", "-r", str(source), str(folder / f"{name}-copy")], folder))
    rsync_s = _timed(lambda: _copy(["rsync", "-a", str(source), copies], folder))
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
    figures = (
        cp_s,
        rsync_s,
        up_s,
        cp_s / up_s,
        rsync_s / up_s,
        again_s,
        job_s,
        down_s,
        cp_s / down_s,
        rsync_s / down_s,
    )
    return [name, *(f"{figure:.2f}" for figure in figures)]


def _copy(command: list[str], folder: Path) -> None:
    subprocess.run(command, check=True)
    subprocess.run(["sync", "-f", str(folder)], check=True)


@contextmanager
def _rsync_daemon(folder: Path) -> Iterator[str]:
    """Where rsync copies to."""
    port, conf = free_port(), folder / "rsyncd.conf"
    (folder / "rsynced").mkdir()
    conf.write_text(
        f"use chroot = no\nuid = {os.getuid()}\ngid = {os.getgid()}\n"
        f"[copies]\npath = {folder / 'rsynced'}\nread only = no\n",
        encoding="utf-8",
    )
    words = ["--daemon", "--no-detach", f"--config={conf}", f"--port={port}", "--address=127.0.0.1"]
    daemon = subprocess.Popen(["rsync", *words])
    try:
        until(lambda: answers(("127.0.0.1", port)), START_S, "the rsync daemon answers")
        yield f"rsync://127.0.0.1:{port}/copies/"
    finally:
        daemon.terminate()
        daemon.wait()


def _require_equal(source: Path, fetched: Path) -> None:
    subprocess.run(["diff", "-rq", str(source), str(fetched)], check=True)


def _job_s(client: Client, file: Path, *, has_input: bool) -> float:
    file.write_bytes(os.urandom(1_000_000))
    began = time.monotonic()
    job = client.submit(["true"], files={"input": file} if has_input else None)
    assert job.wait(timeout_s=ENDS_S).state.value == "SUCCEEDED"
    return time.monotonic() - began


def _timed(call: Callable[[], object]) -> float:
    os.sync()  # or the figure pays for what the step before it left to write
    began = time.monotonic()
    call()
    return time.monotonic() - began
