"""Open inquiries are delivered to agents; their answers are stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite

import msgspec

from switchyard.match.engine import Match
from switchyard.model.cluster.quote import (
    QUOTE_REASON_CHARS_MAX,
    QUOTE_VALID_S,
    QUOTES_MAX,
    QuoteAsk,
    QuoteGiven,
    QuoteOutcome,
)
from switchyard.model.job.job import JobSpec
from switchyard.model.jobspec.alternatives import spec_with_set
from switchyard.model.rules.names import printable_line
from switchyard.route.member import Member
from switchyard.route.quote_estimate import estimate_cost
from switchyard.service.core.agents.cluster_state import selection_values
from switchyard.service.core.agents.fleet import AgentEntry
from switchyard.service.core.context import Context
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.service.lifecycle.demands import demand_of_spec, demands_of_sets
from switchyard.service.reserve.inquiries import OPEN_INQUIRIES_MAX
from switchyard.service.reserve.quotes import time_limit_s
from switchyard.store.clusters import quotes as store
from switchyard.store.jobs import jobs

INQUIRY_LOOK_US = 61_000_000  # no inquiry is open for longer than this
ETA_S_MAX = 366 * 86_400.0
COST_MAX = 1e12
VALID_S_MIN = 5.0  # a job that next waits for a place in its queue must still find its quotes
SILENT_CLUSTER_US = 15_000_000  # no job waits for a cluster this long after the cluster failed to answer
VALID_S_MAX = 86_400.0  # a longer validity is cut to this
COST_VALUE = "cost_per_node_hour"  # the state value from which the server computes costs


class InquiryDelivery:
    """Remembers which inquiries were sent to which agent, so that an inquiry is sent once and a poll can stay parked.

    Call `note` when any server opens an inquiry: without it, polls do not look for inquiries.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._sent: dict[tuple[str, str], int] = {}  # agent, shape → when the inquiry was opened
        self._look_until_us = 0
        self.note()

    def note(self) -> None:
        self._look_until_us = self._context.steady_us() + INQUIRY_LOOK_US

    def may_have(self) -> bool:
        return self._context.steady_us() < self._look_until_us

    def next(self, agent: AgentEntry) -> list[QuoteAsk]:
        """Return the open inquiries for this agent that it has not got yet."""
        now_us = self._context.now_us()
        with self._context.database.read() as tx:
            rows = store.ask_list_open(tx, agent.cluster_id, now_us=now_us, limit=OPEN_INQUIRIES_MAX)
        new = [row for row in rows if self._sent.get((agent.id, row.shape)) != row.asked_us][:QUOTES_MAX]
        if new:
            oldest_us = now_us - INQUIRY_LOOK_US
            self._sent = {key: at_us for key, at_us in self._sent.items() if at_us > oldest_us}
            self._sent |= {(agent.id, row.shape): row.asked_us for row in new}
        new.sort(key=lambda row: has_sets(row.body))  # a job waits for this answer alone, so it comes last
        bodies = {row.shape: body_for_cluster(self._context, agent.cluster_id, row.body) for row in new}
        return [QuoteAsk(shape, msgspec.Raw(body.encode())) for shape, body in bodies.items()]


def store_answers(context: Context, agent: AgentEntry, given: Sequence[QuoteGiven]) -> None:
    """Store an agent's answers to open inquiries. A job whose last answer this is becomes due.

    If a cluster has several agents, a refusal counts for the cluster only when all live agents have refused.
    """
    member = context.snapshots.world.by_id.get(agent.cluster_id)
    if member is None:
        return
    states = selection_values(context.snapshots, [member.name], context.selections, now_us=context.now_us())
    price = states.get(member.name, {}).get(COST_VALUE)
    answers = {answer.shape: answer for answer in given}
    agents = {
        agent_id
        for agent_id in context.snapshots.fleet.by_cluster.get(member.id, ())
        if context.snapshots.is_live(agent_id)
    }

    def apply(batch: Batch) -> None:
        asks = store.ask_lock(batch.tx, list(answers))
        asks_by_shape = {row.shape: row for row in asks if row.cluster_id == member.id}
        stored = jobs.spec_get_many(batch.tx, asks_by_shape)
        bodies = {shape: body_for_cluster(context, member.id, body) for shape, body in stored.items()}
        rows = [
            _quote_row(answers[shape], asks_by_shape[shape], member, bodies.get(shape), price, now_us=batch.now_us)
            for shape in sorted(asks_by_shape)
        ]
        store.quote_put(batch.tx, rows)
        final = []
        for row in rows:
            refused = {*filter(None, asks_by_shape[row.shape].refused.split(",")), agent.id}
            if row.said == QuoteOutcome.YES.value or agents <= refused:
                final.append(row.shape)
            else:
                store.ask_set_refused(batch.tx, row.shape, member.id, ",".join(sorted(refused)))
        store.ask_delete(batch.tx, member.id, final)
        still_open = {(row.shape, row.cluster_id) for row in asks if row.cluster_id != member.id}
        for shape, asked in store.wait_groups(batch.tx, final) if final else ():
            if not any((shape, cluster_id) in still_open for cluster_id in asked.split(",")):
                store.wait_make_due(batch.tx, shape, asked, now_us=batch.now_us)
        batch.jobs.update(asks_by_shape)  # wakes requests for quotes by hand, which wait under the shape
        batch.topics.add(Topic.QUOTES)
        batch.settled.append(lambda: _count_answers(context, member.name, rows))

    context.committer.call(apply)


def record_silent_clusters(context: Context, batch: Batch, waits: Iterable[store.DueQuoteWait]) -> None:
    """Record the clusters that did not answer before the deadlines of these jobs.

    For SILENT_CLUSTER_US no job waits for such a cluster again, for example a job that has just got a queue place.
    """
    overdue = {
        (row.shape, row.asked, row.asked_us, row.deadline_us) for row in waits if row.deadline_us <= batch.now_us
    }
    quoted: dict[str, list[store.QuoteTimes]] = {}
    for quote in store.quote_list_of_shapes(batch.tx, {shape for shape, _, _, _ in overdue}) if overdue else ():
        quoted.setdefault(quote.shape, []).append(quote)
    silent: dict[tuple[str, str], int] = {}
    for shape, asked, asked_us, deadline_us in overdue:
        answered = {
            quote.cluster_id
            for quote in quoted.get(shape, ())
            if quote.is_in_time(asked_us=asked_us, deadline_us=deadline_us)
        }
        silent |= {(shape, cluster_id): asked_us for cluster_id in asked.split(",") if cluster_id not in answered}
    reason = f"no answer within {context.selections.quote_wait_us / 1e6:g} s"
    rows = [
        _silence_row(shape, cluster_id, reason, asked_us, batch.now_us)
        for (shape, cluster_id), asked_us in silent.items()
    ]
    store.quote_put_unanswered(batch.tx, rows)
    batch.settled.append(lambda: _count_silent(context, rows))


def _silence_row(shape: str, cluster_id: str, reason: str, asked_us: int, now_us: int) -> store.QuoteRow:
    return store.QuoteRow(
        shape=shape,
        cluster_id=cluster_id,
        said=QuoteOutcome.NONE.value,
        reason=reason,
        eta_us=None,
        cost=None,
        confidence=0.0,
        at_us=now_us,
        until_us=now_us + SILENT_CLUSTER_US,
        took_us=max(0, now_us - asked_us),
    )


def _count_silent(context: Context, rows: Iterable[store.QuoteRow]) -> None:
    by_id = context.snapshots.world.by_id
    for row in rows:
        if (member := by_id.get(row.cluster_id)) is not None:
            context.tally.quotes.add(member.name, row.said)


def _count_answers(context: Context, cluster: str, rows: Iterable[store.QuoteRow]) -> None:
    for row in rows:
        context.tally.quotes.add(cluster, row.said)
        context.tally.quote_s.add(row.took_us / 1e6)


def _quote_row(
    given: QuoteGiven, ask: store.AskRow, member: Member, body: str | None, price: object, *, now_us: int
) -> store.QuoteRow:
    mistake = quote_mistake(given)
    outcome = QuoteOutcome.NONE if mistake else QuoteOutcome.YES if given.can else QuoteOutcome.NO
    valid_s = QUOTE_VALID_S if mistake else min(max(given.valid_s, VALID_S_MIN), VALID_S_MAX)
    is_yes = outcome is QuoteOutcome.YES
    cost = given.cost
    if is_yes and cost is None and body is not None and isinstance(price, float) and price >= 0:
        cost = _cost_by_price(price, body, member)
    reason = f"its quote was refused: {mistake}" if mistake else printable_line(given.reason)[:QUOTE_REASON_CHARS_MAX]
    return store.QuoteRow(
        shape=given.shape,
        cluster_id=member.id,
        said=outcome.value,
        reason=reason,
        eta_us=round(given.eta_s * 1e6) if is_yes and given.eta_s is not None else None,
        cost=cost if is_yes else None,
        confidence=given.confidence if is_yes else 0.0,
        at_us=now_us,
        until_us=now_us + round(valid_s * 1e6),
        took_us=max(0, now_us - ask.asked_us),
    )


def quote_mistake(given: QuoteGiven) -> str:
    """Return why an answer cannot be used, or an empty text."""
    for word, value, value_max in (
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
        if value_max is not None and value > value_max:
            return f"the {word} is over {value_max:g} ({value:g})"
    return ""


def _cost_by_price(price: float, body: str, member: Member) -> float:
    """Return the cost by the price of a node hour: of the requested nodes, or of the used share of a node."""
    spec = msgspec.json.decode(body, type=JobSpec)
    graph, cores = member.graph, demand_of_spec(spec).cores_total
    per_node = graph.cores / max(1, graph.nodes) if graph is not None else 0
    nodes = float(spec.resources.nodes or (cores / per_node if per_node else 1))
    return estimate_cost(price, nodes=nodes, limit_s=time_limit_s(body))


_SORTED = msgspec.json.Encoder(order="sorted")
_HAS_SETS = '"alternatives"'


def has_sets(body: str) -> bool:
    """Whether a question may be about a job with alternatives, or by its words seems so."""
    return _HAS_SETS in body


def body_for_cluster(context: Context, cluster_id: str, body: str) -> str:
    """Return the question about a shape as this cluster gets it. Without alternatives it is the same for all."""
    if not has_sets(body):
        return body
    spec = msgspec.json.decode(body, type=JobSpec)
    world = context.snapshots.world
    member = world.by_id.get(cluster_id)
    if not spec.alternatives:
        return body
    number = 1
    if member is not None and member.graph is not None:
        engine = context.engines.default
        for fitting, demand in enumerate(demands_of_sets(spec), 1):
            if isinstance(world.index.verdict(demand, member.graph, by=engine), Match):
                number = fitting
                break
    return _SORTED.encode(spec_with_set(spec, number)).decode()
