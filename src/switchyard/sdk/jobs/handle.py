"""The handle of a submitted job. It makes its calls through the client."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from switchyard.model.cluster.verdict import Explanation
from switchyard.model.job.job import Job, State, Task
from switchyard.model.job.lifecycle import FINAL_STATES
from switchyard.model.wire.api import CreatedJob
from switchyard.sdk.files.fetched_files import FetchedFiles
from switchyard.sdk.files.file_calls import FileCalls


class JobHandle:
    """One job. `state`, `cluster` and `reason` are as of the last call; `refresh` and `wait` update them."""

    def __init__(self, client: FileCalls, seen: CreatedJob | Job) -> None:
        self.client = client
        self._seen = seen
        self.id = seen.id

    def __repr__(self) -> str:
        return f"<JobHandle {self.id} {self.state}>"

    @property
    def seen(self) -> CreatedJob | Job:
        """The job as of the last call; at first the answer to the submit."""
        return self._seen

    @property
    def state(self) -> State:
        return State(self._seen.state)

    @property
    def cluster(self) -> str | None:
        return self._seen.cluster

    @property
    def reason(self) -> str:
        return self._seen.reason

    @property
    def exit_code(self) -> int | None:
        """The exit code of a job that ended by itself. None: it still runs, was killed, or never ran."""
        return self._seen.exit_code if isinstance(self._seen, Job) else None

    @property
    def is_final(self) -> bool:
        return self.state in FINAL_STATES

    def refresh(self) -> Job:
        """Read the job again, and return it."""
        self._seen = job = self.client.job(self.id)
        return job

    def update(self, seen: Job) -> None:
        """Update the handle with a job that was fetched elsewhere."""
        self._seen = seen

    def wait(self, timeout_s: float | None = None) -> Job:
        """Wait for the end of the job. Raise TimedOut after `timeout_s`; the job goes on."""
        self._seen = job = self.client.wait(self.id, timeout_s=timeout_s)
        return job

    def output(self, stream: str = "stdout") -> bytes:
        """Return the stored output of the job."""
        return b"".join(chunk.data for chunk in self.client.output(self.id, stream=stream).chunks)

    def logs(
        self,
        stream: str = "stdout",
        *,
        task: int | None = None,
        attempt: int | None = None,
        file: str | bytes | None = None,
    ) -> Iterator[bytes]:
        """Yield the output as it comes, until the job has ended; or a file in the job's folder, as it grows."""
        for part in self.client.logs(self.id, stream=stream, task=task, attempt=attempt, file=file):
            yield from (chunk.data for chunk in part.chunks)

    def text(self, stream: str = "stdout") -> str:
        """Return the output as text, with � for bytes that are not UTF-8."""
        return self.output(stream).decode(errors="replace")

    def fetch(
        self,
        pattern: str | Sequence[str] = (),
        *,
        to: str | os.PathLike[str] = ".",
        tasks: int | str | None = None,
        force: bool = False,
        timeout_s: float | None = None,
    ) -> FetchedFiles:
        """Fetch the output files of the ended job into the folder `to`, as `Client.fetch` does."""
        return self.client.fetch(self.id, pattern, to=to, tasks=tasks, force=force, timeout_s=timeout_s)

    def cancel(self, reason: str = "", *, tasks: str | None = None) -> Job:
        """Request the cancel. The job is CANCELLED once its cluster confirms: `wait` for that. `tasks`: `3,5-7`."""
        self._seen = job = self.client.cancel(self.id, reason=reason, tasks=tasks)
        return job

    def retry(self, *, elsewhere: bool = False, tasks: str | None = None) -> JobHandle:
        """Submit the ended job again, as a new job; of an array `tasks`, or those that did not succeed."""
        return JobHandle(self.client, self.client._retry(self.id, elsewhere=elsewhere, tasks=tasks))

    def hold(self) -> Job:
        """Hold the job: it does not start until `release`. Raise Conflict if it has started."""
        self._seen = job = self.client.change(self.id, hold=True)
        return job

    def release(self) -> Job:
        """Release a held job."""
        self._seen = job = self.client.change(self.id, hold=False)
        return job

    def tasks(self, *, state: State | str | None = None) -> Iterator[Task]:
        """Yield the tasks of an array, by index."""
        return self.client.tasks(self.id, state=state)

    def task(self, index: int) -> Task:
        """Return one task of an array, with its earlier attempts."""
        return self.client.task(self.id, index)

    def explain(self) -> Explanation:
        """Return every cluster's verdict on the job, and hints."""
        return self.client.explain(self.id)
