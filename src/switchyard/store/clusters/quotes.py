"""Queries about quotes: open questions, stored answers, jobs that wait for quotes, and quotes that were used."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from typing import Any, Literal

import sqlalchemy as sa
from msgspec.structs import asdict

from switchyard.store.engine import dialect
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all, fetch_one
from switchyard.store.jobs.job_rows import StateName
from switchyard.store.tables.quotes_tables import (
    QUOTE_USE_MEASURED,
    QUOTE_USE_OPEN,
    quote_asks,
    quote_uses,
    quote_waits,
    quotes,
)
from switchyard.store.tables.schema import READY, jobs, specs


class OpenAsk(StoredRow, frozen=True):
    """A question that a cluster has still time to answer. `body`: the spec in question."""

    shape: str
    asked_us: int
    body: str


class AskRow(StoredRow, frozen=True):
    """A question without an answer. `refused`: the agents that said no, while another agent may say yes."""

    shape: str
    cluster_id: str
    asked_us: int
    deadline_us: int
    refused: str
    owner: str | None


class QuoteRow(StoredRow, frozen=True):
    """An answer, as it is stored and read."""

    shape: str
    cluster_id: str
    said: Literal["yes", "no", "none"]
    reason: str
    eta_us: int | None
    cost: float | None
    confidence: float
    at_us: int
    until_us: int
    took_us: int


class QuoteWaitRow(StoredRow, frozen=True):
    """The wait of a job for quotes, as it is stored. `asked`: ids of the clusters, joined by commas."""

    job_id: str
    shape: str
    asked: str
    asked_us: int
    deadline_us: int
    due_us: int


class DueQuoteWait(StoredRow, frozen=True):
    """The wait of a job for quotes, and what the router needs of the job. No state: the job was removed."""

    job_id: str
    shape: str
    asked: str
    asked_us: int
    deadline_us: int
    due_us: int
    owner: str | None
    owner_id: str | None
    bounds: str | None
    avoid: str | None
    spec_hash: str | None
    created_us: int | None
    waits_us: int | None
    state: StateName | None


class QuoteTimes(StoredRow, frozen=True):
    shape: str
    cluster_id: str
    at_us: int
    until_us: int

    def is_in_time(self, *, asked_us: int, deadline_us: int) -> bool:
        """Whether it answers a question: given before its deadline, or earlier and valid beyond it."""
        return self.at_us <= deadline_us and (self.at_us >= asked_us or self.until_us > deadline_us)


class QuoteUseRow(StoredRow, frozen=True):
    """The quotes by which the cluster of a job was chosen, as they are stored and read."""

    job_id: str
    cluster_id: str | None
    body: str
    at_us: int
    expected_us: int | None
    error_us: int | None
    is_open: bool


class OpenQuoteUse(StoredRow, frozen=True):
    """Quotes of a job that is not known to have started. `on_id`: its present cluster. No state: it was removed."""

    job_id: str
    cluster_id: str
    expected_us: int
    at_us: int
    state: StateName | None
    assigned_us: int | None
    started_us: int | None
    on_id: str | None


class BacklogSpec(StoredRow, frozen=True):
    """How many jobs of a backlog have the same spec."""

    spec_hash: str
    cores: int
    jobs: int


def ask_put(tx: Tx, rows: list[AskRow]) -> None:
    """Store questions to clusters. A question that is still open keeps its time and gets the later deadline.

    A question that is older than its time to answer is asked again: it may have been lost.
    """
    if rows:
        insert = dialect.insert_statement(tx, quote_asks)
        new = insert.excluded
        is_open = quote_asks.c.asked_us + new.deadline_us - new.asked_us > new.asked_us
        fresh = {
            "asked_us": sa.case((is_open, quote_asks.c.asked_us), else_=new.asked_us),
            "deadline_us": new.deadline_us,
            "refused": sa.case((is_open, quote_asks.c.refused), else_=new.refused),
            "owner": sa.case((is_open, quote_asks.c.owner), else_=new.owner),
        }
        put = insert.on_conflict_do_update(index_elements=["shape", "cluster_id"], set_=fresh)
        ordered = sorted(rows, key=lambda row: (row.shape, row.cluster_id))
        tx.execute(put, [asdict(row) for row in ordered])


@cache
def _upsert_statement(dialect_name: str, table: sa.Table) -> Any:
    """An INSERT that replaces a stored row. Cached: building the statement costs more than running it."""
    insert = dialect.insert_for(dialect_name, table)
    key = [column.name for column in table.primary_key]
    fresh = {column.name: insert.excluded[column.name] for column in table.c if column.name not in key}
    return insert.on_conflict_do_update(index_elements=key, set_=fresh)


def ask_counts(tx: Tx, cluster_ids: Sequence[str], *, now_us: int) -> dict[tuple[str, str], int]:
    """Count the open questions by cluster and by the user who asked."""
    query = (
        sa.select(quote_asks.c.cluster_id, quote_asks.c.owner, sa.func.count().label("asks"))
        .where(quote_asks.c.cluster_id.in_(sorted(cluster_ids)), quote_asks.c.deadline_us > now_us)
        .group_by(quote_asks.c.cluster_id, quote_asks.c.owner)
    )
    return {(row.cluster_id, row.owner or ""): row.asks for row in tx.execute(query)}


def ask_list_open(tx: Tx, cluster_id: str, *, now_us: int, limit: int) -> list[OpenAsk]:
    """List the open questions of a cluster, oldest first."""
    query = (
        sa.select(*columns_of(OpenAsk, quote_asks, body=specs.c.body))
        .select_from(quote_asks.join(specs, specs.c.hash == quote_asks.c.shape))
        .where(quote_asks.c.cluster_id == cluster_id, quote_asks.c.deadline_us > now_us)
        .order_by(quote_asks.c.asked_us, quote_asks.c.shape)
        .limit(limit)
    )
    return fetch_all(tx, OpenAsk, query)


def ask_lock(tx: Tx, shapes: Sequence[str]) -> list[AskRow]:
    """Lock and return all unanswered questions about these shapes, late ones too.

    Locked, because two servers may store the last two answers at the same moment: one must see that it is the last.
    """
    query = sa.select(quote_asks).where(quote_asks.c.shape.in_(sorted(shapes)))
    return fetch_all(tx, AskRow, query.order_by(quote_asks.c.shape, quote_asks.c.cluster_id).with_for_update())


def ask_delete(tx: Tx, cluster_id: str, shapes: Sequence[str]) -> None:
    if shapes:
        condition = (quote_asks.c.cluster_id == cluster_id, quote_asks.c.shape.in_(sorted(shapes)))
        tx.execute(sa.delete(quote_asks).where(*condition))


def ask_set_refused(tx: Tx, shape: str, cluster_id: str, agents: str) -> None:
    """Record which agents of a cluster said no. Another agent may still say yes."""
    condition = (quote_asks.c.shape == shape, quote_asks.c.cluster_id == cluster_id)
    tx.execute(sa.update(quote_asks).where(*condition).values(refused=agents))


def ask_refusing_clusters(tx: Tx, shape: str, *, now_us: int) -> set[str]:
    """Return the clusters of which one agent said no, while another agent has still time to answer."""
    is_open = (quote_asks.c.shape == shape, quote_asks.c.refused != "", quote_asks.c.deadline_us > now_us)
    return set(tx.execute(sa.select(quote_asks.c.cluster_id).where(*is_open)).scalars())


def quote_put(tx: Tx, rows: list[QuoteRow]) -> None:
    """Store answers in place of earlier answers."""
    if rows:
        tx.execute(_upsert_statement(tx.dialect.name, quotes), [asdict(row) for row in rows])


def quote_put_unanswered(tx: Tx, rows: list[QuoteRow]) -> None:
    """Store that these clusters did not answer, unless an earlier answer is still valid."""
    if rows:
        insert = dialect.insert_statement(tx, quotes)
        columns = {column.name: insert.excluded[column.name] for column in quotes.c if not column.primary_key}
        is_over = quotes.c.until_us <= insert.excluded.at_us
        tx.execute(
            insert.on_conflict_do_update(index_elements=["shape", "cluster_id"], set_=columns, where=is_over),
            [asdict(row) for row in sorted(rows, key=lambda row: (row.shape, row.cluster_id))],
        )


def quote_list_valid(tx: Tx, shape: str, *, now_us: int, limit: int) -> list[QuoteRow]:
    """List the valid quotes for a shape, newest first."""
    query = sa.select(quotes).where(quotes.c.shape == shape, quotes.c.until_us > now_us)
    return fetch_all(tx, QuoteRow, query.order_by(quotes.c.at_us.desc()).limit(limit))


def quote_any_valid(tx: Tx, *, now_us: int) -> bool:
    """Whether any cluster has a valid quote."""
    return tx.execute(sa.select(sa.exists().where(quotes.c.until_us > now_us))).scalar_one()


def quote_list_of_shapes(tx: Tx, shapes: Collection[str]) -> list[QuoteTimes]:
    """List who quoted for these shapes, and when."""
    query = sa.select(*columns_of(QuoteTimes, quotes)).where(quotes.c.shape.in_(sorted(shapes)))
    return fetch_all(tx, QuoteTimes, query)


def quote_list_in_time(tx: Tx, shape: str, *, asked_us: int, deadline_us: int, limit: int) -> list[QuoteRow]:
    """List the quotes for a shape that answer a question: given before its deadline, or earlier and valid beyond it."""
    is_valid = sa.or_(quotes.c.at_us >= asked_us, quotes.c.until_us > deadline_us)
    query = sa.select(quotes).where(quotes.c.shape == shape, quotes.c.at_us <= deadline_us, is_valid)
    return fetch_all(tx, QuoteRow, query.order_by(quotes.c.at_us.desc()).limit(limit))


def wait_put(tx: Tx, rows: list[QuoteWaitRow]) -> None:
    ordered = sorted(rows, key=lambda row: row.job_id)
    dialect.insert_missing(tx, quote_waits, [asdict(row) for row in ordered])


_WAITING_JOB = [jobs.c[name] for name in DueQuoteWait.__struct_fields__ if name not in quote_waits.c]


def wait_list_due(tx: Tx, *, now_us: int, limit: int) -> list[DueQuoteWait]:
    """List the jobs whose wait for quotes is over."""
    query = (
        sa.select(quote_waits, *_WAITING_JOB)
        .select_from(quote_waits.outerjoin(jobs, jobs.c.id == quote_waits.c.job_id))
        .where(quote_waits.c.due_us <= now_us)
        .order_by(quote_waits.c.due_us, quote_waits.c.job_id)
        .limit(limit)
    )
    return fetch_all(tx, DueQuoteWait, query)


def wait_next_due_us(tx: Tx) -> int | None:
    """Return when the next wait is over."""
    due_us: int | None = tx.execute(sa.select(sa.func.min(quote_waits.c.due_us))).scalar()
    return due_us


def wait_groups(tx: Tx, shapes: Sequence[str]) -> list[tuple[str, str]]:
    """Return each shape with the clusters that its jobs wait for. Thousands of jobs may wait for the same clusters."""
    query = sa.select(quote_waits.c.shape, quote_waits.c.asked).where(quote_waits.c.shape.in_(sorted(shapes)))
    return [(row.shape, row.asked) for row in tx.execute(query.distinct())]


def wait_make_due(tx: Tx, shape: str, asked: str, *, now_us: int) -> None:
    """End the wait of these jobs now: the last answer has come."""
    condition = (quote_waits.c.shape == shape, quote_waits.c.asked == asked, quote_waits.c.due_us > now_us)
    tx.execute(sa.update(quote_waits).where(*condition).values(due_us=now_us))


def wait_remaining(tx: Tx, job_ids: Sequence[str]) -> set[str]:
    """Return the jobs of these that still wait. The caller has locked the jobs."""
    query = sa.select(quote_waits.c.job_id).where(quote_waits.c.job_id.in_(sorted(job_ids)))
    return set(tx.execute(query).scalars())


def wait_delete(tx: Tx, job_ids: Sequence[str]) -> None:
    if job_ids:
        tx.execute(sa.delete(quote_waits).where(quote_waits.c.job_id.in_(sorted(job_ids))))


def use_put(tx: Tx, rows: list[QuoteUseRow]) -> None:
    """Store the quotes by which jobs got their clusters, in place of those of earlier decisions."""
    if rows:
        ordered = sorted(rows, key=lambda row: row.job_id)
        tx.execute(_upsert_statement(tx.dialect.name, quote_uses), [asdict(row) for row in ordered])


def use_get(tx: Tx, job_id: str) -> QuoteUseRow | None:
    return fetch_one(tx, QuoteUseRow, sa.select(quote_uses).where(quote_uses.c.job_id == job_id))


_OPEN_USE = columns_of(
    OpenQuoteUse,
    quote_uses,
    state=jobs.c.state,
    assigned_us=jobs.c.assigned_us,
    started_us=jobs.c.started_us,
    on_id=jobs.c.cluster_id,
)


def use_list_open(tx: Tx, *, after: str, limit: int) -> list[OpenQuoteUse]:
    """List the used quotes whose error is not known yet, with the present state of the job."""
    query = (
        sa.select(*_OPEN_USE)
        .select_from(quote_uses.outerjoin(jobs, jobs.c.id == quote_uses.c.job_id))
        .where(sa.text(QUOTE_USE_OPEN), quote_uses.c.job_id > after)
        .order_by(quote_uses.c.job_id)
        .limit(limit)
    )
    return fetch_all(tx, OpenQuoteUse, query)


def use_close(tx: Tx, errors_us: dict[str, int | None]) -> None:
    """Store how much later than quoted each job started. None: the error will never be known."""
    if errors_us:
        statement = sa.update(quote_uses).where(quote_uses.c.job_id == sa.bindparam("p_id"), quote_uses.c.is_open)
        rows = [{"p_id": job_id, "error": errors_us[job_id]} for job_id in sorted(errors_us)]
        tx.execute(statement.values(error_us=sa.bindparam("error"), is_open=False), rows)


def use_errors(tx: Tx, cluster_ids: Sequence[str], limit: int) -> dict[str, list[int]]:
    """Return the errors of the last quotes of each cluster."""
    errors_by_cluster: dict[str, list[int]] = {}
    for cluster_id in cluster_ids:
        query = (
            sa.select(quote_uses.c.error_us)
            .where(sa.text(QUOTE_USE_MEASURED), quote_uses.c.cluster_id == cluster_id)
            .order_by(quote_uses.c.at_us.desc())
            .limit(limit)
        )
        errors_by_cluster[cluster_id] = list(tx.execute(query).scalars())
    return errors_by_cluster


def backlog_by_spec(tx: Tx, cluster_id: str, limit: int) -> list[BacklogSpec]:
    """Count the backlog of a cluster by spec. Reads up to `limit` jobs."""
    ready = sa.select(jobs.c.spec_hash, jobs.c.cores).where(sa.text(READY), jobs.c.cluster_id == cluster_id)
    first = ready.limit(limit).subquery()
    query = sa.select(*columns_of(BacklogSpec, first, jobs=sa.func.count()))
    return fetch_all(tx, BacklogSpec, query.group_by(first.c.spec_hash, first.c.cores))


def quotes_clean(tx: Tx, *, before_us: int) -> int:
    """Delete quotes that are no longer valid and questions whose deadline is over."""
    deleted = tx.execute(sa.delete(quotes).where(quotes.c.until_us < before_us)).rowcount
    return deleted + tx.execute(sa.delete(quote_asks).where(quote_asks.c.deadline_us < before_us)).rowcount
