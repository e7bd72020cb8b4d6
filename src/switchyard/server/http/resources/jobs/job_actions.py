"""Actions on many jobs: first the jobs that an action would touch, then the action on exactly these jobs."""

from __future__ import annotations

from switchyard.model.job.bulk_actions import SELECTION_JOBS_MAX, ActedOnJobs, ActOnJobs, BulkAction, JobSelection
from switchyard.server.http.call import Call
from switchyard.server.http.endpoint import Endpoint
from switchyard.server.http.query_parameters import ID_CURSOR, VIEW_FILTERS, QueryParameter
from switchyard.server.http.resources.jobs.jobs import read_job_filter
from switchyard.service.job import bulk_actions
from switchyard.service.submit.retry import retry_many

QUERY = (
    QueryParameter("action", about="what is to be done", is_required=True, words=tuple(BulkAction)),
    *VIEW_FILTERS,
    QueryParameter("limit", "integer", "jobs in one answer", least=1, most=SELECTION_JOBS_MAX),
    ID_CURSOR,
)


def selection(call: Call) -> JobSelection:
    return bulk_actions.select_jobs(
        call.context,
        call.actor,
        read_job_filter(call),
        BulkAction(call.text("action") or ""),
        before=call.text("cursor"),
        limit=call.number("limit", SELECTION_JOBS_MAX),
    )


def act_on_jobs(call: Call) -> ActedOnJobs:
    wanted: ActOnJobs = call.body
    if wanted.action is BulkAction.RETRY:
        return retry_many(call.context, call.services.submit, call.actor, wanted.jobs)
    return bulk_actions.change_many(call.context, call.actor, wanted)


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        "GET",
        "/v1/job-actions",
        "The jobs that an action would touch, round by round",
        JobSelection,
        selection,
        query=QUERY,
        is_heavy=True,
    ),
    Endpoint(
        "POST",
        "/v1/job-actions",
        "Cancel, hold, release or retry named jobs, or change their priority",
        ActedOnJobs,
        act_on_jobs,
        ActOnJobs,
    ),
)
