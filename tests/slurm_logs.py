"""What the logs of Slurm's daemons tell, for the test beds."""

from __future__ import annotations

import re
from pathlib import Path

# What a controller's log says of a number it gives; "JobId=4_1(6)": a task has a number of its own.
GIVEN = re.compile(r"(?:submit_batch_job:|Started|Allocate) JobId=(?:\d+_\S*\()?(\d+)")
LAST_LINES = 12


def highest_number(log: Path) -> int:
    """The highest number that a controller has given to a job; its log outlives it."""
    text = log.read_text(encoding="utf-8", errors="replace")
    return max((int(number) for number in GIVEN.findall(text)), default=0)


def ends_of_logs(folder: Path) -> list[str]:
    lines = []
    for log in sorted(folder.glob("slurm*.log")):
        lines += [f"{log.name}:", *log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]]
    return lines
