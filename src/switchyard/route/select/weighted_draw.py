"""Weighted rendezvous hashing on the job's id: stable, and a change of members moves only the share that must move.

Each cluster gets a score from hash(job, cluster) and its weight; the highest wins. Integers only until the last step,
so the plain loop and the vectorised one give the same winner in every replica.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
SINGLE_TRIES_MAX = 8  # of the best one by one; then all are asked whether they are able
# A weight, the keys of those that have it, and their numbers.
WeightGroup = tuple[float, NDArray[np.uint64], NDArray[np.int64]]


@dataclass(frozen=True, eq=False, slots=True)
class WeightedCandidates:
    """Who is drawn from, made ready once: by weight, the keys of the draw and what they stand for."""

    names: tuple[str, ...]
    weights: tuple[float, ...]
    groups: tuple[WeightGroup, ...]
    keys: NDArray[np.uint64]  # of all groups, one after the other

    @staticmethod
    def of(names: Sequence[str], weights: Sequence[float]) -> WeightedCandidates:
        """Zero weights are drawn only when all are zero."""
        keys = np.array([hash_text(name) for name in names], dtype=np.uint64)
        return WeightedCandidates.made(tuple(names), np.array(weights, dtype=np.float64), keys)

    @staticmethod
    def made(names: tuple[str, ...], amounts: NDArray[np.float64], keys: NDArray[np.uint64]) -> WeightedCandidates:
        """The same from arrays."""
        if not amounts.any():
            amounts = np.ones(len(names))
        weights = tuple(amounts.tolist())
        if len(names) < LOOP_MAX:
            return WeightedCandidates(names, weights, (), keys[:0])
        groups = []
        for weight in sorted({each for each in weights if each > 0}):
            numbers = np.flatnonzero(amounts == weight)
            groups.append((weight, keys[numbers], numbers))
        return WeightedCandidates(names, weights, tuple(groups), np.concatenate([each for _, each, _ in groups]))

    def draw(self, seed: str) -> int:
        """The index of the winner."""
        assert self.names, "nobody to draw from"
        job_key = hash_text(seed)
        winner = highest_score(job_key, self.groups, self.keys)
        return winner if winner is not None else _draw_by_loop(job_key, self.names, self.weights)

    def first(self, seed: str, most: int) -> list[int]:
        """The numbers of the first so many of the draw, the winner first."""
        job_key = hash_text(seed)
        if not self.groups:
            drawn = [number for number, weight in enumerate(self.weights) if weight > 0]
            scores = {each: _score(_mix(job_key ^ hash_text(self.names[each])), self.weights[each]) for each in drawn}
            return sorted(drawn, key=lambda each: scores[each], reverse=True)[:most]
        left, found = list(self.groups), list[int]()
        while len(found) < most and (winner := highest_score(job_key, left)) is not None:
            found.append(winner)
            left = [_masked(group, group[2] != winner) for group in left]
        return found


def draw(seed: str, names: Sequence[str], weights: Sequence[float]) -> int:
    """The index of the winner. Zero weights are drawn only when all are zero."""
    return WeightedCandidates.of(names, weights).draw(seed)


def draw_from_groups(
    seed: str, groups: Sequence[WeightGroup], is_able: Callable[[int], bool] | None = None
) -> int | None:
    """The number of the winner among candidates as the index gives them; one that is not able now: the next best."""
    job_key = hash_text(seed)
    # All-zero weights are judged before who is able.
    left = [group for group in groups if group[0] > 0] or [(1.0, keys, numbers) for _, keys, numbers in groups]
    if is_able is None:
        return highest_score(job_key, left)
    for _ in range(SINGLE_TRIES_MAX):
        winner = highest_score(job_key, left)
        if winner is None or is_able(winner):
            return winner
        left = [_masked(group, group[2] != winner) for group in left]
    able = [np.array([is_able(int(number)) for number in numbers], dtype=np.bool_) for _, _, numbers in left]
    return highest_score(job_key, [_masked(group, mask) for group, mask in zip(left, able, strict=True)])


def _masked(group: WeightGroup, mask: NDArray[np.bool_]) -> WeightGroup:
    weight, keys, numbers = group
    return weight, keys[mask], numbers[mask]


def _draw_by_loop(job_key: int, names: Sequence[str], weights: Sequence[float]) -> int:
    best, best_score = -1, (-1.0, -1)
    for index, name in enumerate(names):
        if weights[index] > 0:
            score = _score(_mix(job_key ^ hash_text(name)), weights[index])
            if score > best_score:
                best, best_score = index, score
    return best


def highest_score(job_key: int, groups: Sequence[WeightGroup], keys: NDArray[np.uint64] | None = None) -> int | None:
    """The highest hash within each weight, then a logarithm only of those winners. None: nobody is there.

    `keys`: those of all groups, one after the other, where they are at hand: they are mixed at once.
    """
    if not groups:
        return None
    every = _mix_array(np.uint64(job_key) ^ (np.concatenate([each for _, each, _ in groups]) if keys is None else keys))
    best, best_score, last = None, (-1.0, -1), 0
    for weight, _, numbers in groups:
        if not len(numbers):
            continue
        first, last = last, last + len(numbers)
        mixed = every[first:last]
        at = int(mixed.argmax())
        index, score = int(numbers[at]), _score(int(mixed[at]), weight)
        if best is None or score > best_score or (score == best_score and index < best):
            best, best_score = index, score
    return best


def _score(mixed: int, weight: float) -> tuple[float, int]:
    """-weight / ln(u) with u uniform in (0, 1): the higher the hash, the higher the score.

    The hash itself parts two that are the same fraction as a float; the highest are 1.0, whose logarithm is zero.
    """
    share = (mixed + 0.5) / 2.0**64
    return (-weight / math.log(share) if share < 1 else math.inf), mixed


@lru_cache(maxsize=65_536)
def hash_text(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def _mix(value: int) -> int:
    """splitmix64's finaliser: every input bit reaches every output bit."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def _mix_array(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The same of many, in place."""
    shifted = value >> SHIFTS[0]
    value ^= shifted
    value *= FACTORS[0]
    value ^= np.right_shift(value, SHIFTS[1], out=shifted)
    value *= FACTORS[1]
    value ^= np.right_shift(value, SHIFTS[2], out=shifted)
    return value
