"""`concurrent.futures` for jobs: a submitted command is a job, and its future is the end of that job."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from concurrent import futures
from typing import Unpack

from switchyard.errors import YardError
from switchyard.model.job.job import Job, State
from switchyard.sdk.client import Base, CoreClient, JobFields
from switchyard.sdk.jobs.handle import JobHandle
from switchyard.sdk.jobs.job_completion import fetch_jobs

POLL_S_FIRST = 0.1  # between two polls: soon after a submit or an end,
POLL_S_MAX = 1.0  # then growing up to this


class JobFuture(futures.Future[Job]):
    """The end of a job. `handle` is the job's handle. The future of a CANCELLED job is cancelled."""

    def __init__(self, handle: JobHandle) -> None:
        super().__init__()
        self.handle = handle
        self._settling = threading.Lock()  # `cancel` and the polling thread may both settle the future

    def cancel(self) -> bool:
        """Cancel the job. True: it is cancelled. False: it has ended by itself, or its cluster has yet to confirm."""
        if not self.done():
            self.settle(self.handle.cancel())
        return self.cancelled()

    def settle(self, job: Job) -> bool:
        """Update the future from the job. Return whether the job has ended."""
        with self._settling:
            self.handle.update(job)
            if self.done():
                return True
            if job.state is State.RUNNING:
                self._begin()
            if not self.handle.is_final:
                return False
            if job.state is not State.CANCELLED:
                self._begin()
                self.set_result(job)
            elif self.running():
                self.set_exception(futures.CancelledError(f"Job {job.id} was cancelled. {job.reason}".strip()))
            else:
                super().cancel()
                self.set_running_or_notify_cancel()
            return True

    def fail(self, error: Exception) -> None:
        with self._settling:
            if not self.done():
                self._begin()
                self.set_exception(error)

    def _begin(self) -> None:
        if not self.running():
            self.set_running_or_notify_cancel()


class Executor(futures.Executor):
    """Runs commands as jobs. The result of a future is the ended job, also if it failed: check its `exit_code`.

    >>> with switchyard.Executor(cores=2) as executor:
    ...     ends = list(executor.map([["./step", str(n)] for n in range(100)]))
    """

    def __init__(self, client: CoreClient | None = None, **fields: Unpack[JobFields]) -> None:
        """`fields` apply to every job; those of a submit win."""
        self._client = client or CoreClient()
        self._is_own = client is None
        self._fields = fields
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._waiting: dict[str, JobFuture] = {}
        self._is_shut = False
        self._thread: threading.Thread | None = None

    def submit(self, command: Base, /, **fields: Unpack[JobFields]) -> JobFuture:  # type: ignore[override]
        """Submit a command, a spec or a request, as `Client.submit` does."""
        self._refuse_if_shut()
        together: JobFields = {**self._fields, **fields}
        return self._follow(self._client.submit(command, **together))

    def map(  # type: ignore[override]
        self, commands: Iterable[Base], /, *, timeout: float | None = None, **fields: Unpack[JobFields]
    ) -> Iterator[Job]:
        """Submit many commands in few requests. Return their ended jobs in order."""
        import time

        self._refuse_if_shut()
        end = None if timeout is None else time.monotonic() + timeout
        together: JobFields = {**self._fields, **fields}
        handles = self._client.submit_many(commands, **together)
        ends = [self._follow(handle) for handle in handles if isinstance(handle, JobHandle)]

        def results() -> Iterator[Job]:
            for future in ends:
                yield future.result(None if end is None else end - time.monotonic())

        return results()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuse further commands. `cancel_futures`: cancel every job that has not ended."""
        with self._lock:
            self._is_shut = True
            left = list(self._waiting.values())
            self._wake.notify()
        if cancel_futures:
            for future in left:
                future.cancel()
        if wait and self._thread is not None:
            self._thread.join()
            if self._is_own:
                self._client.close()

    def _refuse_if_shut(self) -> None:
        if self._is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")  # as the standard library words it

    def _follow(self, handle: JobHandle) -> JobFuture:
        future = JobFuture(handle)
        with self._lock:
            self._waiting[handle.id] = future
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="switchyard-executor", daemon=True)
                self._thread.start()
            self._wake.notify()
        return future

    def _run(self) -> None:
        """Poll the jobs until all have ended and the executor is shut down."""
        pause_s = POLL_S_FIRST
        while True:
            with self._lock:
                if not self._waiting and not self._is_shut:
                    self._wake.wait()
                    pause_s = POLL_S_FIRST
                if not self._waiting and self._is_shut:
                    return
                watched = dict(self._waiting)
            try:
                final = [job.id for job in fetch_jobs(self._client, list(watched)) if watched[job.id].settle(job)]
            except YardError as exc:  # the server stays away, or the token has ended
                for future in watched.values():
                    future.fail(exc)
                final = list(watched)
            with self._lock:
                for job_id in final:
                    self._waiting.pop(job_id, None)
                pause_s = POLL_S_FIRST if final else min(2 * pause_s, POLL_S_MAX)
                if self._waiting:
                    self._wake.wait(pause_s)
