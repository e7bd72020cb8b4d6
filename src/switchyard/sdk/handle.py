"""A submitted job in the caller's hand. It knows the client, not the wire."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from switchyard.model.api import CreatedJob
from switchyard.model.job import Job, State, Task
from switchyard.model.lifecycle import FINAL_STATES
from switchyard.model.verdict import Explanation

if TYPE_CHECKING:
    from switchyard.sdk.client import Client


class JobHandle:
    """One job: `state`, `cluster` and `reason` are as last seen; `refresh` and `wait` look again."""

    def __init__(self, client: Client, seen: CreatedJob | Job) -> None:
        self.client = self._client = client
        self._seen = seen
        self.id = seen.id

    def __repr__(self) -> str:
        return f"<JobHandle {self.id} {self.state}>"

    @property
    def seen(self) -> CreatedJob | Job:
        """The job as it was last seen; what a submit answered, at first."""
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
        """The job's exit code once it ended by itself; none for a job that runs, was killed or never ran."""
        return self._seen.exit_code if isinstance(self._seen, Job) else None

    @property
    def is_final(self) -> bool:
        return self.state in FINAL_STATES

    def refresh(self) -> Job:
        self._seen = job = self._client.job(self.id)
        return job

    def update(self, seen: Job) -> None:
        """Take over what was seen of this job elsewhere."""
        self._seen = seen

    def wait(self, timeout_s: float | None = None) -> Job:
        """Wait for the end; TimedOut if it does not come in time. The job goes on either way."""
        self._seen = job = self._client.wait(self.id, timeout_s=timeout_s)
        return job

    def output(self, stream: str = "stdout") -> bytes:
        """What the job wrote, as far as it was kept."""
        return b"".join(chunk.data for chunk in self._client.output(self.id, stream=stream).chunks)

    def logs(self, stream: str = "stdout", *, task: int | None = None, attempt: int | None = None) -> Iterator[bytes]:
        """What the job writes, as it comes, until it has ended."""
        for part in self._client.logs(self.id, stream=stream, task=task, attempt=attempt):
            yield from (chunk.data for chunk in part.chunks)

    def text(self, stream: str = "stdout") -> str:
        """The output as text; bytes that are no UTF-8 show as �."""
        return self.output(stream).decode(errors="replace")

    def cancel(self, reason: str = "", *, tasks: str | None = None) -> Job:
        """Ask for the end. It is CANCELLED only when the cluster says so: `wait` for that. `tasks`: `3,5-7`."""
        self._seen = job = self._client.cancel(self.id, reason=reason, tasks=tasks)
        return job

    def retry(self, *, elsewhere: bool = False, tasks: str | None = None) -> JobHandle:
        """The job once more, as a new one. Only a job that is over; of an array what did not succeed, or `tasks`."""
        return self._client.retry(self.id, elsewhere=elsewhere, tasks=tasks)

    def hold(self) -> Job:
        self._seen = job = self._client.change(self.id, hold=True)
        return job

    def release(self) -> Job:
        self._seen = job = self._client.change(self.id, hold=False)
        return job

    def tasks(self, *, state: State | str | None = None) -> Iterator[Task]:
        """The tasks of an array, by index."""
        return self._client.tasks(self.id, state=state)

    def explain(self) -> Explanation:
        return self._client.explain(self.id)
