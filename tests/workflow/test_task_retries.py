"""Rules of retries in a task's config and in annotations: whose word holds, and what is no rule."""

from __future__ import annotations

from typing import Any

import pytest
from flyteidl.core import tasks_pb2

from switchyard.errors import BadRequest
from switchyard.features.flyte.workflow.compile.task_checks import task_mistakes
from switchyard.features.flyte.workflow.tasks.task_retries import RETRY_ON, with_retry_rules
from switchyard.model.failures.retry_rule import RetryRule
from switchyard.model.job.job import JobRequest, JobSpec, Resources
from switchyard.model.job.retry import NO_RETRY

SPEC = JobSpec(command=["true"], resources=Resources(memory="1GiB"))
OF_TASK, OF_ALL = "out-of-memory:2,memory=x2", "out-of-memory:9 node-lost:5,elsewhere"


def a_template(config: str = "") -> Any:
    return tasks_pb2.TaskTemplate(config={RETRY_ON: config} if config else {})


def test_of_two_rules_for_a_kind_the_tasks_holds() -> None:
    job = with_retry_rules(JobRequest(spec=SPEC), a_template(OF_TASK), {RETRY_ON: OF_ALL, "other": "x"})
    assert job.spec.retry.on == {
        "out-of-memory": RetryRule(limit=2, memory="x2"),
        "node-lost": RetryRule(limit=5, elsewhere=True),
    }
    assert job.spec.retry.limit == 0, "Flyte counts all other retries"


def test_the_tasks_of_a_map_ask_for_no_more() -> None:
    job = with_retry_rules(JobRequest(spec=SPEC, array="0-3"), a_template(OF_TASK), {})
    assert job.spec.retry.on == {"out-of-memory": RetryRule(limit=2)}


def test_a_task_without_rules_has_no_word_of_its_own() -> None:
    assert with_retry_rules(JobRequest(spec=SPEC), a_template(), {}).spec.retry is NO_RETRY


@pytest.mark.parametrize("config", ["oom:2", "out-of-memory,memory=2", "out-of-memory:900"])
def test_a_task_whose_config_has_no_rule_is_not_registered(config: str) -> None:
    assert any(mistake.startswith(f"config {RETRY_ON}: ") for mistake in task_mistakes(a_template(config), {}))


def test_an_annotation_that_is_no_rule_is_refused() -> None:
    with pytest.raises(BadRequest, match="did you mean out-of-memory"):
        with_retry_rules(JobRequest(spec=SPEC), a_template(), {RETRY_ON: "oom"})
