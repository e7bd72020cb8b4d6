"""The end of an ephemeral cluster: when it comes, which jobs still fit before it, when to drain and to leave."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from switchyard.agent.backends import Backend, BackendClass
from switchyard.errors import Malformed
from switchyard.model.job.job import JobSpec
from switchyard.model.jobspec.quantity import parse_duration_s

START_MARGIN_S = 5.0  # between the hand-over of a job and its start, and from its end to the report of it
DRAIN_S_MAX = 30.0  # before the end: nothing new is taken, and what is left is reported
DRAIN_SHARE = 0.1  # of a short life, the drain is at most this part
LEAVE_SHARE = 0.25  # of the drain: before the end, the last moment to leave
MINUTE_S = 60
# When the Slurm job that the agent runs in must end, in seconds since 1970.
END_TIME_VARIABLE = "SLURM_JOB_END_TIME"
# A process in a job of Slurm, Flux or Switchyard has one of these.
JOB_VARIABLES = (END_TIME_VARIABLE, "SLURM_JOB_ID", "FLUX_JOB_ID", "SWITCHYARD_JOB_ID")


@dataclass(frozen=True, slots=True)
class Lifetime:
    """`left_s`: the seconds until the cluster ends; `drain_s`: how long before the end it takes nothing new."""

    left_s: Callable[[], float]
    drain_s: float = DRAIN_S_MAX
    is_in_job: bool = False  # the agent runs in a job: whoever ends that job ends the cluster

    def refusal(self, spec: JobSpec) -> str:
        """Why the job cannot run before the end; empty: it can, if it starts now."""
        left_s = self.left_s()
        limit = spec.resources.time_limit
        if limit is None:
            return "This cluster ends at a set time, so it takes only jobs with a time limit."
        if parse_duration_s(limit) + START_MARGIN_S > left_s:
            return (
                f"This cluster ends in {_show(left_s)}, and the job may run for {_show(parse_duration_s(limit))}: it "
                "does not fit before the end."
            )
        return ""

    def trouble(self) -> str:
        """Why nothing new is taken; empty: new jobs are taken."""
        return f"the cluster ends in {_show(self.left_s())}" if self.left_s() < self.drain_s else ""

    def may_leave(self, *, has_work: bool) -> bool:
        """Whether the agent leaves now. `has_work`: attempts live, or reports of them are not sent."""
        left_s = self.left_s()
        return left_s < self.drain_s * LEAVE_SHARE or (left_s < self.drain_s and not has_work)

    def end_reason(self, number: int | None) -> str:
        """Why the cluster ends with the agent, which got this signal, or none; empty: the cluster goes on."""
        if self.left_s() < self.drain_s * LEAVE_SHARE:
            return "the time of its cluster is over"
        if number is None or not self.is_in_job:
            return ""
        # Flux sends SIGHUP to the program that an instance was started with.
        return "the instance of its cluster ended" if number == signal.SIGHUP else "the job around its cluster ended"


def lifetime_of(backend: Backend, environment: Mapping[str, str], *, ends_after_s: float | None) -> Lifetime:
    """The earliest end that is known: the operator's, that of the Slurm job around the agent, that of the cluster."""
    began = time.monotonic()
    end_time = environment.get(END_TIME_VARIABLE, "")
    if ends_after_s is None and not end_time.isdecimal() and backend.expires_s is None:
        raise unknown_end()

    def left_s() -> float:
        now_s = time.time()
        ends = [float(end_time)] if end_time.isdecimal() else []
        if (expires_s := backend.expires_s) is not None:
            ends.append(expires_s)
        left = [end - now_s for end in ends]
        if ends_after_s is not None:
            left.append(began + ends_after_s - time.monotonic())
        return max(0.0, min(left))

    is_in_job = backend.expires_s is not None or any(name in environment for name in JOB_VARIABLES)
    return Lifetime(left_s, min(DRAIN_S_MAX, left_s() * DRAIN_SHARE), is_in_job)


def check_end_is_known(make: BackendClass, environment: Mapping[str, str], *, ends_after: str | None) -> None:
    """Raise if an ephemeral cluster of this backend can have no known end: before it joins."""
    if ends_after is None and not environment.get(END_TIME_VARIABLE, "").isdecimal() and not make.has_expiration:
        raise unknown_end()


def unknown_end() -> Malformed:
    return Malformed(
        "It is not known when this cluster ends.", next_step="Say it with --ends-after, e.g. --ends-after 2h."
    )


def _show(seconds: float) -> str:
    return f"{int(seconds)} s" if seconds < 2 * MINUTE_S else f"{int(seconds / MINUTE_S)} min"
