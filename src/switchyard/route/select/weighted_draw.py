"""Weighted rendezvous hashing on the job's id: stable, and a change of members moves only the share that must move.

Each cluster gets a score from hash(job, cluster) and its weight; the highest wins. Integers only until the last step,
so the plain loop and the vectorised one give the same winner in every replica.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

MASK = (1 << 64) - 1
# Under this many candidates the plain loop is faster than setting up the arrays (measured: 7 µs for 10).
LOOP_MAX = 20
FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
# A weight, the hash keys of the candidates that have it, and the candidates' indexes.
WeightGroup = tuple[float, NDArray[np.uint64], NDArray[np.int64]]


@dataclass(frozen=True, eq=False, slots=True)
class WeightedCandidates:
    """The candidates of a weighted draw, with their hash keys grouped by weight. Prepared once for many draws."""

    names: tuple[str, ...]
    weights: tuple[float, ...]
    groups: tuple[WeightGroup, ...]
    keys: NDArray[np.uint64]  # of all groups, concatenated

    @staticmethod
    def of(names: Sequence[str], weights: Sequence[float]) -> WeightedCandidates:
        """Zero weights are drawn only when all are zero."""
        keys = np.array([hash_name(name) for name in names], dtype=np.uint64)
        return WeightedCandidates.from_arrays(tuple(names), np.array(weights, dtype=np.float64), keys)

    @staticmethod
    def from_arrays(
        names: tuple[str, ...], weights: NDArray[np.float64], keys: NDArray[np.uint64]
    ) -> WeightedCandidates:
        if not weights.any():
            weights = np.ones(len(names))
        weight_tuple = tuple(weights.tolist())
        if len(names) < LOOP_MAX:
            return WeightedCandidates(names, weight_tuple, (), keys[:0])
        groups = []
        for weight in sorted({weight for weight in weight_tuple if weight > 0}):
            indexes = np.flatnonzero(weights == weight)
            groups.append((weight, keys[indexes], indexes))
        return WeightedCandidates(names, weight_tuple, tuple(groups), _concatenated_keys(groups))

    def draw(self, seed: str) -> int:
        """Return the index of the winner."""
        assert self.names, "nobody to draw from"
        job_key = hash_text(seed)
        winner = highest_score(job_key, self.groups, self.keys) if self.groups else None
        return winner if winner is not None else _draw_by_loop(job_key, self.names, self.weights)

    def ranked(self, seed: str, count: int) -> list[int]:
        """Return the indexes of the first `count` candidates of the draw, the winner first."""
        job_key = hash_text(seed)
        if not self.groups:
            scores = {
                index: _score(_mix(job_key ^ hash_name(self.names[index])), weight)
                for index, weight in enumerate(self.weights)
                if weight > 0
            }
            return sorted(scores, key=lambda index: scores[index], reverse=True)[:count]
        groups, winners = list(self.groups), list[int]()
        while len(winners) < count and (winner := highest_score(job_key, groups)) is not None:
            winners.append(winner)
            groups = [_without(group, winner) for group in groups]
        return winners


def draw(seed: str, names: Sequence[str], weights: Sequence[float]) -> int:
    """Return the index of the winner. Zero weights are drawn only when all are zero."""
    return WeightedCandidates.of(names, weights).draw(seed)


def _without(group: WeightGroup, index: int) -> WeightGroup:
    weight, keys, indexes = group
    is_kept = indexes != index
    return weight, keys[is_kept], indexes[is_kept]


def _concatenated_keys(groups: Sequence[WeightGroup]) -> NDArray[np.uint64]:
    return np.concatenate([keys for _, keys, _ in groups])


def _draw_by_loop(job_key: int, names: Sequence[str], weights: Sequence[float]) -> int:
    best, best_score = -1, (-1.0, -1)
    for index, name in enumerate(names):
        if weights[index] > 0:
            score = _score(_mix(job_key ^ hash_name(name)), weights[index])
            if score > best_score:
                best, best_score = index, score
    return best


def highest_score(job_key: int, groups: Sequence[WeightGroup], keys: NDArray[np.uint64] | None = None) -> int | None:
    """Return the index of the winner: the highest hash of each weight, then a logarithm of these few only.

    `keys`: the keys of all groups, concatenated, if the caller has them. None is returned if there are no candidates.
    """
    if not groups:
        return None
    hashes = _mix_array(np.uint64(job_key) ^ (_concatenated_keys(groups) if keys is None else keys))
    best, best_score, stop = None, (-1.0, -1), 0
    for weight, _, indexes in groups:
        if not len(indexes):
            continue
        start, stop = stop, stop + len(indexes)
        group_hashes = hashes[start:stop]
        top = int(group_hashes.argmax())
        index, score = int(indexes[top]), _score(int(group_hashes[top]), weight)
        if best is None or score > best_score or (score == best_score and index < best):
            best, best_score = index, score
    return best


def _score(mixed: int, weight: float) -> tuple[float, int]:
    """Return -weight / ln(u) with u uniform in (0, 1), and the hash: the higher the hash, the higher the score.

    The hash breaks the tie of two hashes that are the same float. The highest hashes are 1.0, whose logarithm is zero.
    """
    share = (mixed + 0.5) / 2.0**64
    return (-weight / math.log(share) if share < 1 else math.inf), mixed


@lru_cache(maxsize=65_536)
def hash_name(name: str) -> int:
    """Return the hash of a cluster's name. Hashes of job ids are not cached: few ids are drawn for more than once."""
    return hash_text(name)


def hash_text(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def _mix(value: int) -> int:
    """splitmix64's finaliser: every input bit reaches every output bit."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def _mix_array(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`_mix` of many values, in place."""
    shifted = value >> SHIFTS[0]
    value ^= shifted
    value *= FACTORS[0]
    value ^= np.right_shift(value, SHIFTS[1], out=shifted)
    value *= FACTORS[1]
    value ^= np.right_shift(value, SHIFTS[2], out=shifted)
    return value
