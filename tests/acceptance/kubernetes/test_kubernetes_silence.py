"""A Kubernetes API server that is killed, and one that hangs: its cluster says so, jobs go elsewhere, and run once."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from switchyard.model.job.job import State
from tests.acceptance.bed import Ledger
from tests.acceptance.stage import Stage, staged, waiting_for
from tests.kube_bed import KubernetesBed
from tests.kube_cluster import KubernetesCluster
from tests.kube_image import BUSYBOX_IMAGE
from tests.processes import PATIENCE_S, until
from tests.programs import start_agent

pytestmark = [pytest.mark.kubernetes, pytest.mark.xdist_group("kubernetes")]
END_S = 2 * PATIENCE_S
# The agent asks every 5 s, waits 5 s for an answer, and tells a silence of 2 s.
TOLD_S = 30.0
OUTAGE = {"silent_after_s": 2.0, "give_back_after_s": 3.0}
SILENCE = "Kubernetes does not answer"
JOBS = 12
SUBMITS_AT_ONCE = 8  # of the backend: more creates are never in doubt


@pytest.fixture
def cluster(kubernetes: KubernetesBed) -> Iterator[KubernetesCluster]:
    yield kubernetes["alpha"]
    kubernetes["alpha"].heal()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A server for each test: no agent of another test can still look alive."""
    with staged(tmp_path) as made:
        yield made


@pytest.fixture
def ledger(stage: Stage, cluster: KubernetesCluster) -> Iterator[Ledger]:
    """An agent of the cluster is up. Its pods see the ledger's folder under its own path."""
    folder, namespace = str(stage.folder), cluster.create_namespace(f"silence-{os.urandom(4).hex()}")
    mount = {"name": "main", "volumeMounts": [{"name": "shared", "mountPath": folder}]}
    section = {
        "kubeconfig": str(cluster.kubeconfig),
        "namespace": namespace,
        "image": BUSYBOX_IMAGE,
        "grace_s": 1,
        "timeout_s": 2.0,
        "template": {"spec": {"volumes": [{"name": "shared", "hostPath": {"path": folder}}], "containers": [mount]}},
    }
    site = stage.site("alpha", json.dumps({"kubernetes": section, "outage": OUTAGE}))
    with start_agent(stage.folder, stage.url, "alpha", graph=None, backend="kubernetes", extra=site):
        yield Ledger(stage.folder)
        cluster.heal()
        cluster.request("DELETE", f"/api/v1/namespaces/{namespace}")


def submit(stage: Stage, ledger: Ledger, then: str = "", **fields: Any) -> str:
    return stage.submit(*ledger.command(then), spec={"env": ledger.env}, **fields)


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_jobs_leave_a_cluster_whose_api_server_does_not_answer(
    stage: Stage, cluster: KubernetesCluster, ledger: Ledger, how: str
) -> None:
    gate = stage.folder / "gate"
    running = submit(stage, ledger, waiting_for(gate), cluster="alpha")
    stage.until_state(running, State.RUNNING, timeout_s=END_S)
    harmed_s = time.monotonic()
    getattr(cluster, how)("apiserver")
    drawn = [submit(stage, ledger) for _ in range(JOBS)]
    assert {stage.job(job)["cluster"] for job in drawn} == {"alpha"}, "nobody knows yet"
    until(lambda: stage.health("alpha") == "down", TOLD_S, "the silence is told")
    assert_is_told(stage, harmed_s)
    pinned = stage.submitted(*ledger.command(), spec={"env": ledger.env}, cluster="alpha")
    assert (pinned["state"], pinned["reason"]) == ("PENDING", f"waits for alpha: down: {SILENCE}")
    # An API server that hangs may still take the creates that it was sent before anybody knew that it hangs.
    in_doubt_max = 0 if how == "kill" else SUBMITS_AT_ONCE

    def in_doubt() -> list[str]:
        return [job for job in drawn if stage.job(job)["state"] != State.PENDING]

    until(lambda: len(in_doubt()) <= in_doubt_max, TOLD_S, "what has not begun comes back")
    kept = set(in_doubt())
    with stage.agent("spare"):
        for job in (submit(stage, ledger), *(job for job in drawn if job not in kept)):
            assert (ended := stage.ended(job))["state"] == State.SUCCEEDED, ended
            assert ended["cluster"] == "spare"
        assert stage.job(pinned["id"])["state"] == State.PENDING
        seen = stage.job(running)
        assert (seen["state"], seen["attempt"], seen["cluster"]) == (State.RUNNING, 1, "alpha")
        assert seen["reason"] == f"{SILENCE}, so nothing new is known of the job"
        gate.touch()
        cluster.heal()
        for job in (running, pinned["id"], *kept):
            assert (ended := stage.ended(job, timeout_s=END_S))["state"] == State.SUCCEEDED, ended
        assert stage.job(pinned["id"])["cluster"] == "alpha"
    assert stage.health("alpha") == "up"
    assert set(ledger.runs().values()) == {1}


def assert_is_told(stage: Stage, harmed_s: float) -> None:
    """Lists and `show` have the reason, and an age that is not older than the harm."""
    [listed] = [line for line in stage.yard("cluster", "ls", check=True).stdout.splitlines() if "alpha" in line]
    shown = stage.yard("cluster", "show", "alpha", check=True).stdout
    assert "down" in listed
    assert f"down ({SILENCE})" in shown
    for text in (listed, shown):
        assert f"{SILENCE}: " in text
        assert " (for " in text
    load = stage.get("/v1/clusters/alpha")["load"]
    assert OUTAGE["silent_after_s"] <= load["silent_s"] <= time.monotonic() - harmed_s
    until(lambda: stage.get("/v1/clusters/alpha")["load"]["silent_s"] > load["silent_s"], TOLD_S, "the age grows")
