"""What the router says: a verdict per cluster with its reason, and the plan that gathers them."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from switchyard.model.attributes import JobPolicy


class Say(StrEnum):
    """One cluster's answer for one job."""

    YES = "yes"
    WAIT = "wait"  # could run it, but not now: down, cordoned, silent
    NO = "no"  # could never run it as things are registered, or may not


class Verdict(Struct, frozen=True, omit_defaults=True):
    """One cluster's yes or no, with the step that said it and a reason."""

    cluster: str
    say: Say
    step: str  # grant · token · pin · health · match
    reason: str = ""


class Plan(Struct, frozen=True, omit_defaults=True):
    """What the router decided for a job: the chosen cluster, every verdict, the seed of the draw."""

    chosen: str | None
    verdicts: list[Verdict]
    algorithm: str
    seed: str
    outcome: str  # assign · hold · reject
    reason: str = ""


class Explanation(Struct, frozen=True, omit_defaults=True):
    """Why a job is where it is: the plan of its last decision, and what would help."""

    job: str
    state: str
    plan: Plan | None
    now: list[Verdict]
    hints: list[str]
    notes: list[str] = []
    policy: JobPolicy | None = None  # the rules it was admitted under
