"""How long to wait before the next try: random, and doubled after each try up to a bound."""

from __future__ import annotations

import random


def backoff_s(tries: int, *, least_s: float, most_s: float) -> float:
    """`tries`: those that failed."""
    bound = min(most_s, least_s * 2 ** min(max(tries, 1) - 1, 20))
    return random.uniform(bound / 2, bound)  # noqa: S311 - jitter, not a secret
