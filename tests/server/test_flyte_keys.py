"""A FlyteAdmin config as the server's config file: its keys are read, and its mistakes are told with its own paths."""

from __future__ import annotations

import json

import pytest

from switchyard.errors import Malformed
from switchyard.features.flyte.server.config_keys import FLYTE_KEYS, UNUSED_KEYS
from switchyard.server.config.config import config_type, read_config
from switchyard.server.config.config_reading import KeyPath, config_reading


def nested(path: KeyPath, value: object) -> dict[str, object]:
    inner = value if len(path) == 1 else nested(path[1:], value)
    return {path[0].removesuffix("[]"): [inner] if path[0].endswith("[]") else inner}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "task_resource_defaults: {colour: {}}",
            "task_resource_defaults.colour: unknown key; known here: task_resources",
        ),
        ("task_resource_defaults: 7", "task_resource_defaults: Expected `object`"),
        ("task_resource_defaults: {defaults: {cpus: 1}}", "task_resource_defaults.defaults.cpus: unknown key"),
        (
            "task_resource_defaults: {task_resources: {limits: {cpu: [1]}}}",
            "task_resource_defaults.task_resources.limits.cpu: ",
        ),
        (
            "task_resources: {defaults: {cpu: 1}}\ntask_resource_defaults: {defaults: {cpu: 2}}",
            "task_resource_defaults.defaults: says the same as task_resources.defaults",
        ),
        (
            "task_resource_defaults: {task_resources: {}, defaults: {}, limits: {}}\ntask_resources: {}",
            "task_resource_defaults.task_resources: says the same as task_resources, ",
        ),
        ("clusterResources: {}\ncluster_resources: {}", "clusterResources: says the same as cluster_resources"),
        (
            "clusterResources: {}\ncluster_resource_manager: {config: {cluster_resources: {}}}",
            "clusterResources: says the same as cluster_resource_manager.config.cluster_resources",
        ),
        ("clusterResources: {templates: x}", "clusterResources.templates: unknown key"),
        ("qualityOfService: {}\nquality_of_service: {}", "qualityOfService: says the same as quality_of_service"),
        ("qualityOfService: {tiers: 1}", "qualityOfService.tiers: unknown key"),
        ("flyteadmin: {maxParallelism: many}", "flyteadmin.maxParallelism: Expected `int | null`"),
        ("flyteadmin: {colour: red}", "flyteadmin.colour: unknown key"),
        (
            "flyteadmin: {maxParallelism: 1}\nexecution_config: {max_parallelism: 2}",
            "flyteadmin.maxParallelism: says the same as execution_config.max_parallelism",
        ),
        ("flyteadmin: {labels: {a: b}}\nexecution_config: 7", "execution_config: Expected `object`"),
        (
            "clusterPools: {clusterPoolAssignments: {a: {pool: b}}}\nclusters: {clusterPoolAssignments: {}}",
            "clusterPools.clusterPoolAssignments: says the same as clusters.clusterPoolAssignments",
        ),
        ("propeller: {workers: 3}", "propeller.workers: unknown key; known here: resourcemanager"),
        ("queues: {executionQueue: []}", "queues.executionQueue: unknown key; known here: executionQueues"),
        ("queues: {executionQueues: [{attributes: [a]}]}", "queues.executionQueues[0].dynamic: missing"),
        ("queues: {executionQueues: [{dynamic: a, name: b}]}", "queues.executionQueues[0].name: unknown key"),
        ("queues: {workflowConfigs: 7}", "queues.workflowConfigs: Expected `array`"),
        ("queues: [{name: a}]\nexecutionQueues: [{dynamic: b}]", "executionQueues: says the same as queues"),
        (
            "workflowConfigs: [{domain: mars, tags: [a]}]",
            "workflowConfigs[0].domain: there is no such domain; known: dev",
        ),
        (
            "queues: {executionQueues: [{dynamic: a}], workflowConfigs: [{tags: [a]}]}\ndomains: [{id: d, tags: [a]}]",
            "queues.workflowConfigs: says the same as domains[0].tags",
        ),
        (
            "clusters: {clusterConfigs: [{name: a, auth: {colour: red}}]}",
            "clusters.clusterConfigs[0].auth.colour: unknown",
        ),
        ("storage: {type: minio, bucket: b}", "storage.bucket: unknown key"),
    ],
)
def test_mistakes_of_a_flyteadmin_config_are_told_with_its_own_paths(text: str, says: str) -> None:
    with pytest.raises(Malformed) as caught:
        read_config(text, where="f")
    listed = caught.value.detail.split("\n")[1:]
    assert [line for line in listed if line.startswith(f"  - {says}")], listed
    assert all("line " in line for line in listed)


def test_tags_of_domains_are_chosen_as_flyte_does() -> None:
    config = read_config(
        """
queues:
  executionQueues: [{dynamic: fast, attributes: [quick, gpu]}, {dynamic: slow}]
  workflowConfigs:
    - {domain: production, tags: [slow]}
    - {domain: production, tags: [nobody, quick, slow]}
    - {domain: staging, project: p, tags: [slow]}
    - {tags: [gpu]}
    - {tags: [slow]}
""",
        where="f",
    )
    assert {domain.id: domain.tags for domain in config.all_domains} == {
        "development": ["slow"],
        "staging": ["slow"],
        "production": ["quick"],
    }


@pytest.mark.parametrize("path", UNUSED_KEYS, ids=".".join)
def test_a_key_without_use_is_reported_and_is_no_mistake(path: KeyPath) -> None:
    value = {"testing": {}, "auth": {"type": "x"}, "kubeClientConfig": {}, "inCluster": True}.get(path[-1], "text")
    written = nested(path, value)
    if path[0] == "clusters":
        written["clusters"]["clusterConfigs"][0]["name"] = "a"  # type: ignore[index]
    reading = config_reading(json.dumps(written))
    assert list(reading.unused) == [".".join(path)]
    assert read_config(json.dumps(written), where="f")


def test_every_key_of_ours_that_stands_for_one_of_flytes_exists() -> None:
    assert {path[0] for path in FLYTE_KEYS.values()} <= {*config_type().__struct_fields__}


def test_a_file_without_keys_of_flyte_is_left_as_it_is() -> None:
    reading = config_reading("clusters: {clusterConfigs: [{name: a}]}\nqueues: [{name: q}]\ncolour: red\n")
    assert reading.value == {
        "clusters": {"clusterConfigs": [{"name": "a"}]},
        "queues": [{"name": "q"}],
        "colour": "red",
    }
    assert not reading.unused
    assert not reading.mistakes
