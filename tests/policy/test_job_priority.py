"""The bounds of a job's priority: the default, rules of each level, and what a refusal names."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.errors import Malformed, PolicyRefused
from switchyard.policy.admit import admit
from switchyard.policy.kinds.job_priority import JOB_PRIORITY
from tests.builders import a_request
from tests.policy.laws import LEVELS, PROJECTS, a_platform, a_policy, admitted

KIND = "job-priority"
DOMAIN, PROJECT, HERE = LEVELS["domain"], LEVELS["project"], LEVELS["project+domain"]


@pytest.mark.parametrize(
    ("rows", "asked", "said"),
    [
        ({}, 1, "the highest is 0 (platform config)"),
        ({}, 1_000_000, "the highest is 0 (platform config)"),
        ({DOMAIN: {"highest": 10}}, 11, "the highest is 10 (domain level: domain development)"),
        ({DOMAIN: {"highest": 10}, PROJECT: {"highest": 2}}, 3, "the highest is 2 (project level: project p)"),
        ({DOMAIN: {"highest": 10}, HERE: {"lowest": -2}}, -3, "the lowest is -2 (project+domain level: "),
        ({PROJECT: {"highest": -5}}, -4, "the highest is -5"),
    ],
)
def test_a_priority_outside_the_bounds_is_refused_with_the_bound_and_its_level(
    rows: dict[Any, Any], asked: int, said: str
) -> None:
    policy = a_policy({scope: {KIND: value} for scope, value in rows.items()})
    with pytest.raises(PolicyRefused) as caught:
        admitted(policy, priority=asked)
    assert f"priority: asks for {asked}, and {said}" in caught.value.detail


@pytest.mark.parametrize(
    ("rows", "asked", "given"),
    [
        ({}, 0, 0),
        ({}, -1_000_000, -1_000_000),
        ({PROJECT: {"highest": 10}}, 10, 10),
        ({DOMAIN: {"highest": 10}, HERE: {"lowest": -2}}, -2, -2),
        ({PROJECT: {"highest": -5}}, 0, -5),  # no priority asked for: the nearest
        ({PROJECT: {"highest": 9, "lowest": 5}}, 0, 5),
        ({DOMAIN: {"lowest": 5}}, 0, 0),  # above the platform's highest: the highest decides
    ],
)
def test_a_priority_within_the_bounds_is_kept_and_a_missing_one_is_the_nearest(
    rows: dict[Any, Any], asked: int, given: int
) -> None:
    policy = a_policy({scope: {KIND: value} for scope, value in rows.items()})
    assert admitted(policy, priority=asked).request.priority == given


def test_an_operator_of_the_platform_gives_any_priority() -> None:
    policy = a_policy({PROJECT: {KIND: {"highest": 3}}})
    request = a_request(project="p", priority=100)
    assert admit(request, policy, PROJECTS, is_operator=True).request.priority == 100


def test_the_config_sets_the_bounds_of_all() -> None:
    policy = a_policy(platform=a_platform({KIND: {"highest": 7}}))
    assert admitted(policy, priority=7).request.priority == 7
    with pytest.raises(PolicyRefused, match=r"the highest is 7 \(platform config\)"):
        admitted(policy, priority=8)


@pytest.mark.parametrize(
    "value", [{"highest": 1_000_001}, {"lowest": 2, "highest": 1}, {"highest": "much"}, {"top": 1}, {"highest": 1.5}]
)
def test_a_wrong_bound_is_refused(value: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        JOB_PRIORITY.read(value)


def test_an_empty_rule_is_refused() -> None:
    assert JOB_PRIORITY.check(JOB_PRIORITY.read({}), a_platform()) == ["give lowest, highest or both"]
