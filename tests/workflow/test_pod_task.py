"""Pod tasks: the primary container as a job, and the rest of the pod."""

from __future__ import annotations

from typing import Any

import pytest
from flyteidl.core import compiler_pb2, literals_pb2, tasks_pb2, workflow_pb2
from google.protobuf import json_format

from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind
from switchyard.features.flyte.workflow.compile.task_checks import task_mistakes
from switchyard.features.flyte.workflow.engine.execution_checks import unserved_parts
from switchyard.features.flyte.workflow.engine.node_job import node_job_spec, trial_template
from switchyard.features.flyte.workflow.tasks.pod_task import container_of, pod_part, pod_task_mistakes
from switchyard.features.flyte.workflow.tasks.task_command import AttemptNames
from switchyard.model.cluster.pod_part import PodPart

NAMES = AttemptNames("p", "d", "e1", "mod.wf", "mod.wf", "n0", 0, EntityId(EntityKind.TASK, "p", "d", "mod.pod", "v1"))
PRIMARY = {
    "name": "primary",
    "image": "team/pod:1",
    "args": ["run", "{{.outputPrefix}}", "{{.inputs.n}}"],
    "env": [
        {"name": "COLOUR", "value": "red"},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ],
    "resources": {"requests": {"cpu": 2, "memory": "1Gi", "example.com/fpga": "1"}},
    "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
}
POD = {
    "containers": [{"name": "helper", "image": "team/helper:1"}, PRIMARY],
    "volumes": [{"name": "scratch", "emptyDir": {}}],
    "runtimeClassName": None,
}


def a_task(pod: Any = None, **fields: Any) -> Any:
    given = {"metadata": {"labels": {"team": "a"}}, "pod_spec": pod or POD, **fields.pop("k8s_pod", {})}
    config = fields.pop("config", {"primary_container_name": "primary"})
    plain = {"type": "sidecar", "k8s_pod": given, "config": config, **fields}
    return json_format.ParseDict(plain, tasks_pb2.TaskTemplate())


def test_the_primary_container_is_the_job_and_the_rest_its_pod() -> None:
    inputs = literals_pb2.LiteralMap()
    inputs.literals["n"].scalar.primitive.integer = 7
    spec = node_job_spec(a_task(), workflow_pb2.Node(), NAMES, inputs=inputs, envs={}, bundles={}, tree="0" * 64)
    assert (spec.image, spec.command[-3:], spec.env["COLOUR"]) == (
        *("team/pod:1", ["run", "@job-files@/flyte-io/out", "7"], "red"),
    )
    assert (spec.resources.cores, spec.resources.memory) == ("2", "1Gi")
    main = {
        "name": "main",
        "env": [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "resources": {"requests": {"example.com/fpga": "1"}},
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    }
    helper = {"name": "helper", "image": "team/helper:1", "restartPolicy": "Always"}
    assert spec.pod == PodPart(
        metadata={"labels": {"team": "a"}},
        spec={
            "containers": [main],
            "initContainers": [helper],
            "volumes": [{"name": "scratch", "emptyDir": {}}],
        },
    )


# As flytekit 1.16.31 sends @task(pod_template=PodTemplate(…), requests=Resources(…), limits=…, environment=…).
OF_FLYTEKIT = {
    "metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}},
    "pod_spec": {
        "volumes": [{"name": "scratch", "emptyDir": {}}],
        "containers": [
            {
                "resources": {
                    "limits": {"cpu": "2"},
                    "requests": {"ephemeral-storage": "1Gi", "gpu": "1", "cpu": "1", "memory": "200Mi"},
                },
                "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
                "name": "main-task",
                "image": "team/pod:1",
                "env": [{"name": "A", "value": "1"}, {"name": "COLOUR", "value": "red"}],
                "command": [],
                "args": ["pyflyte-execute", "--inputs", "{{.input}}", "--output-prefix", "{{.outputPrefix}}"],
            },
            {
                "resources": {"requests": {"cpu": "100m"}},
                "name": "side",
                "image": "busybox:1",
                "args": ["sleep", "1"],
            },
        ],
        "tolerations": [{"operator": "Exists", "key": "gpu"}],
    },
}


def test_a_pod_template_of_flytekit_is_a_job_with_all_that_it_says() -> None:
    task = a_task(k8s_pod=OF_FLYTEKIT, config={"primary_container_name": "main-task"}, type="python-task")
    assert list(pod_task_mistakes(task)) == []
    inputs = literals_pb2.LiteralMap()
    spec = node_job_spec(task, workflow_pb2.Node(), NAMES, inputs=inputs, envs={}, bundles={}, tree="0" * 64)
    assert (spec.image, spec.env["A"], spec.env["COLOUR"]) == ("team/pod:1", "1", "red")
    resources = spec.resources
    assert (resources.cores, resources.gpus, resources.memory) == ("1100m", 1, "200Mi"), "with the sidecar's share"
    assert spec.pod is not None
    assert spec.pod.metadata == OF_FLYTEKIT["metadata"]
    side = {"resources": {"requests": {"cpu": "100m"}}, "name": "side", "image": "busybox:1", "args": ["sleep", "1"]}
    assert spec.pod.spec == {
        "volumes": [{"name": "scratch", "emptyDir": {}}],
        "containers": [{"name": "main", "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}],
        "initContainers": [{**side, "restartPolicy": "Always"}],
        "tolerations": [{"operator": "Exists", "key": "gpu"}],
    }


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"metadata": {"pod_template_name": "house"}}, "names a PodTemplate of its cluster, house"),
        (
            {"extended_resources": {"gpu_accelerator": {"device": "nvidia a100"}}},
            "'nvidia a100' is not the name of a type",
        ),
        ({"extended_resources": {"shared_memory": {"size_limit": "1Gi"}}}, "a volume of shared memory"),
    ],
)
def test_what_a_task_says_of_its_pod_is_never_dropped(fields: dict[str, Any], words: str) -> None:
    plain = {"id": {"name": "mod.t"}, "type": "python-task", "container": {"image": "i", "args": ["a"]}, **fields}
    closure = json_format.ParseDict({"tasks": [{"template": plain}]}, compiler_pb2.CompiledWorkflowClosure())
    (told,) = unserved_parts(closure)
    assert told.startswith("task mod.t ")
    assert words in told
    overrides = fields.get("extended_resources")
    if overrides:
        node = {"id": "n0", "task_node": {"overrides": {"extended_resources": overrides}}}
        flow = {"primary": {"template": {"nodes": [node]}}}
        (told,) = unserved_parts(json_format.ParseDict(flow, compiler_pb2.CompiledWorkflowClosure()))
        assert told.startswith("node n0 asks for")


def test_a_trial_has_the_same_pod_without_inputs() -> None:
    trial = trial_template(a_task())
    assert list(container_of(trial).args) == ["trial"]
    whole, tried = pod_part(a_task()), pod_part(trial)
    assert whole is not None
    assert tried is not None
    assert whole.spec["volumes"] == tried.spec["volumes"]


@pytest.mark.parametrize(
    "fields", [{"config": {}, "k8s_pod": {"primary_container_name": "primary"}}, {"pod": {"containers": [PRIMARY]}}]
)
def test_where_the_name_of_the_primary_container_is(fields: dict[str, Any]) -> None:
    task = a_task(**fields)
    assert list(pod_task_mistakes(task)) == []
    assert container_of(task).image == "team/pod:1"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"config": {}}, "does not say which of its 2 containers is the primary one"),
        ({"config": {"primary_container_name": "other"}}, "has no container 'other'"),
        ({"pod": {"containers": []}, "config": {}}, "which of its 0 containers"),
        ({"pod": {"containers": "x"}, "config": {}}, "which of its 0 containers"),
        ({"pod": {"containers": [{"name": "primary"}]}}, "has no image"),
        ({"pod": {"containers": [PRIMARY, {"name": "main", "image": "x"}]}}, "is called main"),
        ({"k8s_pod": {"data_config": {"enabled": True}}}, "data_config"),
        ({"pod": {"containers": [PRIMARY | {"resources": "x"}]}}, "a value of the wrong kind"),
        ({"pod": {"containers": [PRIMARY | {"resources": {"requests": ["x"]}}]}}, "a value of the wrong kind"),
        ({"pod": {"containers": [PRIMARY | {"env": ["x"]}]}}, "a value of the wrong kind"),
        ({"pod": {"containers": [PRIMARY | {"env": 5}]}}, "a value of the wrong kind"),
        ({"pod": {"containers": [PRIMARY | {"command": 5}]}}, "command of its primary container is no list"),
        ({"pod": {"containers": [PRIMARY | {"args": "x"}]}}, "args of its primary container is no list"),
        ({"pod": {"containers": [PRIMARY, "x"]}}, "its containers are no list of maps with names"),
        ({"pod": {"containers": [PRIMARY, {"image": "x"}]}}, "its containers are no list of maps with names"),
        ({"pod": {"containers": [PRIMARY], "initContainers": "x"}}, "its initContainers are no list"),
    ],
)
def test_pod_tasks_that_cannot_run(fields: dict[str, Any], words: str) -> None:
    assert words in "; ".join(pod_task_mistakes(a_task(**fields)))


def test_a_task_with_a_container_has_no_pod() -> None:
    plain = json_format.ParseDict({"type": "x", "container": {"image": "i", "args": ["a"]}}, tasks_pb2.TaskTemplate())
    assert (pod_part(plain), list(container_of(plain).args)) == (None, ["a"])


def asking(name: str, requests: dict[str, Any], limits: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "image": "i", "resources": {"requests": requests, "limits": limits or {}}, **more}


def amounts_of(*containers: dict[str, Any], **pod: Any) -> tuple[dict[str, str], dict[str, str]]:
    resources = container_of(a_task(pod={"containers": list(containers), **pod})).resources
    words = tasks_pb2.Resources.ResourceName
    requests, limits = (
        {words.Name(one.name): one.value for one in entries} for entries in (resources.requests, resources.limits)
    )
    return requests, limits


def test_a_job_asks_for_what_all_containers_of_its_pod_ask_for() -> None:
    primary, side = asking("primary", {"cpu": 2, "memory": "1Gi"}), asking("side", {"cpu": "500m"})
    assert amounts_of(primary, side) == ({"CPU": "2500m", "MEMORY": "1Gi"}, {"CPU": "2500m"})
    limited = asking("side", {"cpu": "500m"}, {"cpu": 1})
    assert amounts_of(primary, limited) == ({"CPU": "2500m", "MEMORY": "1Gi"}, {"CPU": "3000m"})
    only_limit = asking("side", {}, {"memory": "1Gi"})
    assert amounts_of(primary, only_limit)[0] == {"CPU": "2", "MEMORY": str(2 * 2**30)}
    silent = {"name": "primary", "image": "i"}
    assert amounts_of(silent, side)[0] == {"CPU": "1500m"}
    small, large = asking("init", {"cpu": 1}), asking("init", {"cpu": 7})
    assert amounts_of(primary, initContainers=[small])[0]["CPU"] == "2"
    assert amounts_of(primary, initContainers=[large])[0]["CPU"] == "7000m"
    assert amounts_of(primary, initContainers=[small | {"restartPolicy": "Always"}])[0]["CPU"] == "3000m"


def test_all_containers_together_stay_within_the_limits_of_the_project() -> None:
    task = a_task(pod={"containers": [asking("primary", {"cpu": 2}), asking("side", {"cpu": 1})]})
    words = "All containers together: cpu request [3000m] is greater than the limit [2500m]"
    assert words in "; ".join(task_mistakes(task, {"cpu": "2500m"}))
    assert "together" not in "; ".join(task_mistakes(task, {"cpu": "3"}))
