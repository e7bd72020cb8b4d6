"""Quotes: what a cluster is asked about a job's shape, what it answers, how the API shows it. No wall clock travels."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Raw, Struct

from switchyard.model.job import JobSpec

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
    """Could you run this, when, and for how much? The spec's command is a stand-in: its shape is all that is asked."""

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
    """`POST /v1/quotes`: what the clusters that could run a job say, the best first."""

    shape: str
    items: list[Quote]
    soonest: str | None = None
    cheapest: str | None = None
    reason: str = ""  # why nobody was asked


class QuoteRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How well a cluster keeps what it quotes: of its last starts the median of actual less quoted, in seconds."""

    starts: int
    error_s: float
    error_abs_s: float
    trust: float
