"""Retry many named jobs. Each job is retried once by its user, however often the request comes."""

from __future__ import annotations

from switchyard.errors import KeyReused, YardError
from switchyard.model.job.bulk_actions import ActedOnJobs, RefusedJob
from switchyard.model.wire.api import RetryRequest
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.lifecycle.retry_keys import retry_key
from switchyard.service.submit.retry import accept_retry
from switchyard.service.submit.submit import Submit


def retry_many(context: Context, submit: Submit, actor: Actor, ids: list[str]) -> ActedOnJobs:
    """Retry each job by itself. A refusal does not stop the jobs after it; an error of the server does."""
    changed = unchanged = 0
    refused: list[RefusedJob] = []
    for job_id in dict.fromkeys(ids):
        try:
            is_new = _retry_once(context, submit, actor, job_id)
        except YardError as exc:
            if exc.transient or exc.status >= 500:
                raise
            refused.append(RefusedJob(job_id, exc.detail))
        else:
            changed, unchanged = (changed + 1, unchanged) if is_new else (changed, unchanged + 1)
    return ActedOnJobs(changed, unchanged, refused)


def _retry_once(context: Context, submit: Submit, actor: Actor, job_id: str) -> bool:
    """Retry a job unless this was done before. Returns whether a job was made."""
    key = retry_key(job_id)
    try:
        # Look first: what was accepted before stays accepted, even if a rule or a limit would refuse it now.
        if submit.repeated(actor, key=key, body=b"") is not None:
            return False
        return accept_retry(context, submit, actor, job_id, wanted=RetryRequest(), key=key).is_new
    except KeyReused:
        return False  # the job that retried it is so old that it was removed
