"""What the router says: a verdict per cluster with its reason, and the plan that gathers them."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar

from msgspec import Struct

from switchyard.model.cluster.quote import Quote
from switchyard.model.job.job import JobRequest
from switchyard.model.rules.attributes import JobPolicy
from switchyard.model.rules.names import Name
from switchyard.model.rules.queue import QueuePosition
from switchyard.model.wire.schema import field_given


class Answer(StrEnum):
    """One cluster's answer for one job."""

    YES = "yes"
    WAIT = "wait"  # could run it, but not now: down, cordoned, silent
    NO = "no"  # could never run it as things are registered, or may not


class Outcome(StrEnum):
    """What follows for the job from the answers of all clusters."""

    ASSIGN = "assign"  # a cluster takes it
    HOLD = "hold"  # none takes it now, and one may later
    REJECT = "reject"  # none could ever run it


class Verdict(Struct, frozen=True, omit_defaults=True):
    """One cluster's yes or no, with the step that said it and a reason."""

    cluster: str
    say: Answer
    # pool · label · pin · grant · interruptible · backend · image · site · match · end · refused · weight · health ·
    # last · select
    step: str
    reason: str = ""
    since_us: int | None = None  # of an explanation: since when it has said so, as far as that is known


class Plan(Struct, frozen=True, omit_defaults=True):
    """What the router decided for a job: the chosen cluster, every verdict, the seed of the draw."""

    chosen: str | None
    verdicts: list[Verdict]
    algorithm: str
    seed: str
    outcome: str  # an Outcome; readers take others, too
    reason: str = ""
    engine: str = ""  # who answered whether it fits
    remaining: list[str] = []  # whom the algorithm left in the race, the best first; not of `weighted`
    at_us: int | None = None  # when it was decided
    # Of `POST /v1/plan` alone; an explanation has them beside the plan.
    hints: list[str] = []
    quotes: list[Quote] = []
    policy: JobPolicy | None = None
    stale_tokens: list[str] = []  # names in `submit_tokens` whose token opened no cluster
    # Of a job with alternatives: the number, from 1, of the set that it has at the chosen cluster.
    alternative: int | None = None


class FitRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Ask whether a job or a jobspec fits each cluster. `only_fitting`: leave out the clusters that it does not fit."""

    SCHEMA: ClassVar[dict[str, Any]] = {"oneOf": [field_given("job"), field_given("jobspec")]}
    job: JobRequest | None = None
    jobspec: dict[str, Any] | None = None
    match_engine: Name | None = None
    only_fitting: bool = False
    now: bool = True  # also ask what is free now; without, the same question has the same answer until a graph changes

    def __post_init__(self) -> None:
        if (self.job is None) == (self.jobspec is None):
            raise ValueError("give either `job` or `jobspec`")


class Fit(Struct, frozen=True, omit_defaults=True):
    """One cluster's answer. `ever`: the job fits the empty cluster. `now`: it fits the free part. None: unknown.

    `slots`: how many times it would fit. Of a no: the first level that failed, with numbers: so many were asked for in
    one place, the best place has so many, so many places have that.
    """

    cluster: str
    ever: bool | None
    slots: int | None = None
    reason: str = ""
    level: str = ""
    needs: int = 0
    best: int = 0
    places: int = 0
    now: bool | None = None
    now_reason: str = ""
    health: str = ""


class FitAnswer(Struct, frozen=True):
    """The answers of all clusters that the caller may see. `fitting` and `asked` count the clusters."""

    engine: str
    asked: int
    fitting: int
    items: list[Fit]


class Decision(Struct, frozen=True, omit_defaults=True):
    """One decision of the router. Equal decisions in a row are one."""

    at_us: int
    what: str  # the kind of its event: accepted, waits, assigned, moved, …
    state: str
    cluster: str | None = None
    reason: str = ""


class Explanation(Struct, frozen=True, omit_defaults=True):
    """Why a job is where it is: the plan of its last decision, what the clusters say now, and what would help."""

    job: str
    state: str
    plan: Plan | None
    now: list[Verdict]
    hints: list[str]  # what would let it run, one change each
    notes: list[str] = []
    policy: JobPolicy | None = None  # the rules it was admitted under
    standing: QueuePosition | None = None  # in its queue, while it waits
    quotes: list[Quote] = []
    history: list[Decision] = []  # the oldest first
