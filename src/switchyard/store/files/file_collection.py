"""Queries that find and remove files that no job needs, in bounded steps. Rows are locked, then checked again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from switchyard.store.engine import dialect
from switchyard.store.engine.database import Tx
from switchyard.store.feature import is_awaited
from switchyard.store.files.file_objects import loss_delete, pages
from switchyard.store.jobs.fetch import StoredRow, fetch_all
from switchyard.store.tables.files_tables import (
    file_holders,
    file_objects,
    file_outputs,
    file_refs,
    file_removals,
    file_tree_owners,
    file_tree_parts,
    file_trees,
)
from switchyard.store.tables.schema import FINAL_STATES, jobs


class HolderRow(StoredRow, frozen=True):
    digest: bytes
    owner: str
    used_us: int


class PartRow(StoredRow, frozen=True):
    root: bytes
    first: bytes
    digests: bytes


def job_ids_with_old_files(tx: Tx, *, ended_before_us: int, limit: int) -> list[str]:
    """Ended jobs whose files are older than their time. They are few: each round removes their references. Files that
    a feature has still to read stay."""
    ids: set[str] = set()
    for table, is_kept in ((file_refs, sa.true()), (file_outputs, file_outputs.c.root.is_not(None))):
        query = (
            sa.select(table.c.job_id)
            .join(jobs, jobs.c.id == table.c.job_id)
            .where(
                jobs.c.state.in_(FINAL_STATES),
                jobs.c.ended_us < ended_before_us,
                is_kept,
                sa.not_(is_awaited(jobs.c.id)),
            )
            .distinct()
            .limit(limit)
        )
        ids.update(tx.execute(query).scalars())
    return sorted(ids)[:limit]


def files_expire(tx: Tx, job_ids: Sequence[str], *, error: str) -> int:
    """Remove the references of jobs to trees. Their outputs stay listed, with the reason why they cannot be read."""
    gone = {"state": "failed", "root": None, "error": error}
    has_root = file_outputs.c.root.is_not(None)
    tx.execute(sa.update(file_outputs).where(file_outputs.c.job_id.in_(job_ids), has_root).values(gone))
    return tx.execute(sa.delete(file_refs).where(file_refs.c.job_id.in_(job_ids))).rowcount


def idle_tree_owners(tx: Tx, *, used_before_us: int, limit: int, owner: str | None = None) -> list[tuple[bytes, str]]:
    """Sealed trees that no job needs, and that these users, or this one, have not used since a time."""
    is_needed = sa.exists().where(file_refs.c.root == file_tree_owners.c.root)
    query = sa.select(file_tree_owners.c.root, file_tree_owners.c.owner).where(
        file_tree_owners.c.used_us < used_before_us, sa.not_(is_needed)
    )
    if owner is not None:
        query = query.where(file_tree_owners.c.owner == owner)
    return [(bytes(row.root), row.owner) for row in tx.execute(query.limit(limit))]


def idle_tree_bytes(tx: Tx, owner: str, *, used_since_us: int) -> int:
    """The bytes of trees of a user that no job needs, and that were used since a time."""
    is_needed = sa.exists().where(file_refs.c.root == file_tree_owners.c.root)
    query = (
        sa.select(sa.func.coalesce(sa.func.sum(file_trees.c.size), 0))
        .join(file_tree_owners, file_tree_owners.c.root == file_trees.c.root)
        .where(file_tree_owners.c.owner == owner, file_tree_owners.c.used_us >= used_since_us, sa.not_(is_needed))
    )
    return int(tx.scalar(query) or 0)


def tree_owners_delete(tx: Tx, pairs: Collection[tuple[bytes, str]], *, used_before_us: int) -> int:
    """Remove idle trees of users, and trees without a user. A submit locks the rows, so it is before or after this."""
    roots = sorted({root for root, _ in pairs})
    locked = tx.execute(
        sa.select(file_tree_owners.c.root, file_tree_owners.c.owner)
        .where(file_tree_owners.c.root.in_(roots), file_tree_owners.c.used_us < used_before_us)
        .order_by(file_tree_owners.c.root, file_tree_owners.c.owner)
        .with_for_update()
    ).all()
    needed = {bytes(root) for root in tx.execute(_refs_of(roots)).scalars()}
    removed = 0
    for root, owner in locked:
        if (bytes(root), owner) in pairs and bytes(root) not in needed:
            is_it = sa.and_(file_tree_owners.c.root == root, file_tree_owners.c.owner == owner)
            removed += tx.execute(sa.delete(file_tree_owners).where(is_it)).rowcount
    _delete_unowned(tx, roots)
    return removed


def _delete_unowned(tx: Tx, roots: list[bytes]) -> None:
    query = sa.select(file_trees.c.root).where(file_trees.c.root.in_(roots)).order_by(file_trees.c.root)
    locked = {bytes(root) for root in tx.execute(query.with_for_update()).scalars()}
    owned = sa.select(file_tree_owners.c.root).where(file_tree_owners.c.root.in_(roots))
    kept = {bytes(root) for query in (owned, _refs_of(roots)) for root in tx.execute(query).scalars()}
    unowned = sorted(locked - kept)
    for table in (file_tree_parts, file_trees):
        tx.execute(sa.delete(table).where(table.c.root.in_(unowned)))


def _refs_of(roots: list[bytes]) -> Any:
    return sa.select(file_refs.c.root).where(file_refs.c.root.in_(roots)).distinct()


def holders_between(tx: Tx, first: bytes, last: bytes) -> list[HolderRow]:
    query = sa.select(file_holders).where(file_holders.c.digest >= first, file_holders.c.digest <= last)
    return fetch_all(tx, HolderRow, query)


def holders_of(tx: Tx, owner: str, after: bytes, limit: int) -> list[bytes]:
    """The objects that a user holds, by hash."""
    query = sa.select(file_holders.c.digest).where(file_holders.c.owner == owner, file_holders.c.digest > after)
    return [bytes(digest) for digest in tx.execute(query.order_by(file_holders.c.digest).limit(limit)).scalars()]


def parts_between(
    tx: Tx, first: bytes, last: bytes, *, after: tuple[bytes, bytes], limit: int, owner: str | None = None
) -> list[PartRow]:
    """Rows of trees, or of the trees of one user, with members between two hashes, in the order of their keys."""
    root, begin = after
    query = sa.select(file_tree_parts.c.root, file_tree_parts.c.first, file_tree_parts.c.digests).where(
        sa.or_(file_tree_parts.c.root > root, sa.and_(file_tree_parts.c.root == root, file_tree_parts.c.first > begin)),
        file_tree_parts.c.first <= last,
        file_tree_parts.c.last >= first,
    )
    if owner is not None:
        # With `EXISTS`, SQLite reads the trees of all users.
        roots = sa.select(file_tree_owners.c.root).where(file_tree_owners.c.owner == owner)
        query = query.where(file_tree_parts.c.root.in_(roots))
    rows = fetch_all(tx, PartRow, query.order_by(file_tree_parts.c.root, file_tree_parts.c.first).limit(limit))
    return [PartRow(bytes(row.root), bytes(row.first), bytes(row.digests)) for row in rows]


def owners_of(tx: Tx, roots: Iterable[bytes]) -> dict[bytes, set[str]]:
    owners: dict[bytes, set[str]] = {}
    for page in pages(roots):
        query = sa.select(file_tree_owners.c.root, file_tree_owners.c.owner).where(file_tree_owners.c.root.in_(page))
        for row in tx.execute(query):
            owners.setdefault(bytes(row.root), set()).add(row.owner)
    return owners


def holders_delete(tx: Tx, holders: Iterable[tuple[bytes, str]], *, used_before_us: int) -> list[tuple[bytes, str]]:
    """Remove possessions that were not used since. Returns those that were removed."""
    by_owner: dict[str, list[bytes]] = {}
    for digest, owner in holders:
        by_owner.setdefault(owner, []).append(digest)
    removed: list[tuple[bytes, str]] = []
    for owner, digests in sorted(by_owner.items()):
        for page in pages(digests):
            delete = sa.delete(file_holders).where(
                file_holders.c.owner == owner, file_holders.c.digest.in_(page), file_holders.c.used_us < used_before_us
            )
            gone = tx.execute(delete.returning(file_holders.c.digest)).scalars()
            removed += [(bytes(digest), owner) for digest in gone]
    return removed


def objects_lock(tx: Tx, digests: Iterable[bytes]) -> None:
    """Lock objects before holders and usage, as an upload does: else two servers could block each other for ever."""
    for page in pages(digests):
        query = sa.select(file_objects.c.digest).where(file_objects.c.digest.in_(page))
        tx.execute(query.order_by(file_objects.c.digest).with_for_update()).all()


def objects_delete(tx: Tx, digests: Iterable[bytes], *, used_before_us: int, now_us: int) -> int:
    """Remove objects that nobody holds and nobody used since; the store removes their bytes afterwards."""
    is_held = sa.exists().where(file_holders.c.digest == file_objects.c.digest)
    count = 0
    for page in pages(digests):
        delete = sa.delete(file_objects).where(
            file_objects.c.digest.in_(page), file_objects.c.used_us < used_before_us, sa.not_(is_held)
        )
        gone = [bytes(digest) for digest in tx.execute(delete.returning(file_objects.c.digest)).scalars()]
        rows = [{"digest": digest, "at_us": now_us, "is_done": False} for digest in gone]
        if rows:
            put = dialect.insert_statement(tx, file_removals).values(rows)
            tx.execute(put.on_conflict_do_update(index_elements=["digest"], set_={"at_us": now_us, "is_done": False}))
            loss_delete(tx, gone)
        count += len(gone)
    return count


def objects_adopt(tx: Tx, sizes: dict[bytes, int]) -> int:
    """Record objects that only the store knows, as not used for ever. An upload that records them too keeps them."""
    count = 0
    for page in pages(sizes):
        rows = [{"digest": digest, "size": sizes[digest], "used_us": 0} for digest in page]
        put = dialect.insert_statement(tx, file_objects).values(rows).on_conflict_do_nothing()
        count += len(tx.execute(put.returning(file_objects.c.digest)).all())
    return count


def removals_open(tx: Tx, limit: int) -> list[bytes]:
    query = sa.select(file_removals.c.digest).where(sa.not_(file_removals.c.is_done)).limit(limit)
    return [bytes(digest) for digest in tx.execute(query).scalars()]


def removals_settle(tx: Tx, digests: Iterable[bytes], *, now_us: int) -> int:
    """The store has removed these objects."""
    settled = 0
    for page in pages(digests):
        update = sa.update(file_removals).where(file_removals.c.digest.in_(page))
        settled += tx.execute(update.values(is_done=True, at_us=now_us)).rowcount
    return settled


def has_settled_removals(tx: Tx, *, before_us: int) -> bool:
    old = sa.select(file_removals.c.digest).where(file_removals.c.is_done, file_removals.c.at_us < before_us)
    return tx.execute(old.limit(1)).first() is not None


def removals_forget(tx: Tx, *, before_us: int, limit: int) -> int:
    old = sa.select(file_removals.c.digest).where(file_removals.c.is_done, file_removals.c.at_us < before_us)
    page = [bytes(digest) for digest in tx.execute(old.limit(limit)).scalars()]
    if not page:
        return 0
    return tx.execute(sa.delete(file_removals).where(file_removals.c.digest.in_(page))).rowcount


def sizes_by_owner(removed: Iterable[tuple[bytes, str]], sizes: dict[bytes, int]) -> Counter[str]:
    total: Counter[str] = Counter()
    for digest, owner in removed:
        total[owner] += sizes.get(digest, 0)
    return total
