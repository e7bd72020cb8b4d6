"""Asking clusters for quotes: open a question, hand it to agents, take their answers. No answer is waited for here.

A question is a row per shape and cluster. An answer takes it away and is kept until it expires; the last answer to all
that a job asked makes that job due (quote_decisions.py), and so does its deadline, whatever becomes of servers and
agents.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import msgspec

from switchyard.model.job import JobSpec
from switchyard.model.names import printable_line
from switchyard.model.quote import QUOTE_REASON_CHARS_MAX, QUOTE_VALID_S, QUOTES_MAX, QuoteAsk, QuoteGiven, QuoteOutcome
from switchyard.route.quote_estimate import estimate_cost
from switchyard.route.router import Eligibility
from switchyard.route.world import Member, World
from switchyard.service.cluster.cluster_state import selection_values
from switchyard.service.committer import Batch
from switchyard.service.context import Context
from switchyard.service.fleet import AgentEntry
from switchyard.service.quote.quotes import QUOTES_PER_SHAPE_MAX, shape_of, time_limit_s
from switchyard.service.submit.demands import demand_of_spec
from switchyard.store import jobs
from switchyard.store import quotes as store

BLOCKED_BY_QUOTES = "quotes"  # the word in a job's `blocked`, and of what other servers are told
OPEN_INQUIRIES_MAX = 256  # questions open at one cluster; more are not asked, and count as not answered
INQUIRY_LOOK_US = 61_000_000  # after a question was asked: no server's deadline is later
ETA_S_MAX = 366 * 86_400.0
COST_MAX = 1e12
VALID_S_MIN = 5.0  # a job that then waits for a place in its queue must find the quotes it waited for
SILENT_CLUSTER_US = 15_000_000  # who did not answer in time is not waited for again for so long
VALID_S_MAX = 86_400.0  # a quote that says it holds longer is asked for again after this
COST_VALUE = "cost_per_node_hour"  # the value of a cluster's state by which the server reckons costs


@dataclass(frozen=True, slots=True)
class Inquiry:
    """A question to some clusters: about which shape, and the spec that stands for it."""

    shape: str
    body: str
    cluster_ids: tuple[str, ...]


def inquiry_of(spec: JobSpec, names: Iterable[str], world: World) -> Inquiry:
    shape, body = shape_of(spec)
    return Inquiry(shape, body, tuple(sorted(world.by_name[name].id for name in names if name in world.by_name)))


def ask_clusters(batch: Batch, inquiry: Inquiry, *, wait_us: int) -> None:
    """Put the question to the clusters; their agents hear of it at once, if they are waiting."""
    open_by_id = store.ask_counts(batch.tx, inquiry.cluster_ids, now_us=batch.now_us)
    asked = [cluster_id for cluster_id in inquiry.cluster_ids if open_by_id.get(cluster_id, 0) < OPEN_INQUIRIES_MAX]
    times = {"asked_us": batch.now_us, "deadline_us": batch.now_us + wait_us}
    jobs.spec_put(batch.tx, {inquiry.shape: inquiry.body}, at_us=batch.now_us)
    store.ask_put(batch.tx, [{"shape": inquiry.shape, "cluster_id": each, "refused": "", **times} for each in asked])
    batch.clusters.update(asked)
    batch.versions.add(BLOCKED_BY_QUOTES)


def ask_for_job(batch: Batch, job_id: str, inquiry: Inquiry, *, wait_us: int) -> None:
    """The same for a job, which is due when all have answered or the time is over."""
    if (inquiry.shape, inquiry.cluster_ids) not in batch.asked:  # thousands of one request ask the same
        ask_clusters(batch, inquiry, wait_us=wait_us)
        batch.asked.add((inquiry.shape, inquiry.cluster_ids))
    store.wait_put(
        batch.tx,
        {
            "job_id": job_id,
            "shape": inquiry.shape,
            "asked": ",".join(inquiry.cluster_ids),
            "asked_us": batch.now_us,
            "deadline_us": batch.now_us + wait_us,
            "due_us": batch.now_us + wait_us,
        },
    )


def quote_wait_columns(
    batch: Batch, row: jobs.Row, ruling: Eligibility, world: World, *, wait_us: int
) -> dict[str, Any]:
    """What changes of a waiting job whose decision needs quotes: it asks for them."""
    if not ruling.asks:
        return {}
    spec = msgspec.json.decode(jobs.spec_get(batch.tx, row.spec_hash), type=JobSpec)
    ask_for_job(batch, row.id, inquiry_of(spec, ruling.asks, world), wait_us=wait_us)
    return {"blocked": BLOCKED_BY_QUOTES}


class InquiryDelivery:
    """Which questions this server has handed to which agent: each once, so that a poll can wait while it is thought of.

    `note` is told whenever somebody asked, here or at another server: without that no poll looks for questions.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._handed: dict[tuple[str, str], int] = {}  # agent, shape → when the question was asked
        self._until_us = 0
        self.note()

    def note(self) -> None:
        self._until_us = self._context.steady_us() + INQUIRY_LOOK_US

    def may_have(self) -> bool:
        return self._context.steady_us() < self._until_us

    def next(self, agent: AgentEntry) -> list[QuoteAsk]:
        """What this agent is asked and has not been handed."""
        now_us = self._context.now_us()
        with self._context.database.read() as tx:
            rows = store.ask_list_open(tx, agent.cluster_id, now_us=now_us, limit=OPEN_INQUIRIES_MAX)
        new = [row for row in rows if self._handed.get((agent.id, row.shape)) != row.asked_us][:QUOTES_MAX]
        if new:
            oldest_us = now_us - INQUIRY_LOOK_US
            self._handed = {key: at_us for key, at_us in self._handed.items() if at_us > oldest_us}
            self._handed |= {(agent.id, row.shape): row.asked_us for row in new}
        return [QuoteAsk(row.shape, msgspec.Raw(row.body.encode())) for row in new]


def store_answers(context: Context, agent: AgentEntry, given: Sequence[QuoteGiven]) -> None:
    """Keep what an agent answered, if anybody asked; whoever waited for nothing but this is due.

    Where a cluster has several agents, one that cannot say yes does not speak for the others.
    """
    member = context.snapshots.world.by_id.get(agent.cluster_id)
    if member is None:
        return
    per_hour = selection_values(context.snapshots, [member.name], context.selections, now_us=context.now_us())
    price = per_hour.get(member.name, {}).get(COST_VALUE)
    answers = {each.shape: each for each in given}
    agents = {each for each in context.snapshots.fleet.by_cluster.get(member.id, ()) if context.snapshots.is_live(each)}

    def apply(batch: Batch) -> None:
        asks = store.ask_lock(batch.tx, list(answers))
        mine = {row.shape: row for row in asks if row.cluster_id == member.id}
        bodies = jobs.spec_get_many(batch.tx, mine)
        rows = [
            _quote_row(answers[shape], mine[shape], member, bodies.get(shape), price, now_us=batch.now_us)
            for shape in sorted(mine)
        ]
        store.quote_put(batch.tx, rows)
        final = []
        for row in rows:
            refused = {*filter(None, mine[row["shape"]].refused.split(",")), agent.id}
            if row["said"] == QuoteOutcome.YES.value or agents <= refused:
                final.append(row["shape"])
            else:
                store.ask_set_refused(batch.tx, row["shape"], member.id, ",".join(sorted(refused)))
        store.ask_delete(batch.tx, member.id, final)
        left = {(row.shape, row.cluster_id) for row in asks if row.cluster_id != member.id}
        for shape, asked in store.wait_groups(batch.tx, final) if final else ():
            if not any((shape, cluster_id) in left for cluster_id in asked.split(",")):
                store.wait_make_due(batch.tx, shape, asked, now_us=batch.now_us)
        batch.jobs.update(mine)  # not a job's: whoever asked by hand waits under the shape
        batch.versions.add(BLOCKED_BY_QUOTES)
        batch.settled.append(lambda: _count_answers(context, member.name, rows))

    context.committer.call(apply)


def record_silent_clusters(context: Context, batch: Batch, waits: Iterable[store.Row]) -> None:
    """The time to answer is over for these jobs: whoever was asked and has not is taken for silent for a while.

    Until then nobody waits for it again, least of all a job that has come up for its place in a queue.
    """
    silent: dict[tuple[str, str], int] = {}
    for shape, asked, asked_us, deadline_us in {(row.shape, row.asked, row.asked_us, row.deadline_us) for row in waits}:
        if deadline_us <= batch.now_us:
            times = {"asked_us": asked_us, "deadline_us": deadline_us}
            said = {
                row.cluster_id for row in store.quote_list_in_time(batch.tx, shape, **times, limit=QUOTES_PER_SHAPE_MAX)
            }
            silent |= {(shape, cluster_id): asked_us for cluster_id in asked.split(",") if cluster_id not in said}
    reason = f"no answer within {context.selections.quote_wait_us / 1e6:g} s"
    rows = [
        _silence_row(shape, cluster_id, reason, asked_us, batch.now_us)
        for (shape, cluster_id), asked_us in silent.items()
    ]
    store.quote_put_unanswered(batch.tx, rows)
    batch.settled.append(lambda: _count_silent(context, rows))


def _silence_row(shape: str, cluster_id: str, reason: str, asked_us: int, now_us: int) -> dict[str, Any]:
    return {
        "shape": shape,
        "cluster_id": cluster_id,
        "said": QuoteOutcome.NONE.value,
        "reason": reason,
        "eta_us": None,
        "cost": None,
        "confidence": 0.0,
        "at_us": now_us,
        "until_us": now_us + SILENT_CLUSTER_US,
        "took_us": max(0, now_us - asked_us),
    }


def _count_silent(context: Context, rows: Iterable[dict[str, Any]]) -> None:
    by_id = context.snapshots.world.by_id
    for row in rows:
        if (member := by_id.get(row["cluster_id"])) is not None:
            context.tally.quotes.add(member.name, row["said"])


def _count_answers(context: Context, cluster: str, rows: Iterable[dict[str, Any]]) -> None:
    for row in rows:
        context.tally.quotes.add(cluster, row["said"])
        context.tally.quote_s.add(row["took_us"] / 1e6)


def _quote_row(
    given: QuoteGiven, ask: store.Row, member: Member, body: str | None, price: object, *, now_us: int
) -> dict[str, Any]:
    trouble = quote_mistake(given)
    said = QuoteOutcome.NONE if trouble else QuoteOutcome.YES if given.can else QuoteOutcome.NO
    valid_s = QUOTE_VALID_S if trouble else min(max(given.valid_s, VALID_S_MIN), VALID_S_MAX)
    is_yes = said is QuoteOutcome.YES
    cost = given.cost
    if is_yes and cost is None and body is not None and isinstance(price, float) and price >= 0:
        cost = _cost_by_price(price, body, member)
    return {
        "shape": given.shape,
        "cluster_id": member.id,
        "said": said.value,
        "reason": f"its quote was refused: {trouble}"
        if trouble
        else printable_line(given.reason)[:QUOTE_REASON_CHARS_MAX],
        "eta_us": round(given.eta_s * 1e6) if is_yes and given.eta_s is not None else None,
        "cost": cost if is_yes else None,
        "confidence": given.confidence if is_yes else 0.0,
        "at_us": now_us,
        "until_us": now_us + round(valid_s * 1e6),
        "took_us": max(0, now_us - ask.asked_us),
    }


def quote_mistake(given: QuoteGiven) -> str:
    """Why an answer cannot be used; empty: it can."""
    for word, value, most in (
        ("ETA", given.eta_s, ETA_S_MAX),
        ("cost", given.cost, COST_MAX),
        ("time it holds", given.valid_s, None),
        ("confidence", given.confidence, 1.0),
    ):
        if value is None:
            continue
        if not isfinite(value):
            return f"the {word} is not a finite number"
        if value < 0:
            return f"the ETA is in the past ({value:g} s)" if word == "ETA" else f"the {word} is negative ({value:g})"
        if most is not None and value > most:
            return f"the {word} is over {most:g} ({value:g})"
    return ""


def _cost_by_price(price: float, body: str, member: Member) -> float:
    """What it costs by the price of a node hour: for the nodes it asks for, else for the part of one that it takes."""
    spec = msgspec.json.decode(body, type=JobSpec)
    graph, cores = member.graph, demand_of_spec(spec).cores_total
    per_node = graph.cores / max(1, graph.nodes) if graph is not None else 0
    nodes = float(spec.resources.nodes or (cores / per_node if per_node else 1))
    return estimate_cost(price, nodes=nodes, limit_s=time_limit_s(body))
