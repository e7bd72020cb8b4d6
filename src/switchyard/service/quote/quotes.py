"""What clusters quoted: the shape they were asked about, the answers that are kept, and what each counts as now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import msgspec

from switchyard.model.job import JobSpec
from switchyard.model.quantity import parse_duration_s
from switchyard.model.quote import CANDIDATES_MAX, Quote, QuoteOutcome, QuoteRecord
from switchyard.route.quote_estimate import BacklogWork, QuoteAccuracy, backlog_s, clusters_to_ask, expected_start_s
from switchyard.route.router import Eligibility
from switchyard.route.select.selector import CandidateQuote
from switchyard.route.world import Member
from switchyard.service.context import Context
from switchyard.service.submit.demands import demand_of_spec
from switchyard.store import jobs
from switchyard.store import quotes as store
from switchyard.store.database import Tx

PLACEHOLDER_COMMAND = ["true"]  # what is asked about is what a job needs, not what it runs
TRACK_MAX = 100  # the last starts by which a cluster's quotes are judged
# of many clusters others are asked after this: one that nobody asks could stand idle for ever
CANDIDATES_TURN_US = 60_000_000
QUOTES_PER_SHAPE_MAX = 64  # quotes about one shape that are reckoned with, the newest
LINE_MAX = 1000  # jobs looked at in a cluster's line; a longer one counts as this long

_SORTED = msgspec.json.Encoder(order="sorted")


@dataclass(frozen=True, slots=True)
class QuoteWindow:
    """When clusters were asked on behalf of a job, and until when an answer counts for it."""

    asked_us: int
    deadline_us: int

    @property
    def was_asked(self) -> bool:
        """Or only what is held to counts, and nobody was asked."""
        return self.asked_us <= self.deadline_us


@dataclass(frozen=True, slots=True)
class GatheredQuotes:
    """What clusters said; and of those that are to be asked by now, `names`, who has not."""

    quotes: Mapping[str, Quote]
    names: tuple[str, ...]
    missing: tuple[str, ...]


def shape_of(spec: JobSpec) -> tuple[str, str]:
    """What of a job decides when and for how much it could run: its hash, and the spec an agent is asked about."""
    asked = JobSpec(
        PLACEHOLDER_COMMAND,
        resources=spec.resources,
        compatibility=spec.compatibility,
        demand=spec.demand,
        task_type=spec.task_type,
    )
    body = _SORTED.encode(asked)
    return sha256(body).hexdigest(), body.decode()


def gather_quotes(
    context: Context,
    ruling: Eligibility,
    spec: JobSpec,
    round_: QuoteWindow | None = None,
    *,
    names: tuple[str, ...] = (),
) -> GatheredQuotes:
    """The quotes of those that a ruling leaves: still held to, or given in time for a round.

    `names`: who is to have answered; not given: those to be asked at this time. Others of whom a quote is there count,
    too.
    """
    shape, _ = shape_of(spec)
    world, now_us, able = context.snapshots.world, context.now_us(), frozenset(ruling.able.names)
    names = names or clusters_to_ask(ruling.able, seed=f"{shape} {now_us // CANDIDATES_TURN_US}", most=CANDIDATES_MAX)
    with context.database.read() as tx:
        if round_ is None:
            rows = store.quote_list_valid(tx, shape, now_us=now_us, limit=QUOTES_PER_SHAPE_MAX)
        else:
            times = {"asked_us": round_.asked_us, "deadline_us": round_.deadline_us}
            rows = store.quote_list_in_time(tx, shape, **times, limit=QUOTES_PER_SHAPE_MAX)
        refusing = store.ask_refusing_clusters(tx, shape, now_us=now_us)
        told = [(member, row) for row in rows if (member := world.by_id.get(row.cluster_id)) and member.name in able]
        asks = demand_of_spec(spec).cores_total
        found = {member.name: _quote_now(context, tx, member, row, asks) for member, row in told}
    answered = {member.name for member, row in told if member.id not in refusing}
    return GatheredQuotes(found, names, tuple(name for name in names if name in world.by_name and name not in answered))


def _quote_now(context: Context, tx: Tx, member: Member, row: store.Row, asks: int) -> Quote:
    now_us = context.now_us()
    age_s = max(0.0, (now_us - row.at_us) / 1e6)
    valid_s = max(0.0, (row.until_us - now_us) / 1e6)
    seen = Quote(cluster=member.name, said=QuoteOutcome(row.said), reason=row.reason, age_s=round(age_s, 1))
    if row.said != QuoteOutcome.YES.value:
        return msgspec.structs.replace(seen, valid_s=round(valid_s, 1))
    track = track_of(tx, member.id)
    seen = msgspec.structs.replace(
        seen, cost=row.cost, confidence=round(row.confidence * track.trust, 3), valid_s=round(valid_s, 1)
    )
    if row.eta_us is None:
        return seen
    eta_s, waits_s = max(0.0, row.eta_us / 1e6 - age_s), _line_s(context, tx, member, asks)
    starts = expected_start_s(eta_s, track=track, confidence=row.confidence, line_s=waits_s)
    return msgspec.structs.replace(seen, eta_s=round(eta_s, 1), line_s=round(waits_s, 1), starts_s=round(starts, 1))


def _line_s(context: Context, tx: Tx, member: Member, asks: int) -> float:
    """What waits at a cluster for its lease, and so is in no agent's quote."""
    rows = store.backlog_by_spec(tx, member.id, LINE_MAX)
    if not rows or member.graph is None:
        return 0.0
    bodies = jobs.spec_get_many(tx, (row.spec_hash for row in rows))
    line = [BacklogWork(row.cores, time_limit_s(bodies.get(row.spec_hash)), row.jobs) for row in rows]
    load = context.snapshots.load_of(member.id)
    return backlog_s(line, asks=asks, free=load.free_cores if load else None, cores=member.graph.cores)


class _ResourcesTimeLimit(msgspec.Struct, frozen=True):
    time_limit: int | str | None = None


class _SpecTimeLimit(msgspec.Struct, frozen=True):
    resources: _ResourcesTimeLimit = _ResourcesTimeLimit()


_time_limit_decoder = msgspec.json.Decoder(_SpecTimeLimit)


def time_limit_s(body: str | None) -> float | None:
    """The time limit of a stored spec, if it has one; nothing else of it is read."""
    limit = _time_limit_decoder.decode(body).resources.time_limit if body else None
    return None if limit is None else float(parse_duration_s(limit))


def track_of(tx: Tx, cluster_id: str) -> QuoteAccuracy:
    return QuoteAccuracy.of(store.use_errors(tx, [cluster_id], TRACK_MAX)[cluster_id])


def quote_record_of(context: Context, cluster_id: str) -> QuoteRecord | None:
    """How well a cluster kept its quotes; none: no job has begun there by one."""
    with context.database.read() as tx:
        track = track_of(tx, cluster_id)
    if not track.starts:
        return None
    return QuoteRecord(
        starts=track.starts,
        error_s=round(track.error_s, 1),
        error_abs_s=round(track.error_abs_s, 1),
        trust=round(track.trust, 3),
    )


def quotes_for_selection(quotes: Mapping[str, Quote]) -> dict[str, CandidateQuote]:
    """What selection goes by. An answer that could not be used is none."""
    return {
        name: CandidateQuote(each.said is QuoteOutcome.YES, each.starts_s, each.cost, each.reason)
        for name, each in quotes.items()
        if each.said is not QuoteOutcome.NONE
    }


def quote_use_row(job_id: str, ruling: Eligibility, chosen: str, cluster_id: str, *, now_us: int) -> dict[str, Any]:
    """What to keep of a decision by quotes. Its start is measured against what was quoted, and what waited before it.

    Not against what that counted as: a cluster whose quotes are corrected would seem to keep them.
    """
    mine = next((each for each in ruling.quoted if each.cluster == chosen), None)
    expected_us = None
    if mine is not None and mine.eta_s is not None:
        expected_us = now_us + round((mine.eta_s + (mine.line_s or 0.0)) * 1e6)
    return {
        "job_id": job_id,
        "cluster_id": cluster_id,
        "body": msgspec.json.encode(ruling.quoted).decode(),
        "at_us": now_us,
        "expected_us": expected_us,
        "error_us": None,
        "is_open": expected_us is not None,
    }


@dataclass(frozen=True, slots=True)
class QuotesUsed:
    """By which quotes a job was placed, when, and by how much later than quoted it began."""

    quotes: list[Quote]
    at_us: int
    error_s: float | None


def quotes_of(tx: Tx, job_id: str) -> QuotesUsed | None:
    """The quotes by which a job's cluster was chosen; none: by something else."""
    row = store.use_get(tx, job_id)
    if row is None:
        return None
    error_s = None if row.error_us is None else row.error_us / 1e6
    return QuotesUsed(msgspec.json.decode(row.body, type=list[Quote]), row.at_us, error_s)
