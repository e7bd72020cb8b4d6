"""Whether and when an attempt that did not succeed is retried. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct, field

from switchyard.errors import ImpossibleValue
from switchyard.model.failures.failure_kind import KEYS_SCHEMA, FailureKind, unknown_failure
from switchyard.model.failures.retry_rule import LIMIT_MAX, RetryRule
from switchyard.model.jobspec.quantity import DurationText, parse_duration_s

BACKOFF_S_MAX = 86_400
BackoffDuration = Annotated[int, Meta(ge=1, le=BACKOFF_S_MAX)] | DurationText
ExitCodes = Annotated[
    str, Meta(max_length=1024, pattern=r"^[0-9]{1,3}(-[0-9]{1,3})?(,[0-9]{1,3}(-[0-9]{1,3})?)*(?!\n)$")
]

RetryRules = Annotated[dict[str, RetryRule], Meta(max_length=len(FailureKind), extra_json_schema=KEYS_SCHEMA)]


class Cause(StrEnum):
    """Why an attempt did not succeed."""

    JOB = "job"  # the command ended with a code or a signal of its own, or ran out of time
    CLUSTER = "cluster"  # it could not be started, or the cluster ended it
    LOST = "lost"  # the cluster does not know it any more, or fell silent
    PREEMPTED = "preempted"  # the cluster took its place away; a job that is interruptible bears that


_DEFAULT_CAUSES = (Cause.JOB, Cause.CLUSTER, Cause.LOST)


class Retry(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Up to `limit` retries after these causes. The wait doubles with each retry, up to `backoff_max`.

    `exit_codes` narrows the job's own failures: `1,75,100-120`; none: every code. `on` has rules for kinds of failures,
    each with a limit of its own; `limit` and `causes` are for all other kinds.
    """

    limit: Annotated[int, Meta(ge=0, le=LIMIT_MAX)] = 0
    causes: Annotated[list[Cause], Meta(max_length=4)] = field(default_factory=lambda: list(_DEFAULT_CAUSES))
    exit_codes: ExitCodes | None = None
    backoff: BackoffDuration = 10
    backoff_max: BackoffDuration = 600
    on: Annotated[
        dict[str, RetryRule],
        Meta(
            max_length=len(FailureKind),
            extra_json_schema={"propertyNames": {"enum": [kind.value for kind in FailureKind]}},
        ),
    ] = {}

    def __post_init__(self) -> None:
        if parse_duration_s(self.backoff) > parse_duration_s(self.backoff_max):
            raise ImpossibleValue("backoff is above backoff_max")
        for word in self.on:
            if problem := unknown_failure(word):
                raise ValueError(f"on: {problem}")
        if self.exit_codes is not None:
            for lo, hi in code_ranges(self.exit_codes):
                if lo > hi or hi > 255:
                    raise ImpossibleValue(f"exit_codes {self.exit_codes[:40]!r}: ranges go up, and codes end at 255")

    @property
    def limit_in_all(self) -> int:
        return self.limit + sum(self.limit_after(rule) for rule in self.on.values())

    def limit_after(self, rule: RetryRule) -> int:
        """A rule without a limit allows as many retries as the policy, and at least one."""
        return max(self.limit, 1) if rule.limit is None else rule.limit


NO_RETRY = Retry()  # the very object: a job that has another one says itself when it is retried


def retry_delay_s(
    policy: Retry,
    *,
    tries: int,
    cause: Cause,
    exit_code: int | None,
    failure: FailureKind | None = None,
    tries_after_failure: int | None = None,
) -> int | None:
    """Seconds until the next try after `tries` of them, or none: it stays as it ended.

    `tries`: those after failures that no rule names, and this one. `tries_after_failure`: those after failures of
    this kind, and this one.
    """
    rule = policy.on.get(failure) if failure is not None and policy.on else None
    if rule is not None:
        tries = tries if tries_after_failure is None else tries_after_failure
        is_granted = tries <= policy.limit_after(rule) and (
            failure is not FailureKind.EXIT_CODE or _is_named(policy.exit_codes, exit_code)
        )
    else:
        if cause is Cause.PREEMPTED and cause not in policy.causes:
            cause = Cause.CLUSTER  # a policy that does not list `preempted` treats a preemption as the cluster's fault
        is_granted = tries <= policy.limit and cause in policy.causes
        is_granted = is_granted and (cause is not Cause.JOB or _is_named(policy.exit_codes, exit_code))
    first, longest = parse_duration_s(policy.backoff), parse_duration_s(policy.backoff_max)
    return min(first << (tries - 1), longest) if is_granted else None


def failure_kind(cause: Cause, *, exit_code: int | None, signal: int | None) -> FailureKind:
    """The kind of a failure of which the backend says no kind of its own."""
    if cause is not Cause.JOB:
        return FailureKind(cause.value)  # the other causes are kinds, too
    if signal:
        return FailureKind.SIGNAL
    return FailureKind.EXIT_CODE if exit_code else FailureKind.OTHER


def _is_named(codes: str | None, exit_code: int | None) -> bool:
    if codes is None:
        return True
    return exit_code is not None and any(lo <= exit_code <= hi for lo, hi in code_ranges(codes))


def code_ranges(text: str) -> list[tuple[int, int]]:
    ranges = []
    for part in text.split(","):
        lo, _, hi = part.partition("-")
        ranges.append((int(lo), int(hi or lo)))
    return ranges
