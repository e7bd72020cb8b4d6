"""Idempotency keys of submits: the same key with the same body gives the job that it made before."""

from __future__ import annotations

from dataclasses import dataclass

from switchyard.errors import KeyReused
from switchyard.model.wire.api import CreatedJob
from switchyard.service.core.writes.batch import Batch
from switchyard.service.submit.new_job import JobInsert
from switchyard.store.engine.database import Tx
from switchyard.store.jobs import jobs
from switchyard.store.jobs.job_rows import IdempotencyClaim


@dataclass(frozen=True, slots=True)
class AcceptedJob:
    """The answer to a submit; `is_new` is false when the idempotency key had been used for the same body."""

    created: CreatedJob
    is_new: bool


def claim_keys(batch: Batch, writes: list[JobInsert]) -> dict[tuple[str, str], IdempotencyClaim]:
    """Claim the idempotency keys of these jobs. Returns the claim of each key: the new one, or an earlier one."""
    if not writes:
        return {}
    return jobs.idempotency_claim(
        batch.tx,
        [
            IdempotencyClaim(
                write.row.owner_id, write.key, body_hash=write.body_hash, job_id=write.row.id, created_us=batch.now_us
            )
            for write in writes
            if write.key is not None
        ],
    )


def answer_for_used_key(
    tx: Tx, claim: IdempotencyClaim, *, key: str | None, body_hash: str, here: dict[str, CreatedJob]
) -> AcceptedJob | KeyReused:
    """Return the answer to a submit whose key is used. `here`: jobs of this batch that are not inserted yet."""
    if claim.body_hash != body_hash:
        return KeyReused(f"The idempotency key {key!r} belongs to job {claim.job_id}, made from another body.")
    now = jobs.job_states(tx, [claim.job_id]).get(claim.job_id)
    created = here.get(claim.job_id) if now is None else CreatedJob(now.id, now.state, now.cluster, now.reason)
    if created is None:
        return KeyReused(f"The job {claim.job_id} that the idempotency key {key!r} made was removed since, being old.")
    return AcceptedJob(created, is_new=False)
