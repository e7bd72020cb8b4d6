"""Troubles of a whole cluster: nodes and namespaces that go, rights that are taken away, clocks that are off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from switchyard.agent.backends import marker_of
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause
from tests.kube_cluster import KubernetesCluster
from tests.kube_image import BUSYBOX_IMAGE
from tests.kubernetes.builders import (
    END_S,
    KubernetesAgent,
    MakeAgent,
    a_job,
    begin,
    end_of,
    output_of,
    pods_of,
    runs,
    waits_for,
)
from tests.kubernetes.faulty_api import FaultyApi
from tests.kubernetes.rights import TakenRights
from tests.processes import PATIENCE_S, until
from tests.programs import off_clock

pytestmark = pytest.mark.kubernetes
ROOT = Path(__file__).parents[2]
ROUNDS = 20


@pytest.fixture
def api(cluster: KubernetesCluster, tmp_path: Path) -> Iterator[FaultyApi]:
    proxy = FaultyApi(cluster, tmp_path)
    yield proxy
    proxy.close()


@pytest.fixture
def rights(cluster: KubernetesCluster, namespace: str, api: FaultyApi) -> Iterator[TakenRights]:
    rights = TakenRights(cluster, namespace)
    rights.write_token(api.token)
    yield rights
    rights.remove()


# ---- Nodes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("daemon", ["node", "kubelet"])
def test_a_job_whose_node_is_removed_fails_in_words_and_runs_once(
    agent: KubernetesAgent, harmed_cluster: KubernetesCluster, daemon: str
) -> None:
    """With the kubelet alone, the container runs on: an operator who removes a node says that nothing does."""
    begin(agent, a_job(agent.folder, "sleep 600"))
    node = pods_of(agent)[0]["spec"]["nodeName"]
    harmed_cluster.kill(f"{daemon}/{node}")
    harmed_cluster.kubectl("delete", "node", node)
    end = end_of(agent)
    assert (end.seen, end.cause) == (ObservedState.FAILED, Cause.CLUSTER)
    assert node in end.reason, end.reason
    harmed_cluster.heal()
    agent.until(lambda: not pods_of(agent), "nothing of it is left")
    for _ in range(ROUNDS):
        agent.run_once()
        agent.backend.watch(0.05)
    assert (runs(agent.folder), len(agent.ends())) == (1, 1)


# ---- Rights ---------------------------------------------------------------------------------------


def test_rights_that_are_taken_away_hurt_no_job_and_are_told(
    make_agent: MakeAgent, api: FaultyApi, rights: TakenRights
) -> None:
    agent = make_agent(kubernetes=api.section)
    lease = a_job(agent.folder, f"{waits_for(agent)}; echo done; exit 3")
    name = begin(agent, lease)
    rights.take()
    api.cut()
    agent.until(lambda: "cannot" in str(agent.backend.state().values.get("watch_cut")), "the operator is told")
    (agent.folder / "go").touch()
    until(lambda: pods_of(agent)[0]["status"]["phase"] == "Failed", PATIENCE_S, "it ends meanwhile")
    late = a_job(agent.folder, "echo late")
    agent.journal.take([late])
    agent.until(lambda: any("cannot create resource" in text for text in waits(agent, late.job)), "the user is told")
    agent.kill()
    agent.start()  # it knows its nodes by the last start
    for _ in range(ROUNDS):
        agent.run_once()
        agent.backend.watch(0.1)
    assert not agent.ends()
    rights.give()
    agent.until(lambda: len(agent.ends()) == 2, "both jobs end")
    ends = {end.job: (end.seen, end.exit_code) for end in agent.ends()}
    assert ends == {lease.job: (ObservedState.FAILED, 3), late.job: (ObservedState.SUCCEEDED, 0)}
    assert (output_of(agent, name), output_of(agent, marker_of(late).lower())) == (b"done\n", b"late\n")
    assert runs(agent.folder) == 2
    agent.until(lambda: "watch_cut" not in agent.backend.state().values, "all is well again")


def waits(agent: KubernetesAgent, job: str) -> list[str]:
    """Why a job waits, as it was reported."""
    return [row.timed.report.reason for row in agent.journal.queued() if row.key[0] == job and not row.is_final]


# ---- Clocks ---------------------------------------------------------------------------------------


def run_off_clock(offset: str, api: FaultyApi, folder: Path, namespace: str, **more: Any) -> Any:
    """What an agent with this clock reported of a job."""
    more["kubernetes"] = {**api.section, **more.get("kubernetes", {})}
    told = {"folder": str(folder / "agent"), "namespace": namespace, "image": BUSYBOX_IMAGE, "script": "", **more}
    argv = [sys.executable, "-m", "tests.kubernetes.off_clock_agent", json.dumps(told)]
    env = {**os.environ, **off_clock(offset)}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=2 * END_S, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("offset", ["+1h", "-1h"])
def test_times_are_right_on_an_agent_whose_clock_is_off(
    api: FaultyApi, tmp_path: Path, namespace: str, offset: str
) -> None:
    told = run_off_clock(offset, api, tmp_path, namespace, script="sleep 5; exit 4")
    assert told["exit_code"] == 4
    assert 4 <= told["elapsed_s"] <= told["took_s"] + 1
    assert 4 <= told["ages_s"]["RUNNING"] <= told["took_s"] + 3, told  # the API's times are in whole seconds
    assert told["ages_s"]["FAILED"] <= told["took_s"] - 4 + 3, told


@pytest.mark.parametrize("offset", ["+1h", "-1h"])
def test_a_bounded_wait_takes_its_time_on_an_agent_whose_clock_is_off(
    api: FaultyApi, tmp_path: Path, namespace: str, offset: str
) -> None:
    wait_s = 10
    told = run_off_clock(
        offset, api, tmp_path, namespace, image="localhost/none:1", kubernetes={"image_wait_s": wait_s}
    )
    assert f"(for {wait_s} s)" in told["reason"], told
    assert wait_s - 3 <= told["took_s"] < END_S, told


# ---- Namespaces -----------------------------------------------------------------------------------


@pytest.fixture
def held_namespace(cluster: KubernetesCluster, namespace: str) -> Iterator[str]:
    """A namespace that stays while it is being deleted, for the sake of one object."""
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    cluster.request("POST", path, {"metadata": {"name": "held", "finalizers": ["example.com/held"]}})
    yield namespace
    cluster.request("PATCH", f"{path}/held", {"metadata": {"finalizers": None}})


def test_a_job_for_a_namespace_that_is_being_deleted_fails_in_words(
    held_namespace: str, agent: KubernetesAgent
) -> None:
    agent.cluster.kubectl("delete", "namespace", held_namespace, "--wait=false")
    agent.journal.take([a_job(agent.folder)])
    end = end_of(agent)
    assert (end.seen, end.cause) == (ObservedState.FAILED, Cause.CLUSTER)
    assert "because it is being terminated" in end.reason
    assert (runs(agent.folder), agent.backend.held()) == (0, [])


@pytest.mark.parametrize("is_held", [True, False])
def test_a_job_whose_namespace_is_deleted_ends_in_words(
    request: pytest.FixtureRequest, make_agent: MakeAgent, namespace: str, is_held: bool
) -> None:
    if is_held:
        request.getfixturevalue("held_namespace")
    agent = make_agent()
    lease = a_job(agent.folder, "echo begun; sleep 600")
    name = begin(agent, lease)
    agent.until(lambda: output_of(agent, name), "it has written something")
    agent.cluster.kubectl("delete", "namespace", namespace, "--wait=false")
    end = end_of(agent)
    # By what Kubernetes deleted first, the Job or its pod.
    assert end.seen in (ObservedState.CANCELLED, ObservedState.FAILED)
    assert end.cause is Cause.CLUSTER
    assert "was deleted at the cluster by somebody" in end.reason
    agent.until(lambda: not pods_of(agent), "nothing of it is left")
    assert (runs(agent.folder), output_of(agent, name)) == (1, b"begun\n")
    agent.backend.forget(name)
    agent.until(lambda: not list((agent.folder / "kubernetes").rglob("yard-*")), "no file is left")
