"""Manifests and states on a real cluster: each row of the table of states that a test can bring about."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from switchyard.agent.backends import Status
from switchyard.agent.site.site import Site, site_type
from switchyard.errors import PolicyRefused
from switchyard.features.kubernetes.agent.backend import KubernetesBackend
from switchyard.features.kubernetes.agent.pods.manifest import job_name
from switchyard.model.cluster.poll import Lease
from switchyard.model.executions.execution import ExecutionConfig
from switchyard.model.job.job import Native
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause
from switchyard.model.wire.decode import convert
from tests.agent.builders import END_S, a_lease, a_setting, end_of, status_when
from tests.kube_bed import KubernetesBed
from tests.kube_cluster import KubernetesCluster
from tests.kube_image import BUSYBOX_IMAGE
from tests.processes import until

pytestmark = pytest.mark.kubernetes
R, OK, F, C = ObservedState.RUNNING, ObservedState.SUCCEEDED, ObservedState.FAILED, ObservedState.CANCELLED
LONG_S = 3 * END_S  # for what Kubernetes itself does only after a while
SMALL = {"cores": "10m"}
GANG_WAIT_S = 30  # a second pod needs one or two
SHORT_GANG_WAIT_S = 5  # for a gang whose last pod has no node


def a_site(cluster: KubernetesCluster, **kubernetes: Any) -> Site:
    section = {
        "kubeconfig": str(cluster.kubeconfig),
        "namespace": "{{ project }}",
        "gang_wait_s": GANG_WAIT_S,
        "grace_s": 1,
        "patch_paths": ["/spec/containers/0/envFrom", "/spec/volumes", "/spec/containers/0/volumeMounts"],
        **kubernetes,
    }
    return convert({"kubernetes": section, "containers": {"pull": "never"}}, site_type(), where="site.yaml")


@pytest.fixture(scope="module")
def cluster(kubernetes: KubernetesBed) -> KubernetesCluster:
    return kubernetes["alpha"]


@pytest.fixture(scope="module")
def backend(cluster: KubernetesCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesBackend]:
    with closing(KubernetesBackend(a_setting(tmp_path_factory.mktemp("agent"), site=a_site(cluster)))) as running:
        yield running


@pytest.fixture(scope="module")
def impatient(cluster: KubernetesCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesBackend]:
    """Gives up soon what Kubernetes would try for ever. Not for jobs that shall run: a busy node tries twice, too."""
    site = a_site(cluster, image_wait_s=2, config_wait_s=2)
    with closing(KubernetesBackend(a_setting(tmp_path_factory.mktemp("impatient"), site=site))) as running:
        yield running


@pytest.fixture(scope="module")
def namespace(cluster: KubernetesCluster) -> str:
    return cluster.create_namespace(f"states-{os.urandom(4).hex()}")


def one(namespace: str, *command: str, **spec: Any) -> Lease:
    spec.setdefault("image", BUSYBOX_IMAGE)
    spec["resources"] = {**SMALL, **spec.get("resources", {})}
    return replace(a_lease(*command, **spec), project=namespace)


def script(namespace: str, text: str, **spec: Any) -> Lease:
    return one(namespace, "sh", "-c", text, **spec)


def output_of(backend: KubernetesBackend, native_id: str) -> bytes:
    return backend.output(native_id, "stdout", offset=0, size=2**22).data


def reason_when(backend: KubernetesBackend, native_id: str, words: str) -> Status:
    return status_when(backend, native_id, lambda status: words in status.reason, LONG_S)


def runs(backend: KubernetesBackend, lease: Lease) -> str:
    native_id = backend.submit(lease)
    status_when(backend, native_id, lambda status: status.seen is R)
    return native_id


# ---- Commands -------------------------------------------------------------------------------------


def test_words_and_variables_arrive_as_they_were_given(backend: KubernetesBackend, namespace: str) -> None:
    words = ["$(HOME)", "$$", "$$(A)", "$", "a b", "", "'\"", "ü…", "\\n", "$(("]
    command = ("sh", "-c", 'printf "%s|" "$@" "$A" "$B"', "sh", *words)
    lease = one(namespace, *command, env={"A": "$(B)", "B": "$$B"})
    native_id = backend.submit(lease)
    assert end_of(backend, native_id).exit_code == 0
    assert output_of(backend, native_id).decode() == "".join(f"{word}|" for word in [*words, "$(B)", "$$B"])


def test_the_longest_word_that_linux_takes(backend: KubernetesBackend, namespace: str) -> None:
    native_id = backend.submit(one(namespace, "sh", "-c", "echo ${#1}", "sh", "x" * 131_071))
    assert end_of(backend, native_id).exit_code == 0
    assert output_of(backend, native_id) == b"131071\n"
    native_id = backend.submit(one(namespace, "sh", "-c", "echo $#", "sh", *["x" * 130_000] * 9))
    assert end_of(backend, native_id).exit_code == 0
    assert output_of(backend, native_id) == b"9\n", "over a megabyte in all"
    with pytest.raises(PolicyRefused, match="Linux takes 131071 in one word"):
        backend.submit(one(namespace, "echo", "x" * 131_072))
    with pytest.raises(PolicyRefused, match="more bytes than Kubernetes stores"):
        backend.submit(one(namespace, "echo", *["x" * 130_000] * 10))


def test_names_and_labels_that_kubernetes_refuses(
    backend: KubernetesBackend, cluster: KubernetesCluster, namespace: str
) -> None:
    notes = {"a/b/c": "x", "app.kubernetes.io/note": "y z", "example.org/role": "x"}
    lease = replace(
        one(namespace, "true", execution=ExecutionConfig(annotations=notes)),
        name="n" * 253,
        owner="anna@example.org",
        labels={"team": "higgs", "note": "with spaces", "a/b/c": "x", "long": "x" * 256, "ü": "…"},
    )
    assert end_of(backend, backend.submit(lease)).seen is OK
    found = cluster.request("GET", f"/apis/batch/v1/namespaces/{namespace}/jobs/{job_name(lease)}")["metadata"]
    assert found["labels"]["team"] == "higgs"
    annotations = found["annotations"]
    assert (annotations["switchyard/name"], annotations["app.kubernetes.io/note"]) == ("n" * 253, "y z")
    assert "example.org/role" not in annotations, "the site does not allow it"


def test_a_large_line_and_bytes_that_are_no_text(backend: KubernetesBackend, namespace: str) -> None:
    text = r"head -c 1000000 /dev/zero | tr '\0' x; echo; printf 'a\377\376\r\001\n\303end'"
    native_id = backend.submit(script(namespace, text))
    assert end_of(backend, native_id).exit_code == 0
    assert output_of(backend, native_id) == b"x" * 1_000_000 + b"\na\xff\xfe\r\x01\n\xc3end"


# ---- Ends -----------------------------------------------------------------------------------------

Ends = tuple[ObservedState, int | None, int | None, Cause, str]
OOM = "out of memory: it used its limit of 32MiB"
MEMORY = {"memory": "32MiB"}


@pytest.mark.parametrize(
    ("text", "resources", "expected"),
    [
        ("exit 0", {}, (OK, 0, None, Cause.JOB, "")),
        ("sleep 600 & exit 0", {}, (OK, 0, None, Cause.JOB, "")),
        ("exit 3", {}, (F, 3, None, Cause.JOB, "exit code 3")),
        ("kill -9 $$", {}, (F, None, 9, Cause.JOB, "killed by SIGKILL (signal 9)")),
        ("exec tail /dev/zero", MEMORY, (F, None, 9, Cause.JOB, OOM)),
        ("tail /dev/zero; exit 5", MEMORY, (F, 5, None, Cause.JOB, f"{OOM}; exit code 5")),
        ("echo before; exec sleep 600", {"time_limit": 20}, (F, None, None, Cause.JOB, "time limit reached")),
    ],
    ids=["success", "process left behind", "code", "signal", "memory", "memory of a child", "deadline"],
)
def test_end(backend: KubernetesBackend, namespace: str, text: str, resources: dict[str, Any], expected: Ends) -> None:
    native_id = backend.submit(script(namespace, text, resources=resources))
    ended = end_of(backend, native_id, LONG_S)
    assert (ended.seen, ended.exit_code, ended.signal, ended.cause, ended.reason) == expected
    if "before" in text:
        assert output_of(backend, native_id) == b"before\n", "the log of a job outlives its time limit"


def test_a_job_that_writes_more_than_its_ephemeral_storage(backend: KubernetesBackend, namespace: str) -> None:
    text = "head -c 20000000 /dev/zero > /tmp/large; exec sleep 600"
    native_id = backend.submit(script(namespace, text, resources={"ephemeral_storage": "1MB"}))
    ended = end_of(backend, native_id, LONG_S)
    assert (ended.seen, ended.cause, ended.exit_code) == (F, Cause.JOB, None)
    assert ended.reason.startswith("evicted: ")


def test_a_command_that_is_not_in_the_image(backend: KubernetesBackend, namespace: str) -> None:
    ended = end_of(backend, backend.submit(one(namespace, "no-such-command")))
    assert (ended.seen, ended.cause, ended.began_ago_us) == (F, Cause.JOB, None)
    assert ended.reason.startswith("its command could not be started:")
    assert "no-such-command" in ended.reason


def test_an_image_that_is_not_there_fails_after_the_bound(impatient: KubernetesBackend, namespace: str) -> None:
    lease = one(namespace, "true", image="localhost/no-such-image:1")
    ended = end_of(impatient, impatient.submit(lease), LONG_S)
    assert (ended.seen, ended.cause) == (F, Cause.CLUSTER)
    assert ended.reason.startswith("its image cannot be pulled:")
    assert ended.reason.endswith("(for 2 s)")


def test_a_name_that_is_no_image_fails_at_once(backend: KubernetesBackend, namespace: str) -> None:
    ended = end_of(backend, backend.submit(one(namespace, "true", image="NO:SUCH:IMAGE")), LONG_S)
    assert (ended.seen, ended.cause) == (F, Cause.JOB)
    assert ended.reason.startswith("its image name is not valid")


def test_a_missing_secret_fails_after_the_bound(impatient: KubernetesBackend, namespace: str) -> None:
    option = '--pod=/spec/containers/0/envFrom/-={"secretRef":{"name":"no-such-secret"}}'
    ended = end_of(impatient, impatient.submit(one(namespace, "true", native=Native(options=[option]))), LONG_S)
    assert (ended.seen, ended.cause) == (F, Cause.CLUSTER)
    assert ended.reason.startswith("its container cannot be created:")
    assert "no-such-secret" in ended.reason


def test_a_missing_volume_fails_after_the_bound(impatient: KubernetesBackend, namespace: str) -> None:
    options = [
        '--pod=/spec/volumes/-={"name":"gone","configMap":{"name":"no-such-map"}}',
        '--pod=/spec/containers/0/volumeMounts/-={"name":"gone","mountPath":"/gone"}',
    ]
    ended = end_of(impatient, impatient.submit(one(namespace, "true", native=Native(options=options))), LONG_S)
    assert (ended.seen, ended.cause) == (F, Cause.CLUSTER)
    assert ended.reason.startswith("its pod cannot be prepared:")
    assert "no-such-map" in ended.reason


# ---- Waits ----------------------------------------------------------------------------------------


def test_a_quota_is_told_and_waited_for(backend: KubernetesBackend, cluster: KubernetesCluster) -> None:
    name = cluster.create_namespace(f"quota-{os.urandom(4).hex()}")
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few", "namespace": name}}
    cluster.apply({**quota, "spec": {"hard": {"pods": "0"}}})
    path = f"/api/v1/namespaces/{name}/resourcequotas/few"
    until(lambda: (cluster.get(path) or {}).get("status", {}).get("hard"), END_S, "the quota counts")
    native_id = backend.submit(one(name, "true"))
    waits = reason_when(backend, native_id, "exceeded quota: few")
    assert (waits.seen, waits.reason.partition(":")[0]) == (ObservedState.SUBMITTED, "no pod can be created")
    cluster.apply({**quota, "spec": {"hard": {"pods": "5"}}})
    assert end_of(backend, native_id, LONG_S).seen is OK


def test_a_service_account_that_is_not_there_is_told(backend: KubernetesBackend, namespace: str) -> None:
    rules = convert({"security_context": {"run_as": {"k8s_service_account": "nobody"}}}, ExecutionConfig, where="rules")
    native_id = backend.submit(one(namespace, "true", execution=rules))
    waits = reason_when(backend, native_id, "nobody")
    assert (waits.seen, waits.reason.partition(":")[0]) == (ObservedState.SUBMITTED, "no pod can be created")
    backend.cancel([native_id])
    assert end_of(backend, native_id, LONG_S).seen is C


def test_a_priority_class_that_is_not_there_is_told(cluster: KubernetesCluster, namespace: str, tmp_path: Path) -> None:
    site = a_site(cluster, priority_classes=[{"name": "no-such-class", "min": 0}])
    with closing(KubernetesBackend(a_setting(tmp_path, site=site))) as backend:
        native_id = backend.submit(one(namespace, "true"))
        waits = reason_when(backend, native_id, "no-such-class")
        assert (waits.seen, waits.reason.partition(":")[0]) == (ObservedState.SUBMITTED, "no pod can be created")
        backend.cancel([native_id])
        assert end_of(backend, native_id, LONG_S).seen is C


def test_a_limit_range_that_forbids_the_pod_is_told(backend: KubernetesBackend, cluster: KubernetesCluster) -> None:
    name = cluster.create_namespace(f"range-{os.urandom(4).hex()}")
    limits = [{"type": "Container", "max": {"cpu": "5m"}}]
    meta = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "small", "namespace": name}}
    cluster.apply({**meta, "spec": {"limits": limits}})
    native_id = backend.submit(one(name, "true"))
    waits = reason_when(backend, native_id, "maximum cpu usage per Container is 5m")
    assert (waits.seen, waits.reason.partition(":")[0]) == (ObservedState.SUBMITTED, "no pod can be created")
    backend.cancel([native_id])
    assert end_of(backend, native_id, LONG_S).seen is C


def test_a_job_without_a_node_shows_the_schedulers_words(backend: KubernetesBackend, namespace: str) -> None:
    native_id = backend.submit(one(namespace, "true", resources={"cores": 100}))
    waits = reason_when(backend, native_id, "waits for a node:")
    assert "Insufficient cpu" in waits.reason
    backend.cancel([native_id])
    assert end_of(backend, native_id, LONG_S).seen is C


# ---- What others do to a job ----------------------------------------------------------------------

Act = Callable[[KubernetesCluster, str, str], object]


def _evict_pod(cluster: KubernetesCluster, namespace: str, name: str) -> object:
    pod = cluster.kubectl("get", "pod", "-n", namespace, "-l", f"job-name={name}", "-o", "name").strip()[4:]
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}}
    return cluster.request("POST", f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction", body)


def _suspend_job(cluster: KubernetesCluster, namespace: str, name: str) -> object:
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs/{name}"
    return cluster.request("PATCH", path, {"spec": {"suspend": True}})


@pytest.mark.parametrize(
    ("act", "seen", "cause", "words"),
    [
        (_evict_pod, F, Cause.PREEMPTED, "evicted from its node"),
        (_suspend_job, F, Cause.PREEMPTED, "its Job was suspended after it had begun"),
    ],
    ids=["evicted", "suspended"],
)
def test_what_others_do(
    backend: KubernetesBackend,
    cluster: KubernetesCluster,
    namespace: str,
    act: Act,
    seen: ObservedState,
    cause: Cause,
    words: str,
) -> None:
    native_id = runs(backend, script(namespace, "trap 'exit 0' TERM; while :; do sleep 0.1; done"))
    act(cluster, namespace, native_id)
    ended = end_of(backend, native_id, LONG_S)
    assert (ended.seen, ended.cause) == (seen, cause), ended
    assert ended.reason.startswith(words)


def test_a_pod_of_higher_priority_takes_the_place(cluster: KubernetesCluster, namespace: str, tmp_path: Path) -> None:
    for name, value in (("yard-low", 10), ("yard-high", 1000)):
        meta = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        cluster.apply({**meta, "value": value})
    classes = [{"name": "yard-low", "min": 0}, {"name": "yard-high", "min": 100}]
    backend = KubernetesBackend(a_setting(tmp_path, site=a_site(cluster, priority_classes=classes)))
    try:
        large = {"cores": 3}  # of the 4 cores of a node
        low = [runs(backend, one(namespace, "sleep", "600", resources=large)) for _ in cluster.spec.node_names]
        high = runs(backend, replace(one(namespace, "sleep", "600", resources=large), priority=100))
        until(
            lambda: any(row.seen is F for row in backend.status(low).values()),
            LONG_S,
            "one of them is preempted",
        )
        ended = [row for row in backend.status(low).values() if row.seen is F]
        assert [(row.cause, row.reason.partition(":")[0]) for row in ended] == [
            (Cause.PREEMPTED, "preempted by another pod")
        ]
        backend.cancel([*low, high])
        for native_id in (*low, high):
            end_of(backend, native_id, LONG_S)
    finally:
        backend.close()


# ---- Arrays ---------------------------------------------------------------------------------------


def tasks_of(lease: Lease, lo: int, hi: int) -> list[Lease]:
    return [replace(lease, fence=10 + index, lo=index, hi=index) for index in range(lo, hi + 1)]


def test_tasks_have_their_own_ends_and_output(backend: KubernetesBackend, namespace: str) -> None:
    text = 'echo "$SWITCHYARD_ARRAY_INDEX $SWITCHYARD_FENCE $1"; exit $((SWITCHYARD_ARRAY_INDEX % 3))'
    leases = tasks_of(one(namespace, "sh", "-c", text, "sh", "$(X) $$"), 3, 7)
    native_ids = backend.submit_range(leases)
    assert len({native_id.partition("/")[0] for native_id in native_ids}) == 1, "one Job"
    ends = [end_of(backend, native_id, LONG_S) for native_id in native_ids]
    assert [end.exit_code for end in ends] == [0, 1, 2, 0, 1]
    outputs = [output_of(backend, native_id).decode() for native_id in native_ids]
    assert outputs == [f"{index} {10 + index} $(X) $$\n" for index in range(3, 8)]


def test_tasks_without_a_node_are_cancelled_one_by_one(backend: KubernetesBackend, namespace: str) -> None:
    native_ids = backend.submit_range(tasks_of(one(namespace, "true", resources={"cores": 100}), 0, 1))
    for native_id in native_ids:
        reason_when(backend, native_id, "waits for a node:")
    backend.cancel(native_ids[1:])
    assert end_of(backend, native_ids[1], LONG_S).seen is C
    assert backend.status(native_ids[:1])[native_ids[0]].seen is ObservedState.SUBMITTED
    backend.cancel(native_ids[:1])
    assert end_of(backend, native_ids[0], LONG_S).seen is C


# ---- Gangs ----------------------------------------------------------------------------------------


def test_a_gang_knows_its_peers(backend: KubernetesBackend, cluster: KubernetesCluster, namespace: str) -> None:
    text = 'echo "$SWITCHYARD_TASK_INDEX of $SWITCHYARD_PEER_COUNT: $(hostname) $SWITCHYARD_PEERS"'
    lease = script(namespace, text, resources={"tasks": 2})
    native_id = backend.submit(lease)
    assert end_of(backend, native_id, LONG_S).exit_code == 0
    output, name = output_of(backend, native_id).decode(), job_name(lease)
    peers = ",".join(f"{name}-{index}.switchyard-gangs.{namespace}.svc" for index in range(2))
    for index in range(2):
        assert f"{index} of 2: {name}-{index} {peers}\n" in output
    service = cluster.request("GET", f"/api/v1/namespaces/{namespace}/services/switchyard-gangs")
    assert service["spec"]["clusterIP"] == "None"


def test_one_failure_ends_the_whole_gang(backend: KubernetesBackend, namespace: str) -> None:
    text = '[ "$SWITCHYARD_TASK_INDEX" = 1 ] && exit 7; exec sleep 600'
    ended = end_of(backend, backend.submit(script(namespace, text, resources={"tasks": 3})), LONG_S)
    assert (ended.seen, ended.exit_code) == (F, 7)
    assert ended.reason.startswith("exit code 7")


def test_a_gang_that_does_not_fit_whole_fails_after_the_bound(
    cluster: KubernetesCluster, namespace: str, tmp_path: Path
) -> None:
    """On a busy machine the second pod may be late, too."""
    lease = one(namespace, "sleep", "600", resources={"tasks": 3, "nodes": 3})
    site = a_site(cluster, gang_wait_s=SHORT_GANG_WAIT_S)
    with closing(KubernetesBackend(a_setting(tmp_path, site=site))) as backend:
        ended = end_of(backend, backend.submit(lease), LONG_S)
    assert (ended.seen, ended.cause) == (F, Cause.CLUSTER)
    assert re.match(rf"only [12] of its 3 pods ran within {SHORT_GANG_WAIT_S} s: ", ended.reason), ended


# ---- Nodes ----------------------------------------------------------------------------------------


def test_a_pod_removed_by_force_counts_as_running_while_its_node_is_away(
    backend: KubernetesBackend, cluster: KubernetesCluster, namespace: str
) -> None:
    native_id = runs(backend, one(namespace, "sleep", "600"))
    pods = f"/api/v1/namespaces/{namespace}/pods?labelSelector=job-name={native_id}"
    pod = cluster.request("GET", pods)["items"][0]
    node = pod["spec"]["nodeName"]
    cluster.kill(f"kubelet/{node}")
    try:
        until(lambda: _ready(cluster, node) == "Unknown", LONG_S, f"{node} is away")
        path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}?gracePeriodSeconds=0"
        cluster.request("DELETE", path)
        status_when(backend, native_id, lambda status: f"node {node} does not answer" in status.text, LONG_S)
        assert backend.status([native_id])[native_id].seen is R
    finally:
        cluster.heal()
    ended = end_of(backend, native_id, LONG_S)
    assert (ended.seen, ended.cause) == (F, Cause.CLUSTER)


def _ready(cluster: KubernetesCluster, node: str) -> str:
    conditions = (cluster.get(f"/api/v1/nodes/{node}") or {"status": {}})["status"].get("conditions", [])
    return next((row["status"] for row in conditions if row["type"] == "Ready"), "")
