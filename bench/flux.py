"""Flux: jobs through Switchyard against a loop of `flux submit`, and a pilot against direct submission to a busy Slurm.

Needs the command `flux` in the PATH. Every way ends when the last job has ended: for Flux when its queue is empty, for
Switchyard when the server says so.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.flux_bed import FluxInstance, FluxSpec, flux_running
from tests.processes import until
from tests.programs import Server, call, isolated_env, start_agent, yard
from tests.slurm_bed import SlurmCluster, slurm_running
from tests.slurm_conf import Spec

from bench import bed
from bench.both_ways import END_S, alternate, array, bulk, seconds_until, spread, until_all_ended
from bench.table import Table
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import FINAL_STATES

JOBS = 100
ROUNDS = 1  # each way: by hand, through, through, by hand
PROGRAM = "/bin/true"
INSTANCE = FluxSpec("bench", nodes=3, cores=4, gpus=0)
PILOT_JOBS = 500
NODES, CPUS = 4, 2  # as many CPUs as this machine has: a Flux instance counts the real ones
BUSY = Spec("busy", nodes=NODES, cpus=CPUS, accounting=True, sample_s=30)
OTHERS = 64  # jobs of others that wait when ours come
OTHERS_S = 5  # how long each runs
OTHERS_EVERY_S = 2.5  # and one more comes so often


def measure(folder: Path) -> list[Table]:
    assert shutil.which("flux"), "there is no command `flux` in the PATH"
    return [by_hand_or_through(folder / "flux"), pilot_or_direct(folder / "pilot")]


def by_hand_or_through(folder: Path) -> Table:
    table = Table(
        "Flux: through Switchyard or by hand",
        f"{JOBS} jobs of `{PROGRAM}` on one real Flux instance with {INSTANCE.nodes} brokers of {INSTANCE.cores} cores "
        "on this machine, each with its output in a file, until the last has ended: by a loop of `flux submit`, or one "
        "bulk submit to Switchyard. Then `flux submit --cc` against an array of as many tasks. "
        f"{2 * ROUNDS} times each, in the order by hand, through, through, by hand: the mean, the fastest and the "
        "slowest.",
        ["what", "by hand, s", "through Switchyard, s", "ratio"],
    )
    folder.mkdir()
    with flux_running(INSTANCE) as flux, bed.server(folder / "server", None) as server:
        instance = flux[INSTANCE.name]
        asked = (server, instance.spec.name, PROGRAM, JOBS)
        with flux_agent(folder, server, instance):
            for what, plain, ours in (
                ("jobs", lambda: loop_of_submits(instance, folder), lambda: bulk(*asked)),
                ("array", lambda: copies(instance, folder), lambda: array(*asked)),
            ):
                by_hand, through = alternate(plain, ours, ROUNDS)
                ratio = sum(through) / sum(by_hand)
                table.add(what, spread(by_hand), spread(through), f"{ratio:.2f}")
    return table


def pilot_or_direct(folder: Path) -> Table:
    table = Table(
        "A pilot against direct submission to a busy Slurm",
        f"{PILOT_JOBS} jobs of `sleep 1`, one CPU each, submitted in bulk to Switchyard, until the last has ended. The "
        f"Slurm cluster has {NODES} nodes of {CPUS} CPUs. {OTHERS} jobs of others wait before ours, each for one CPU "
        f"and {OTHERS_S} s, and another one comes every {OTHERS_EVERY_S} s. Direct: each job is a job of Slurm. Pilot: "
        f"`yard pilot --nodes {NODES}`, and the jobs go to it; its time counts from the command on, and what it waits "
        "for its nodes is in the last column.",
        ["way", "all done after, s", "of which until the first began, s"],
    )
    folder.mkdir()
    path = f"{Path(shutil.which('flux') or '').parent}:{isolated_env(folder)['PATH']}"
    with slurm_running(BUSY) as slurm, bed.server(folder / "server", None) as server:
        cluster = slurm[BUSY.name]
        site = folder / "site.yaml"
        site.write_text(json.dumps({"slurm": {"bin": str(cluster.bin)}}), encoding="utf-8")
        options = ["--config", str(site), "--jobs-max", "2000"]
        with start_agent(
            folder, server.url, cluster.name, graph=None, backend="slurm", extra=options, env={"PATH": path}
        ):
            for way, run in (("direct", direct), ("pilot", pilot)):
                with others(cluster):
                    done_s, began_s = run(server, cluster, folder)
                table.add(way, f"{done_s:.0f}", f"{began_s:.0f}")
    return table


def direct(server: Server, cluster: SlurmCluster, folder: Path) -> tuple[float, float]:
    del folder
    begun = time.monotonic()
    first = submit_sleeps(server, cluster.name)
    return wait_for_sleeps(server, cluster.name, first, begun)


def pilot(server: Server, cluster: SlurmCluster, folder: Path) -> tuple[float, float]:
    env = isolated_env(folder, url=server.url)
    words = ["--nodes", str(NODES), "--time", "30m", "--name", "pilot", "--flux", str(shutil.which("flux"))]
    begun = time.monotonic()
    job = yard("pilot", "--cluster", cluster.name, *words, "-o", "name", env=env, check=True).stdout.strip()
    until(lambda: _health(server, "pilot") == "up", END_S, "the pilot is up")
    first = submit_sleeps(server, "pilot")
    found = wait_for_sleeps(server, "pilot", first, begun)
    yard("cancel", job, env=env, check=True)
    return found


@contextmanager
def others(cluster: SlurmCluster) -> Iterator[None]:
    """Jobs of others that wait already, and more that come until the end."""
    # With a time limit: for the pilot's nodes, Slurm's backfill reserves only what it knows the end of.
    words = ("--parsable", "-n1", "--time=1", "-o", "/dev/null", "--wrap", f"sleep {OTHERS_S}")
    for _ in range(OTHERS):
        cluster.run("sbatch", *words)
    is_over = threading.Event()

    def add() -> None:
        while not is_over.wait(OTHERS_EVERY_S):
            cluster.run("sbatch", *words)

    adding = threading.Thread(target=add)
    adding.start()
    try:
        yield
    finally:
        is_over.set()
        adding.join()
        cluster.cancel_all()


def submit_sleeps(server: Server, cluster: str) -> str:
    job = {"spec": {"command": ["sleep", "1"], "resources": {"time_limit": 60}}, "cluster": cluster}
    answer = call("POST", f"{server.url}/v1/jobs/bulk", {"jobs": [job] * PILOT_JOBS})
    assert answer.status in (200, 201), answer.body
    return str(answer.json["items"][0]["job"]["id"])


def wait_for_sleeps(server: Server, cluster: str, first: str, begun: float) -> tuple[float, float]:
    def has_begun() -> bool:
        return call("GET", f"{server.url}/v1/jobs/{first}").json["state"] in (State.RUNNING, *FINAL_STATES)

    began_s = seconds_until(has_begun, begun, "the first job begins")
    done_s = until_all_ended(server, cluster, begun)
    failed = call("GET", f"{server.url}/v1/jobs?cluster={cluster}&state={State.FAILED}&limit=1").json["items"]
    assert not failed, failed
    return done_s, began_s


@contextmanager
def flux_agent(folder: Path, server: Server, instance: FluxInstance) -> Iterator[None]:
    site = folder / "site.yaml"
    flux: dict[str, object] = {"uri": instance.uri, "bin": str(Path(shutil.which("flux") or "").parent)}
    flux["shell_options"] = {"cpu-affinity": "off"}
    site.write_text(json.dumps({"flux": flux}), encoding="utf-8")
    options = ["--config", str(site), "--jobs-max", str(2 * JOBS)]
    with start_agent(folder, server.url, instance.spec.name, graph=None, backend="flux", extra=options):
        yield


def loop_of_submits(instance: FluxInstance, folder: Path) -> float:
    """As a user's script does it: one `flux submit` after the other."""
    words = ["submit", "-o", "cpu-affinity=off", f"--output={folder}/{{{{id}}}}.out", PROGRAM]
    begun = time.monotonic()
    for _ in range(JOBS):
        instance.flux(*words)
    return _until_empty(instance, begun)


def copies(instance: FluxInstance, folder: Path) -> float:
    begun = time.monotonic()
    output = f"--output={folder}/{{{{id}}}}.out"
    instance.flux("submit", f"--cc=0-{JOBS - 1}", "-o", "cpu-affinity=off", output, PROGRAM)
    return _until_empty(instance, begun)


def _until_empty(instance: FluxInstance, begun: float) -> float:
    return seconds_until(lambda: not instance.flux("jobs", "-n", "-o", "{id}").strip(), begun, "the queue is empty")


def _health(server: Server, name: str) -> str:
    return str(call("GET", f"{server.url}/v1/clusters/{name}").json.get("health", ""))
