"""Whether and when an attempt that did not succeed is retried. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct, field

from switchyard.errors import ImpossibleValue
from switchyard.model.jobspec.quantity import DurationText, parse_duration_s

LIMIT_MAX = 100
BACKOFF_S_MAX = 86_400
BackoffDuration = Annotated[int, Meta(ge=1, le=BACKOFF_S_MAX)] | DurationText
ExitCodes = Annotated[
    str, Meta(max_length=1024, pattern=r"^[0-9]{1,3}(-[0-9]{1,3})?(,[0-9]{1,3}(-[0-9]{1,3})?)*(?!\n)$")
]


class Cause(StrEnum):
    """Why an attempt did not succeed."""

    JOB = "job"  # the command ended with a code or a signal of its own, or ran out of time
    CLUSTER = "cluster"  # it could not be started, or the cluster ended it
    LOST = "lost"  # the cluster does not know it any more, or fell silent
    PREEMPTED = "preempted"  # the cluster took its place away; a job that is interruptible bears that


_DEFAULT_CAUSES = (Cause.JOB, Cause.CLUSTER, Cause.LOST)


class Retry(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Up to `limit` retries after these causes. The wait doubles with each retry, up to `backoff_max`.

    `exit_codes` narrows the job's own failures: `1,75,100-120`; none: every code.
    """

    limit: Annotated[int, Meta(ge=0, le=LIMIT_MAX)] = 0
    causes: Annotated[list[Cause], Meta(max_length=4)] = field(default_factory=lambda: list(_DEFAULT_CAUSES))
    exit_codes: ExitCodes | None = None
    backoff: BackoffDuration = 10
    backoff_max: BackoffDuration = 600

    def __post_init__(self) -> None:
        if parse_duration_s(self.backoff) > parse_duration_s(self.backoff_max):
            raise ImpossibleValue("backoff is above backoff_max")
        if self.exit_codes is not None:
            for lo, hi in code_ranges(self.exit_codes):
                if lo > hi or hi > 255:
                    raise ImpossibleValue(f"exit_codes {self.exit_codes[:40]!r}: ranges go up, and codes end at 255")


def retry_delay_s(policy: Retry, *, tries: int, cause: Cause, exit_code: int | None) -> int | None:
    """Seconds until the next try after `tries` of them, or none: it stays as it ended."""
    if cause is Cause.PREEMPTED and cause not in policy.causes:
        cause = Cause.CLUSTER  # a policy that does not list `preempted` treats a preemption as the cluster's fault
    if tries > policy.limit or cause not in policy.causes:
        return None
    if cause is Cause.JOB and not _is_named(policy.exit_codes, exit_code):
        return None
    first, longest = parse_duration_s(policy.backoff), parse_duration_s(policy.backoff_max)
    return min(first << (tries - 1), longest)


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
