"""What to do with a job that squeue no longer lists: wait, end it, give it back or call it lost. One table. Pure.

The controller forgets ended jobs after MinJobAge, and all recent jobs when it loses its state. The accounts (sacct) may
be minutes behind the controller. So neither silence nor an answer without the job proves how the job ended.

| what is known of the job | what is known of the accounts | decision |
|---|---|---|
| an end, from squeue, sacct or the job's script | anything | END |
| the controller has denied the job for less than the settle time | anything | WAIT |
| its folder cannot be read now | anything | WAIT |
| no end | kept, not caught up, and the site's bound has not passed | WAIT |
| its script noted a kill, and the cause is not known | none kept, caught up, or the bound has passed | END |
| it began | none kept, caught up, or the bound has passed | LOST |
| it left no sign, and other tasks of its array are known | likewise | LOST: the site cancelled the waiting task |
| it left no sign | likewise | GIVE_BACK, once its start is claimed so that it can never begin |
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class EndKnowledge(StrEnum):
    """What is known of a job's end."""

    UNKNOWN = "unknown"
    KILLED = "killed"  # its script noted that a signal ended the command: by whom and why, only the accounts may tell
    KNOWN = "known"


class AccountingProgress(StrEnum):
    """How far the accounts are, seen from the moment when the controller first denied the job."""

    NONE = "none"  # the cluster keeps none
    BEHIND = "behind"  # no answer, or nothing proves that they have heard of all that ended before that moment
    CAUGHT_UP = "caught up"


class MissingJobDecision(StrEnum):
    WAIT = "wait"
    END = "end"
    GIVE_BACK = "give back"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingJob:
    """What is known of a job that squeue no longer lists."""

    end: EndKnowledge = EndKnowledge.UNKNOWN
    is_denied: bool = False  # the controller has answered without the job for the settle time
    has_begun: bool | None = None  # its folder has a sign that it began; none: the folder cannot be read now
    is_array_known: bool = False  # the controller knows other tasks of its array


def decide_missing_job(job: MissingJob, accounts: AccountingProgress, *, is_overdue: bool) -> MissingJobDecision:
    """`is_overdue`: the job has been missing for longer than the site wants to wait for its accounts."""
    if job.end is EndKnowledge.KNOWN:
        return MissingJobDecision.END
    if not job.is_denied or job.has_begun is None:
        return MissingJobDecision.WAIT
    if accounts is AccountingProgress.BEHIND and not is_overdue:
        return MissingJobDecision.WAIT
    if job.end is EndKnowledge.KILLED:
        return MissingJobDecision.END
    if job.has_begun or job.is_array_known:
        return MissingJobDecision.LOST
    return MissingJobDecision.GIVE_BACK
