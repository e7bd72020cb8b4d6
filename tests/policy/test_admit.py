"""Admission: which scopes are known, what the rules fill in, what they refuse, and what is recorded of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from switchyard.errors import BadRequest, PolicyRefused, UnknownName, YardError
from switchyard.model.executions.execution import ExecutionConfig, QualityOfService, Tier
from switchyard.model.job.job import Limits
from switchyard.model.rules.attributes import JobPolicy
from switchyard.policy.admit import ProjectEntry
from switchyard.policy.original_request import restore_request
from tests.builders import a_request
from tests.policy.laws import KINDS, LEVELS, a_platform, a_policy, admitted

HERE = LEVELS["project+domain"]
TASK = "task-resource-attribute"
CONFIG = "workflow-execution-config"


def test_a_job_that_no_rule_is_about_stays_as_it_is() -> None:
    request = a_request(project="p")
    found = admitted(a_policy())
    assert (found.request, found.queues) == (request, ("default",))
    assert used(found) == []


def test_an_unknown_domain_lists_the_known_ones() -> None:
    with pytest.raises(UnknownName, match="no domain 'nowhere'") as caught:
        admitted(a_policy(), domain="nowhere")
    assert caught.value.next_step == "Known domains: development, staging, production."


def test_an_unknown_project_does_not_list_those_of_others() -> None:
    with pytest.raises(UnknownName, match="no project 'secret'") as caught:
        admitted(a_policy(), project="secret")
    assert "old" not in caught.value.detail + caught.value.next_step


def test_an_archived_project_takes_no_jobs() -> None:
    with pytest.raises(BadRequest, match="archived"):
        admitted(a_policy(), project="old")


@pytest.mark.parametrize(
    "fields",
    [
        {"labels": {"team": "red", "flyte/execution": "nightly"}},
        {"labels": {"flyte/anything": "x"}},
        {"execution": ExecutionConfig(labels={"flyte/execution": "nightly"})},
    ],
)
def test_a_request_cannot_have_labels_of_the_server(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="only the server sets labels that begin with flyte/"):
        admitted(a_policy(), **fields)


def test_the_servers_own_labels_stand_beside_those_of_request_rules_and_project() -> None:
    ours = {"flyte/execution": "run", "flyte/node": "n0"}
    labels = {"flyte/execution": "taken", "flyte/other": "x"}  # of rows that are older than their refusal
    projects = {"p": ProjectEntry({**labels, "owner": "lab"})}
    policy = a_policy({HERE: {CONFIG: {"labels": {**labels, "team": "red"}}}})
    by_rule = admitted(policy, projects=projects, server_labels=ours)
    assert by_rule.request.labels == {"owner": "lab", "team": "red", **ours}
    by_request = admitted(policy, projects=projects, server_labels=ours, labels={"team": "blue"})
    assert by_request.request.labels == {"owner": "lab", "team": "blue", **ours}
    assert admitted(policy, projects=projects).request.labels == {"owner": "lab", "team": "red"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"pool": "nope"}, "no pool 'nope'"),
        ({"cluster_label": "nope"}, "no label 'nope'"),
        ({"tags": ["big", "nope"]}, "no queue tag 'nope'"),
    ],
)
def test_a_name_that_nobody_knows_is_refused_with_the_known_ones(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(UnknownName, match=said) as caught:
        admitted(a_policy(), **fields)
    assert "Known" in caught.value.next_step


def test_a_row_that_names_what_the_config_no_longer_has_fails_closed() -> None:
    policy = a_policy({HERE: {"cluster-assignment": {"cluster_pool_name": "gpu"}}}, platform=a_platform(pools={"cpu"}))
    with pytest.raises(UnknownName, match="no pool 'gpu'"):
        admitted(policy)


def test_a_default_fills_request_and_limit_and_is_recorded_with_its_level() -> None:
    policy = a_policy({HERE: {TASK: {"defaults": {"cpu": "1500m", "memory": "150Mi"}, "limits": {"cpu": "2"}}}})
    found = admitted(policy)
    resources = found.request.spec.resources
    assert (resources.cores, resources.limits.cores) == ("1500m", "1500m")
    assert (resources.memory, resources.limits.memory) == ("150Mi", "150Mi")
    assert used(found) == [
        (TASK, "defaults.cpu", "1500m", "project+domain"),
        (TASK, "defaults.memory", "150Mi", "project+domain"),
        (TASK, "limits.cpu", "2", "project+domain"),
    ]


def test_what_the_job_asks_for_itself_leaves_the_default_out_of_the_record() -> None:
    policy = a_policy({HERE: {TASK: {"defaults": {"cpu": "1"}, "limits": {"cpu": "2"}}}})
    assert used(admitted(policy, cores=2)) == [(TASK, "limits.cpu", "2", "project+domain")]


@pytest.mark.parametrize(
    ("row", "fields", "said"),
    [
        ({"limits": {"cpu": "500m"}}, {"cores": "900m"}, "cpu: asks for 900m, and the limit is 500m"),
        ({"limits": {"memory": "1Gi"}}, {"memory": "1025Mi"}, "memory: asks for 1025Mi, and the limit is 1Gi"),
        ({"limits": {"gpu": "1"}}, {"gpus": 2}, "gpu: asks for 2, and the limit is 1"),
        ({"limits": {"ephemeral_storage": "1Gi"}}, {"ephemeral_storage": "2Gi"}, "ephemeral_storage: asks for 2Gi"),
        ({"limits": {"memory": "1Gi"}}, {"limits": Limits(memory="64Gi")}, "memory: asks for 64Gi"),
        (
            {"limits": {"memory": "1Gi"}},
            {"memory": "1Gi", "limits": Limits(memory="2Gi")},
            "memory: its own limit is 2Gi, and the limit is 1Gi",
        ),
    ],
)
def test_above_a_limit_is_refused_with_the_limit_and_its_level(
    row: dict[str, Any], fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(PolicyRefused) as caught:
        admitted(a_policy({LEVELS["workflow"]: {TASK: row}}), workflow="w", **fields)
    assert said in caught.value.detail
    assert "workflow level: project p, domain development, workflow w" in caught.value.detail


def test_a_limit_alone_gives_a_job_nothing() -> None:
    found = admitted(a_policy({HERE: {TASK: {"limits": {"cpu": "500m", "gpu": "1"}}}}))
    assert found.request == a_request(project="p")
    assert used(found) == []


def test_exactly_at_the_limit_is_admitted() -> None:
    policy = a_policy({HERE: {TASK: {"limits": {"cpu": "0.5", "memory": "1Gi"}}}})
    admitted(policy, cores="500m", memory="1024Mi")


def test_a_default_above_the_limit_of_another_level_is_refused_and_both_levels_named() -> None:
    platform = a_platform({TASK: {"defaults": {"cpu": "4"}}})
    policy = a_policy({HERE: {TASK: {"limits": {"cpu": "2"}}}}, platform=platform)
    with pytest.raises(PolicyRefused, match=r"default 4 \(platform config\) is above it: the limit is 2 \(project"):
        admitted(policy)
    admitted(policy, cores=2)


def test_all_refusals_are_said_at_once() -> None:
    policy = a_policy({HERE: {TASK: {"limits": {"cpu": "1", "memory": "1Gi"}}}})
    with pytest.raises(PolicyRefused, match=r"cpu.*; memory"):
        admitted(policy, cores=2, memory="2Gi")


def test_the_requests_pool_must_be_the_one_its_scope_is_bound_to() -> None:
    policy = a_policy({HERE: {"cluster-assignment": {"cluster_pool_name": "gpu"}}})
    assert admitted(policy).draft.bounds.pool == "gpu"
    assert admitted(policy, pool="gpu").draft.bounds.pool == "gpu"
    with pytest.raises(YardError, match=r"asks for 'cpu', and its scope is bound to 'gpu' \(project\+domain"):
        admitted(policy, pool="cpu")


def test_label_and_tags_of_the_request_come_before_the_rules() -> None:
    policy = a_policy(
        {HERE: {"execution-cluster-label": {"value": "near"}, "execution-queue-attribute": {"tags": ["big"]}}}
    )
    assert (admitted(policy).draft.bounds.label, admitted(policy).draft.bounds.tags) == ("near", ("big",))
    own = admitted(policy, cluster_label="far", tags=["default"])
    assert (own.draft.bounds.label, own.draft.bounds.tags) == ("far", ("default",))
    assert used(own) == [
        ("execution-queue-attribute", "tags", ["default"], "request"),
        ("execution-cluster-label", "value", "far", "request"),
    ]


def test_the_default_label_is_for_jobs_without_a_pool() -> None:
    platform = a_platform({"execution-cluster-label": {"value": "near"}})
    assert admitted(a_policy(platform=platform)).draft.bounds.label == "near"
    bound = a_policy({HERE: {"cluster-assignment": {"cluster_pool_name": "gpu"}}}, platform=platform)
    assert admitted(bound).draft.bounds.label is None
    assert admitted(a_policy(platform=platform), pool="gpu").draft.bounds.label is None


def test_execution_config_is_merged_field_by_field_and_the_job_comes_first() -> None:
    policy = a_policy(
        {
            HERE: {CONFIG: {"max_parallelism": 5, "envs": {"A": "1"}, "interruptible": True}},
            LEVELS["workflow"]: {CONFIG: {"annotations": {"note": "w"}}},
        }
    )
    found = admitted(policy, workflow="w", execution=ExecutionConfig(max_parallelism=2))
    assert found.request.spec.execution == ExecutionConfig(
        max_parallelism=2, envs={"A": "1"}, interruptible=True, annotations={"note": "w"}
    )
    assert (found.draft.parallel_max, found.draft.bounds.is_interruptible) == (2, True)
    assert [(field, level) for _, field, _, level in used(found)] == [
        ("annotations", "workflow"),
        ("envs", "project+domain"),
        ("interruptible", "project+domain"),
        ("max_parallelism", "request"),
    ]


def test_labels_of_the_request_replace_those_of_the_rules_and_the_projects_fill_in() -> None:
    policy = a_policy({HERE: {CONFIG: {"labels": {"from": "rule"}}}})
    projects = {"p": ProjectEntry({"team": "red", "from": "project"})}
    assert admitted(policy, projects=projects).request.labels == {"team": "red", "from": "rule"}
    assert admitted(policy, projects=projects, labels={"a": "1"}).request.labels == {
        "team": "red",
        "from": "project",
        "a": "1",
    }


def test_a_plugin_override_is_for_its_task_type_alone() -> None:
    override = {"task_type": "container", "plugin_id": ["slurm", "local"]}
    policy = a_policy({HERE: {"plugin-override": {"overrides": [override]}}})
    assert admitted(policy).draft.bounds.backends == ()
    found = admitted(policy, task_type="container")
    assert (found.draft.bounds.backends, found.draft.bounds.needs_backend) == (("slurm", "local"), True)


@pytest.mark.parametrize(
    ("row", "asked", "budget_s"),
    [
        ({"tier": "HIGH"}, None, 600),
        ({"queueing_budget": "5m"}, None, 300),
        ({"queueing_budget": "5m"}, QualityOfService(queueing_budget="3m"), 180),
        ({"queueing_budget": "5m"}, QualityOfService(tier=Tier.LOW), 1800),
        (None, QualityOfService(queueing_budget=7), 7),
        (None, None, None),
    ],
)
def test_quality_of_service_gives_a_queueing_budget(
    row: dict[str, Any] | None, asked: QualityOfService | None, budget_s: int | None
) -> None:
    policy = a_policy({HERE: {"quality-of-service": row}} if row else {})
    assert admitted(policy, quality_of_service=asked).draft.budget_s == budget_s


def test_a_tier_without_a_budget_in_the_config_is_unknown() -> None:
    with pytest.raises(UnknownName, match="no budget for the tier HIGH"):
        admitted(a_policy(platform=a_platform(tiers_s={})), quality_of_service=QualityOfService(tier=Tier.HIGH))


def test_an_admitted_job_leads_back_to_what_was_asked_for() -> None:
    policy = a_policy(
        {
            HERE: {
                TASK: {"defaults": {"cpu": "1500m", "memory": "1Gi"}, "limits": {"cpu": "2"}},
                CONFIG: {"max_parallelism": 5, "labels": {"by": "rule"}},
                "cluster-assignment": {"cluster_pool_name": "gpu"},
            }
        }
    )
    asked: dict[str, Any] = {"memory": "2Gi", "execution": ExecutionConfig(interruptible=True), "tags": ["big"]}
    found = admitted(policy, **asked)
    again = restore_request(found.request, msgspec.json.decode(found.record.body, type=JobPolicy), KINDS)
    assert again.spec.resources.cores is None
    assert (again.spec.resources.memory, again.spec.execution) == ("2Gi", ExecutionConfig(interruptible=True))
    assert (again.labels, again.pool, again.tags) == ({}, None, ["big"])


def used(found: Any) -> list[tuple[str, str, Any, str]]:
    """What the record says: kind, field, value, level."""
    record = msgspec.json.decode(found.record.body, type=JobPolicy)
    return [(each.kind, each.field, each.value, each.level.value) for each in record.values]
