"""The choice of the match engine: the operator's default, or the engine that a job names if the operator allows it."""

from __future__ import annotations

from dataclasses import dataclass

from switchyard.errors import UnknownName
from switchyard.match.engine import BUILT_IN_ENGINES, DEFAULT_ENGINE, engine


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
