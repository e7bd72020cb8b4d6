"""Workflows of the corpus and pod tasks on a real Kubernetes cluster.

The image has a shell alone: the cluster's site file mounts this machine's Python and flytekit into every pod.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.flyte.flyte_site import PROJECT, RUNS_S, FlyteSite, difference, flyte_site
from tests.acceptance.flyte.shell_flows import (
    GIVE,
    HERE,
    INT,
    an_id,
    an_interface,
    ended,
    good,
    jobs_of,
    outputs_of,
    tasks_of,
)
from tests.kube_bed import KubernetesBed
from tests.kube_image import BUSYBOX_IMAGE
from tests.processes import PATIENCE_S
from tests.workflow.corpus import FOLDER

pytestmark = [pytest.mark.kubernetes, pytest.mark.xdist_group("flyte-kubernetes"), pytest.mark.timeout(RUNS_S)]
MODULES = ("02_diamond", "09_map", "11_dynamic")
# Five tasks: a map task is an array, and a dynamic node tells its graph when it runs.
FLOW = """
from typing import List

from flytekit import dynamic, map_task, task, workflow


@task
def some(n: int) -> List[int]:
    return list(range(1, n + 1))


@task
def square(n: int) -> int:
    return n * n


@dynamic
def first(many: List[int]) -> int:
    return square(n=many[0] + 2)


@workflow
def wf(n: int) -> tuple[List[int], int]:
    squares = map_task(square)(n=some(n=n))
    return squares, first(many=squares)


CASES = [{"run": "wf", "inputs": {"n": 2}, "phase": "SUCCEEDED", "outputs": {"o0": [1, 4], "o1": 9}}]
"""
LIBRARIES = ("/usr/lib:/lib:ro", "/usr/lib64:/lib64:ro", "/usr:ro")
HOW_TO = Path(__file__).parents[3] / "docs" / "how-to" / "run-flyte-workflows.md"
PATHS = ["/metadata/labels", *re.findall(r"^    - (/spec/\S+)$", HOW_TO.read_text(), re.MULTILINE)]
SEARCHED = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"


@pytest.fixture(scope="module")
def site(kubernetes: KubernetesBed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlyteSite]:
    cluster, folder = kubernetes["alpha"], tmp_path_factory.mktemp("kube")
    namespace = cluster.create_namespace(f"flyte-{os.urandom(4).hex()}")
    shared = folder / "shared"
    shared.mkdir()
    python = sorted({f"{sys.prefix}:ro", f"{sys.base_prefix}:ro"} - {"/usr:ro"})
    variables = [{"name": "PATH", "value": SEARCHED}, {"name": "HOME", "value": "/tmp"}]
    sections = {
        "images": [{"match": "localhost/*", "run": "kubernetes"}],
        "containers": {"pull": "never", "mounts": [*LIBRARIES, *python]},
        "files": {"folder": str(shared)},
        "kubernetes": {
            "kubeconfig": str(cluster.kubeconfig),
            "namespace": namespace,
            "grace_s": 1,
            "files_volume": {"hostPath": {"path": str(shared)}},
            "template": {"spec": {"containers": [{"name": "main", "env": variables}]}},
            "patch_paths": PATHS,
        },
    }
    config = {"namespace_mapping": {"template": namespace}}
    try:
        with flyte_site(folder, cluster="alpha", backend="kubernetes", site=sections, config=config) as made:
            yield made
    finally:
        cluster.heal()


def test_a_map_and_a_dynamic_node_end_on_kubernetes_as_they_do_in_flyte(site: FlyteSite) -> None:
    (site.folder / "flows" / "small_flow.py").write_text(FLOW)
    site.register(image=BUSYBOX_IMAGE, modules=["small_flow"])
    assert_end_as_in_flyte(site, "small_flow")
    listed = good(site.doors.by_grpc("ListExecutions", {"id": HERE, "limit": 9})).answer["executions"]
    namespaces = {one["spec"]["metadata"]["system_metadata"]["namespace"] for one in listed}
    assert len(namespaces) == 1
    assert namespaces.pop().startswith("flyte-"), "where the pods really were"


# Can wait: 38 pods that start two cold interpreters each. `make test` runs these modules locally, and the test above
# has what is special here: an array, and a graph that comes out of a pod.
@pytest.mark.slow
def test_workflows_of_the_corpus_end_on_kubernetes_as_they_do_in_flyte(site: FlyteSite) -> None:
    for module in MODULES:
        shutil.copy(FOLDER / f"{module}.py", site.folder / "flows")
    site.register("v2", image=BUSYBOX_IMAGE, modules=MODULES)
    assert_end_as_in_flyte(site, *MODULES, version="v2")


def assert_end_as_in_flyte(site: FlyteSite, *modules: str, version: str = "v1") -> None:
    results = site.run(*modules, version=version)
    assert [wrong for found in results if (wrong := difference(found))] == []
    assert {found["cluster"] for found in results} == {"alpha"}


def a_pod_task(site: FlyteSite, name: str, pod: dict[str, Any]) -> None:
    template = {
        "id": an_id("TASK", name),
        "type": "sidecar",
        "metadata": {"runtime": {"type": "FLYTE_SDK", "version": "1"}},
        "interface": an_interface({}, {"o0": INT}),
        "k8s_pod": {"metadata": {"labels": {"team": "pods"}}, "pod_spec": pod},
        "config": {"primary_container_name": "primary"},
    }
    good(site.doors.by_grpc("CreateTask", {"id": template["id"], "spec": {"template": template}}))


def primary(script: str, **more: Any) -> dict[str, Any]:
    args = ["sh", "-c", f"{GIVE}\n{script}", "task", "{{.outputPrefix}}"]
    requests = {"cpu": "100m", "memory": "64Mi"}
    return {"name": "primary", "image": BUSYBOX_IMAGE, "args": args, "resources": {"requests": requests}, **more}


def test_a_pod_task_runs_with_its_sidecar_and_ends_with_its_primary_container(site: FlyteSite) -> None:
    """The sidecar never ends by itself. The primary container waits for the file that the sidecar writes."""
    mounts = [{"name": "scratch", "mountPath": "/scratch"}]
    helper = {
        "name": "helper",
        "image": BUSYBOX_IMAGE,
        "command": ["sh", "-c", "echo here > /scratch/word; sleep 100000"],
        "resources": {"requests": {"cpu": "50m", "memory": "32Mi"}},
        "volumeMounts": mounts,
    }
    script = "until [ -s /scratch/word ]; do sleep 0.1; done; give 9"
    pod = {
        "containers": [helper, primary(script, volumeMounts=mounts)],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
    }
    a_pod_task(site, "pods.task", pod)
    good(start_task(site, "pods.task", "pods-run"))
    assert ended(site, "pods-run", 2 * PATIENCE_S)["phase"] == "SUCCEEDED"
    assert outputs_of(site, "pods-run") == {"o0": 9}


def test_a_pod_that_the_site_does_not_allow_fails_with_the_place(site: FlyteSite) -> None:
    a_pod_task(site, "pods.host", {"containers": [primary("give 1")], "hostNetwork": True})
    good(start_task(site, "pods.host", "pods-host"))
    assert ended(site, "pods-host", 2 * PATIENCE_S)["phase"] == "FAILED"
    (attempt, *_) = tasks_of(site, "pods-host", "podshost")
    assert "does not let jobs set /spec/hostNetwork" in str(attempt["closure"]), attempt
    assert {job["project"] for job in jobs_of(site, "pods-host")} == {PROJECT}


def start_task(site: FlyteSite, task: str, name: str) -> Any:
    body = {**HERE, "name": name, "spec": {"launch_plan": an_id("TASK", task)}, "inputs": {}}
    return site.doors.by_grpc("CreateExecution", body)
