"""Changes to the pod template by the site and by the job."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.errors import PolicyRefused
from switchyard.features.kubernetes.agent.kubernetes_site import KubernetesSite
from switchyard.features.kubernetes.agent.pods.template_patch import merge_patch, patch_template
from switchyard.model.cluster.pod_part import PodPart
from switchyard.model.job.job import JobSpec, Native
from tests.sites import site_with

Body = dict[str, Any]


def a_template() -> Body:
    return {
        "metadata": {
            "labels": {"switchyard/job": "J", "app.kubernetes.io/managed-by": "switchyard", "team": "a"},
            "annotations": {},
        },
        "spec": {
            "restartPolicy": "Never",
            "tolerations": [{"key": "a"}],
            "containers": [{"name": "main", "command": ["true"], "env": [{"name": "A", "value": "1"}]}],
        },
    }


def patched(*options: str, paths: list[str] | None = None, template: Body | None = None) -> Body:
    site = site_with(kubernetes=KubernetesSite(template=template or {}, patch_paths=paths or []))
    spec = JobSpec(command=["true"], native=Native(options=list(options)))
    return patch_template(a_template(), spec, site)


def refusal(*options: str, **site: Any) -> str:
    with pytest.raises(PolicyRefused) as caught:
        patched(*options, **site)
    return caught.value.detail


def test_the_sites_template_is_merged() -> None:
    template = {
        "metadata": {"labels": {"team": "b"}},
        "spec": {
            "dnsPolicy": "Default",
            "tolerations": [{"key": "b"}],
            "containers": [
                {"name": "main", "env": [{"name": "B", "value": "2"}], "resources": {"limits": {"x/y": "1"}}},
                {"name": "side", "image": "side:1"},
            ],
        },
    }
    spec = patched(template=template)["spec"]
    assert [row["name"] for row in spec["containers"]] == ["main", "side"]
    assert [row["name"] for row in spec["containers"][0]["env"]] == ["A", "B"]
    assert spec["tolerations"] == [{"key": "a"}, {"key": "b"}]
    assert (spec["dnsPolicy"], spec["restartPolicy"]) == ("Default", "Never")


def test_merging() -> None:
    assert merge_patch({"a": 1, "b": 2}, {"a": None, "c": 3}) == {"b": 2, "c": 3}
    assert merge_patch({"a": {"b": 1}}, {"a": 5}) == {"a": 5}
    assert merge_patch([1], [2]) == [1, 2]


@pytest.mark.parametrize(
    ("option", "paths", "place", "value"),
    [
        ("--pod=/spec/runtimeClassName=gvisor", ["/spec/runtimeClassName"], ("spec", "runtimeClassName"), "gvisor"),
        ("--pod=/spec/priority=5", ["/spec/priority"], ("spec", "priority"), 5),
        ("--pod=/spec/a/b=x=y", ["/spec/a"], ("spec", "a", "b"), "x=y"),
        (
            '--pod=/spec/dnsConfig={"nameservers":["1.1.1.1"]}',
            ["/spec/*"],
            ("spec", "dnsConfig", "nameservers"),
            ["1.1.1.1"],
        ),
        ("--pod=/metadata/annotations/a~1b=x", ["/metadata/annotations"], ("metadata", "annotations", "a/b"), "x"),
        ("--pod=/metadata/annotations/a~1b=x", ["/metadata/annotations/a~1b"], ("metadata", "annotations", "a/b"), "x"),
    ],
)
def test_a_job_sets_what_the_site_allows(option: str, paths: list[str], place: tuple[str, ...], value: Any) -> None:
    found: Any = patched(option, paths=paths)
    for part in place:
        found = found[part]
    assert found == value


def test_lists_by_index_and_end() -> None:
    options = ('--pod=/spec/containers/0/env/-={"name":"B","value":"2"}', "--pod=/spec/tolerations/0/key=z")
    spec = patched(*options, paths=["/spec/containers/0/env", "/spec/tolerations/*/key"])["spec"]
    assert [row["name"] for row in spec["containers"][0]["env"]] == ["A", "B"]
    assert spec["tolerations"] == [{"key": "z"}]


@pytest.mark.parametrize(
    ("option", "paths", "words"),
    [
        ("--pod=/spec/hostNetwork=true", [], "it lets them set nothing"),
        ("--pod=/spec/hostNetwork=true", ["/spec/runtimeClassName"], "it lets them set /spec/runtimeClassName"),
        ("--pod=/spec=x", ["/spec/runtimeClassName"], "does not let jobs set /spec"),
        ("--pod=/spec/runtimeClass=x", ["/spec/runtimeClassName"], "does not let jobs set"),
        ("--pod=spec/x=1", ["/spec"], "write `--pod=/PATH=VALUE`"),
        ("--pod=/spec/x", ["/spec"], "write `--pod=/PATH=VALUE`"),
        ("--pod=/spec//x=1", ["/spec"], "write `--pod=/PATH=VALUE`"),
        ("--nice=5", ["/spec"], "Kubernetes has no option --nice"),
        ("--pod=/spec/restartPolicy=Always", ["/spec"], "/spec/restartPolicy of a pod is set by the agent"),
        ("--pod=/spec/activeDeadlineSeconds=9", ["/spec"], "/spec/activeDeadlineSeconds of a pod is set"),
        ("--pod=/spec/hostname=x", ["/spec"], "/spec/hostname of a pod is set"),
        ("--pod=/metadata/labels/switchyard~1job=x", ["/metadata"], "are set by the agent itself"),
        ("--pod=/metadata/labels/switchyard~1new=x", ["/metadata"], "are set by the agent itself"),
        ("--pod=/metadata/labels/app.kubernetes.io~1managed-by=helm", ["/metadata/labels"], "are set by the agent"),
        ('--pod=/metadata/labels={"switchyard/job":"J","team":"a"}', ["/metadata/labels"], "are set by the agent"),
        ("--pod=/metadata/annotations/a~1c=x", ["/metadata/annotations/a~1b"], "does not let jobs set"),
        ("--pod=/metadata/labels=7", ["/metadata"], "are set by the agent itself"),
        ('--pod=/spec/containers/0/command=["evil"]', ["/spec"], "comes first and runs the job's command"),
        ('--pod=/spec/containers/0/args=["more"]', ["/spec"], "comes first and runs the job's command"),
        ("--pod=/spec/containers=[]", ["/spec"], "comes first and runs the job's command"),
        ("--pod=/spec/containers/7/image=x", ["/spec"], "has no place /spec/containers/7/image"),
        ("--pod=/spec/restartPolicy/x=1", ["/spec"], "has no place"),
    ],
)
def test_what_a_job_may_not_set(option: str, paths: list[str], words: str) -> None:
    assert words in refusal(option, paths=paths)


def test_an_option_that_breaks_the_grammar() -> None:
    assert refusal("-x\n").startswith("This cannot be passed to Kubernetes: native.options: ")


def test_a_site_cannot_take_the_job_out_of_its_pod() -> None:
    assert "comes first" in refusal(template={"spec": {"containers": None}})
    assert "are set by the agent itself" in refusal(template={"metadata": {"labels": None}})


def with_part(part: PodPart, paths: list[str]) -> Body:
    site = site_with(kubernetes=KubernetesSite(patch_paths=paths))
    return patch_template(a_template(), JobSpec(command=["true"], pod=part), site)


PART = PodPart(
    metadata={"labels": {"team": "a"}},  # as it is: no change
    spec={
        "volumes": [{"name": "scratch", "emptyDir": {}}],
        "initContainers": [{"name": "helper", "image": "helper:1"}],
        "containers": [{"name": "main", "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}],
    },
)
PART_PATHS = ["/spec/volumes/*/emptyDir", "/spec/volumes/*/name", "/spec/initContainers"]


def test_a_job_brings_parts_of_its_pod_where_the_site_allows_it() -> None:
    spec = with_part(PART, [*PART_PATHS, "/spec/containers/0/volumeMounts"])["spec"]
    assert spec["volumes"] == [{"name": "scratch", "emptyDir": {}}]
    security = {"allowPrivilegeEscalation": False}
    assert spec["initContainers"] == [{"name": "helper", "image": "helper:1", "securityContext": security}]
    (main,) = spec["containers"]
    assert (main["command"], main["volumeMounts"][0]["mountPath"]) == (["true"], "/scratch")
    assert with_part(PodPart(), []) == a_template()


@pytest.mark.parametrize(
    ("part", "paths", "words"),
    [
        (PART, PART_PATHS, "does not let jobs set /spec/containers/0/volumeMounts/-/name"),
        (PodPart(spec={"hostNetwork": True}), [], "does not let jobs set /spec/hostNetwork"),
        (PodPart(spec={"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}), PART_PATHS, "/spec/volumes/-/hostPath"),
        (PodPart(spec={"containers": [{"name": "main", "command": ["x"]}]}), ["/spec"], "runs the job's command"),
        (PodPart(spec={"containers": [{"name": "other", "image": "x"}]}), PART_PATHS, "set /spec/containers/-/name"),
        (PodPart(spec={"tolerations": None}), ["/spec"], "a job cannot remove anything"),
        (PodPart(spec={"restartPolicy": "Always"}), ["/spec"], "is set by the agent itself"),
        (PodPart(spec={"containers": [{"name": "main", "restartPolicy": "Always"}]}), ["/spec"], "run a command again"),
        (
            PodPart(spec={"initContainers": [{"name": "x", "image": "i", "restartPolicyRules": []}]}),
            ["/spec"],
            "run a command again",
        ),
        (PodPart(metadata={"labels": {"switchyard/job": "other"}}), ["/metadata"], "are set by the agent itself"),
        (PodPart(metadata={"labels": {"job-name": "other"}}), ["/metadata"], "are set by Kubernetes"),
    ],
)
def test_parts_of_a_pod_that_the_site_does_not_allow(part: PodPart, paths: list[str], words: str) -> None:
    with pytest.raises(PolicyRefused) as caught:
        with_part(part, paths)
    assert words in caught.value.detail


OWN_VOLUMES = [
    {"name": "yard-files", "nfs": {"server": "s", "path": "/"}},
    {"name": "host-0", "hostPath": {"path": "/d"}},
]
OWN_MOUNTS = [
    {"name": "host-0", "mountPath": "/d", "readOnly": True},
    {"name": "yard-files", "mountPath": "/work", "subPath": "a"},
    {"name": "yard-files", "mountPath": "/in", "subPath": "a/in"},
]
WIDE_PATHS = ["/spec/volumes", "/spec/initContainers", "/spec/containers"]


def with_volumes(part: PodPart | None = None, *options: str) -> Body:
    template = a_template()
    template["spec"]["volumes"] = OWN_VOLUMES
    template["spec"]["containers"][0]["volumeMounts"] = OWN_MOUNTS
    spec = JobSpec(command=["true"], pod=part, native=Native(options=list(options)))
    return patch_template(template, spec, site_with(kubernetes=KubernetesSite(patch_paths=WIDE_PATHS)))


def of_main(**fields: Any) -> PodPart:
    return PodPart(spec={"containers": [{"name": "main", **fields}]})


def a_sidecar(**fields: Any) -> PodPart:
    return PodPart(spec={"initContainers": [{"name": "side", "image": "side:1", **fields}]})


@pytest.mark.parametrize(
    "part",
    [
        of_main(volumeMounts=[{"name": "yard-files", "subPath": ""}]),
        of_main(volumeMounts=[{"name": "yard-files", "mountPath": "/work", "subPath": ""}]),
        of_main(volumeMounts=[{"name": "yard-files", "mountPath": "/all"}]),
        of_main(volumeMounts=[{"name": "host-0", "mountPath": "/d", "readOnly": False}]),
        of_main(volumeMounts=[{"name": "host-0", "mountPath": "/again"}]),
        of_main(volumeDevices=[{"name": "host-0", "devicePath": "/dev/x"}]),
        of_main(env=[{"name": "A", "value": "2"}]),
        a_sidecar(volumeMounts=[{"name": "yard-files", "mountPath": "/all"}]),
        a_sidecar(volumeMounts=[{"name": "host-0", "mountPath": "/d"}]),
        PodPart(spec={"volumes": [{"name": "yard-files", "nfs": {"path": "/other"}}]}),
        PodPart(spec={"volumes": [{"name": "a"}, {"name": {"b": 1}}]}),
        PodPart(spec={"volumes": {"name": "a"}}),
        a_sidecar(volumeMounts=[{"name": ["yard-files"], "mountPath": "/all"}]),
    ],
)
def test_a_job_changes_and_mounts_nothing_of_the_clusters_own(part: PodPart) -> None:
    with pytest.raises(PolicyRefused):
        with_volumes(part)


@pytest.mark.parametrize(
    "option",
    [
        "--pod=/spec/containers/0/volumeMounts/1/subPath=",
        "--pod=/spec/containers/0/volumeMounts=[]",
        '--pod=/spec/containers/0/volumeMounts/-={"name":"yard-files","mountPath":"/all"}',
        "--pod=/spec/volumes/1/hostPath/path=/",
        "--pod=/spec/volumes=5",
    ],
)
def test_an_option_changes_and_mounts_nothing_of_the_clusters_own(option: str) -> None:
    with pytest.raises(PolicyRefused):
        with_volumes(None, option)


def test_mounts_of_a_job_are_added_to_those_of_the_agent() -> None:
    """Several mounts have the same name, which is that of their volume."""
    mount = {"name": "scratch", "mountPath": "/scratch"}
    part = PodPart(
        spec={
            "volumes": [{"name": "scratch", "emptyDir": {}}],
            "containers": [{"name": "main", "volumeMounts": [mount]}],
        }
    )
    (main,) = with_volumes(part)["spec"]["containers"]
    assert main["volumeMounts"] == [*OWN_MOUNTS, mount]
