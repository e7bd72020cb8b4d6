"""The Job of a lease: what Kubernetes is told, and what is refused before Kubernetes would."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest
from msgspec.structs import replace

from switchyard.agent.backends import marker_of
from switchyard.agent.site.site import Site
from switchyard.features.kubernetes.agent.kubernetes_names import is_label_value
from switchyard.features.kubernetes.agent.pods.labels import selector
from switchyard.features.kubernetes.agent.pods.manifest import can_share_job, job_name, namespace_of
from switchyard.model.cluster.poll import Lease
from switchyard.model.files.files import JobFiles
from switchyard.model.job.job import Limits
from tests.agent.builders import a_lease
from tests.agent.kubernetes.manifests import Body, a_site, container_of, of, one, pod_of, refusal, variables_of

# ---- One pod --------------------------------------------------------------------------------------


def test_a_job_runs_once() -> None:
    lease = one("echo", "hi")
    manifest = of(lease)
    assert manifest["metadata"]["name"] == marker_of(lease).lower() == job_name(lease)
    assert manifest["metadata"]["namespace"] == "physics-development"
    assert (manifest["spec"]["backoffLimit"], manifest["spec"]["podReplacementPolicy"]) == (0, "Failed")
    actions = [rule["action"] for rule in manifest["spec"]["podFailurePolicy"]["rules"]]
    assert actions == ["FailJob", "FailJob"], "no rule lets Kubernetes start a pod again"
    assert pod_of(manifest)["restartPolicy"] == "Never"
    assert "activeDeadlineSeconds" not in manifest["spec"]


def test_the_time_limit_is_the_pods() -> None:
    manifest = of(one(resources={"time_limit": "1h30m"}))
    assert pod_of(manifest)["activeDeadlineSeconds"] == 5400
    assert "activeDeadlineSeconds" not in manifest["spec"]


@pytest.mark.parametrize(
    ("word", "written"),
    [("$(X)", "$$(X)"), ("$$", "$$$$"), ("$HOME", "$$HOME"), ("a$", "a$$"), ("plain", "plain"), ("ü…", "ü…")],
)
def test_kubernetes_replaces_nothing_in_commands_and_variables(word: str, written: str) -> None:
    manifest = of(one("echo", word, env={"A": word}))
    assert container_of(manifest)["command"] == ["echo", written]
    assert variables_of(manifest)["A"] == written


def test_requests_and_limits() -> None:
    asked = {
        "cores": "1500m",
        "memory": "1GiB",
        "gpus": 2,
        "ephemeral_storage": "10MB",
        "limits": Limits(memory="2GiB"),
    }
    resources = container_of(of(one(resources=asked)))["resources"]
    assert resources == {
        "requests": {"cpu": "1500m", "memory": str(2**30), "ephemeral-storage": "10000000", "nvidia.com/gpu": "2"},
        "limits": {"cpu": "1500m", "memory": str(2**31), "ephemeral-storage": "10000000", "nvidia.com/gpu": "2"},
    }


def test_a_job_that_asks_for_nothing_gets_a_core() -> None:
    assert container_of(of(one()))["resources"] == {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}


def test_several_tasks_on_one_node_are_one_pod() -> None:
    manifest = of(one(resources={"tasks": 4, "nodes": 1, "cores": 2, "memory": "1GiB"}))
    assert container_of(manifest)["resources"]["requests"] == {"cpu": "8", "memory": str(4 * 2**30)}
    assert "completionMode" not in manifest["spec"]


def test_working_directory_and_image() -> None:
    main = container_of(of(one(cwd="/data")))
    assert (main["workingDir"], main["image"], main["imagePullPolicy"]) == ("/data", "busybox", "IfNotPresent")
    site = a_site(kubernetes={"image": "default:1"}, containers={"pull": "never"})
    main = container_of(of(a_lease("true"), site))
    assert (main["image"], main["imagePullPolicy"]) == ("default:1", "Never")
    assert "workingDir" not in main


def test_a_job_without_an_image_is_refused() -> None:
    assert refusal(a_lease("true")) == "It names no image, and jobs on Kubernetes run in one."


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ([{"match": "busybox", "run": "refuse"}], "refuses the image busybox"),
        ([{"match": "ghcr.io/*", "run": "kubernetes"}], "no rule of its site file is for the image busybox"),
        ([{"match": "*", "run": "host"}], "Kubernetes runs images by its own runtime"),
        ([{"match": "*", "run": "podman"}], "Kubernetes runs images by its own runtime"),
    ],
)
def test_images_that_the_site_does_not_run(rules: list[Body], words: str) -> None:
    assert words in refusal(one(), a_site(images=rules))


def test_an_image_that_the_site_runs() -> None:
    assert container_of(of(one(), a_site(images=[{"match": "*", "run": "kubernetes"}])))["image"] == "busybox"


# ---- Identity -------------------------------------------------------------------------------------


def test_labels_name_the_attempt() -> None:
    lease = replace(one("echo", "secret", fence=7, attempt=3), owner="anna@example.org")
    manifest = of(lease)
    labels = manifest["metadata"]["labels"]
    assert labels == manifest["spec"]["template"]["metadata"]["labels"]
    assert (labels["switchyard/job"], labels["switchyard/fence"], labels["switchyard/attempt"]) == (lease.job, "7", "3")
    assert labels["switchyard/owner"].startswith("anna_example.org-")
    assert manifest["metadata"]["annotations"]["switchyard/owner"] == "anna@example.org"
    assert "secret" not in str(manifest["metadata"])
    assert selector("alpha") == "app.kubernetes.io/managed-by=switchyard,switchyard/cluster=alpha"


def test_users_labels_that_kubernetes_takes_are_labels_and_the_others_are_kept() -> None:
    asked = {
        "team": "higgs",
        "note": "with spaces",
        "a/b/c": "x",
        "switchyard/job": "forged",
        "app.kubernetes.io/managed-by": "helm",
        "app.kubernetes.io/name": "fit",
        "batch.kubernetes.io/job-name": "forged",
        "job-name": "fit",
        "controller-uid": "7",
        "sidecar.istio.io/inject": "false",
    }
    manifest = of(replace(one(), labels=asked))
    labels = manifest["metadata"]["labels"]
    assert (labels["team"], labels["app.kubernetes.io/name"]) == ("higgs", "fit")
    assert labels["app.kubernetes.io/managed-by"] == "switchyard"
    assert labels["switchyard/job"] != "forged"
    refused = {"note", "a/b/c", "batch.kubernetes.io/job-name", "job-name", "controller-uid", "sidecar.istio.io/inject"}
    assert not refused & set(labels)
    assert '"note":"with spaces"' in manifest["metadata"]["annotations"]["switchyard/labels"]
    assert all(map(is_label_value, labels.values()))


def test_annotations() -> None:
    asked = {
        "note": "x y",
        "app.kubernetes.io/part-of": "fit",
        "a/b/c": "kept",
        "iam.amazonaws.com/role": "admin",
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "true",
    }
    lease = one(execution={"annotations": asked})
    annotations = of(lease)["spec"]["template"]["metadata"]["annotations"]
    assert (annotations["note"], annotations["app.kubernetes.io/part-of"]) == ("x y", "fit")
    assert annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
    assert '"a/b/c":"kept"' in annotations["switchyard/annotations"]
    assert "iam.amazonaws.com/role" not in annotations
    assert '"iam.amazonaws.com/role":"admin"' in annotations["switchyard/annotations"]
    site = a_site(kubernetes={"allow_keys": ["cluster-autoscaler.kubernetes.io/*", "iam.amazonaws.com/role"]})
    annotations = of(lease, site)["spec"]["template"]["metadata"]["annotations"]
    assert annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "true"
    assert annotations["iam.amazonaws.com/role"] == "admin"


def test_too_many_annotations_are_refused() -> None:
    lease = one(execution={"annotations": {f"a{number}": "x" * 4000 for number in range(100)}})
    assert "Kubernetes takes 262144 in all" in refusal(lease)


def test_a_long_job_name_is_an_annotation() -> None:
    lease = replace(one(), name="n" * 253)
    manifest = of(lease)
    assert manifest["metadata"]["annotations"]["switchyard/name"] == "n" * 253
    assert len(manifest["metadata"]["name"]) <= 63


def test_the_longest_fence_fits_into_a_name() -> None:
    lease = replace(one(attempt=1000, fence=2**63 - 1000), lo=0, hi=99)
    assert len(of(lease)["metadata"]["name"]) + len("-99") <= 63


def test_a_name_beyond_kubernetes_is_refused() -> None:
    assert "63 characters" in refusal(one(attempt=10**15, fence=2**63 - 1))


@pytest.mark.parametrize(
    ("project", "words"),
    [("p" * 60, "at most 63 characters"), ("Physics", "Physics-development"), ("a.b", "a.b-development")],
)
def test_a_namespace_that_kubernetes_refuses(project: str, words: str) -> None:
    assert words in refusal(replace(one(), project=project))
    assert namespace_of(replace(one(), project=project), a_site(kubernetes={"namespace": "jobs"})) == "jobs"


@pytest.mark.parametrize(("project", "domain"), [("kube", "system"), ("default", "")])
def test_a_namespace_of_the_cluster_is_no_projects(project: str, domain: str) -> None:
    lease = replace(one(), project=project, domain=domain)
    site = {"namespace": "{{ project }}-{{ domain }}" if domain else "{{ project }}"}
    assert "belongs to the cluster or to the agent" in refusal(lease, a_site(kubernetes=site))
    assert namespace_of(lease, a_site(kubernetes={"namespace": "default"})) == "default"  # the site says so itself


@pytest.mark.parametrize(
    ("account", "site", "expected"),
    [
        (None, {}, (None, False)),
        (None, {"service_account": "runner"}, ("runner", True)),
        ("mine", {"service_account": "runner"}, ("mine", True)),
        ("runner", {"service_account": "runner", "service_accounts": []}, ("runner", True)),
    ],
)
def test_service_account(account: str | None, site: Body, expected: tuple[str | None, bool]) -> None:
    pod = pod_of(of(_run_as(account), a_site(kubernetes=site)))
    assert (pod.get("serviceAccountName"), pod["automountServiceAccountToken"]) == expected


@pytest.mark.parametrize(
    ("account", "words"),
    [
        ("admin", "does not let jobs run as the service account admin"),
        ("Ad min", "cannot be the name"),
        ("a" * 254, "cannot"),
    ],
)
def test_service_accounts_that_are_refused(account: str, words: str) -> None:
    assert words in refusal(_run_as(account), a_site(kubernetes={"service_accounts": ["team-*"]}))


def test_an_iam_role_comes_with_the_service_account_of_the_site() -> None:
    site = a_site(kubernetes={"iam_roles": {"arn:role": "trainer"}, "service_accounts": ["team-*"]})
    with_role = one(execution={"security_context": {"run_as": {"iam_role": "arn:role"}}})
    pod = pod_of(of(with_role, site))
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("trainer", True)
    assert variables_of(of(with_role, site))["SWITCHYARD_IAM_ROLE"] == "arn:role"
    other = one(execution={"security_context": {"run_as": {"iam_role": "arn:role", "k8s_service_account": "team-a"}}})
    assert "arn:role comes with the service account trainer" in refusal(other, site)
    unknown = pod_of(of(one(execution={"security_context": {"run_as": {"iam_role": "arn:other"}}}), site))
    assert "serviceAccountName" not in unknown


# ---- Sizes ----------------------------------------------------------------------------------------


def test_a_word_of_128_kib_is_refused() -> None:
    assert "has 131072 bytes, and Linux takes 131071 in one word" in refusal(one("echo", "x" * 131_072))
    of(one("echo", "x" * 131_071))
    assert "Word 1 of its command" in refusal(one("echo", "ü" * 65_536))


def test_a_variable_of_128_kib_is_refused() -> None:
    assert "Its variable A has 131072 bytes" in refusal(one(env={"A": "x" * 131_070}))
    of(one(env={"A": "x" * 131_069}))


@pytest.mark.parametrize("name", ["Ä", "a\tb", "\x7f"])
def test_a_variable_with_a_strange_name_is_refused(name: str) -> None:
    assert "only printable ASCII" in refusal(one(env={name: "x"}))


def test_what_is_no_utf8_is_refused() -> None:
    assert refusal(one("echo", "\udcff")) == "Word 1 of its command is not UTF-8, and Kubernetes takes nothing else."


def test_a_command_beyond_etcd_is_refused() -> None:
    assert "more bytes than Kubernetes stores in one object" in refusal(one("echo", *["x" * 130_000] * 11))


# ---- Arrays ---------------------------------------------------------------------------------------


def a_range(lo: int, hi: int, **spec: Any) -> Lease:
    return replace(one("sh", "-c", "exit $SWITCHYARD_ARRAY_INDEX", **spec), lo=lo, hi=hi, fence=7)


def test_a_range_is_one_indexed_job() -> None:
    lease = a_range(3, 5)
    manifest = of(lease)
    spec = manifest["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 3, 3)
    assert (spec["backoffLimitPerIndex"], spec["podReplacementPolicy"]) == (0, "Failed")
    assert [rule["action"] for rule in spec["podFailurePolicy"]["rules"]] == ["FailIndex"]


def test_a_task_of_a_range_computes_its_index_and_fence() -> None:
    manifest = of(a_range(3, 5, env={"JOB_COMPLETION_INDEX": "forged"}))
    shell, option, script, *words = container_of(manifest)["command"]
    assert (shell, option) == ("/bin/sh", "-c")
    assert 'SWITCHYARD_ARRAY_INDEX="$$((JOB_COMPLETION_INDEX + 3))"' in script
    assert 'SWITCHYARD_FENCE="$$((JOB_COMPLETION_INDEX + 7))"' in script
    assert words == ["sh", "sh", "-c", "exit $$SWITCHYARD_ARRAY_INDEX"]
    assert not {"SWITCHYARD_FENCE", "SWITCHYARD_ARRAY_INDEX", "JOB_COMPLETION_INDEX"} & set(variables_of(manifest))


def test_the_shell_of_a_range_passes_variables_with_any_name_on() -> None:
    manifest = of(a_range(3, 5, env={"A-B": "it's $HOME", "a.b": "2"}))
    command = [word.replace("$$", "$") for word in container_of(manifest)["command"][:4]]
    given = {name: value.replace("$$", "$") for name, value in variables_of(manifest).items()}
    env = {**given, "PATH": os.environ["PATH"], "JOB_COMPLETION_INDEX": "0"}
    done = subprocess.run([*command, "env"], env=env, capture_output=True, text=True, check=True)
    assert {"A-B=it's $HOME", "a.b=2", "SWITCHYARD_ARRAY_INDEX=3"} <= set(done.stdout.splitlines())
    assert "SWITCHYARD_RANGE_VARIABLE_" not in done.stdout


def test_a_single_task_needs_no_shell() -> None:
    manifest = of(a_range(4, 4))
    assert container_of(manifest)["command"][0] == "sh"
    assert variables_of(manifest)["SWITCHYARD_ARRAY_INDEX"] == "4"
    assert "completionMode" not in manifest["spec"]


def test_tasks_that_need_a_job_each() -> None:
    assert can_share_job(a_range(0, 9), Site())
    assert not can_share_job(a_range(0, 9, files=JobFiles(out=["*"])), Site())
    assert not can_share_job(a_range(0, 9, resources={"tasks": 2}), Site())
    assert not can_share_job(a_range(0, 9), a_site(kubernetes={"array_jobs": True}))


# ---- Gangs ----------------------------------------------------------------------------------------


def test_several_tasks_are_a_gang_that_knows_its_peers() -> None:
    lease = one(resources={"tasks": 3, "cores": 2})
    manifest = of(lease)
    spec, name = manifest["spec"], job_name(lease)
    assert (spec["completionMode"], spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (
        "Indexed",
        3,
        3,
        0,
    )
    variables = variables_of(manifest)
    peers = [f"{name}-{index}.switchyard-gangs.physics-development.svc" for index in range(3)]
    assert (variables["SWITCHYARD_PEERS"], variables["SWITCHYARD_LEADER"]) == (",".join(peers), peers[0])
    assert variables["SWITCHYARD_PEER_COUNT"] == "3"
    assert pod_of(manifest)["subdomain"] == "switchyard-gangs"
    assert "affinity" not in pod_of(manifest)
    assert container_of(manifest)["resources"]["requests"] == {"cpu": "2"}


def test_nodes_of_a_gang_are_distinct() -> None:
    lease = one(resources={"tasks": 8, "nodes": 2, "cores": 1})
    manifest = of(lease)
    assert manifest["spec"]["completions"] == 2
    assert container_of(manifest)["resources"]["requests"] == {"cpu": "4"}
    rows = pod_of(manifest)["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rows[0]["topologyKey"] == "kubernetes.io/hostname"


def test_gangs_that_are_refused() -> None:
    assert "do not divide evenly" in refusal(one(resources={"tasks": 3, "nodes": 2}))
    assert "at most 2" in refusal(one(resources={"tasks": 3}), a_site(kubernetes={"gang_max": 2}))
    assert "do not fit into one variable" in refusal(
        one(resources={"tasks": 5000}), a_site(kubernetes={"gang_max": 5000})
    )


def _run_as(account: str | None) -> Lease:
    if account is None:
        return one()
    return one(execution={"security_context": {"run_as": {"k8s_service_account": account}}})
