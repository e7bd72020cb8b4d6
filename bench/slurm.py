"""Slurm: jobs through Switchyard against a loop of sbatch on the same cluster, and what a long queue costs the agent.

Both ways end when the last job has ended: for Slurm when its queue is empty, for Switchyard when the server says so.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.processes import children_of, until
from tests.programs import Agent, Server, call, start_agent
from tests.slurm_bed import SlurmCluster, slurm_running
from tests.slurm_conf import Spec

from bench import bed
from bench.table import Table
from switchyard.model.job import State
from switchyard.model.lifecycle import FINAL_STATES

JOBS = 1000
ROUNDS = 3  # of arrays: one run differs from the next by a second or two in twenty
QUEUED = 10_000
WATCH_S = 60.0
END_S = 900.0
LOOK_S = 0.25  # between two looks at who is left, both ways: looking takes from the same cores
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
            plain, ours = loop_of_sbatch(cluster, folder), bulk(server, cluster)
            both.add("jobs", f"{plain:.1f}", f"{ours:.1f}", f"{ours / plain:.2f}")
            by_hand, through = arrays(server, cluster, folder)
            ratio = sum(through) / sum(by_hand)
            both.add("array", _spread(by_hand), _spread(through), f"{ratio:.2f}")
            job = fill(server, cluster)
            busy.add(f"{QUEUED:,}", f"{share(agent):.1%}")
            ours, plain = cancel(server, job), cancel_by_hand(cluster)
            both.add(f"cancel of {QUEUED:,} that wait", f"{plain:.1f}", f"{ours:.1f}", f"{ours / plain:.1f}")
    return [both, busy]


@contextmanager
def agent_of(folder: Path, server: Server, cluster: SlurmCluster) -> Iterator[Agent]:
    site = folder / "site.yaml"
    site.write_text(json.dumps({"slurm": {"bin": str(cluster.bin)}}), encoding="utf-8")
    extra = ["--config", str(site), "--jobs-max", str(2 * QUEUED)]
    with start_agent(folder, server.url, cluster.name, graph=None, backend="slurm", extra=extra) as agent:
        yield agent


def arrays(server: Server, cluster: SlurmCluster, folder: Path) -> tuple[list[float], list[float]]:
    by_hand: list[float] = []
    through: list[float] = []
    for _ in range(ROUNDS):
        by_hand.append(array_of_sbatch(cluster, folder))
        through += [array(server, cluster), array(server, cluster)]
        by_hand.append(array_of_sbatch(cluster, folder))
    return by_hand, through


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


def bulk(server: Server, cluster: SlurmCluster) -> float:
    job = {"spec": {"command": [PROGRAM]}, "cluster": cluster.name}
    begun = time.monotonic()
    answer = call("POST", f"{server.url}/v1/jobs/bulk", {"jobs": [job] * JOBS})
    assert answer.status in (200, 201), answer.body
    return _until_done(server, begun)


def array(server: Server, cluster: SlurmCluster) -> float:
    job = {"spec": {"command": [PROGRAM]}, "cluster": cluster.name, "array": f"0-{JOBS - 1}"}
    begun = time.monotonic()
    answer = call("POST", f"{server.url}/v1/jobs", job)
    assert answer.status == 201, answer.body
    return _until_done(server, begun)


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


def cancel(server: Server, job: str) -> float:
    begun = time.monotonic()
    call("POST", f"{server.url}/v1/jobs/{job}/cancel", {})
    return _until_done(server, begun)


def cancel_by_hand(cluster: SlurmCluster) -> float:
    """As many tasks, in arrays of the size that Switchyard hands over."""
    words = ["--parsable", f"--array=0-{JOBS - 1}", "-o", "/dev/null", "--wrap", PROGRAM]
    numbers = [cluster.run("sbatch", *words).strip() for _ in range(QUEUED // JOBS)]
    begun = time.monotonic()
    cluster.run("scancel", *numbers)
    return _until_empty(cluster, begun)


def _until_empty(cluster: SlurmCluster, begun: float) -> float:
    return _until(lambda: not cluster.run("squeue", "-h", "-o", "%A").strip(), begun, "the queue is empty")


def _until_done(server: Server, begun: float) -> float:
    live = "&".join(f"state={state}" for state in State if state not in FINAL_STATES)

    def is_done() -> bool:
        return not call("GET", f"{server.url}/v1/jobs?{live}&limit=1").json["items"]

    return _until(is_done, begun, "every job has its end")


def _until(is_done: Callable[[], bool], begun: float, what: str) -> float:
    """In how many seconds from then."""
    while not is_done():
        assert time.monotonic() - begun < END_S, f"not within {END_S:g} s: {what}"
        time.sleep(LOOK_S)
    return time.monotonic() - begun


def _spread(times_s: list[float]) -> str:
    return f"{sum(times_s) / len(times_s):.1f} ({min(times_s):.1f} to {max(times_s):.1f})"


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
