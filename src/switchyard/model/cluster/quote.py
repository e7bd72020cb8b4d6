"""Quotes: what a cluster is asked about a job's shape, what it answers, how the API shows it. No wall clock travels."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Raw, Struct

from switchyard.model.job.job import JobSpec

QUOTE_VALID_S = 30  # a quote that does not say how long it holds
QUOTES_MAX = 64  # questions or answers in one poll
CANDIDATES_MAX = 8  # clusters asked about one job
QUOTE_REASON_CHARS_MAX = 300  # of a reason that is kept
ShapeHash = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}(?!\n)$", max_length=64)]


class QuoteOutcome(StrEnum):
    """How a cluster answered."""

    YES = "yes"
    NO = "no"
    NONE = "none"  # not in time, or nothing that could be used


class QuoteAsk(Struct, frozen=True):
    """A question to a cluster: can it run a job of this shape, when, and at what cost? The command is a placeholder."""

    shape: str
    spec: JobSpec | Raw


class QuoteGiven(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """An agent's answer. Numbers that make no sense are refused one by one: a poll carries more than quotes."""

    shape: ShapeHash
    can: bool
    eta_s: float | None = None
    cost: float | None = None
    valid_s: float = QUOTE_VALID_S
    confidence: float = 1.0
    reason: Annotated[str, Meta(max_length=4096)] = ""


class Quote(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One cluster's answer as the API shows it."""

    cluster: str
    said: QuoteOutcome
    reason: str = ""
    eta_s: float | None = None  # as it was given, less its age
    line_s: float | None = None  # how long what waits there before the job takes, which no agent knows of
    starts_s: float | None = None  # what all that counts as, with how late the cluster usually is, and how sure
    cost: float | None = None
    confidence: float | None = None  # its own, scaled by how well its quotes were kept
    age_s: float | None = None
    valid_s: float | None = None  # for so long it still holds


class Quotes(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`POST /v1/quotes`: the answers of the clusters that could run a job, the best first."""

    shape: str
    items: list[Quote]
    soonest: str | None = None
    cheapest: str | None = None
    reason: str = ""  # why nobody was asked
    stale_tokens: list[str] = []  # names in `submit_tokens` whose token opened no cluster


class QuoteRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The accuracy of a cluster's quotes: the median delay of its last starts against their quotes, in seconds."""

    starts: int
    error_s: float
    error_abs_s: float
    trust: float
