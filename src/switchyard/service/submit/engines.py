"""Which match engine answers: the operator's choice, or a user's from those the operator allows."""

from __future__ import annotations

from dataclasses import dataclass

from switchyard.errors import UnknownName
from switchyard.match.engine import BUILT_IN_ENGINES, DEFAULT_ENGINE, engine


@dataclass(frozen=True, slots=True)
class Engines:
    """`default` unless a user names another of `allowed`."""

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
        """At the start: an engine that is not installed must not be found out by a user."""
        for name in (self.default, *self.allowed):
            engine(name)
