"""The retries of a task's job, as the task's config and the execution's annotations say them.

Flyte counts the retries of attempts itself. A job that is retried here stays one attempt of Flyte's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from switchyard.model.failures.resource_raise import possible_rules
from switchyard.model.failures.retry_text import parse_rules
from switchyard.model.job.job import JobRequest
from switchyard.model.job.retry import Retry

RETRY_ON = "switchyard/retry-on"  # `out-of-memory:2,memory=x2 node-lost:5,elsewhere`


def with_retry_rules(request: JobRequest, template: Any, annotations: Mapping[str, str]) -> JobRequest:
    """Return the job with these rules; of two rules for a kind, the task's. The tasks of a map ask for no more."""
    rules = rules_of(annotations) | rules_of(template.config)
    if not rules:
        return request
    retry = msgspec.convert({"on": rules}, Retry)
    if request.array is not None:
        retry = msgspec.structs.replace(retry, on=possible_rules(request, retry.on))
    return msgspec.structs.replace(request, spec=msgspec.structs.replace(request.spec, retry=retry))


def rules_of(config: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Parse the rules in a config or in annotations. Raises BadRequest."""
    return parse_rules(config[RETRY_ON].split()) if RETRY_ON in config else {}
