"""Why the output files of an ended job are not there yet, told while somebody waits for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from switchyard.errors import TimedOut
from switchyard.model.files.files import OutputSet, OutputState

OnWait = Callable[[str], None]
TOLD_AFTER_S = 1.0  # most files are there before


class OutputWait:
    """One wait. `report` is called with what is known, `silent_s` says how long an agent was silent meanwhile."""

    def __init__(self, on_wait: OnWait | None) -> None:
        self._on_wait = on_wait
        self._began_at = time.monotonic()
        self._silent_at: float | None = None
        self._is_moving = False
        self._reason = ""
        self._told = ""

    @property
    def silent_s(self) -> float:
        return 0.0 if self._silent_at is None else time.monotonic() - self._silent_at

    def report(self, seen: Sequence[OutputSet], *, unknown_tasks: int = 0) -> None:
        """`unknown_tasks`: of how many tasks of an array no agent has spoken."""
        self._reason = describe_wait(seen, unknown_tasks)
        now = time.monotonic()
        moving = [outputs for outputs in seen if outputs.state is OutputState.UPLOADING]
        self._is_moving = bool(moving)
        if not moving or any(outputs.silent_since_us is None for outputs in moving):
            self._silent_at = None
        elif self._silent_at is None:
            self._silent_at = now
        if self._on_wait is not None and self._reason != self._told and now - self._began_at > TOLD_AFTER_S:
            self._told = self._reason
            self._on_wait(self._reason)

    def timed_out(self, job: str, when: str = "", *, tasks: str = "") -> TimedOut:
        """`tasks`: of an array, those whose files are not there."""
        of_tasks = f"{tasks} of " if tasks else ""
        text = f"The output files of {of_tasks}job {job} are not there{when}: {self._reason}."
        if self._is_moving:
            return TimedOut(text, next_step=f"`yard fetch {job}` gets them once they are there.")
        step = "If they never come, the log of the cluster's agent says why."
        return TimedOut(text, next_step=f"`yard fetch {job}` looks again. {step}")


def describe_wait(seen: Sequence[OutputSet], unknown_tasks: int = 0) -> str:
    """Why the first files that are on their way are late."""
    moving = [outputs for outputs in seen if outputs.state is OutputState.UPLOADING]
    if not moving and unknown_tasks:
        noun = "task" if unknown_tasks == 1 else "tasks"
        return f"no cluster has spoken yet of the output files of {unknown_tasks} {noun}"
    if not moving:
        return "the cluster has not spoken of its output files yet"
    late = next((outputs for outputs in moving if outputs.silent_since_us is not None), None)
    late = late or next((outputs for outputs in moving if outputs.error), moving[0])
    cluster = f" from cluster {late.cluster}" if late.cluster else ""
    way = f"output files are on their way{cluster}"
    if len(moving) > 1:
        way = f"output files of {len(moving)} tasks are on their way{cluster}"
    if late.silent_since_us is not None:
        return f"{way}; its agent has been silent{_since(late.silent_since_us)}"
    return f"{way}; delayed: {late.error}" if late.error else way


def _since(at_us: int) -> str:
    if not at_us:
        return " since the server started"
    return time.strftime(" since %Y-%m-%d %H:%M:%S UTC", time.gmtime(at_us // 1_000_000))
