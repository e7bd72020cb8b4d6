"""Jobs whose pods have values that nobody can read: the job is refused, and the agent goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from switchyard.agent.loop.need import spec_of
from switchyard.errors import PolicyRefused
from switchyard.features.kubernetes.agent.backend import KubernetesBackend
from switchyard.features.kubernetes.agent.kubernetes_site import kubernetes_of
from switchyard.features.kubernetes.agent.pods.pod_changes import refuse_malformed
from switchyard.model.cluster.pod_part import PodPart
from switchyard.model.job.job import JobSpec
from tests.agent.builders import a_lease
from tests.agent.kubernetes.job_api import JobApi
from tests.agent.kubernetes.node_builders import node_object

MALFORMED = [
    {"initContainers": [{"name": "a", "resources": {"requests": {"cpu": []}}}]},
    {"initContainers": [{"name": "a", "resources": 5}]},
    {"initContainers": "x"},
    {"volumes": [{"name": {"a": 1}}]},
    {"volumes": [{"name": "a"}, 5]},
    {"affinity": "x"},
    {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [5]}}},
    {"nodeSelector": [5]},
]


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesBackend]:
    folder: Path = tmp_path_factory.mktemp("api")
    with closing(JobApi(folder)) as api:
        api.nodes = [node_object()]
        setting = api.setting()
        section = msgspec.structs.replace(kubernetes_of(setting.site), patch_paths=["/spec"])
        site = msgspec.structs.replace(setting.site, kubernetes=section)
        with closing(KubernetesBackend(replace(setting, graph=None, site=site))) as backend:
            yield backend


@pytest.mark.parametrize("part", MALFORMED, ids=str)
def test_a_malformed_pod_is_refused_when_it_is_submitted_and_when_it_is_quoted(
    backend: KubernetesBackend, part: dict[str, Any]
) -> None:
    lease = a_lease(pod=PodPart(spec=part))
    with pytest.raises(PolicyRefused):
        backend.submit(lease)
    assert not backend.quote(spec_of(lease)).can


def test_a_defect_of_the_agent_is_not_called_a_mistake_of_the_job() -> None:
    with pytest.raises(TypeError), refuse_malformed(JobSpec(command=["true"])):
        raise TypeError("x")
