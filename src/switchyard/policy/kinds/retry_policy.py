"""Retry policy (11): how jobs are retried that do not say it themselves. A job's own policy counts as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import replace

from switchyard.model.failures.failure_kind import unknown_failure
from switchyard.model.failures.resource_raise import possible_rules
from switchyard.model.failures.retry_rule import LIMIT_MAX
from switchyard.model.job.job import JobRequest
from switchyard.model.job.retry import NO_RETRY, BackoffDuration, Cause, ExitCodes, Retry, RetryRules
from switchyard.policy.draft import Draft, Entry
from switchyard.policy.kinds.kind import Kind, Merge
from switchyard.policy.platform import Platform


class RetryPolicyValue(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The fields of a job's `retry`. Of `on`, a level sets the rules of single kinds of failures."""

    limit: Annotated[int, Meta(ge=0, le=LIMIT_MAX)] | None = None
    causes: Annotated[list[Cause], Meta(max_length=4)] | None = None
    exit_codes: ExitCodes | None = None
    backoff: BackoffDuration | None = None
    backoff_max: BackoffDuration | None = None
    on: RetryRules | None = None

    def __post_init__(self) -> None:
        for word in self.on or ():
            if problem := unknown_failure(word):
                raise ValueError(f"on: {problem}")


class RetryPolicyKind(Kind):
    number = 11
    name = "retry-policy"
    title = "retry policy"
    value = RetryPolicyValue
    merge = Merge.FIELD
    depth = 2
    sample: ClassVar[dict[str, Any]] = {
        "limit": 2,
        "on": {"out-of-memory": {"limit": 3, "memory": "x2", "memory_max": "256GiB"}, "node-lost": {"elsewhere": True}},
    }

    def check(self, value: Any, platform: Platform) -> list[str]:
        fields = self.flatten(value)
        if not fields:
            return ["give at least one field"]
        try:
            _policy(self.assemble(fields))
        except ValidationError as exc:
            return [str(exc)]
        return []

    def amend(self, draft: Draft, fields: Mapping[str, Entry]) -> Draft:
        if not fields:
            return draft
        if draft.request.spec.retry is not NO_RETRY:
            return replace(draft, own={**draft.own, **{(self.name, path): None for path in fields}})
        try:
            policy = _policy(self.assemble({path: entry.value for path, entry in fields.items()}))
        except ValidationError as exc:
            refusal = f"{self.title}: the levels of its scope contradict each other: {exc}"
            return replace(draft, refusals=(*draft.refusals, refusal))
        retry = replace(policy, on=possible_rules(draft.request, policy.on)) if policy.on else policy
        spec = replace(draft.request.spec, retry=retry)
        return replace(draft, request=replace(draft.request, spec=spec))

    def take_back(self, request: JobRequest, values: Mapping[str, Any]) -> JobRequest:
        return replace(request, spec=replace(request.spec, retry=NO_RETRY))


def _policy(value: Any) -> Retry:
    """Return the policy of a job that has these fields. Raises ValidationError if they contradict each other."""
    names = value.__struct_fields__
    return convert({name: getattr(value, name) for name in names if getattr(value, name) is not None}, Retry)
