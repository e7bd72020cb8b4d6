"""When Python looks for garbage in cycles: in short looks while there is work, at everything when there is none.

A look at all objects takes the longer the more of them there are, and everybody waits for its end. A bulk request of
20,000 jobs is a million objects for some seconds; Python's own rule would look at all of them again and again. Nearly
everything here is freed without such looks, as soon as nobody has it any more.
"""

from __future__ import annotations

import gc

YOUNG_THRESHOLD, MIDDLE_THRESHOLD = 5_000, 5  # a look at no more than 25,000 objects: some milliseconds
NEVER = 10**9
ROUNDS_MIN = 40  # of these looks before one at everything: a million new objects that stayed


def limit_collections() -> None:
    """Once all is loaded: what lives as long as the process is not looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_THRESHOLD, MIDDLE_THRESHOLD, NEVER)


def is_full_collection_due() -> bool:
    """Whether so much has stayed since the last look at everything that another is worth its time."""
    return gc.get_count()[2] >= ROUNDS_MIN


def collect_all() -> None:
    gc.collect()
