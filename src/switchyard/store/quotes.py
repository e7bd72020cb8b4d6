"""Queries about quotes: open questions, kept answers, jobs that wait for them, and the quotes that were used."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from switchyard.store import dialect
from switchyard.store.database import Tx
from switchyard.store.schema import READY, jobs, quote_asks, quote_uses, quote_waits, quotes, specs
from switchyard.store.schema_quotes import QUOTE_USE_MEASURED, QUOTE_USE_OPEN

Row = sa.Row[*tuple[Any, ...]]


def ask_put(tx: Tx, rows: list[dict[str, Any]]) -> None:
    """Ask; whoever was asked a moment ago is not asked anew, but has longer to answer.

    A moment is what an answer may take. One that was asked before that is asked again, though others may have asked
    since: the question may have got lost, and would stay so for as long as jobs come.
    """
    if rows:
        insert = dialect.insert_statement(tx, quote_asks)
        new = insert.excluded
        is_open = quote_asks.c.asked_us + new.deadline_us - new.asked_us > new.asked_us
        fresh = {
            "asked_us": sa.case((is_open, quote_asks.c.asked_us), else_=new.asked_us),
            "deadline_us": new.deadline_us,
            "refused": sa.case((is_open, quote_asks.c.refused), else_=new.refused),
        }
        put = insert.on_conflict_do_update(index_elements=["shape", "cluster_id"], set_=fresh)
        tx.execute(put, sorted(rows, key=lambda row: (row["shape"], row["cluster_id"])))


@cache
def _upsert_statement(dialect_name: str, table: sa.Table) -> Any:
    """An INSERT that takes the place of what is there. Made once: it costs more than what it does."""
    insert = (postgresql if dialect_name == "postgresql" else sqlite).insert(table)
    key = [column.name for column in table.primary_key]
    fresh = {column.name: insert.excluded[column.name] for column in table.c if column.name not in key}
    return insert.on_conflict_do_update(index_elements=key, set_=fresh)


def ask_counts(tx: Tx, cluster_ids: Sequence[str], *, now_us: int) -> dict[str, int]:
    """How many questions are open at each of these clusters."""
    query = (
        sa.select(quote_asks.c.cluster_id, sa.func.count().label("asks"))
        .where(quote_asks.c.cluster_id.in_(sorted(cluster_ids)), quote_asks.c.deadline_us > now_us)
        .group_by(quote_asks.c.cluster_id)
    )
    return {row.cluster_id: row.asks for row in tx.execute(query)}


def ask_list_open(tx: Tx, cluster_id: str, *, now_us: int, limit: int) -> list[Row]:
    """What a cluster is asked and has not answered in time yet, the oldest first, with the spec in question."""
    query = (
        sa.select(quote_asks.c.shape, quote_asks.c.asked_us, specs.c.body)
        .select_from(quote_asks.join(specs, specs.c.hash == quote_asks.c.shape))
        .where(quote_asks.c.cluster_id == cluster_id, quote_asks.c.deadline_us > now_us)
        .order_by(quote_asks.c.asked_us, quote_asks.c.shape)
        .limit(limit)
    )
    return list(tx.execute(query))


def ask_lock(tx: Tx, shapes: Sequence[str]) -> list[Row]:
    """All questions about these shapes that nobody has answered, late ones too.

    Locked: of two answers that come at the same moment to two servers, one must see that it is the last.
    """
    query = sa.select(quote_asks).where(quote_asks.c.shape.in_(sorted(shapes)))
    return list(tx.execute(query.order_by(quote_asks.c.shape, quote_asks.c.cluster_id).with_for_update()))


def ask_delete(tx: Tx, cluster_id: str, shapes: Sequence[str]) -> None:
    if shapes:
        mine = (quote_asks.c.cluster_id == cluster_id, quote_asks.c.shape.in_(sorted(shapes)))
        tx.execute(sa.delete(quote_asks).where(*mine))


def ask_set_refused(tx: Tx, shape: str, cluster_id: str, agents: str) -> None:
    """These agents of a cluster said no; another one may say yes."""
    mine = (quote_asks.c.shape == shape, quote_asks.c.cluster_id == cluster_id)
    tx.execute(sa.update(quote_asks).where(*mine).values(refused=agents))


def ask_refusing_clusters(tx: Tx, shape: str, *, now_us: int) -> set[str]:
    """The clusters that said no by one agent, while another one of them still has time."""
    open_ = (quote_asks.c.shape == shape, quote_asks.c.refused != "", quote_asks.c.deadline_us > now_us)
    return set(tx.execute(sa.select(quote_asks.c.cluster_id).where(*open_)).scalars())


def quote_put(tx: Tx, rows: list[dict[str, Any]]) -> None:
    """Keep an answer in place of the one before."""
    if rows:
        tx.execute(_upsert_statement(tx.dialect.name, quotes), rows)


def quote_put_unanswered(tx: Tx, rows: list[dict[str, Any]]) -> None:
    """Keep that these clusters did not answer, unless they have said something that holds."""
    if rows:
        put = dialect.insert_statement(tx, quotes)
        fresh = {column.name: put.excluded[column.name] for column in quotes.c if not column.primary_key}
        is_over = quotes.c.until_us <= put.excluded.at_us
        tx.execute(
            put.on_conflict_do_update(index_elements=["shape", "cluster_id"], set_=fresh, where=is_over),
            sorted(rows, key=lambda row: (row["shape"], row["cluster_id"])),
        )


def quote_list_valid(tx: Tx, shape: str, *, now_us: int, limit: int) -> list[Row]:
    """What clusters said about a shape and still hold to, the newest first."""
    query = sa.select(quotes).where(quotes.c.shape == shape, quotes.c.until_us > now_us)
    return list(tx.execute(query.order_by(quotes.c.at_us.desc()).limit(limit)))


def quote_any_valid(tx: Tx, *, now_us: int) -> bool:
    """Whether anybody has said anything that still holds."""
    return tx.execute(sa.select(sa.exists().where(quotes.c.until_us > now_us))).scalar_one()


def quote_list_in_time(tx: Tx, shape: str, *, asked_us: int, deadline_us: int, limit: int) -> list[Row]:
    """What clusters said about a shape to whoever asked then: in time, or before and still held to."""
    is_kept = sa.or_(quotes.c.at_us >= asked_us, quotes.c.until_us > deadline_us)
    said = (quotes.c.at_us <= deadline_us, is_kept)
    query = sa.select(quotes).where(quotes.c.shape == shape, *said)
    return list(tx.execute(query.order_by(quotes.c.at_us.desc()).limit(limit)))


def wait_put(tx: Tx, row: dict[str, Any]) -> None:
    dialect.insert_missing(tx, quote_waits, [row])


def wait_list_due(tx: Tx, *, now_us: int, limit: int) -> list[Row]:
    """Jobs whose wait for quotes is over, with what the router asks about them."""
    query = (
        sa.select(
            quote_waits,
            jobs.c.owner,
            jobs.c.owner_id,
            jobs.c.bounds,
            jobs.c.avoid,
            jobs.c.spec_hash,
            jobs.c.created_us,
            jobs.c.waits_us,
            jobs.c.state,
        )
        .select_from(quote_waits.outerjoin(jobs, jobs.c.id == quote_waits.c.job_id))
        .where(quote_waits.c.due_us <= now_us)
        .order_by(quote_waits.c.due_us, quote_waits.c.job_id)
        .limit(limit)
    )
    return list(tx.execute(query))


def wait_next_due_us(tx: Tx) -> int | None:
    """When the next wait is over."""
    found: int | None = tx.execute(sa.select(sa.func.min(quote_waits.c.due_us))).scalar()
    return found


def wait_groups(tx: Tx, shapes: Sequence[str]) -> list[tuple[str, str]]:
    """For whom the jobs of these shapes wait: thousands of them may wait for the same."""
    query = sa.select(quote_waits.c.shape, quote_waits.c.asked).where(quote_waits.c.shape.in_(sorted(shapes)))
    return [(row.shape, row.asked) for row in tx.execute(query.distinct())]


def wait_make_due(tx: Tx, shape: str, asked: str, *, now_us: int) -> None:
    """The last answer came: these jobs are due now."""
    mine = (quote_waits.c.shape == shape, quote_waits.c.asked == asked, quote_waits.c.due_us > now_us)
    tx.execute(sa.update(quote_waits).where(*mine).values(due_us=now_us))


def wait_remaining(tx: Tx, job_ids: Sequence[str]) -> set[str]:
    """Those of these jobs that still wait. Their rows are locked by whoever asks."""
    query = sa.select(quote_waits.c.job_id).where(quote_waits.c.job_id.in_(sorted(job_ids)))
    return set(tx.execute(query).scalars())


def wait_delete(tx: Tx, job_ids: Sequence[str]) -> None:
    if job_ids:
        tx.execute(sa.delete(quote_waits).where(quote_waits.c.job_id.in_(sorted(job_ids))))


def use_put(tx: Tx, rows: list[dict[str, Any]]) -> None:
    """By which quotes a job was placed, in place of those of an earlier decision."""
    if rows:
        tx.execute(_upsert_statement(tx.dialect.name, quote_uses), sorted(rows, key=lambda row: str(row["job_id"])))


def use_get(tx: Tx, job_id: str) -> Row | None:
    return tx.execute(sa.select(quote_uses).where(quote_uses.c.job_id == job_id)).one_or_none()


def use_list_open(tx: Tx, *, after: str, limit: int) -> list[Row]:
    """Placed by quotes and not known to have begun: how the job stands by now. No state: it was removed."""
    query = (
        sa.select(
            quote_uses.c.job_id,
            quote_uses.c.cluster_id,
            quote_uses.c.expected_us,
            quote_uses.c.at_us,
            jobs.c.state,
            jobs.c.assigned_us,
            jobs.c.started_us,
            jobs.c.cluster_id.label("on_id"),
        )
        .select_from(quote_uses.outerjoin(jobs, jobs.c.id == quote_uses.c.job_id))
        .where(sa.text(QUOTE_USE_OPEN), quote_uses.c.job_id > after)
        .order_by(quote_uses.c.job_id)
        .limit(limit)
    )
    return list(tx.execute(query))


def use_close(tx: Tx, errors_us: dict[str, int | None]) -> None:
    """These jobs have begun so much later than quoted, or (none) will tell nothing about their quotes any more."""
    if errors_us:
        statement = sa.update(quote_uses).where(quote_uses.c.job_id == sa.bindparam("the_id"), quote_uses.c.is_open)
        rows = [{"the_id": job_id, "error": errors_us[job_id]} for job_id in sorted(errors_us)]
        tx.execute(statement.values(error_us=sa.bindparam("error"), is_open=False), rows)


def use_errors(tx: Tx, cluster_ids: Sequence[str], limit: int) -> dict[str, list[int]]:
    """How far off the last quotes of each of these clusters were."""
    found: dict[str, list[int]] = {}
    for cluster_id in cluster_ids:
        query = (
            sa.select(quote_uses.c.error_us)
            .where(sa.text(QUOTE_USE_MEASURED), quote_uses.c.cluster_id == cluster_id)
            .order_by(quote_uses.c.at_us.desc())
            .limit(limit)
        )
        found[cluster_id] = list(tx.execute(query).scalars())
    return found


def backlog_by_spec(tx: Tx, cluster_id: str, limit: int) -> list[Row]:
    """What waits at a cluster for its lease: how many jobs of which spec, and their cores. Looks at `limit` of them."""
    some = sa.select(jobs.c.spec_hash, jobs.c.cores).where(sa.text(READY), jobs.c.cluster_id == cluster_id)
    first = some.limit(limit).subquery()
    counted = sa.select(first.c.spec_hash, first.c.cores, sa.func.count().label("jobs"))
    return list(tx.execute(counted.group_by(first.c.spec_hash, first.c.cores)))


def quotes_clean(tx: Tx, *, before_us: int) -> int:
    """Remove answers and questions that nobody has a use for any more."""
    old = tx.execute(sa.delete(quotes).where(quotes.c.until_us < before_us)).rowcount
    return old + tx.execute(sa.delete(quote_asks).where(quote_asks.c.deadline_us < before_us)).rowcount
