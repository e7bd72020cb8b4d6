"""Queries about what agents have uploaded for attempts. An attempt may name these objects, and those of its inputs."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import sqlalchemy as sa

from switchyard.store.engine import dialect
from switchyard.store.engine.database import Tx
from switchyard.store.files.file_objects import pages
from switchyard.store.files.file_trees import IN, members_among
from switchyard.store.tables.files_tables import file_attempt_uploads, file_refs


def upload_put(tx: Tx, job_id: str, fence: int, digests: Iterable[bytes], *, now_us: int) -> None:
    """Record that an agent has sent these objects for an attempt."""
    for page in pages(digests):
        rows = [
            {"job_id": job_id, "fence": fence, "digest": digest, "is_sealed": False, "at_us": now_us} for digest in page
        ]
        dialect.insert_missing(tx, file_attempt_uploads, rows)


def upload_seal(tx: Tx, job_id: str, fence: int, root: bytes, *, now_us: int) -> None:
    """Record that a tree was sealed for an attempt: the attempt may name all of it."""
    row = {"job_id": job_id, "fence": fence, "digest": root, "is_sealed": True, "at_us": now_us}
    put = dialect.insert_statement(tx, file_attempt_uploads).values(**row)
    tx.execute(put.on_conflict_do_update(index_elements=["job_id", "fence", "digest"], set_={"is_sealed": True}))


def is_sealed_for(tx: Tx, job_id: str, fence: int, root: bytes) -> bool:
    query = sa.select(file_attempt_uploads.c.is_sealed).where(_of(job_id, fence), file_attempt_uploads.c.digest == root)
    return bool(tx.scalar(query))


def nameable_objects(tx: Tx, job_id: str, fence: int, digests: Collection[bytes]) -> set[bytes]:
    """Those of these objects that an attempt may name: sent for it by its agent, or part of the job's inputs."""
    found = sent_objects(tx, job_id, fence, digests)
    inputs = sa.select(file_refs.c.root).where(file_refs.c.job_id == job_id, file_refs.c.kind == IN)
    for root in tx.execute(inputs).scalars().all():
        found |= members_among(tx, bytes(root), set(digests) - found)
    return found


def sent_objects(tx: Tx, job_id: str, fence: int, digests: Iterable[bytes]) -> set[bytes]:
    """Those of these objects that its agent has sent for an attempt."""
    found: set[bytes] = set()
    for page in pages(digests):
        query = sa.select(file_attempt_uploads.c.digest).where(
            _of(job_id, fence), file_attempt_uploads.c.digest.in_(page)
        )
        found.update(bytes(digest) for digest in tx.execute(query).scalars())
    return found


def upload_delete_old(tx: Tx, *, before_us: int, limit: int) -> int:
    """Forget old uploads. An attempt that still needs one sends it again."""
    key = (file_attempt_uploads.c.job_id, file_attempt_uploads.c.fence, file_attempt_uploads.c.digest)
    old = sa.select(*key).where(file_attempt_uploads.c.at_us < before_us).limit(limit)
    return tx.execute(sa.delete(file_attempt_uploads).where(sa.tuple_(*key).in_(old))).rowcount


def has_old_uploads(tx: Tx, *, before_us: int) -> bool:
    query = sa.select(file_attempt_uploads.c.job_id).where(file_attempt_uploads.c.at_us < before_us)
    return tx.execute(query.limit(1)).first() is not None


def _of(job_id: str, fence: int) -> sa.ColumnElement[bool]:
    return sa.and_(file_attempt_uploads.c.job_id == job_id, file_attempt_uploads.c.fence == fence)
