"""Queries about stored objects: which there are, which are lost, who holds them, and how many bytes each user holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa

from switchyard.store.engine import dialect
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, fetch_one
from switchyard.store.tables.files_tables import file_holders, file_losses, file_objects, file_removals, file_usage

PAGE = 500  # hashes in one statement


class StoredTotals(StoredRow, frozen=True):
    """How many objects are stored, and their bytes."""

    objects: int
    bytes: int


def pages(digests: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Hashes in sorted pages: all writers lock rows in the same order."""
    ordered = sorted(set(digests))
    for start in range(0, len(ordered), PAGE):
        yield ordered[start : start + PAGE]


def held_sizes(tx: Tx, owner: str, digests: Iterable[bytes]) -> dict[bytes, int]:
    """The objects among these that this user holds, with their sizes. Lost objects are left out."""
    sizes: dict[bytes, int] = {}
    is_lost = sa.exists().where(file_losses.c.digest == file_objects.c.digest)
    for page in pages(digests):
        query = (
            sa.select(file_objects.c.digest, file_objects.c.size)
            .join(file_holders, file_holders.c.digest == file_objects.c.digest)
            .where(file_holders.c.owner == owner, file_holders.c.digest.in_(page), sa.not_(is_lost))
        )
        sizes.update((bytes(row.digest), row.size) for row in tx.execute(query))
    return sizes


def holdings(tx: Tx, owner: str, digests: Iterable[bytes]) -> set[bytes]:
    """The objects among these that this user holds, also lost ones."""
    held: set[bytes] = set()
    for page in pages(digests):
        query = sa.select(file_holders.c.digest).where(file_holders.c.owner == owner, file_holders.c.digest.in_(page))
        held.update(bytes(digest) for digest in tx.execute(query).scalars())
    return held


def object_sizes(tx: Tx, digests: Iterable[bytes]) -> dict[bytes, int]:
    """The sizes of those objects that are stored."""
    sizes: dict[bytes, int] = {}
    for page in pages(digests):
        query = sa.select(file_objects.c.digest, file_objects.c.size).where(file_objects.c.digest.in_(page))
        sizes.update((bytes(row.digest), row.size) for row in tx.execute(query))
    return sizes


def holder_touch_due(tx: Tx, owner: str, digests: Iterable[bytes], *, used_before_us: int) -> list[bytes]:
    """The objects that this user holds, and has not used since a time."""
    due: list[bytes] = []
    for page in pages(digests):
        query = sa.select(file_holders.c.digest).where(
            file_holders.c.owner == owner, file_holders.c.digest.in_(page), file_holders.c.used_us < used_before_us
        )
        due += [bytes(digest) for digest in tx.execute(query).scalars()]
    return due


def holder_touch(tx: Tx, owner: str, digests: Iterable[bytes], *, now_us: int) -> set[bytes]:
    """Mark objects as used by a user. Returns those that the user still holds: others were removed meanwhile."""
    held: set[bytes] = set()
    for page in pages(digests):
        update = (
            sa.update(file_holders)
            .where(file_holders.c.owner == owner, file_holders.c.digest.in_(page))
            .values(used_us=now_us)
            .returning(file_holders.c.digest)
        )
        held.update(bytes(digest) for digest in tx.execute(update).scalars())
    return held


def object_put(tx: Tx, sizes: dict[bytes, int], *, now_us: int) -> None:
    """Record objects that the store has. Locks their rows: the leader does not remove an object that was used now."""
    rows = [{"digest": digest, "size": sizes[digest], "used_us": now_us} for digest in sorted(sizes)]
    if rows:
        tx.execute(_object_put_statement(tx.dialect.name), rows)
        loss_delete(tx, sizes)  # after the lock: a loss that is noted at the same time is before or after this


@cache
def _object_put_statement(dialect_name: str) -> Any:
    put = dialect.insert_for(dialect_name, file_objects)
    return put.on_conflict_do_update(index_elements=["digest"], set_={"used_us": put.excluded.used_us})


def holder_put(tx: Tx, owner: str, digests: Iterable[bytes], *, now_us: int) -> list[bytes]:
    """Record that a user holds objects. Returns those that the user did not hold before."""
    new: list[bytes] = []
    for page in pages(digests):
        if dialect.is_postgresql(tx):
            values = {"owner": owner, "digests": page, "now_us": now_us}
            new += [bytes(digest) for digest in tx.execute(_HOLDER_PUT_POSTGRESQL, values).scalars()]
        else:  # nobody else writes between the two
            held = holdings(tx, owner, page)
            added = [digest for digest in page if digest not in held]
            rows = [{"digest": digest, "owner": owner, "used_us": now_us} for digest in added]
            dialect.insert_missing(tx, file_holders, rows)
            new += added
    return new


_HOLDER_PUT_POSTGRESQL = sa.text("""
    INSERT INTO file_holders (digest, owner, used_us)
    SELECT digest, :owner, :now_us FROM unnest(CAST(:digests AS bytea[])) AS digest
    ON CONFLICT DO NOTHING RETURNING digest
""")


def loss_put(tx: Tx, digests: Iterable[bytes], *, read_us: int, now_us: int) -> list[bytes]:
    """Note objects that a read, which began at `read_us`, did not find in the store. Returns those that are noted.

    An object that somebody sent since is in the store again, and is left out.
    """
    lost: list[bytes] = []
    for page in pages(digests):
        query = (
            sa.select(file_objects.c.digest)
            .where(file_objects.c.digest.in_(page), file_objects.c.used_us < read_us)
            .order_by(file_objects.c.digest)
            .with_for_update()
        )
        found = [bytes(digest) for digest in tx.execute(query).scalars()]
        dialect.insert_missing(tx, file_losses, [{"digest": digest, "at_us": now_us} for digest in found])
        lost += found
    return lost


def loss_delete(tx: Tx, digests: Iterable[bytes]) -> None:
    """The store has these objects. There are hardly ever any losses, so one small query comes first."""
    if tx.execute(sa.select(file_losses.c.digest).limit(1)).first() is None:
        return
    for page in pages(digests):
        tx.execute(sa.delete(file_losses).where(file_losses.c.digest.in_(page)))


def losses(tx: Tx, limit: int) -> list[bytes]:
    """Lost objects, by hash."""
    query = sa.select(file_losses.c.digest).order_by(file_losses.c.digest).limit(limit)
    return [bytes(digest) for digest in tx.execute(query).scalars()]


def losses_among(tx: Tx, digests: Iterable[bytes]) -> set[bytes]:
    """Those of these objects that are lost."""
    if tx.execute(sa.select(file_losses.c.digest).limit(1)).first() is None:
        return set()
    found: set[bytes] = set()
    for page in pages(digests):
        query = sa.select(file_losses.c.digest).where(file_losses.c.digest.in_(page))
        found.update(bytes(digest) for digest in tx.execute(query).scalars())
    return found


def being_removed(tx: Tx, digests: Iterable[bytes], *, since_us: int) -> bool:
    """Whether one of these objects is being removed from the store, or was removed since a time."""
    if tx.execute(sa.select(file_removals.c.digest).limit(1)).first() is None:
        return False
    is_recent = sa.or_(sa.not_(file_removals.c.is_done), file_removals.c.at_us >= since_us)
    return any(
        tx.execute(
            sa.select(file_removals.c.digest).where(file_removals.c.digest.in_(page), is_recent).limit(1)
        ).first()
        is not None
        for page in pages(digests)
    )


def usage_add(tx: Tx, amounts: dict[str, int]) -> None:
    """Add to the bytes that users hold, or subtract. In the order of users, as all writers lock them."""
    for owner, amount in sorted(amounts.items()):
        new = dialect.insert_statement(tx, file_usage).values(owner=owner, bytes=max(0, amount))
        total = file_usage.c.bytes + amount
        summed = sa.case((total < 0, 0), else_=total)
        tx.execute(new.on_conflict_do_update(index_elements=["owner"], set_={"bytes": summed}))


def usage_release(tx: Tx, owner: str, amount: int, *, now_us: int) -> None:
    """Objects of so many bytes are taken from a user now. Seals of this user that began before are refused."""
    usage_add(tx, {owner: -amount})
    tx.execute(sa.update(file_usage).where(file_usage.c.owner == owner).values(released_us=now_us))


def usage_is_released_since(tx: Tx, owner: str, since_us: int) -> bool:
    """Whether objects were taken from a user since a time. The user's row is locked until the commit."""
    query = sa.select(file_usage.c.released_us).where(file_usage.c.owner == owner)
    return (tx.scalar(query.with_for_update(read=True)) or 0) >= since_us


def usage_get(tx: Tx, owner: str) -> int:
    return tx.scalar(sa.select(file_usage.c.bytes).where(file_usage.c.owner == owner)) or 0


def stored_totals(tx: Tx) -> StoredTotals:
    count = sa.func.count().label("objects")
    size = sa.func.coalesce(sa.func.sum(file_objects.c.size), 0).label("bytes")
    totals = fetch_one(tx, StoredTotals, sa.select(count, size).select_from(file_objects))
    assert totals is not None
    return StoredTotals(totals.objects, int(totals.bytes))


def object_page(tx: Tx, after: bytes, limit: int) -> Sequence[tuple[bytes, int, int]]:
    """Objects by hash: hash, size, when it was last used."""
    query = sa.select(file_objects.c.digest, file_objects.c.size, file_objects.c.used_us)
    rows = tx.execute(query.where(file_objects.c.digest > after).order_by(file_objects.c.digest).limit(limit))
    return [(bytes(row.digest), row.size, row.used_us) for row in rows]
