"""The verdicts about all clusters, stored compactly: ten thousand clusters get a few dozen different ones. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from switchyard.model.cluster.verdict import Answer, Verdict


class GroupVerdict(NamedTuple):
    """A verdict without the cluster it is about."""

    say: Answer
    step: str
    reason: str


@dataclass(frozen=True, slots=True)
class VerdictSet:
    """Clusters' names by verdict. Iteration gives one verdict per cluster, in the order of their names."""

    groups: tuple[tuple[GroupVerdict, tuple[str, ...]], ...] = ()

    @staticmethod
    def grouped(groups: Mapping[GroupVerdict, tuple[str, ...]]) -> VerdictSet:
        """From names by verdict; the names must be sorted."""
        return VerdictSet(tuple((verdict, groups[verdict]) for verdict in sorted(groups)))

    @staticmethod
    def of(verdicts: Iterable[tuple[str, GroupVerdict]]) -> VerdictSet:
        """From pairs of a cluster's name and its verdict, sorted by name."""
        groups: dict[GroupVerdict, list[str]] = {}
        for name, verdict in verdicts:
            groups.setdefault(verdict, []).append(name)
        return VerdictSet.grouped({verdict: tuple(names) for verdict, names in groups.items()})

    def names(self, is_wanted: Callable[[GroupVerdict], bool]) -> list[str]:
        """The clusters whose verdict is wanted, in the order of their names, without a verdict for each cluster."""
        return sorted(name for verdict, names in self.groups if is_wanted(verdict) for name in names)

    def __len__(self) -> int:
        return sum(len(names) for _, names in self.groups)

    def __iter__(self) -> Iterator[Verdict]:
        pairs = ((name, verdict) for verdict, names in self.groups for name in names)
        for name, verdict in sorted(pairs, key=lambda pair: pair[0]):
            yield Verdict(name, verdict.say, verdict.step, verdict.reason)


def encode_verdicts(verdicts: VerdictSet) -> bytes:
    """Return the stored form. Equal verdicts have equal bytes, so the hash of the bytes identifies them."""
    return msgspec.json.encode(verdicts.groups)


def decode_verdicts(body: str | bytes) -> list[Verdict]:
    groups = msgspec.json.decode(body, type=tuple[tuple[GroupVerdict, tuple[str, ...]], ...])
    return list(VerdictSet(groups))
