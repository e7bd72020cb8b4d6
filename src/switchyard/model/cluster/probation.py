"""Probation: a cluster that gets few tasks for a while, because jobs fail there quickly and not elsewhere."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from switchyard.model.rules.names import Title


class ProbationAction(StrEnum):
    """What an operator may do about the probation of a cluster."""

    CONFIRM = "confirm"  # it stays on probation, without canaries, until an operator clears it
    CLEAR = "clear"  # it ends, and what was counted is forgotten
    OFF = "off"  # the cluster is never put on probation
    ON = "on"  # it is again


class ProbationChange(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`POST /v1/clusters/{cluster}/probation`. `reason`: of a confirmation; users see it."""

    action: ProbationAction
    reason: Title = ""


class Probation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One probation as the API shows it.

    `owner`: whose jobs it is about; empty: everybody's. `node`: a node that jobs avoid; empty: the whole cluster.
    """

    owner: str = ""
    node: str = ""
    reason: str
    since_us: int
    next_us: int = 0  # when the next canary may start, or jobs may use the node again
    passed: int = 0  # canaries that did well, one after the other
    needed: int = 0  # so many of them end the probation
    is_confirmed: bool = False


class Canary(Struct, frozen=True, array_like=True):
    """A task that a cluster on probation was given as a test."""

    job: str
    fence: int
    leased_us: int
    running_us: int | None = None  # when an agent reported that it runs
