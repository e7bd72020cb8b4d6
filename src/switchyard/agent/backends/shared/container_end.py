"""How a job in a container ended: by its command, by its runtime, or for lack of memory. Pure.

podman and docker exit with the command's code. 125, 126 and 127 can also be their own: the container could not be made,
the command could not be run, the command was not found. After a signal they exit with 128 and its number, which a
command may do, too. What the runtime says of the container tells the first apart; 129 to 192 count as signals.
"""

from __future__ import annotations

import signal

from switchyard.model.job.retry import Cause

NEVER_STARTED = "0001-01-01"  # the zero of Go's clock
RUNTIME_FAILED_CODE = 125
RUNTIME_CODES = (RUNTIME_FAILED_CODE, 126, 127)
SIGNAL_CODES = range(129, 193)
LAST_WORDS_MAX = 300
KILL = int(signal.SIGKILL)
OUT_OF_MEMORY_REASON = "it used more memory than it may"


def start_failure(code: int | None, container: str, *, last_words: str) -> tuple[str, Cause] | None:
    """Why the container did not start, and the cause; None: it started. `container`: what its runtime says of it."""
    started_at = container.partition("|")[0]
    if code not in RUNTIME_CODES or (started_at and not started_at.startswith(NEVER_STARTED)):
        return None
    words = f": {last_words[:LAST_WORDS_MAX]}" if last_words else ""
    return f"its container did not start{words}", Cause.CLUSTER if code == RUNTIME_FAILED_CODE else Cause.JOB


def ran_out_of_memory(container: str) -> bool:
    return container.endswith("|true")
