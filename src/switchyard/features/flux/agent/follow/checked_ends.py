"""Checks an end that Flux reports against the claims: the end of a command that has not begun is no end of the command.

| Flux says | the claims say | it is |
|---|---|---|
| FAILED | it was started a second time | FAILED by the cluster: it may have run in part |
| LOST; FAILED by the launch, or as if the command had ended so | nothing began | RETURNED: it is withdrawn |
| FAILED by REFUSED_CODE | it is withdrawn | RETURNED |
| FAILED by REFUSED_CODE | another start, or none | FAILED by the cluster: its node does not see the folder |
| FAILED by REFUSED_CODE | its start, and no task of it | FAILED by the cluster: its node could not note the start |
| FAILED by UNENTERED_CODE | the guard could not enter the working directory | FAILED, and the command did not run |
| anything else | anything | as Flux says |
"""

from __future__ import annotations

import dataclasses
import logging

from switchyard.agent.backends import Status
from switchyard.agent.backends.shared.work_folders import UNENTERED_TEXT
from switchyard.agent.log import line
from switchyard.errors import YardError
from switchyard.features.flux.agent.follow.states import is_launch_failure
from switchyard.features.flux.agent.submit.claims import StartClaims
from switchyard.features.flux.agent.submit.start_guard import REFUSED_CODE, UNENTERED_CODE
from switchyard.features.flux.agent.submit.submissions import FluxSubmission
from switchyard.model.cluster.poll import Lease
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause

SECOND_START_TEXT = "the cluster started it a second time, which was refused: it may have run in part"

log = logging.getLogger(__name__)


def checked_end(
    claims: StartClaims, number: int | None, record: FluxSubmission, lease: Lease, status: Status
) -> Status:
    """The end of a job, after a look at whether its command has begun. `number`: of the Flux job.

    Flux may give a job to a node that has just failed, or forget it in a crash. If nothing of it ran, it is returned.
    """
    try:
        if status.seen is ObservedState.FAILED and claims.is_second_start(record, lease):
            return _by_cluster(status, SECOND_START_TEXT)
        if _has_not_begun(claims, record, lease, status):
            reason = f"{status.reason}; nothing of it ran"
            return Status(seen=ObservedState.RETURNED, text=status.text, reason=reason, cause=Cause.CLUSTER)
        if status.exit_code == REFUSED_CODE and claims.begun_job(record, lease) != number:
            folder = claims.path(record, lease).parent
            return _by_cluster(status, f"its node does not see the folder {folder}, so it was not started")
        if status.exit_code == REFUSED_CODE and not claims.has_task(record, lease):
            folder = claims.path(record, lease).parent
            return _by_cluster(status, f"its node could not note its start in {folder}, so it was not started")
        if status.exit_code == UNENTERED_CODE and claims.is_unentered(record, lease):
            return dataclasses.replace(status, reason=UNENTERED_TEXT, exit_code=None)
    except YardError as exc:
        # Whether it began is not known: it is not run again.
        log.warning(line("start_unknown", job=lease.job, fence=lease.fence, why=exc.detail))
    return status


def _has_not_begun(claims: StartClaims, record: FluxSubmission, lease: Lease, status: Status) -> bool:
    """Whether the command of an ended job has not begun, and never will."""
    if status.seen is ObservedState.LOST:
        return claims.withdraw(record, lease)
    if status.exit_code == REFUSED_CODE:
        return claims.is_withdrawn(record, lease)
    is_like_own_end = status.seen is ObservedState.FAILED and status.cause is Cause.JOB
    return (is_launch_failure(status) or is_like_own_end) and claims.never_began(record, lease)


def _by_cluster(status: Status, reason: str) -> Status:
    return dataclasses.replace(status, reason=reason, exit_code=None, signal=None, cause=Cause.CLUSTER)
