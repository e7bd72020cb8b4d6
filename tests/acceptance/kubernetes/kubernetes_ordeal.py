"""Random faults against a yard with real Kubernetes clusters, while jobs are submitted, and a count of what went wrong.

Each command leaves a line with its cluster, job and task in a ledger. Pods see the ledger's folder under its own path.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from switchyard import Client
from switchyard.errors import YardError
from switchyard.model.job.job import Job, State
from switchyard.model.job.lifecycle import FINAL_STATES
from tests.kube_cluster import KubernetesCluster
from tests.kube_image import BUSYBOX_IMAGE
from tests.processes import PATIENCE_S, until
from tests.programs import Agent, Server, start_agent
from tests.slurm_bed import SlurmCluster

RETRY_S = 300.0  # a client outlasts every fault here
ARRAY_TASKS = 5
ARRAY_EVERY = 4  # each fourth job is an array
NOTE = 'echo "$SWITCHYARD_CLUSTER/$SWITCHYARD_JOB_ID/$SWITCHYARD_ARRAY_INDEX" >> "$LEDGER"'
SLEEPS_S = (0, 0.3, 2)
# Short, so that a paused API server leaves calls in doubt.
API_TIMEOUT_S = 2.0
LIVE_PHASES = ("Pending", "Running", "Unknown")
# A daemon of a node was killed at the very moment in which a command began, or ended.
IN_DOUBT = re.compile(r"its node \S+ does not know (whether its command began|how it ended)")


@dataclass
class OrdealYard:
    """A server and an agent for each cluster. `clusters` and `agents` have the names that the server knows."""

    folder: Path
    server: Server
    agents: dict[str, Agent]
    clusters: dict[str, KubernetesCluster]
    slurm: SlurmCluster | None = None

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger"

    def heal(self) -> None:
        """Every daemon runs again."""
        for cluster in self.clusters.values():
            cluster.heal()
        if self.slurm is not None:
            self.slurm.heal_daemons()
        for program in (self.server, *self.agents.values()):
            if not program.is_running:
                program.start()
        self.server.wait_ready()


Fault = Callable[[OrdealYard, random.Random], None]


def kill_agent(yard: OrdealYard, chance: random.Random) -> None:
    """At whichever step it is just then, also at its start."""
    agent = chance.choice(list(yard.agents.values()))
    time.sleep(chance.random())  # how long is left to chance
    agent.kill()
    agent.start()


def kill_server(yard: OrdealYard, chance: random.Random) -> None:
    yard.server.kill()
    time.sleep(chance.uniform(0, 2))  # how long is left to chance
    yard.server.start().wait_ready()


def kill_api_server(yard: OrdealYard, chance: random.Random) -> None:
    cluster = chance.choice(list(yard.clusters.values()))
    cluster.kill("apiserver")
    time.sleep(chance.uniform(0, 2))  # how long is left to chance
    cluster.start("apiserver")


def pause_api_server(yard: OrdealYard, chance: random.Random) -> None:
    cluster = chance.choice(list(yard.clusters.values()))
    cluster.pause("apiserver")
    time.sleep(chance.uniform(0.5, 2.5 * API_TIMEOUT_S))  # how long is left to chance
    cluster.resume("apiserver")


def kill_agent_without_api_server(yard: OrdealYard, chance: random.Random) -> None:
    """The agent starts while its cluster does not answer."""
    name = chance.choice(list(yard.clusters))
    yard.clusters[name].kill("apiserver")
    yard.agents[name].kill()
    yard.agents[name].start()
    time.sleep(chance.uniform(0, 2))  # how long is left to chance
    yard.clusters[name].start("apiserver")


def restart_slurm_controller(yard: OrdealYard, chance: random.Random) -> None:
    """In an orderly way: a controller that is killed forgets jobs, which other tests are about."""
    assert yard.slurm is not None
    yard.slurm.stop("slurmctld")
    time.sleep(chance.random())  # how long is left to chance
    yard.slurm.heal_daemons()


def kill_control_plane_part(yard: OrdealYard, chance: random.Random) -> None:
    """Without a controller no pod is made, without a scheduler none gets a node."""
    cluster = chance.choice(list(yard.clusters.values()))
    name = chance.choice(["controller-manager", "scheduler"])
    cluster.kill(name)
    time.sleep(chance.uniform(0, 3))  # how long is left to chance
    cluster.start(name)


def pause_etcd(yard: OrdealYard, chance: random.Random) -> None:
    """Writes get no answer; some are carried out."""
    cluster = chance.choice(list(yard.clusters.values()))
    cluster.pause("etcd")
    time.sleep(chance.uniform(0.5, 2.5 * API_TIMEOUT_S))  # how long is left to chance
    cluster.resume("etcd")


def kill_node_daemon(yard: OrdealYard, chance: random.Random) -> None:
    """Containers go on without them. Back before the node counts as lost, nothing is evicted."""
    cluster = chance.choice(list(yard.clusters.values()))
    node = chance.choice(cluster.spec.node_names)
    cluster.kill(f"{chance.choice(['kubelet', 'containerd'])}/{node}")
    for kind in ("containerd", "kubelet"):  # a kubelet ends where there is no containerd
        cluster.start(f"{kind}/{node}")


PROGRAM_FAULTS: Mapping[str, Fault] = {"an agent killed": kill_agent, "the server killed": kill_server}
API_FAULTS: Mapping[str, Fault] = {
    "an API server killed": kill_api_server,
    "an API server paused": pause_api_server,
    "an agent killed while its API server is away": kill_agent_without_api_server,
}
SLURM_FAULTS: Mapping[str, Fault] = {"Slurm's controller restarted": restart_slurm_controller}
DEEP_FAULTS: Mapping[str, Fault] = {
    "a controller manager or scheduler killed": kill_control_plane_part,
    "etcd paused": pause_etcd,
    "a kubelet or containerd killed": kill_node_daemon,
}


@dataclass
class Submitted:
    """What the client submitted: the lines that must be in the ledger, by job."""

    tasks_by_job: dict[str, list[str]] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """What went wrong, over all commands."""

    jobs: int
    commands: int
    runs_by_cluster: dict[str, int]
    lost: list[str]
    twice: list[str]
    stuck: list[str]
    failed: list[str]
    in_doubt: list[str]  # failed, since their node does not know whether they began, or how they ended
    unknown: list[str]  # ran, and nobody submitted them
    refusals: list[str]
    faults: dict[str, int]

    @property
    def wrong(self) -> dict[str, list[str]]:
        named = {
            "lost": self.lost,
            "twice": self.twice,
            "stuck": self.stuck,
            "failed": self.failed,
            "unknown": self.unknown,
            "refused": self.refusals,
        }
        return {name: found for name, found in named.items() if found}

    def text(self) -> str:
        clusters = ", ".join(f"{name} {count}" for name, count in sorted(self.runs_by_cluster.items()))
        faults = ", ".join(f"{name}: {count}" for name, count in sorted(self.faults.items()))
        return (
            f"{self.jobs} jobs with {self.commands} commands ({clusters}); lost {len(self.lost)}, "
            f"twice {len(self.twice)}, stuck {len(self.stuck)}, failed {len(self.failed)}, "
            f"in doubt {len(self.in_doubt)}\nfaults: {faults}"
        )


def undergo(
    yard: OrdealYard, faults: Mapping[str, Fault], *, seed: int, faults_s: float, pause_s: float, settle_s: float
) -> Outcome:
    """Submit jobs and break things for `faults_s`, each kind as often; then heal all, and count when all jobs ended.

    Each kind happens at least once.
    """
    chance, counts = random.Random(seed), Counter[str]()
    deck = chance.sample(list(faults), len(faults))
    with submitting(yard, pause_s=pause_s) as submitted:
        end_s = time.monotonic() + faults_s
        try:
            while deck or time.monotonic() < end_s:
                deck = deck or chance.sample(list(faults), len(faults))  # each kind once, in a new order
                name = deck.pop()
                counts[name] += 1
                faults[name](yard, chance)
                time.sleep(chance.random())  # how long is left to chance
        finally:
            yard.heal()
    healed_s = time.monotonic()
    with Client(yard.server.url, retry_s=RETRY_S) as client:
        outcome = _count(yard, client, submitted, counts, settle_s=settle_s)
    print(f"seed {seed}: {outcome.text()}; all had ended {time.monotonic() - healed_s:.0f} s after the last")
    return outcome


@contextlib.contextmanager
def submitting(yard: OrdealYard, *, pause_s: float) -> Iterator[Submitted]:
    """A client submits all the time, through all faults of the server."""
    submitted, stop = Submitted(), threading.Event()

    def submit_all() -> None:
        number = 0
        with Client(yard.server.url, retry_s=RETRY_S, timeout_s=10.0) as client:
            while not stop.wait(pause_s):
                try:
                    _submit(client, yard, submitted, number)
                except YardError as exc:
                    submitted.refusals.append(f"{exc.code}: {exc.detail}")
                number += 1

    thread = threading.Thread(target=submit_all, name="submitting")
    thread.start()
    try:
        yield submitted
    finally:
        stop.set()
        thread.join(RETRY_S + PATIENCE_S)
    assert not thread.is_alive(), "the client hangs"


def _submit(client: Client, yard: OrdealYard, submitted: Submitted, number: int) -> None:
    command = ["/bin/sh", "-c", f"{NOTE}; sleep {SLEEPS_S[number % len(SLEEPS_S)]}"]
    is_array = number % ARRAY_EVERY == ARRAY_EVERY - 1
    array = f"0-{ARRAY_TASKS - 1}" if is_array else None
    job = client.submit(command, env={"LEDGER": str(yard.ledger)}, cores=1, memory="32MiB", array=array)
    tasks = [str(task) for task in range(ARRAY_TASKS)] if is_array else [""]
    submitted.tasks_by_job[job.id] = [f"{job.id}/{task}" for task in tasks]


def _count(
    yard: OrdealYard, client: Client, submitted: Submitted, faults: Mapping[str, int], *, settle_s: float
) -> Outcome:
    expected = {line for lines in submitted.tasks_by_job.values() for line in lines}
    live = [state for state in State if state not in FINAL_STATES]
    deadline_s = time.monotonic() + settle_s
    while (stuck := list(client.jobs(state=live))) and time.monotonic() < deadline_s:
        time.sleep(1.0)  # jobs that are left then are counted as stuck
    lines = yard.ledger.read_text(encoding="utf-8").split() if yard.ledger.exists() else []
    runs = Counter(line.partition("/")[2] for line in lines)
    jobs = {job.id: job for job in client.jobs()}
    failures = {
        line: reason
        for job in jobs.values()
        if job.state in FINAL_STATES and job.state is not State.SUCCEEDED
        for line, reason in _failures(client, job)
    }
    in_doubt = {line for line, reason in failures.items() if IN_DOUBT.search(reason)}
    return Outcome(
        jobs=len(submitted.tasks_by_job),
        commands=len(expected),
        runs_by_cluster=dict(Counter(line.partition("/")[0] for line in lines)),
        lost=sorted(submitted.tasks_by_job.keys() - jobs.keys()) + sorted(expected - runs.keys() - in_doubt),
        twice=sorted(line for line, times in runs.items() if times > 1),
        stuck=[f"{job.id}: {job.state} on {job.cluster}: {job.reason}" for job in stuck],
        failed=[f"{line}: {reason}" for line, reason in failures.items() if line not in in_doubt],
        in_doubt=sorted(in_doubt),
        unknown=sorted(runs.keys() - expected),
        refusals=submitted.refusals,
        faults=dict(faults),
    )


def _failures(client: Client, job: Job) -> list[tuple[str, str]]:
    """The lines of a job's commands that did not succeed, each with its reason."""
    if job.tasks is None:
        return [(f"{job.id}/", f"{job.state} on {job.cluster}: {job.reason}")]
    return [
        (f"{job.id}/{task.index}", f"{task.state} on {task.cluster}: {task.reason}")
        for task in client.tasks(job.id)
        if task.state is not State.SUCCEEDED
    ]


def live_pods(cluster: KubernetesCluster, namespace: str) -> list[str]:
    """Pods of the namespace that have not ended."""
    found = cluster.request("GET", f"/api/v1/namespaces/{namespace}/pods")
    return [pod["metadata"]["name"] for pod in found["items"] if pod["status"].get("phase") in LIVE_PHASES]


@contextlib.contextmanager
def kubernetes_agents(
    folder: Path, server: Server, clusters: Sequence[KubernetesCluster]
) -> Iterator[dict[str, Agent]]:
    """An agent for each cluster, with a namespace of its own there. At the end no pod of it is left alive."""
    namespace = f"ordeal-{os.urandom(4).hex()}"
    volume, mount = {"name": "ledger", "hostPath": {"path": str(folder)}}, {"name": "ledger", "mountPath": str(folder)}
    template = {"spec": {"volumes": [volume], "containers": [{"name": "main", "volumeMounts": [mount]}]}}
    with contextlib.ExitStack() as stack:
        agents = {}
        for cluster in clusters:
            cluster.create_namespace(namespace)
            stack.callback(cluster.kubectl, "delete", "namespace", namespace, "--wait=false")
            section = {
                "kubeconfig": str(cluster.kubeconfig),
                "namespace": namespace,
                "image": BUSYBOX_IMAGE,
                "timeout_s": API_TIMEOUT_S,
                "grace_s": 1,
                "template": template,
            }
            site = folder / f"{cluster.name}-site.yaml"
            site.write_text(json.dumps({"kubernetes": section}), encoding="utf-8")  # JSON is YAML
            name, extra = f"kubernetes-{cluster.name}", ["--config", str(site)]
            agents[name] = stack.enter_context(
                start_agent(folder, server.url, name, graph=None, backend="kubernetes", extra=extra)
            )
        yield agents
        for cluster in clusters:
            until(lambda cluster=cluster: not live_pods(cluster, namespace), PATIENCE_S, "every pod has ended")
