"""When Python collects reference cycles: short collections while there is work, full ones when there is none.

A look at all objects takes the longer the more of them there are, and everybody waits for its end. A bulk request of
20,000 jobs is a million objects for some seconds; Python's own rule would look at all of them again and again. Nearly
everything here is freed without such looks, as soon as nobody has it any more.
"""

from __future__ import annotations

import gc

YOUNG_THRESHOLD, MIDDLE_THRESHOLD = 5_000, 5  # at most 25,000 objects in one collection: some milliseconds
NEVER = 10**9
ROUNDS_MIN = 40  # of these before a full collection: a million new objects survived


def limit_collections() -> None:
    """Exclude objects that live as long as the process. Call it once everything is loaded."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_THRESHOLD, MIDDLE_THRESHOLD, NEVER)


def is_full_collection_due() -> bool:
    """Whether enough objects survived since the last full collection to make another one worthwhile."""
    return gc.get_count()[2] >= ROUNDS_MIN


def collect_all() -> None:
    gc.collect()
