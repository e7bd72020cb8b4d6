"""The operator's settings for decisions: the match engine, and the selection algorithm with its options."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from switchyard.errors import UnknownName
from switchyard.match.engine import BUILT_IN_ENGINES, DEFAULT_ENGINE, engine
from switchyard.model.cluster.selection import Select
from switchyard.model.job.bounds import NamedAlgorithm
from switchyard.route.select.registry import selector
from switchyard.route.select.selector import WEIGHTED, Selector, check_default

NAME_ONLY_ALGORITHMS = (WEIGHTED, "random")  # they use only the clusters' names
STALE_AFTER_US = 180_000_000  # three missed polls: a parked poll ends within a minute
QUOTE_WAIT_US = 2_000_000  # mostly the backend's time: a parked poll delivers the inquiry immediately

_encoder = msgspec.json.Encoder(order="sorted")


@dataclass(frozen=True, slots=True)
class SelectionSettings:
    """The operator's settings. `is_stale_used`: whether selection uses stale state values."""

    default: NamedAlgorithm = (WEIGHTED, "{}")
    is_stale_used: bool = True
    stale_after_us: int = STALE_AFTER_US
    quote_wait_us: int = QUOTE_WAIT_US  # how long a job waits for clusters' quotes

    def read(self, asked: Select | None) -> NamedAlgorithm | None:
        """Return the job's checked choice. None if the job names no algorithm: each decision then uses the default."""
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
        """Whether the algorithm is the router's built-in draw by weight."""
        return (named or self.default)[0] == WEIGHTED

    def is_quick(self, asked: Select | None) -> bool:
        """Whether the algorithm is fast enough to run on the event loop."""
        return (asked.name if asked else self.default[0]) in NAME_ONLY_ALGORITHMS

    def check(self) -> None:
        """Fail at the server's start if the config's default is wrong."""
        check_default(selector(*self.default))


def selection_settings_of(
    name: str,
    options: dict[str, object],
    *,
    is_stale_used: bool,
    stale_after_us: int,
    quote_wait_us: int = QUOTE_WAIT_US,
) -> SelectionSettings:
    return SelectionSettings((name, _encoder.encode(options).decode()), is_stale_used, stale_after_us, quote_wait_us)


@dataclass(frozen=True, slots=True)
class Engines:
    """The operator's setting. Jobs use `default` unless they name an engine in `allowed`."""

    default: str = DEFAULT_ENGINE
    allowed: tuple[str, ...] = BUILT_IN_ENGINES

    def choose(self, name: str | None) -> str:
        if name is None:
            return self.default
        if name != self.default and name not in self.allowed:
            known = ", ".join(dict.fromkeys((self.default, *self.allowed)))
            raise UnknownName(f"There is no match engine {name[:80]!r} here.", next_step=f"Allowed are: {known}.")
        return name

    def check(self) -> None:
        """Fail at the server's start if an engine is not installed, instead of at a user's submit."""
        for name in (self.default, *self.allowed):
            engine(name)
