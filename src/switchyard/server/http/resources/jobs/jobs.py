"""Jobs: list, show, change, cancel, retry; their tasks, events, output and verdicts; actions on many."""

from __future__ import annotations

from switchyard.errors import BadValue
from switchyard.model.cluster.idset import INDEX_MAX, IdSet
from switchyard.model.cluster.verdict import Explanation
from switchyard.model.job.bulk_actions import SELECTION_JOBS_MAX, ActedOnJobs, ActOnJobs, BulkAction, JobSelection
from switchyard.model.job.job import Job, State, Task
from switchyard.model.job.lifecycle import FINAL_STATES
from switchyard.model.job.log import STREAMS
from switchyard.model.wire.api import (
    CancelledMany,
    CancelMany,
    CancelRequest,
    CreatedJob,
    Event,
    JobChange,
    Output,
    Page,
    RetryRequest,
)
from switchyard.server.http.call import Call
from switchyard.server.http.endpoint import BodyForm, Endpoint
from switchyard.server.http.job_wait import JobWait
from switchyard.server.http.query_parameters import (
    ID_CURSOR,
    INDEX_CURSOR,
    JOB_FILTERS,
    LIMIT,
    SECONDS_MAX,
    SEQ_CURSOR,
    STATE_FILTER,
    VIEW_FILTERS,
    QueryParameter,
)
from switchyard.service.job import bulk_actions, explanation, job_control, jobs, tasks
from switchyard.service.run import logs
from switchyard.service.submit.retry import retry_job, retry_many
from switchyard.store.jobs.jobs import JobFilter


def job_list(call: Call) -> Page[Job]:
    return jobs.job_list(
        call.context,
        call.actor,
        read_job_filter(call),
        before=call.text("cursor"),
        limit=call.limit,
        with_spec=call.flag("spec"),
    )


def read_job_filter(call: Call) -> JobFilter:
    """The filter in the parameters JOB_FILTERS and, where an address has them, `queue` and `text`."""
    return JobFilter(
        states=[_state(text) for text in call.texts("state")],
        cluster=call.text("cluster"),
        is_by_task=True,
        project=call.text("project"),
        domain=call.text("domain"),
        owner=call.text("owner"),
        workflow=call.text("workflow"),
        launch_plan=call.text("launch_plan"),
        queue=call.text("queue"),
        text=call.text("text"),
        labels=_labels(call.texts("label")),
        ids=call.texts("id"),
        oldest=bulk_actions.lowest_id_since(call.context, call.number_or_none("since_s")),
    )


def job_get(call: Call) -> Job:
    return jobs.job_get(call.context, call.actor, call.path["job"])


def job_cancel(call: Call) -> Job:
    if call.body.tasks is not None:
        return job_control.tasks_cancel(call.context, call.actor, call.path["job"], IdSet.parse(call.body.tasks))
    return jobs.job_cancel(call.context, call.actor, call.path["job"], call.body.reason)


def jobs_cancel(call: Call) -> CancelledMany:
    return bulk_actions.cancel_many(call.context, call.actor, call.body)


def job_change(call: Call) -> Job:
    return job_control.job_change(call.context, call.actor, call.path["job"], call.body)


def job_retry(call: Call) -> CreatedJob:
    wanted, key = call.body, call.idempotency_key
    return retry_job(call.context, call.services.submit, call.actor, call.path["job"], wanted, key=key)


def task_list(call: Call) -> Page[Task]:
    after = call.number("cursor", -1)
    states = frozenset(State(_state(text)) for text in call.texts("state"))
    page, cursor = tasks.task_list(
        call.context, call.actor, call.path["job"], states=states, after=after, limit=call.limit
    )
    return Page(page, None if cursor is None else str(cursor))


def job_events(call: Call) -> Page[Event]:
    after = call.number("cursor", 0)
    return jobs.job_events(call.context, call.actor, call.path["job"], after=after, limit=call.limit)


def job_output(call: Call) -> Output:
    return logs.job_output(
        call.context,
        call.actor,
        call.path["job"],
        call.text("stream") or "stdout",
        index=call.number_or_none("task"),
        attempt=call.number_or_none("attempt"),
        offset=call.number("offset", 0),
    )


def job_explain(call: Call) -> Explanation:
    return explanation.job_explain(call.context, call.actor, call.path["job"])


def _state(text: str) -> str:
    return State(text.upper()).value


def _labels(texts: list[str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for text in texts:
        key, _, value = text.partition("=")
        if labels.setdefault(key, value) != value:
            raise BadValue(f"The label {key[:80]!r} is asked for with two values; no job has both.")
    return labels


def _is_final(job: Job) -> bool:
    return job.state in FINAL_STATES


def _has_news(output: Output) -> bool:
    return bool(output.chunks) or output.is_over


ACTION_QUERY = (
    QueryParameter("action", about="what is to be done", is_required=True, words=tuple(BulkAction)),
    *VIEW_FILTERS,
    QueryParameter("limit", "integer", "jobs in one answer", least=1, most=SELECTION_JOBS_MAX),
    ID_CURSOR,
)


def select_action_jobs(call: Call) -> JobSelection:
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
    Endpoint("GET", "/v1/jobs", "Jobs, newest first", Page[Job], job_list, query=JOB_FILTERS),
    Endpoint("GET", "/v1/jobs/{job}", "One job, by id or unambiguous prefix", Job, job_get),
    Endpoint("PATCH", "/v1/jobs/{job}", "Hold or release a job, or change its priority", Job, job_change, JobChange),
    Endpoint(
        "POST",
        "/v1/jobs/{job}/retry",
        "Submit an ended job again, as a new job",
        CreatedJob,
        job_retry,
        RetryRequest,
        201,
        body_form=BodyForm.OPTIONAL_JSON,
        has_idempotency_key=True,
        is_ruled=True,
    ),
    Endpoint(
        "GET",
        "/v1/jobs/{job}/tasks",
        "The tasks of an array",
        Page[Task],
        task_list,
        query=(STATE_FILTER, LIMIT, INDEX_CURSOR),
    ),
    Endpoint(
        "GET",
        "/v1/jobs/{job}/wait",
        "The job, once it is final or the time is over",
        Job,
        job_get,
        query=(QueryParameter("timeout_s", "number", "at most 60 are waited", most=SECONDS_MAX),),
        wait=JobWait("timeout_s", 30, is_complete=_is_final, job_id=lambda job: job.id, is_announced=True),
    ),
    Endpoint(
        "POST",
        "/v1/jobs/{job}/cancel",
        "Cancel a job",
        Job,
        job_cancel,
        CancelRequest,
        body_form=BodyForm.OPTIONAL_JSON,
    ),
    Endpoint(
        "POST",
        "/v1/jobs/cancel",
        "Cancel all jobs that match a selector, round by round",
        CancelledMany,
        jobs_cancel,
        CancelMany,
    ),
    Endpoint("GET", "/v1/jobs/{job}/events", "The events of a job", Page[Event], job_events, query=(LIMIT, SEQ_CURSOR)),
    Endpoint(
        "GET",
        "/v1/jobs/{job}/output",
        "The output of a job",
        Output,
        job_output,
        query=(
            QueryParameter("stream", about="stdout or stderr", words=STREAMS),
            QueryParameter("task", "integer", "of an array: the task's index", most=INDEX_MAX),
            QueryParameter("attempt", "integer", "1 is the first; none: the last", least=1, most=10**6),
            QueryParameter("offset", "integer", "from this byte on; one answer has at most 1 MiB", most=2**62),
            QueryParameter(
                "wait_s", "number", "wait up to 60 s for more, or for the end of the attempt", most=SECONDS_MAX
            ),
        ),
        wait=JobWait("wait_s", 0, is_complete=_has_news, job_id=lambda output: output.job, is_announced=False),
    ),
    Endpoint("GET", "/v1/jobs/{job}/explain", "Why a job is where it is", Explanation, job_explain),
    Endpoint(
        "GET",
        "/v1/job-actions",
        "The jobs that an action would touch, round by round",
        JobSelection,
        select_action_jobs,
        query=ACTION_QUERY,
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
