"""Kubernetes: Jobs through Switchyard against a plain loop over the API, an agent beside ended Jobs, reaction times.

Both ways end when the last job has ended: for the loop when every Job is complete, for Switchyard when the server says
so.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.kube_bed import kubernetes_running
from tests.kube_cluster import KubernetesCluster
from tests.kube_conf import KubernetesSpec
from tests.kube_image import BUSYBOX_IMAGE
from tests.processes import until
from tests.programs import Agent, Server, call, start_agent

from bench import bed
from bench.kubernetes_raw import (
    CORES,
    END_S,
    MEMORY_MIB,
    create_ended_jobs,
    following_pod_ends,
    machine_s,
    open_api,
    remove_jobs,
    run_plain_jobs,
)
from bench.slurm import share
from bench.table import Table
from switchyard import Client
from switchyard.features.kubernetes.agent.jobs.job_submitter import AGENT_LABEL
from switchyard.features.kubernetes.agent.pods.labels import CLUSTER_LABEL, MANAGED_BY_LABEL, MANAGER
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import FINAL_STATES

JOBS = int(os.environ.get("BENCH_KUBERNETES_JOBS", "500"))
ENDED = int(os.environ.get("BENCH_KUBERNETES_ENDED", "5000"))
REACTIONS = int(os.environ.get("BENCH_KUBERNETES_REACTIONS", "60"))
LOOK_S = 0.25
NAMESPACE = "bench"
# What takes the time is the kubelets' work, on the machine's few cores. Room for so many pods at once keeps them busy.
CLUSTER = KubernetesSpec("bench", nodes=2, cpus=8)


def measure(folder: Path) -> list[Table]:
    both = Table(
        "Kubernetes: through Switchyard or by the API",
        f"{JOBS:,} jobs of `true` on one real Kubernetes of this machine ({CLUSTER.nodes} nodes, room for "
        f"{CLUSTER.nodes * CLUSTER.cpus} pods at a time), until the last has ended: Jobs created by a plain loop over "
        "the API, 8 at a time, and followed by one watch; or one bulk submit to Switchyard, whose agent also keeps the "
        "output of each. In the order by the API, through, through, by the API, each in an empty namespace: the mean "
        "and both. All share the machine's cores: server, agent, control plane and nodes.",
        ["what", "by the API, s", "through Switchyard, s", "ratio"],
    )
    ended = Table(
        "An agent beside many ended Jobs",
        f"An agent without jobs to run. {ENDED:,} Jobs of its own that have ended are in the cluster; without pods, so "
        "that nodes do not count. CPU over 60 s. *Restart*: from the start of the agent to the end of a job that "
        "waited for it.",
        ["ended Jobs", "CPU of a core", "memory MiB", "restart s"],
    )
    reaction = Table(
        "From the pod's end to the job's end",
        f"{REACTIONS} jobs one after the other. *Command to API*: from the command's last act to the moment at which "
        "a watch shows the pod's end; that is the kubelet's. *API to job*: from there to the answer of a waiting "
        "client, with the output kept; that is Switchyard's.",
        ["what", "p50 ms", "p90 ms", "max ms"],
    )
    with kubernetes_running(CLUSTER) as kubernetes, bed.server(folder / "server", None) as server:
        cluster = kubernetes[CLUSTER.name]
        cluster.create_namespace(NAMESPACE)
        with agent_of(folder, server, cluster) as agent:
            plain, ours = both_ways(server, cluster)
            both.add("jobs", _spread(plain), _spread(ours), f"{sum(ours) / sum(plain):.2f}")
            for what, times_s in reactions(server, cluster).items():
                cuts = statistics.quantiles(times_s, n=10)
                reaction.add(what, *(f"{value * 1000:.0f}" for value in (cuts[4], cuts[8], max(times_s))))
            remove_jobs(cluster, NAMESPACE)
            ended.add("0", *beside(agent, server))
            labels = own_labels(agent)
            create_ended_jobs(open_api(cluster), NAMESPACE, ENDED, labels=labels)
            ended.add(f"{ENDED:,}", *beside(agent, server))
    return [both, ended, reaction]


@contextmanager
def agent_of(folder: Path, server: Server, cluster: KubernetesCluster) -> Iterator[Agent]:
    site = folder / "site.yaml"
    section = {"kubeconfig": str(cluster.kubeconfig), "namespace": NAMESPACE, "image": BUSYBOX_IMAGE}
    site.write_text(json.dumps({"kubernetes": section}), encoding="utf-8")
    extra = ["--config", str(site)]
    with start_agent(folder, server.url, cluster.name, graph=None, backend="kubernetes", extra=extra) as agent:
        yield agent


def both_ways(server: Server, cluster: KubernetesCluster) -> tuple[list[float], list[float]]:
    api = open_api(cluster)
    times_s: dict[str, list[float]] = {"plain": [], "ours": []}
    for way in ("plain", "ours", "ours", "plain"):
        times_s[way].append(run_plain_jobs(api, NAMESPACE, JOBS) if way == "plain" else bulk(server, cluster))
        sys.stderr.write(f"{way}: {times_s[way][-1]:.1f} s\n")
        remove_jobs(cluster, NAMESPACE)
    return times_s["plain"], times_s["ours"]


def bulk(server: Server, cluster: KubernetesCluster) -> float:
    spec = {"command": ["true"], "resources": {"cores": CORES, "memory": f"{MEMORY_MIB}MiB"}}
    begun = time.monotonic()
    answer = call("POST", f"{server.url}/v1/jobs/bulk", {"jobs": [{"spec": spec, "cluster": cluster.name}] * JOBS})
    assert answer.status in (200, 201), answer.body
    live = "&".join(f"state={state}" for state in State if state not in FINAL_STATES)
    while call("GET", f"{server.url}/v1/jobs?{live}&limit=1").json["items"]:
        assert time.monotonic() - begun < END_S, "every job has its end"
        time.sleep(LOOK_S)
    took_s = time.monotonic() - begun
    failed = call("GET", f"{server.url}/v1/jobs?state={State.FAILED}&limit=1").json["items"]
    assert not failed, failed
    return took_s


@dataclass(frozen=True)
class Reaction:
    command_s: float  # the moment of the command's last act
    api_s: float
    client_s: float


def reactions(server: Server, cluster: KubernetesCluster) -> dict[str, list[float]]:
    with following_pod_ends(cluster, NAMESPACE) as ends, Client(server.url) as client:
        seen: list[Reaction] = []
        for _ in range(REACTIONS):
            job = client.submit(["cat", "/proc/uptime"], cluster=cluster.name, cores=CORES, memory=f"{MEMORY_MIB}MiB")
            done = job.wait(timeout_s=END_S)
            now_s = machine_s()
            assert done.state is State.SUCCEEDED, done
            # The bench's own watch may be behind the agent's.
            until(lambda job=job: job.id in ends.at_s, END_S, "the watch shows the end of the pod")
            seen.append(Reaction(float(job.output().split()[0]), ends.at_s[job.id], now_s))
    return {
        "command to API": [one.api_s - one.command_s for one in seen],
        "API to job": [one.client_s - one.api_s for one in seen],
        "command to job": [one.client_s - one.command_s for one in seen],
    }


def own_labels(agent: Agent) -> dict[str, str]:
    """The labels by which the agent follows its Jobs."""
    name = (agent.data / "kubernetes" / "agent").read_text(encoding="utf-8").strip()
    return {MANAGED_BY_LABEL: MANAGER, CLUSTER_LABEL: agent.cluster, AGENT_LABEL: name}


def beside(agent: Agent, server: Server) -> tuple[str, str, str]:
    """CPU, memory and the time of a restart."""
    agent.terminate()
    with Client(server.url) as client:
        job = client.submit(["true"], cluster=agent.cluster, cores=CORES, memory=f"{MEMORY_MIB}MiB")
        begun = time.monotonic()
        agent.start()
        done = job.wait(timeout_s=END_S)
        restart_s = time.monotonic() - begun
    assert done.state is State.SUCCEEDED, done
    cpu = share(agent)
    return f"{cpu:.1%}", f"{_memory_mib(agent.pid):.0f}", f"{restart_s:.1f}"


def _memory_mib(pid: int) -> float:
    rows = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(row.split()[1]) / 1024 for row in rows if row.startswith("VmRSS:"))


def _spread(times_s: Sequence[float]) -> str:
    return f"{statistics.mean(times_s):.1f} ({', '.join(f'{value:.1f}' for value in times_s)})"
