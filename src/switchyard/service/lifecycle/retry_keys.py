"""The idempotency key of a retry that is one of many: a job is retried once, however often the request comes."""

from __future__ import annotations

PREFIX = "\tretry "  # clients cannot send a key with a tab, so no key of theirs is the same


def retry_key(job_id: str) -> str:
    return PREFIX + job_id
