"""Which selection algorithm chooses, with which options: the job's own, else the operator's."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from switchyard.errors import Malformed
from switchyard.model.selection import Select
from switchyard.route.select.constraint import ConstraintSelector
from switchyard.route.select.selector import WEIGHTED, Selector, selector

NAME_ONLY_ALGORITHMS = (WEIGHTED, "random")  # they look at nothing but names
STALE_AFTER_US = 180_000_000  # a parked poll comes back within a minute; three of them were missed

QUOTE_WAIT_US = 2_000_000  # an agent's parked poll hears a question at once; the rest is the backend's own time

NamedAlgorithm = tuple[str, str]  # an algorithm and its options, as JSON with sorted keys
_encoder = msgspec.json.Encoder(order="sorted")


@dataclass(frozen=True, slots=True)
class SelectionSettings:
    """The operator's choice. `is_stale_used`: whether values that agents have not said for long are reckoned with."""

    default: NamedAlgorithm = (WEIGHTED, "{}")
    is_stale_used: bool = True
    stale_after_us: int = STALE_AFTER_US
    quote_wait_us: int = QUOTE_WAIT_US  # for so long clusters may answer when they are asked for quotes

    def read(self, asked: Select | None) -> NamedAlgorithm | None:
        """What a job asks for, checked; none: it asks for nothing, and gets what is the operator's choice then."""
        if asked is None:
            return None
        name, options = asked.name, _encoder.encode(asked.options).decode()
        if not asked.options and name == self.default[0]:
            options = self.default[1]
        selector(name, options)
        return name, options

    def choose(self, named: NamedAlgorithm | None) -> tuple[str, Selector]:
        name, options = named or self.default
        return name, selector(name, options)

    def is_drawn(self, named: NamedAlgorithm | None) -> bool:
        """Whether all able clusters are simply drawn by weight, as the router does anyway."""
        return (named or self.default)[0] == WEIGHTED

    def is_quick(self, asked: Select | None) -> bool:
        """Whether choosing is quick enough for the event loop."""
        return (asked.name if asked else self.default[0]) in NAME_ONLY_ALGORITHMS

    def check(self) -> None:
        """At the start: a mistake in the file must not be found out by a user. There unknown steps are one, too."""
        found = selector(*self.default)
        for priority in found.priorities if isinstance(found, ConstraintSelector) else ():
            if priority.ignored:
                raise Malformed(f"priority {priority.number}: there is no step {priority.ignored[0]!r}.")


def selection_settings_of(
    name: str,
    options: dict[str, object],
    *,
    is_stale_used: bool,
    stale_after_us: int,
    quote_wait_us: int = QUOTE_WAIT_US,
) -> SelectionSettings:
    return SelectionSettings((name, _encoder.encode(options).decode()), is_stale_used, stale_after_us, quote_wait_us)
