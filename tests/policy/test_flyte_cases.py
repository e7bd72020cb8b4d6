"""Flyte's behaviour, case by case: its answer, or ours where we decided otherwise. One row per case of the data."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from switchyard.errors import PolicyRefused, YardError
from switchyard.model.executions.execution import ExecutionConfig, QualityOfService
from switchyard.model.job.job import Limits
from switchyard.model.jobspec.quantity import parse_amount, parse_duration_s
from switchyard.model.wire.decode import load_yaml
from switchyard.policy.admit import ProjectEntry
from switchyard.policy.kinds.cluster_assignment import ClusterAssignmentValue
from tests.policy.laws import KINDS, LEVELS, a_platform, a_policy, admitted

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "data" / "flyte_policy.json").read_text())
TASK, LABEL, POOL = "task-resource-attribute", "execution-cluster-label", "cluster-assignment"
CONFIG, SERVICE = "workflow-execution-config", "quality-of-service"
WORDS = {"cpu": "cores", "gpu": "gpus", "memory": "memory", "ephemeral_storage": "ephemeral_storage"}
HERE = LEVELS["project+domain"]
CHECKS: dict[str, Callable[[dict[str, Any]], None]] = {}


def check_of(area: str) -> Callable[[Callable[[dict[str, Any]], None]], None]:
    return lambda function: CHECKS.__setitem__(area, function)


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_case(case: dict[str, Any]) -> None:
    CHECKS[case["area"]](case)


@check_of("attributes.resolve")
def _resolve(case: dict[str, Any]) -> None:
    rows = {(domain, project, w, plan): {LABEL: {"value": value}} for project, domain, w, plan, value in case["rows"]}
    asked = tuple(case["ask"].get(word, "") for word in ("domain", "project", "workflow", "launch_plan"))
    found = a_policy(rows).effective(asked).fields(KINDS.get(LABEL))  # type: ignore[arg-type]
    assert (found["value"].value if found else None) == case["answer"]


@check_of("task_resources.adjust")
def _adjust(case: dict[str, Any]) -> None:
    """Of memory, which has no amount of its own where nobody says one."""
    said = {"defaults": _some(memory=case["default"]), "limits": _some(memory=case["limit"])}
    answer = case["answer"]
    if answer == "refused when written: a default above its own limit":
        with pytest.raises(YardError, match="above its own limit"):
            KINDS.get(TASK).read(said)
        return
    policy = a_policy(platform=a_platform({TASK: said}))
    if isinstance(answer, str):
        with pytest.raises((YardError, ValueError)) as caught:
            _memory(policy, case)
        # Above its own limit, it is malformed; above the platform's, the level is named.
        assert "is below the request" in str(caught.value) or "(platform config)" in str(caught.value)
        return
    request, limit = _memory(policy, case)
    assert [request, limit] == [parse_amount(amount) for amount in answer]


def _memory(policy: Any, case: dict[str, Any]) -> tuple[Any, Any]:
    fields: dict[str, Any] = {"memory": case["request"]} if case["request"] else {}
    if case["own_limit"]:
        fields["limits"] = Limits(memory=case["own_limit"])
    resources = admitted(policy, **fields).request.spec.resources
    return parse_amount(resources.memory or 0), parse_amount(resources.limits.memory or 0)


@check_of("task_resources.fill")
def _fill(case: dict[str, Any]) -> None:
    policy = a_policy(platform=a_platform({TASK: case["platform"]}))
    resources = admitted(policy, **_own(case["requests"])).request.spec.resources
    for side, holder in (("requests", resources), ("limits", resources.limits)):
        found = {word: getattr(holder, name) for word, name in WORDS.items() if getattr(holder, name) is not None}
        assert {word: parse_amount(value) for word, value in found.items()} == {
            word: parse_amount(value) for word, value in case["answer"][side].items()
        }


@check_of("task_resources.source")
def _source(case: dict[str, Any]) -> None:
    rows = {HERE: {TASK: case["row"]}} if case["row"] else {}
    policy = a_policy(rows, platform=a_platform({TASK: case["platform"]}))
    found = {path: entry.value for path, entry in policy.effective(HERE).fields(KINDS.get(TASK)).items()}
    expected = KINDS.get(TASK).flatten(KINDS.get(TASK).read(case["platform"]))
    if case["answer"] == "merged field by field: the platform fills what the row omits":
        expected |= KINDS.get(TASK).flatten(KINDS.get(TASK).read(case["row"]))
    assert found == expected


@check_of("task_resources.register")
def _register(case: dict[str, Any]) -> None:
    def admit() -> None:
        policy = a_policy(platform=a_platform({TASK: {"limits": case["limits"]}} if case["limits"] else {}))
        admitted(policy, **_own(case["requests"], case["own_limits"]))

    if case["answer"] == "OK":
        admit()
    else:
        with pytest.raises((PolicyRefused, ValueError)):
            admit()


@check_of("workflow_execution_config.merge")
def _merge(case: dict[str, Any]) -> None:
    levels = case["levels"]
    own = dict(levels.get("execution_spec", {}))
    plan = dict(levels.get("launch_plan", {}))
    role = plan.pop("deprecated_auth_role", {}).get("kubernetes_service_account")
    rows = {
        LEVELS[level]: {CONFIG: levels[word]}
        for level, word in (("workflow", "most_specific_attribute"), ("project", "project_attribute"))
        if levels.get(word)
    }
    platform = _account(dict(levels.get("platform", {})))
    found = admitted(
        a_policy(rows, platform=a_platform({CONFIG: platform} if platform else {})),
        workflow="w",
        labels=own.pop("labels", {}),
        execution=ExecutionConfig(**own) if own else None,
        launch_plan_spec=KINDS.get(CONFIG).read(plan) if plan else None,
        auth_role=KINDS.get(CONFIG).read(_account({"k8s_service_account": role})) if role else None,
    ).request
    execution = found.spec.execution or ExecutionConfig()
    for word, value in case["answer"].items():
        if word == "labels":
            assert found.labels == (value or {})
        elif word == "k8s_service_account":
            assert execution.security_context is not None
            assert execution.security_context.run_as is not None
            assert execution.security_context.run_as.k8s_service_account == value
        else:
            assert (getattr(execution, word) or None) == (value or None), word


def _account(said: dict[str, Any]) -> dict[str, Any]:
    name = said.pop("k8s_service_account", "")
    return {**said, "security_context": {"run_as": {"k8s_service_account": name}}} if name else said


@check_of("workflow_execution_config.labels")
def _labels(case: dict[str, Any]) -> None:
    policy = a_policy(platform=a_platform({CONFIG: {"labels": case["platform_labels"]}}))
    projects = {name: ProjectEntry(labels) for name, labels in case["project_labels"].items()}
    made = {name: admitted(policy, project=name, projects=projects).request.labels for name in case["launch"]}
    assert made["b"] == case["answer"]


@check_of("quality_of_service")
def _service(case: dict[str, Any]) -> None:
    tiers = {tier: parse_duration_s(budget) for tier, budget in case["tierExecutionValues"].items()}
    by_domain = {domain: {SERVICE: QualityOfService(tier=tier)} for domain, tier in case["defaultTiers"].items()}
    domain = case["domain"]
    rows = {
        key: {SERVICE: {"queueing_budget": case[word]}}
        for key, word in (
            ((domain, "p", "", ""), "db_spec"),
            ((domain, "p", "w", ""), "workflow"),
            ((domain, "p", "w", "l"), "launch_plan"),
        )
        if case[word]
    }
    asked = QualityOfService(queueing_budget=case["execution_spec"]) if case["execution_spec"] else None
    found = admitted(
        a_policy(rows, platform=a_platform(tiers_s=tiers, domain_values=by_domain)),
        domain=domain,
        workflow="w",
        launch_plan="l",
        quality_of_service=asked,
    )
    budget = 0 if case["answer"] == "0s" else parse_duration_s(case["answer"])
    assert (found.draft.budget_s or 0) == budget


@check_of("cluster_assignment")
def _pool(case: dict[str, Any]) -> None:
    rows = {HERE: {POOL: {"cluster_pool_name": case["stored"]}}} if case["stored"] else {}
    configured = {"development": {POOL: ClusterAssignmentValue(case["configured"])}} if case["configured"] else {}
    policy = a_policy(rows, platform=a_platform(pools={"gpu", "my_cp", "swimming-pool"}, domain_values=configured))
    if case["answer"] == "INVALID_ARGUMENT":
        with pytest.raises(PolicyRefused, match="'swimming-pool', and its scope is bound to 'gpu'"):
            admitted(policy, pool=case["request"])
    else:
        assert admitted(policy, pool=case["request"]).draft.bounds.pool == case["answer"]


@check_of("flytectl.attr_file")
def _file(case: dict[str, Any]) -> None:
    """A file's own fields are a kind's value, as they are."""
    form = load_yaml(case["file"], where="the file")
    scope = {word: form.pop(word) for word in ("project", "domain", "workflow") if word in form}
    ((oneof, value),) = case["answer"]["matching_attributes"].items()
    name = {
        "task_resource_attributes": TASK,
        "execution_cluster_label": LABEL,
        "workflow_execution_config": CONFIG,
        "plugin_overrides": "plugin-override",
    }[oneof]
    assert KINDS.get(name).read(form) == KINDS.get(name).read(value)
    assert scope == {word: case["answer"][word] for word in ("project", "domain") if word in case["answer"]}


def _some(**amounts: str) -> dict[str, str]:
    return {word: amount for word, amount in amounts.items() if amount}


def _own(requests: dict[str, str], limits: dict[str, str] | None = None) -> dict[str, Any]:
    """A task's requests and limits as a job's fields; Flyte's gpus are texts."""

    def named(amounts: dict[str, str]) -> dict[str, Any]:
        return {WORDS[word]: int(value) if word == "gpu" else value for word, value in amounts.items()}

    return named(requests) | ({"limits": Limits(**named(limits))} if limits else {})
