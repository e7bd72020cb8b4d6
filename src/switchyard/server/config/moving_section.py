"""The config sections `moving` and `spill`: when a job that nobody has begun goes elsewhere, and what ends its wait."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from switchyard.model.job.spill import SpillTexts, parse_rules, pools_in_rules
from switchyard.model.jobspec.quantity import DURATION_S_MAX, parse_duration_s
from switchyard.model.rules.names import Name
from switchyard.route.moving import MovingSettings

ConfigDuration = Annotated[int, Meta(ge=1, le=DURATION_S_MAX)] | Annotated[str, Meta(max_length=40)]
NEVER = "never"


class MovingSection(Struct, frozen=True, forbid_unknown_fields=True):
    """`idle_takes_after`: an idle cluster takes over jobs that have waited this long at another cluster, or `never`.

    A job moves for a better quote at most once in `rest`. The quote must be better by at least `gain` (of its start) or
    `gain_cost` (of its cost), and by at least the share `gain_share` of the present wait or cost.
    """

    idle_takes_after: ConfigDuration = "30s"
    rest: ConfigDuration = "1m"
    gain: ConfigDuration = "1m"
    gain_cost: Annotated[float, Meta(ge=0, le=1e12)] = 1.0
    gain_share: Annotated[float, Meta(ge=0, le=1)] = 0.25

    def __post_init__(self) -> None:
        for value in (self.rest, self.gain, *([] if self.idle_takes_after == NEVER else [self.idle_takes_after])):
            parse_duration_s(value)

    @property
    def terms(self) -> MovingSettings:
        idle = self.idle_takes_after
        return MovingSettings(
            idle_after_us=None if idle == NEVER else parse_duration_s(idle) * 1_000_000,
            rest_us=parse_duration_s(self.rest) * 1_000_000,
            gain_s=parse_duration_s(self.gain),
            gain_cost=self.gain_cost,
            gain_share=self.gain_share,
        )


class SpillSection(Struct, frozen=True, forbid_unknown_fields=True):
    """Spill rules for jobs without rules of their own or of their scope: by pool, and `default` for all others."""

    default: SpillTexts = []
    pools: dict[Name, SpillTexts] = {}

    def __post_init__(self) -> None:
        mistakes = []
        for where, texts in self.lists.items():
            try:
                parse_rules(texts)
            except ValueError as exc:
                mistakes.append(f"{where}: {exc}")
        if mistakes:
            raise ValueError("; ".join(mistakes))

    @property
    def lists(self) -> dict[str, list[str]]:
        return {"default": self.default} | {f"pools.{pool}": texts for pool, texts in self.pools.items()}

    @property
    def by_pool(self) -> dict[str, tuple[str, ...]]:
        """As policy has it: the name of a pool, or none for all others."""
        by_pool = {"": tuple(self.default)} if self.default else {}
        return by_pool | {pool: tuple(texts) for pool, texts in self.pools.items()}

    def strangers(self, pools: frozenset[str]) -> list[str]:
        """Pools that are named here and nowhere given."""
        named = [(f"spill.{where}", pool) for where, texts in self.lists.items() for pool in pools_in_rules(texts)]
        named += [("spill.pools", pool) for pool in self.pools]
        return [f"{where}: there is no pool {pool!r}" for where, pool in named if pool not in pools]
