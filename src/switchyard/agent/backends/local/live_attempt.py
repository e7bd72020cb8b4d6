"""One attempt of the local backend that occupies resources, and when its supervisor is overdue."""

from __future__ import annotations

import contextlib
import subprocess
import time
from dataclasses import dataclass, field

from switchyard.agent.backends.local import supervisor
from switchyard.agent.backends.shared.jobdir import JobDir, SupervisorClaim
from switchyard.agent.loop.clock import Stamp
from switchyard.agent.loop.need import ResourceNeed, need_of, spec_of
from switchyard.model.cluster.poll import Lease
from switchyard.model.jobspec.quantity import parse_duration_s

# After a cancel or a time limit: how long the supervisor has before the agent ends it and the job. It gives the job
# GRACE_S; it takes longer only if it was stopped or if processes hang in the kernel.
CANCEL_S_MAX = supervisor.GRACE_S + 5.0
LIMIT_S_MAX = supervisor.GRACE_S + 15.0


@dataclass(slots=True)
class LiveAttempt:
    """One attempt that occupies resources: submitted, and not seen to have ended."""

    need: ResourceNeed
    process: subprocess.Popen[bytes] | None = None
    # Readable after a change: the supervisor's pipe, or its pidfd after a restart. To close the pipe ends a bound job.
    fd: int = -1
    tries: int = 0
    spawned_at: float = 0.0
    limit_s: float | None = None
    since: float = field(default_factory=time.monotonic)  # when it began to occupy resources
    claim: SupervisorClaim | None = None  # as first read: a job under our account could change the file
    is_run_reported: bool = False  # the supervisor reported that the command runs
    cancelled_at: float | None = None  # when it was first cancelled
    end_at: float = 0.0  # earliest next try to end processes that did not die
    cleanup_s: float = 0.0  # what its supervisor may take longer, to remove its container

    def overdue(self) -> str:
        """Why the supervisor should have ended the job by now; empty: it still has time."""
        now = time.monotonic()
        if self.cancelled_at is not None and now - self.cancelled_at > CANCEL_S_MAX + self.cleanup_s:
            return "cancel"
        is_late = self.limit_s is not None and now - self.since > self.limit_s + LIMIT_S_MAX + self.cleanup_s
        return "time-limit" if is_late and self.claim is not None else ""


def live_from_files(job: JobDir, *, started: Stamp | None = None) -> LiveAttempt:
    """An attempt as its files describe it. Files that a job damaged count as no resources and no time limit."""
    lease = job.lease()
    with contextlib.suppress(ValueError):
        if lease is not None:
            return live_from_lease(lease, started=started)
    return LiveAttempt(ResourceNeed())


def live_from_lease(lease: Lease, *, started: Stamp | None = None) -> LiveAttempt:
    spec = spec_of(lease)
    limit = spec.resources.time_limit
    live = LiveAttempt(
        need_of(spec),
        limit_s=None if limit is None else float(parse_duration_s(limit)),
        cleanup_s=0.0 if spec.image is None else supervisor.CONTAINER_S_MAX + supervisor.CLEANUP_S_MAX,
    )
    if started is not None:
        live.since -= started.age_us / 1e6
    return live
