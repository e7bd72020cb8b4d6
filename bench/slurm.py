"""Slurm: jobs through Switchyard against a loop of sbatch on the same cluster, and what a long queue costs the agent.

Both ways end when the last job has ended: for Slurm when its queue is empty, for Switchyard when the server says so.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.processes import children_of, until
from tests.programs import Agent, Server, call, start_agent
from tests.slurm_bed import SlurmCluster, slurm_running
from tests.slurm_conf import Spec

from bench import bed
from bench.both_ways import END_S, alternate, array, bulk, seconds_until, spread, until_all_ended
from bench.table import Table

JOBS = 1000
ROUNDS = 3  # of arrays: one run differs from the next by a second or two in twenty
QUEUED = 10_000
WATCH_S = 60.0
PROGRAM = "/bin/true"  # a program both ways: `true` alone would be a word of sbatch's shell
# Enough room that the cluster is never what is waited for. Memory is looked at as often as Slurm does by default: for
# the end of a job that ran long enough for that, an agent waits until the accounts have it.
CLUSTER = Spec("bench", nodes=4, cpus=64, memory_mb=65_536, accounting=True, sample_s=30)
TICKS = os.sysconf("SC_CLK_TCK")


def measure(folder: Path) -> list[Table]:
    both = Table(
        "Slurm: through Switchyard or by hand",
        f"{JOBS:,} jobs of `{PROGRAM}` on one real Slurm of this machine, each with its output in a file, until the "
        "last has ended: by a loop of `sbatch`, or one bulk submit to Switchyard. Then an array of as many tasks both "
        f"ways, {2 * ROUNDS} times each in the order by hand, through, through, by hand, since a controller is the "
        "slower the more ended jobs it remembers: the mean, the fastest and the slowest. Last the cancel of an array "
        f"of {QUEUED:,} tasks that wait, or one `scancel` of as many. All share the machine's cores: server, agent, "
        "controller and nodes.",
        ["what", "by hand, s", "through Switchyard, s", "ratio"],
    )
    busy = Table(
        "An agent beside a long queue",
        f"CPU of the agent and of the commands it runs, for {WATCH_S:g} s, with {QUEUED:,} of its jobs waiting in the "
        "queue of Slurm.",
        ["jobs in the queue", "CPU of a core"],
    )
    with slurm_running(CLUSTER) as slurm, bed.server(folder / "server", None) as server:
        cluster = slurm[CLUSTER.name]
        with agent_of(folder, server, cluster) as agent:
            plain, ours = loop_of_sbatch(cluster, folder), bulk(server, cluster.name, PROGRAM, JOBS)
            both.add("jobs", f"{plain:.1f}", f"{ours:.1f}", f"{ours / plain:.2f}")
            by_hand, through = alternate(
                lambda: array_of_sbatch(cluster, folder), lambda: array(server, cluster.name, PROGRAM, JOBS), ROUNDS
            )
            ratio = sum(through) / sum(by_hand)
            both.add("array", spread(by_hand), spread(through), f"{ratio:.2f}")
            job = fill(server, cluster)
            busy.add(f"{QUEUED:,}", f"{share(agent):.1%}")
            ours, plain = cancel(server, cluster, job), cancel_by_hand(cluster)
            both.add(f"cancel of {QUEUED:,} that wait", f"{plain:.1f}", f"{ours:.1f}", f"{ours / plain:.1f}")
    return [both, busy]


@contextmanager
def agent_of(folder: Path, server: Server, cluster: SlurmCluster) -> Iterator[Agent]:
    site = folder / "site.yaml"
    site.write_text(json.dumps({"slurm": {"bin": str(cluster.bin)}}), encoding="utf-8")
    extra = ["--config", str(site), "--jobs-max", str(2 * QUEUED)]
    with start_agent(folder, server.url, cluster.name, graph=None, backend="slurm", extra=extra) as agent:
        yield agent


def loop_of_sbatch(cluster: SlurmCluster, folder: Path) -> float:
    """As a user's script does it: one sbatch after the other."""
    words = [str(cluster.bin / "sbatch"), "--parsable", "-o", f"{folder}/%j.out", "--wrap", PROGRAM]
    begun = time.monotonic()
    for _ in range(JOBS):
        subprocess.run(words, stdout=subprocess.DEVNULL, check=True, timeout=60)
    return _until_empty(cluster, begun)


def array_of_sbatch(cluster: SlurmCluster, folder: Path) -> float:
    begun = time.monotonic()
    cluster.run("sbatch", "--parsable", f"--array=0-{JOBS - 1}", "-o", f"{folder}/%A_%a.out", "--wrap", PROGRAM)
    return _until_empty(cluster, begun)


def fill(server: Server, cluster: SlurmCluster) -> str:
    """An array in the queue whose tasks never begin."""
    cluster.run("scontrol", "update", "PartitionName=main", "State=DOWN")
    job = {"spec": {"command": [PROGRAM]}, "cluster": cluster.name, "array": f"0-{QUEUED - 1}"}
    made = call("POST", f"{server.url}/v1/jobs", job)
    until(lambda: _queued(cluster) >= QUEUED, END_S, f"{QUEUED} jobs are in the queue")
    return str(made.json["id"])


def share(agent: Agent) -> float:
    """Of one core."""
    before, begun = _cpu_s(agent.pid), time.monotonic()
    time.sleep(WATCH_S)
    return (_cpu_s(agent.pid) - before) / (time.monotonic() - begun)


def cancel(server: Server, cluster: SlurmCluster, job: str) -> float:
    begun = time.monotonic()
    call("POST", f"{server.url}/v1/jobs/{job}/cancel", {})
    return until_all_ended(server, cluster.name, begun)


def cancel_by_hand(cluster: SlurmCluster) -> float:
    """As many tasks, in arrays of the size that Switchyard hands over."""
    words = ["--parsable", f"--array=0-{JOBS - 1}", "-o", "/dev/null", "--wrap", PROGRAM]
    numbers = [cluster.run("sbatch", *words).strip() for _ in range(QUEUED // JOBS)]
    begun = time.monotonic()
    cluster.run("scancel", *numbers)
    return _until_empty(cluster, begun)


def _until_empty(cluster: SlurmCluster, begun: float) -> float:
    return seconds_until(lambda: not cluster.run("squeue", "-h", "-o", "%A").strip(), begun, "the queue is empty")


def _queued(cluster: SlurmCluster) -> int:
    return len(cluster.run("squeue", "-h", "-r", "-t", "PENDING", "-o", "%A").split())


def _cpu_s(pid: int) -> float:
    """Of a process and its children, those that have ended too."""
    pids = [pid, *(child.pid for child in children_of(pid))]
    used = 0
    for each in pids:
        fields = Path(f"/proc/{each}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
        used += sum(int(fields[place]) for place in (11, 12, 13, 14))  # utime, stime, cutime, cstime
    return used / TICKS
