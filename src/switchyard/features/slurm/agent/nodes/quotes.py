"""Quotes from `sbatch --test-only`. Pure."""

from __future__ import annotations

import re
from datetime import datetime

ETA_S_MAX = 366 * 86_400  # Slurm says the year 2707 if it does not know
_START = re.compile(r"to start at (\S+)")
_PROBLEM = re.compile(r"(?:allocation failure|submission failed|error): *(.*)")


def read_start_delay_s(text: str, *, now_s: float) -> int | None:
    """Seconds until the job would start; None: Slurm does not know."""
    match = _START.search(text)
    at_s = _seconds(match[1]) if match else None
    if at_s is None or at_s - now_s > ETA_S_MAX:
        return None
    return max(0, round(at_s - now_s))


def read_problem(text: str) -> str:
    """Slurm's reason: the last message, which is the clearest."""
    problems = _PROBLEM.findall(text)
    return problems[-1].strip() if problems else text.strip()[-300:]


def _seconds(text: str) -> float | None:
    if text.isdigit():
        return float(text)
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
