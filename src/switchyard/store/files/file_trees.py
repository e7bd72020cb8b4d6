"""Queries about sealed trees, their members, and the references of jobs to them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from switchyard.model.files.file_tree import HASH_BYTES
from switchyard.store.engine import dialect
from switchyard.store.engine.database import Tx
from switchyard.store.jobs.fetch import StoredRow, columns_of, fetch_all, fetch_one
from switchyard.store.tables.files_tables import file_refs, file_tree_owners, file_tree_parts, file_trees

PART_DIGESTS = 4096  # hashes in one row: 128 KiB
PARTS_READ = 16  # such rows in memory at a time
IN, OUT = "in", "out"  # kinds of references: of a job's spec, and of the outputs of its attempts


class TreeRow(StoredRow, frozen=True):
    root: bytes
    files: int
    size: int
    indexes: str


class OwnedTree(TreeRow, frozen=True):
    """A sealed tree of one user. `used_us`: when this user last sealed it or asked for it."""

    owner: str
    used_us: int


@dataclass(frozen=True, slots=True)
class FileRef:
    """A job needs a tree."""

    job_id: str
    root: bytes
    kind: str
    project: str


_OWNED = columns_of(
    OwnedTree, file_trees, owner=file_tree_owners.c.owner, used_us=file_tree_owners.c.used_us
)  # of the join below
_WITH_OWNERS = file_trees.join(file_tree_owners, file_tree_owners.c.root == file_trees.c.root)


def tree_lock(tx: Tx, root: bytes) -> TreeRow | None:
    """A sealed tree of whomever. It stays until the commit."""
    query = sa.select(*columns_of(TreeRow, file_trees)).where(file_trees.c.root == root)
    return fetch_one(tx, TreeRow, query.with_for_update(read=True, key_share=True))


def tree_of_owner(tx: Tx, owner: str, root: bytes) -> OwnedTree | None:
    query = sa.select(*_OWNED).select_from(_WITH_OWNERS)
    return fetch_one(tx, OwnedTree, query.where(file_trees.c.root == root, file_tree_owners.c.owner == owner))


def trees_for_jobs(tx: Tx, pairs: Collection[tuple[str, bytes]]) -> dict[tuple[str, bytes], OwnedTree]:
    """The sealed trees of these users and roots. They stay until the commit: the leader waits for this lock."""
    owners, roots = sorted({owner for owner, _ in pairs}), sorted({root for _, root in pairs})
    query = (
        sa.select(*_OWNED)
        .select_from(_WITH_OWNERS)
        .where(file_trees.c.root.in_(roots), file_tree_owners.c.owner.in_(owners))
        .order_by(file_tree_owners.c.root, file_tree_owners.c.owner)
        .with_for_update(read=True, key_share=True, of=file_tree_owners)
    )
    return {(row.owner, bytes(row.root)): row for row in fetch_all(tx, OwnedTree, query)}


def tree_touch(tx: Tx, owner: str, root: bytes, *, now_us: int) -> bool:
    """Mark a tree as used by a user. False: this user has not sealed it, or it was removed."""
    update = sa.update(file_tree_owners).where(file_tree_owners.c.root == root, file_tree_owners.c.owner == owner)
    return tx.execute(update.values(used_us=now_us)).rowcount > 0


def tree_put(tx: Tx, tree: TreeRow, members: Iterable[bytes], owners: Iterable[str], *, now_us: int) -> None:
    """Store a tree with its members for these users. `members`: sorted."""
    trees_put(tx, [(tree, list(members))], owners, now_us=now_us)


def trees_put(tx: Tx, trees: Iterable[tuple[TreeRow, Sequence[bytes]]], owners: Iterable[str], *, now_us: int) -> None:
    """Store trees with their sorted members for these users."""
    by_root = {tree.root: (tree, members) for tree, members in trees}
    rows = [
        {"root": root, "files": tree.files, "size": tree.size, "indexes": tree.indexes, "sealed_us": now_us}
        for root, (tree, _) in sorted(by_root.items(), key=lambda item: item[0])
    ]
    if not rows:
        return
    # An update and not nothing, where it is stored: it locks the row against the leader, which removes idle trees.
    put = dialect.insert_statement(tx, file_trees)
    tx.execute(put.on_conflict_do_update(index_elements=["root"], set_={"sealed_us": put.excluded.sealed_us}), rows)
    parts = [part for root in sorted(by_root) for part in _parts(root, by_root[root][1])]
    dialect.insert_missing(tx, file_tree_parts, parts)
    _owners_put(tx, sorted(by_root), owners, now_us=now_us)


def owner_put(tx: Tx, root: bytes, owners: Iterable[str], *, now_us: int) -> None:
    _owners_put(tx, [root], owners, now_us=now_us)


def _owners_put(tx: Tx, roots: Sequence[bytes], owners: Iterable[str], *, now_us: int) -> None:
    rows = [{"root": root, "owner": owner, "used_us": now_us} for root in roots for owner in sorted(owners)]
    if rows:
        put = dialect.insert_statement(tx, file_tree_owners)
        used = {"used_us": put.excluded.used_us}
        tx.execute(put.on_conflict_do_update(index_elements=["root", "owner"], set_=used), rows)


def _parts(root: bytes, members: Sequence[bytes]) -> list[dict[str, Any]]:
    runs = [members[start : start + PART_DIGESTS] for start in range(0, len(members), PART_DIGESTS)]
    return [{"root": root, "first": run[0], "last": run[-1], "digests": b"".join(run)} for run in runs]


def members_among(tx: Tx, root: bytes, digests: Collection[bytes]) -> set[bytes]:
    """Those of these hashes that belong to a tree."""
    wanted = sorted(set(digests))
    if not wanted:
        return set()
    heads = sa.select(file_tree_parts.c.first, file_tree_parts.c.last).where(
        file_tree_parts.c.root == root, file_tree_parts.c.first <= wanted[-1], file_tree_parts.c.last >= wanted[0]
    )
    needed = [bytes(row.first) for row in tx.execute(heads) if _has_between(wanted, bytes(row.first), bytes(row.last))]
    members: set[bytes] = set()
    for start in range(0, len(needed), PARTS_READ):
        parts = sa.select(file_tree_parts.c.digests).where(
            file_tree_parts.c.root == root, file_tree_parts.c.first.in_(needed[start : start + PARTS_READ])
        )
        for part in tx.execute(parts).scalars():
            members |= common_digests(bytes(part), wanted)
    return members


def _has_between(wanted: Sequence[bytes], first: bytes, last: bytes) -> bool:
    return bisect_left(wanted, first) < bisect_right(wanted, last)


def common_digests(part: bytes, wanted: Sequence[bytes]) -> set[bytes]:
    """The hashes that a row of a tree and a sorted list have in common."""
    low = bisect_left(wanted, part[:HASH_BYTES])
    high = bisect_right(wanted, part[-HASH_BYTES:])
    if low >= high:
        return set()
    return set(split_digests(part)).intersection(wanted[low:high])


def split_digests(part: bytes) -> list[bytes]:
    return [part[at : at + HASH_BYTES] for at in range(0, len(part), HASH_BYTES)]


def ref_put(tx: Tx, refs: Iterable[FileRef]) -> None:
    rows = [{"job_id": ref.job_id, "root": ref.root, "kind": ref.kind, "project": ref.project} for ref in refs]
    dialect.insert_missing(tx, file_refs, rows)


def ref_kinds(tx: Tx, job_id: str, root: bytes) -> set[str]:
    """Why a job needs a tree: `in`, `out`, both, or not at all."""
    query = sa.select(file_refs.c.kind).where(file_refs.c.job_id == job_id, file_refs.c.root == root)
    return set(tx.execute(query).scalars())


def project_has(tx: Tx, project: str, root: bytes) -> bool:
    query = sa.select(file_refs.c.root).where(file_refs.c.project == project, file_refs.c.root == root).limit(1)
    return tx.execute(query).first() is not None


def project_usage(tx: Tx, project: str) -> tuple[int, int]:
    """The bytes of the trees that the jobs of a project need, each counted once; and how many trees those are."""
    roots = sa.select(file_refs.c.root).where(file_refs.c.project == project).distinct().subquery()
    size = sa.func.coalesce(sa.func.sum(file_trees.c.size), 0)
    query = sa.select(size, sa.func.count()).select_from(roots.join(file_trees, file_trees.c.root == roots.c.root))
    row = tx.execute(query).one()
    return int(row[0]), row[1]


def has_sealed_since(tx: Tx, owner: str, since_us: int) -> bool:
    """Whether a user has sealed or used a tree since a time."""
    query = sa.select(file_tree_owners.c.root).where(
        file_tree_owners.c.owner == owner, file_tree_owners.c.used_us >= since_us
    )
    return tx.execute(query.limit(1)).first() is not None


def owned_count(tx: Tx, owner: str) -> int:
    query = sa.select(sa.func.count()).select_from(file_tree_owners).where(file_tree_owners.c.owner == owner)
    return tx.scalar(query) or 0
