"""`yard demo`: run a server, three clusters and 14 jobs on this machine, and explain two placements."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from switchyard.cli.jobs.explain import print_heading
from switchyard.cli.jobs.job_view import format_exit, format_run_time
from switchyard.cli.jobs.verdicts import print_explanation
from switchyard.cli.terminal.output import has_colour, paint, print_notice, printable
from switchyard.cli.terminal.parser import Parser
from switchyard.cli.terminal.table import Column, format_table, now_us
from switchyard.cli.terminal.terminal import drawing
from switchyard.errors import EXIT_ERROR, EXIT_OK, TimedOut, YardError
from switchyard.model.cluster.cluster import Health
from switchyard.model.job.job import Job, State
from switchyard.model.job.lifecycle import FINAL_STATES
from switchyard.sdk.client import CoreClient

JOBS_S = 50.0  # for all jobs together; they take about six
POLL_S = 0.2
CANCEL_S = 5.0  # for jobs that still run when the demo is stopped
DEMO_LABEL = "demo"

ABOUT = """\
Start a server and three clusters on this machine, submit 14 different jobs, show them run, and say why two of
them went where they went. Everything is real but small: agents with the local backend, on a database of its own."""
EXAMPLES = """\
  yard demo
  DEMO_EXIT=1 yard demo                    stop by itself; exit 0 if every job ended as it must

Without a terminal it stops by itself, too. On a terminal it keeps running until Ctrl-C, so that you can look around."""
START_S = 30.0  # the server's promise is 30 s; it takes about two
STOP_S = 5.0  # then SIGKILL
CHECK_S = 0.05
LOG_LINES = 15  # of a program that failed
PORT_DEFAULT = 8080  # where `yard` looks when nobody says otherwise
REDRAWS_PER_S = 8
COLUMNS = (
    Column("JOB"),
    Column("ASKS FOR", flexible=True),
    Column("CLUSTER"),
    Column("STATE"),
    Column("TIME", right=True),
    Column("EXIT", right=True),
    Column("REASON", flexible=True),
)


def main(argv: list[str]) -> int:
    parser = Parser("yard demo", ABOUT, examples=EXAMPLES)
    parser.add_argument("--dir", metavar="DIR", help="keep files and logs there (default: a temporary folder)")
    parser.add_argument("--port", type=int, metavar="P", help="the server's port (default: a free one)")
    args = parser.parse_args(argv)
    is_staying = sys.stdout.isatty() and not os.environ.get("DEMO_EXIT")
    _isolate_environment()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit_on_signal)
    folder = Path(args.dir or tempfile.mkdtemp(prefix="yard-demo-")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    programs = DemoProcesses(folder)
    is_worth_keeping = True  # keep the logs after a failure
    try:
        code = _run(programs, folder, args, is_staying=is_staying)
        is_worth_keeping = code != EXIT_OK
    except (KeyboardInterrupt, SystemExit):
        is_worth_keeping = False
        raise
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the cleanup is short and must complete
        programs.stop()
        if args.dir is None and not is_worth_keeping:
            shutil.rmtree(folder, ignore_errors=True)
    return code


def _isolate_environment() -> None:
    """Ignore the user's server, token and file."""
    for name in ("YARD_URL", "YARD_TOKEN"):
        os.environ.pop(name, None)
    os.environ["YARD_CONFIG"] = os.devnull


def _exit_on_signal(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def _run(programs: DemoProcesses, folder: Path, args: Namespace, *, is_staying: bool) -> int:
    print(f"Starting a server and the clusters {', '.join(CLUSTERS)}; logs are in {folder}.", flush=True)
    url = programs.server(args.port or choose_port(usual=is_staying))
    with CoreClient(url, retry_s=2) as yard:
        programs.wait_for("The server answers", lambda: _is_answering(url))
        for cluster, graph in CLUSTERS.items():
            programs.agent(cluster, graph, url=url)
        programs.wait_for("The three clusters are up", lambda: _are_all_up(yard))
        try:
            ended = _watch(yard, programs, _submit(yard))
            wrong = [fault for expected, job in ended for fault in find_faults(expected, job, _output(yard, job))]
            _explain(yard, [job for expected, job in ended if expected.name in (BIG_JOB, UNFITTING_JOB)])
            _print_outcome(wrong, folder)
            if is_staying and not wrong:
                _run_until_interrupt(programs, url)
            elif not wrong:
                print(f"The dashboard was at {url}/; stopping everything, as this is no terminal or DEMO_EXIT is set.")
        finally:
            _cancel_rest(yard)
    return EXIT_ERROR if wrong else EXIT_OK


def _is_answering(url: str) -> bool:
    with CoreClient(url, retry_s=0) as probe:
        try:
            return bool(probe.version())
        except YardError:
            return False


def _are_all_up(yard: CoreClient) -> bool:
    up = {cluster.name for cluster in yard.clusters() if cluster.health is Health.UP}
    return up >= set(CLUSTERS)


def _submit(yard: CoreClient) -> dict[str, DemoJob]:
    """Submit all demo jobs. Return them by job id."""
    jobs_by_id: dict[str, DemoJob] = {}
    for demo_job in JOBS:
        handle = yard.submit(demo_job.command, name=demo_job.name, labels={DEMO_LABEL: "yes"}, **demo_job.asks)
        jobs_by_id[handle.id] = demo_job
    return jobs_by_id


def _watch(yard: CoreClient, programs: DemoProcesses, jobs_by_id: dict[str, DemoJob]) -> list[tuple[DemoJob, Job]]:
    """Show the jobs until all have ended. Cancel the job that is to be cancelled once it runs."""
    asks = {demo_job.name: " ".join(f"{key}={value}" for key, value in demo_job.asks.items()) for demo_job in JOBS}
    view = DemoTable(len(jobs_by_id), asks=asks) if sys.stdout.isatty() else StateChangeLines(len(jobs_by_id))
    end = time.monotonic() + JOBS_S
    with view:
        while True:
            jobs = sorted(
                (job for job in yard.jobs(labels={DEMO_LABEL: "yes"}) if job.id in jobs_by_id), key=lambda job: job.id
            )
            view.show(jobs)
            for job in jobs:
                if jobs_by_id[job.id].cancel and job.state is State.RUNNING and not job.cancel_requested:
                    yard.cancel(job.id, reason="the demo shows how")
            if len(jobs) == len(jobs_by_id) and all(job.state in FINAL_STATES for job in jobs):
                return [(jobs_by_id[job.id], job) for job in jobs]
            programs.check()
            if time.monotonic() > end:
                late = ", ".join(f"{job.name} is {job.state.value}" for job in jobs if job.state not in FINAL_STATES)
                raise TimedOut(f"Not all jobs ended within {JOBS_S:g} s: {late}.", next_step="Look at the logs.")
            time.sleep(POLL_S)


def _output(yard: CoreClient, job: Job) -> str:
    return b"".join(chunk.data for chunk in yard.output(job.id).chunks).decode(errors="replace")


def _explain(yard: CoreClient, jobs: Sequence[Job]) -> None:
    for job in jobs:
        print(f"\n{paint(f'$ yard explain {job.id}', 'bold')}")
        explanation = yard.explain(job.id)
        print_heading(job, explanation)
        print_explanation(explanation)


def _print_outcome(wrong: Sequence[str], folder: Path) -> None:
    print()
    if wrong:
        print_notice("error: " + "; ".join(wrong))
        print_notice(f"next: Look at the logs in {folder}.")
    else:
        print(f"All {len(JOBS)} jobs ended as they must.")


def _run_until_interrupt(programs: DemoProcesses, url: str) -> None:
    """Keep the server and the agents running until Ctrl-C."""
    print(f"The dashboard is at {url}/ and the API at {url}/v1. In another terminal: YARD_URL={url} yard ls")
    print("Ctrl-C here stops everything.", flush=True)
    with suppress(KeyboardInterrupt):
        while True:
            programs.check()
            time.sleep(POLL_S)
    print("\nStopping.")


def _cancel_rest(yard: CoreClient) -> None:
    """Cancel all live jobs before the agents stop: jobs outlive their agents by design."""
    end = time.monotonic() + CANCEL_S
    with suppress(YardError):
        while live := [job for job in yard.jobs() if job.state not in FINAL_STATES]:
            for job in live:
                if not job.cancel_requested:
                    yard.cancel(job.id)
            if time.monotonic() > end:
                return
            time.sleep(POLL_S)


# The resources that each cluster claims. Jobs are real processes; GPUs and memory need not be real.
CLUSTERS: dict[str, dict[str, Any]] = {
    "alpha": {"nodes": 1, "each": {"core": 2, "memory": "4GiB"}},
    "beta": {"nodes": 1, "each": {"core": 4, "memory": "8GiB"}},
    "gamma": {"nodes": 1, "each": {"core": 8, "memory": "32GiB", "gpu": 2}},
}
EVERYWHERE = frozenset(CLUSTERS)


@dataclass(frozen=True, slots=True)
class DemoJob:
    """A job and its expected end. `output` must be part of its output, `reason` part of its reason."""

    name: str
    command: tuple[str, ...]
    asks: Mapping[str, Any] = field(default_factory=dict)
    state: State = State.SUCCEEDED
    clusters: frozenset[str] = EVERYWHERE
    exit_code: int | None = None
    output: str = ""
    reason: str = ""
    cancel: bool = False


BIG_JOB = "big"  # fits one cluster alone
UNFITTING_JOB = "nowhere"  # fits none

JOBS = (
    DemoJob("hello", ("sh", "-c", "echo hello from $SWITCHYARD_CLUSTER"), output="hello from "),
    DemoJob("count", ("seq", "1", "1000"), output="\n1000\n"),
    DemoJob("nap-1", ("sleep", "1")),
    DemoJob("nap-2", ("sleep", "2")),
    DemoJob("nap-3", ("sleep", "3")),
    DemoJob("two-cores", ("sleep", "1"), {"cores": 2}),
    DemoJob("four-cores", ("sleep", "1"), {"cores": 4}, clusters=frozenset({"beta", "gamma"})),
    DemoJob("on-alpha", ("sleep", "1"), {"cluster": "alpha"}, clusters=frozenset({"alpha"})),
    DemoJob("gpus", ("sleep", "1"), {"gpus": 2}, clusters=frozenset({"gamma"})),
    DemoJob(BIG_JOB, ("sleep", "1"), {"cores": 8, "memory": "16GiB"}, clusters=frozenset({"gamma"})),
    DemoJob(UNFITTING_JOB, ("true",), {"cores": 64}, state=State.REJECTED),
    DemoJob("fails", ("sh", "-c", "echo no luck >&2; exit 3"), state=State.FAILED, exit_code=3),
    DemoJob("too-slow", ("sleep", "300"), {"time_limit": 2}, state=State.FAILED, reason="time limit"),
    DemoJob("cancelled", ("sleep", "300"), state=State.CANCELLED, cancel=True),
)


def find_faults(expected: DemoJob, job: Job, output: str) -> list[str]:
    """Return the differences between the job and its expected end."""
    faults = []
    if job.state is not expected.state:
        faults.append(f"is {job.state.value}, not {expected.state.value} ({job.reason or 'no reason given'})")
    elif job.state is not State.REJECTED and job.cluster not in expected.clusters:
        faults.append(f"ran on {job.cluster}, not on {' or '.join(sorted(expected.clusters))}")
    if expected.exit_code is not None and job.exit_code != expected.exit_code:
        faults.append(f"exited with {job.exit_code}, not {expected.exit_code}")
    if expected.output not in output:
        faults.append(f"wrote {output[:60]!r}, without {expected.output!r}")
    if expected.reason not in job.reason:
        faults.append(f"has the reason {job.reason!r}, without {expected.reason!r}")
    return [f"{expected.name} {fault}" for fault in faults]


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
            time.sleep(CHECK_S)

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


class StateChangeLines:
    """Prints one line for each change of a job's state."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._states: dict[str, str] = {}
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, jobs: Sequence[Job]) -> None:
        done = sum(job.state in FINAL_STATES for job in jobs)
        for job in jobs:
            if self._states.get(job.id) != job.state.value:
                self._states[job.id] = job.state.value
                where = f" on {job.cluster}" if job.cluster else ""
                why = f": {job.reason}" if job.reason else ""
                line = f"{job.name:<11} {job.state.value}{where}{why}"
                passed = time.monotonic() - self._started
                print(f"{passed:5.1f}s  {done:>2}/{self._total}  {printable(line)}", flush=True)


class DemoTable:
    """A table of all jobs with a progress bar below, redrawn in place."""

    def __init__(self, total: int, *, asks: Mapping[str, str]) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._asks = asks
        self._bar = Progress(TextColumn("jobs ended"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._task = self._bar.add_task("jobs", total=total)
        self._live = Live(console=Console(file=drawing(sys.stdout)), refresh_per_second=REDRAWS_PER_S)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, jobs: Sequence[Job]) -> None:
        from rich.console import Group
        from rich.text import Text

        now = now_us()
        rows = [
            [
                job.name,
                self._asks.get(job.name, ""),
                job.cluster or "",
                job.state.value,
                format_run_time(job, now),
                format_exit(job),
                job.reason,
            ]
            for job in jobs
        ]
        lines = format_table(COLUMNS, rows, width=self._live.console.width, coloured=has_colour())
        table = Text.from_ansi("\n".join(lines), no_wrap=True, overflow="crop")
        self._bar.update(self._task, completed=sum(job.state in FINAL_STATES for job in jobs))
        self._live.update(Group(table, Text(), self._bar.get_renderable()))
