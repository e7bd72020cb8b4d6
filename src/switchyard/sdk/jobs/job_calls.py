"""Client calls about jobs that exist: read, wait, cancel, change. Submitting is in `client`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from switchyard.errors import BadRequest, TimedOut
from switchyard.model.cluster.verdict import Explanation
from switchyard.model.job.job import Job, State, Task
from switchyard.model.job.lifecycle import FINAL_STATES
from switchyard.model.wire.api import (
    CancelledMany,
    CancelMany,
    CancelRequest,
    CreatedJob,
    Event,
    JobChange,
    JobSelector,
    Page,
    RetryRequest,
)
from switchyard.model.wire.decode import convert
from switchyard.sdk.jobs.follow import StreamCalls
from switchyard.sdk.transport.calls import PAGE_SIZE, api_path

TIMEOUT_S = 30.0  # for one answer; a healthy server is far below it
WAIT_LONG_POLL_S = 30  # the server allows 60, but proxies tend to cut idle requests at 60
WATCH_LONG_POLL_S = 1  # the delay with which a watcher sees a change of state
EVENTS_POLL_S = 1.0  # the delay with which a follower sees an event
STEP_S_MIN = 0.2  # between two polls, in case a server does not hold the request


class JobCalls(StreamCalls):
    """The part of the client that a handle needs."""

    def job(self, job: str) -> Job:
        """Return a job by its id, or by a unique start of its id. Raise NotFound if there is none that you may see."""
        return self._get(api_path("jobs", job), Job)

    def _job_of_wait(self, job: str, end: float | None = None) -> Job:
        """Return a job, with the retries of a wait that ends at `end`."""
        return self._get(api_path("jobs", job), Job, retry_s=self._patience_s(end))

    def jobs(
        self,
        *,
        state: State | str | Sequence[State | str] | None = None,
        cluster: str | None = None,
        project: str | None = None,
        domain: str | None = None,
        workflow: str | None = None,
        launch_plan: str | None = None,
        owner: str | None = None,
        labels: Mapping[str, str] | None = None,
        ids: Sequence[str] = (),
        since_s: int | None = None,
        spec: bool = False,
        limit: int | None = None,
        retry_s: float | None = None,
    ) -> Iterator[Job]:
        """Yield jobs, newest first, fetched page by page. Without `spec` they have no specs.

        `ids`: at most 90 full ids. `since_s`: only jobs created within the last seconds.
        """
        if state is not None and not isinstance(state, str | Sequence):
            raise BadRequest(f"`state` takes a state or a list of states, not {str(state)[:40]!r}.")
        if labels is not None and not isinstance(labels, Mapping):
            raise BadRequest(f"`labels` takes a mapping of names to values, not {str(labels)[:40]!r}.")
        states = [state] if isinstance(state, str) else list(state or ())
        query = {
            "state": list(map(str, states)),
            "cluster": cluster,
            "project": project,
            "domain": domain,
            "workflow": workflow,
            "launch_plan": launch_plan,
            "owner": owner,
            "label": [f"{key}={value}" for key, value in (labels or {}).items()],
            "id": list(ids),
            "since_s": since_s,
            "spec": spec or None,
        }
        return self._walk(api_path("jobs"), Page[Job], query=query, limit=limit, retry_s=retry_s)

    def wait(self, job: str, *, timeout_s: float | None = None) -> Job:
        """Wait until the job has ended, and return it. Raise TimedOut after `timeout_s`; the job goes on.

        Raise Unavailable if the server is away for longer than `outage_s` of the client.
        """
        *_, last = self.looks(job, timeout_s=timeout_s, hold_s=WAIT_LONG_POLL_S)
        return last

    def watch(self, job: str, *, timeout_s: float | None = None) -> Iterator[Job]:
        """Yield the job at each change of its state, or of its tasks' states, until it is final.

        Raise TimedOut after `timeout_s`.
        """
        shown: tuple[object, ...] = ()
        for seen in self.looks(job, timeout_s=timeout_s):
            visible_state = (seen.state, seen.attempt, seen.cluster, seen.reason, seen.cancel_requested, seen.tasks)
            if visible_state != shown:
                shown = visible_state
                yield seen

    def looks(self, job: str, *, timeout_s: float | None = None, hold_s: int = WATCH_LONG_POLL_S) -> Iterator[Job]:
        """Yield the job after each long poll of at most `hold_s` seconds, until it has ended.

        Raise TimedOut after `timeout_s`.
        """
        if timeout_s is not None and not isinstance(timeout_s, int | float):
            raise BadRequest(f"`timeout_s` takes a number of seconds, not {str(timeout_s)[:40]!r}.")
        end = None if timeout_s is None else time.monotonic() + timeout_s
        seen = self._job_of_wait(job, end)  # a wrong id or a server that never answered fails soon
        while True:
            yield seen
            if seen.state in FINAL_STATES:
                return
            left_s = None if end is None else end - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise TimedOut(
                    f"Job {seen.id} is still {seen.state} after {round(timeout_s or 0, 1):g} s.",
                    next_step=f"It goes on. `yard wait {seen.id}` waits again; `yard explain {seen.id}` says why.",
                )
            started = time.monotonic()
            held_s = hold_s if left_s is None else min(hold_s, left_s)
            seen = self._get(
                api_path("jobs", seen.id, "wait"),
                Job,
                query={"timeout_s": held_s},
                timeout_s=held_s + TIMEOUT_S,
                retry_s=self._patience_s(end),
            )
            if seen.state not in FINAL_STATES:
                time.sleep(max(0.0, STEP_S_MIN - (time.monotonic() - started)))

    def cancel(self, job: str, *, reason: str = "", tasks: str | None = None) -> Job:
        """Request the cancel of a job, or of some tasks of an array (`3,5-7`), and return the job.

        Raise NotFound if there is no such job. A second call has no further effect.
        """
        path, body = api_path("jobs", job, "cancel"), {"reason": reason, "tasks": tasks}
        return self._post(path, Job, body=convert(body, CancelRequest, where="The cancel"), repeatable=True)

    def cancel_many(
        self, selector: JobSelector, *, everything: bool = False, reason: str = "", dry_run: bool = False
    ) -> Iterator[CancelledMany]:
        """Cancel all selected jobs in bounded rounds. Yield the result of each round."""
        cursor: str | None = None
        while True:
            body = CancelMany(selector, everything=everything, reason=reason, dry_run=dry_run, cursor=cursor)
            round_ = self._post(api_path("jobs", "cancel"), CancelledMany, body=body, repeatable=True)
            yield round_
            if round_.next is None or round_.next == cursor:
                return
            cursor = round_.next

    def _retry(self, job: str, *, elsewhere: bool, tasks: str | None) -> CreatedJob:
        return self._post(api_path("jobs", job, "retry"), CreatedJob, body=RetryRequest(elsewhere, tasks))

    def change(self, job: str, *, hold: bool | None = None, priority: int | None = None) -> Job:
        """Hold a job (true), release it (false), or give it another priority.

        Raise Conflict if it is too late for that.
        """
        return self._patch(api_path("jobs", job), Job, body=JobChange(priority, hold))

    def tasks(self, job: str, *, state: State | str | None = None, limit: int | None = None) -> Iterator[Task]:
        """Yield the tasks of an array, by index. Raise BadRequest if the job is no array."""
        return self._walk(
            api_path("jobs", job, "tasks"), Page[Task], query={"state": state and str(state)}, limit=limit
        )

    def task(self, job: str, index: int) -> Task:
        """Return one task of an array, with its earlier attempts. Raise BadRequest if the job has no such task."""
        path = api_path("jobs", job, "tasks")
        if not isinstance(index, int):
            raise BadRequest(f"Expected the index of a task, a number, not {str(index)[:40]!r}.")
        items = (
            self._get(path, Page[Task], query={"cursor": index - 1 if index else None, "limit": 1}).items
            if index >= 0
            else []
        )
        if not items or items[0].index != index:
            array = self.job(job).array or ""
            raise BadRequest(f"Job {job} has no task {index}.", next_step=f"Its tasks are {array[:80]}.")
        return items[0]

    def watch_task(self, job: str, index: int, *, timeout_s: float | None = None) -> Iterator[Task]:
        """Yield a task of an array at each change of its state, until it is final. Raise TimedOut after `timeout_s`."""
        shown: tuple[object, ...] = ()
        try:
            for _ in self.watch(job, timeout_s=timeout_s):
                task = self.task(job, index)
                if (task.state, task.fence, task.cancel_requested) != shown:
                    shown = (task.state, task.fence, task.cancel_requested)
                    yield task
                if task.state in FINAL_STATES:
                    return
        except TimedOut as exc:
            raise TimedOut(
                f"Task {index} of {job} has not ended after {round(timeout_s or 0, 1):g} s.",
                next_step=f"It goes on. `yard wait '{job}[{index}]'` waits again.",
            ) from exc

    def events(
        self,
        job: str | None = None,
        *,
        after: int = 0,
        since_s: int | None = None,
        limit: int | None = None,
        follow: bool = False,
    ) -> Iterator[Event]:
        """Yield the events after number `after`, oldest first, of one job or of all jobs.

        `follow`: continue with new events, across outages of the server; for one job until it has ended. `since_s`:
        for all jobs, only events of the last seconds.
        """
        path = api_path("events") if job is None else api_path("jobs", job, "events")
        left = limit
        while left is None or left > 0:
            # Read the state before the events, so that the last events are not missed.
            is_over = follow and job is not None and self._job_of_wait(job).state in FINAL_STATES
            size = PAGE_SIZE if left is None else min(left, PAGE_SIZE)
            query = {"cursor": after or None, "limit": size, "since_s": None if after or job else since_s}
            page = self._get(path, Page[Event], query=query, retry_s=self._patience_s() if follow else None)
            fresh = [event for event in page.items if event.seq > after]
            yield from fresh
            left = None if left is None else left - len(fresh)
            after = fresh[-1].seq if fresh else after  # the number is a cursor that stays valid across servers
            if page.next is None or not fresh:
                if not follow or is_over:
                    return
                time.sleep(EVENTS_POLL_S)

    def explain(self, job: str) -> Explanation:
        """Return every cluster's verdict on a job, and hints."""
        return self._get(api_path("jobs", job, "explain"), Explanation)
