"""The config section `probation`: when a cluster on which jobs fail quickly gets few tasks, and how it comes back."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from switchyard.route.probation import ProbationTerms

Seconds = Annotated[float, Meta(ge=0.1, le=86_400)]
Count = Annotated[int, Meta(ge=1, le=100)]


class ProbationSection(Struct, frozen=True, forbid_unknown_fields=True):
    """Clusters on which jobs fail quickly, and not elsewhere, get few tasks (docs/how-to/find-black-holes.md).

    `quick_s`: a failure within this time counts, and a longer run counts as one that did well. `failures`: so many in a
    row put the cluster on probation for their owner. `owners`: of whom so many put it on probation for all. `canaries`:
    tasks at a time; `successes`: so many of them that do well end it. `pause_s`: before the first canary; it doubles
    with each that fails, up to `pause_max_s`. `forget_s`: older evidence does not count, and a probation without news
    ends.
    """

    enabled: bool = True
    quick_s: Seconds = 10.0
    failures: Count = 3
    owners: Annotated[int, Meta(ge=2, le=100)] = 2
    canaries: Annotated[int, Meta(ge=1, le=10)] = 1
    successes: Count = 2
    pause_s: Seconds = 30.0
    pause_max_s: Seconds = 3600.0
    forget_s: Annotated[float, Meta(ge=1, le=30 * 86_400)] = 3600.0

    @property
    def terms(self) -> ProbationTerms:
        return ProbationTerms(
            is_enabled=self.enabled,
            quick_us=round(self.quick_s * 1e6),
            failures=self.failures,
            owners=self.owners,
            canaries=self.canaries,
            successes=self.successes,
            pause_us=round(self.pause_s * 1e6),
            pause_us_max=round(self.pause_max_s * 1e6),
            forget_us=round(self.forget_s * 1e6),
        )
