"""What a security context says, and of whom: a retry asks again for what the rules say now."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from switchyard.model.executions.execution import RunAs, SecurityContext
from switchyard.model.files.files import JobFiles
from switchyard.model.job.job import JobRequest, JobSpec
from switchyard.model.job.site_needs import SecretNeed, SiteNeeds
from switchyard.policy.kinds.workflow_execution_config import WorkflowExecutionConfigKind

OWN, RULED = SecretNeed("own"), SecretNeed("word", "vault")


def request(*secrets: SecretNeed) -> JobRequest:
    site = SiteNeeds(secrets=secrets) if secrets else None
    return JobRequest(spec=JobSpec(["true"], files=JobFiles(), site=site), project="p", domain="d")


def test_the_secrets_of_a_rule_are_taken_back() -> None:
    context = {"security_context": {"secrets": [{"group": "vault", "key": "word"}]}}
    kind = WorkflowExecutionConfigKind()
    assert kind.take_back(request(OWN, RULED), context) == request(OWN)
    assert kind.take_back(request(RULED), context) == request()
    assert kind.take_back(request(RULED), {"envs": {}}) == request(RULED)


@pytest.mark.parametrize("field", [{name: ""} for name in RunAs.__struct_fields__[:3]] + [{"oauth2_client": {}}])
def test_what_is_empty_is_the_same_as_none(field: dict[str, Any]) -> None:
    assert msgspec.convert(field, RunAs) == RunAs()
    assert msgspec.to_builtins(msgspec.convert({"run_as": field}, SecurityContext)) == {"run_as": {}}
