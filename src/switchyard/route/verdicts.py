"""The verdicts of a ruling in little room: ten thousand clusters are told a few dozen different things. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from switchyard.model.verdict import Answer, Verdict


class GroupVerdict(NamedTuple):
    """A verdict without the cluster it is about."""

    say: Answer
    step: str
    reason: str


@dataclass(frozen=True, slots=True)
class VerdictSet:
    """What was told to whom. Iterated, it gives one verdict per cluster, in the order of their names."""

    groups: tuple[tuple[GroupVerdict, tuple[str, ...]], ...] = ()

    @staticmethod
    def grouped(groups: Mapping[GroupVerdict, tuple[str, ...]]) -> VerdictSet:
        """From what was told to whom; names in order."""
        return VerdictSet(tuple((each, groups[each]) for each in sorted(groups)))

    @staticmethod
    def of(told: Iterable[tuple[str, GroupVerdict]]) -> VerdictSet:
        """From each cluster's name with what it was told; names in order."""
        found: dict[GroupVerdict, list[str]] = {}
        for name, each in told:
            names = found.get(each)
            if names is None:
                found[each] = [name]
            else:
                names.append(name)
        return VerdictSet.grouped({each: tuple(names) for each, names in found.items()})

    def __len__(self) -> int:
        return sum(len(names) for _, names in self.groups)

    def __iter__(self) -> Iterator[Verdict]:
        named = ((name, told) for told, names in self.groups for name in names)
        for name, told in sorted(named, key=lambda pair: pair[0]):
            yield Verdict(name, told.say, told.step, told.reason)


def encode_verdicts(verdicts: VerdictSet) -> bytes:
    """The stored form: the same for the same verdicts, so that its hash stands for them."""
    return msgspec.json.encode(verdicts.groups)


def decode_verdicts(body: str | bytes) -> list[Verdict]:
    groups = msgspec.json.decode(body, type=tuple[tuple[GroupVerdict, tuple[str, ...]], ...])
    return list(VerdictSet(groups))
