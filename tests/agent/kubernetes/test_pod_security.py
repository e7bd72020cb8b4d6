"""Rights of the containers and volumes that a job brings, below wide and narrow paths of the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from switchyard.model.cluster.pod_part import PodPart
from tests.agent.kubernetes.manifests import a_site, of, one, pod_of, refusal

HOW_TO = Path(__file__).parents[3] / "docs" / "how-to" / "run-flyte-workflows.md"
WIDE = ["/spec"]
SIDE = {"name": "side", "image": "side:1"}
TOKEN = {"sources": [{"serviceAccountToken": {"path": "token"}}]}
RIGHTS: list[tuple[dict[str, Any], str]] = [
    ({"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}, "/spec/volumes/-/hostPath"),
    ({"volumes": [{"name": "x", "nfs": {"server": "s", "path": "/"}}]}, "/spec/volumes/-/nfs"),
    ({"volumes": [{"name": "x", "projected": TOKEN}]}, "/spec/volumes/-/projected/sources/-/serviceAccountToken"),
    (
        {"initContainers": [SIDE | {"securityContext": {"privileged": True}}]},
        "/spec/initContainers/-/securityContext",
    ),
    ({"containers": [SIDE | {"securityContext": {"privileged": True}}]}, "/spec/containers/-/securityContext"),
    (
        {"containers": [{"name": "main", "securityContext": {"privileged": True}}]},
        "/spec/containers/0/securityContext",
    ),
    ({"initContainers": [SIDE | {"ports": [{"hostPort": 1}]}]}, "/spec/initContainers/-/ports/-/hostPort"),
    ({"securityContext": {"runAsUser": 0}}, "/spec/securityContext"),
    ({"hostNetwork": True}, "/spec/hostNetwork"),
    ({"serviceAccountName": "admin"}, "/spec/serviceAccountName"),
    ({"priorityClassName": "system-node-critical"}, "/spec/priorityClassName"),
    ({"nodeName": "n1"}, "/spec/nodeName"),
]


@pytest.mark.parametrize(("part", "place"), RIGHTS, ids=[place for _, place in RIGHTS])
def test_a_right_needs_a_path_that_names_it(part: dict[str, Any], place: str) -> None:
    lease = one(pod=PodPart(spec=part))
    assert f"set {place} of their pods" in refusal(lease, a_site(kubernetes={"patch_paths": WIDE}))
    for more in ({"patch_paths": [*WIDE, place]}, {"patch_paths": WIDE, "security": "privileged"}):
        assert pod_of(of(lease, a_site(kubernetes=more)))


def test_an_option_gives_no_right_either() -> None:
    site = a_site(kubernetes={"patch_paths": ["/spec/volumes", "/spec/containers/0"]})
    for option, place in (
        ('--pod=/spec/volumes/-={"name":"x","hostPath":{"path":"/"}}', "/spec/volumes/-/hostPath"),
        ("--pod=/spec/containers/0/securityContext={}", "/spec/containers/0/securityContext"),
    ):
        assert f"set {place} of their pods" in refusal(one(native={"options": [option]}), site)


def test_containers_of_a_job_have_the_security_of_its_own_container() -> None:
    site = a_site(kubernetes={"patch_paths": WIDE, "security": "restricted"})
    pod = pod_of(of(one(pod=PodPart(spec={"initContainers": [SIDE]})), site))
    assert pod["initContainers"][0]["securityContext"] == pod["containers"][0]["securityContext"]
    assert pod["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_every_image_of_a_pod_follows_the_rules_of_the_site() -> None:
    rules = [{"match": "busybox", "run": "kubernetes"}, {"match": "*", "run": "refuse"}]
    site = a_site(kubernetes={"patch_paths": WIDE}, images=rules)
    for part in ({"initContainers": [SIDE]}, {"containers": [SIDE]}, {"containers": [{"name": "main", "image": "x"}]}):
        assert "refuses the image" in refusal(one(pod=PodPart(spec=part)), site)
    assert "has no image" in refusal(one(pod=PodPart(spec={"initContainers": [{"name": "side"}]})), site)
    assert pod_of(of(one(pod=PodPart(spec={"initContainers": [SIDE | {"image": "busybox"}]})), site))


def test_no_job_brings_the_volume_with_the_files_of_all_jobs() -> None:
    claim = {"persistentVolumeClaim": {"claimName": "files"}}
    site = a_site(kubernetes={"patch_paths": WIDE, "files_volume": claim}, files={"folder": "/shared"})
    assert "the files of all jobs" in refusal(one(pod=PodPart(spec={"volumes": [{"name": "x", **claim}]})), site)
    other = {"name": "x", "persistentVolumeClaim": {"claimName": "other"}}
    assert pod_of(of(one(pod=PodPart(spec={"volumes": [other]})), site))


def test_the_paths_in_the_documents_open_sidecars_with_a_shared_folder_and_no_rights() -> None:
    paths = re.findall(r"^    - (/spec/\S+)$", HOW_TO.read_text(), re.MULTILINE)
    site = a_site(kubernetes={"patch_paths": paths})
    mounts = [{"name": "scratch", "mountPath": "/scratch"}]
    side = SIDE | {
        "command": ["x"],
        "env": [{"name": "A", "value": "1"}],
        "restartPolicy": "Always",
        "volumeMounts": mounts,
    }
    part = {
        "volumes": [{"name": "scratch", "emptyDir": {}}],
        "initContainers": [side],
        "containers": [{"name": "main", "volumeMounts": mounts}],
    }
    assert pod_of(of(one(pod=PodPart(spec=part)), site))["initContainers"][0]["image"] == "side:1"
    secret = {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    for refused in (
        *(right for right, _ in RIGHTS),
        {"volumes": [{"name": "x", "secret": {"secretName": "s"}}]},
        {"initContainers": [SIDE | {"env": [secret]}]},
    ):
        assert "does not let jobs set" in refusal(one(pod=PodPart(spec=refused)), site)
