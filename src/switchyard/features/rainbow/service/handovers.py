"""Hand-overs of jobs to pollers. Rainbow's clients know a job by the number of its hand-over."""

from __future__ import annotations

from collections.abc import Sequence

from switchyard.errors import PolicyRefused
from switchyard.store.jobs import handovers


def handover_row(
    job_id: str,
    cluster_id: str,
    *,
    jobspec: str | None = None,
    fence: int | None = None,
    received_us: int | None = None,
) -> handovers.NewHandover:
    return handovers.NewHandover(
        job_id=job_id,
        cluster_id=cluster_id,
        fence=fence,
        jobspec=jobspec,
        received_us=received_us,
        accepted_us=None,
        is_open=fence is not None,
        is_counted=False,
    )


def refuse_number_overflow(numbers: Sequence[int]) -> None:
    if numbers and max(numbers) > handovers.NUMBER_MAX:
        # Not Unavailable: that would fail every write of the batch.
        raise PolicyRefused("All numbers that Rainbow's clients can hold are used up.", next_step="Use `yard submit`.")
