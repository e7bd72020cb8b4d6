"""Client calls about the files of jobs: upload them, wait for the output files, fetch them."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec.structs import replace

from switchyard.errors import BadRequest, Conflict, NotFound, TimedOut, YardError
from switchyard.model.cluster.idset import IdSet, parse_array
from switchyard.model.files.files import FilesOfJob, FilesUsage, OutputSet, OutputState
from switchyard.model.job.job import Job, Task
from switchyard.model.job.lifecycle import FINAL_STATES
from switchyard.model.wire.api import Output
from switchyard.sdk.files.absent_outputs import KnownOutputs, with_absent
from switchyard.sdk.files.fetched_files import FetchedFiles
from switchyard.sdk.files.file_names import FileSources, list_sources
from switchyard.sdk.jobs.follow import OutputQuery
from switchyard.sdk.jobs.job_calls import JobCalls
from switchyard.sdk.transport.calls import PAGE_SIZE, api_path

OUTPUTS_POLL_S_FIRST = 0.1
OUTPUTS_POLL_S_MAX = 1.0
OUTPUTS_REREAD_S = 5.0  # while nothing changes: an agent may have fallen silent, or say why the files are late
SILENT_AGENT_S = 600.0  # files of an agent that stays silent for so long are not waited for
OUTPUTS_SILENCE_S = 60.0  # after the end of a job: without a word of its agent, no files are waited for
TASKS_READ_SINGLY_MAX = 10  # of a large array; more of them are read with all others, in pages
OnFiles = Callable[[str, int, int], None]  # what is done (hash, upload, fetch), bytes done, bytes in all
Warn = Callable[[str], None]


class FileCalls(JobCalls):
    """The part of the client that moves files."""

    def upload(
        self,
        files: FileSources = (),
        *,
        workdir: str | os.PathLike[str] | None = None,
        on_progress: OnFiles | None = None,
        warn: Warn | None = None,
    ) -> str:
        """Upload files and folders, and return the SHA-256 of their tree, for `JobFiles(tree=…)`.

        Raise BadRequest, with names, for files that cannot travel, Conflict if a file changes while it is read, and
        LimitReached if they are more than you may have. `files`: names in the job's folder with paths here, or with
        bytes; or a list of paths. `workdir`: this folder becomes the job's folder, without what its `.yardignore`
        names. The server gets only what it lacks.
        """
        from switchyard.sdk.uploads.job_uploads import upload_sources

        groups = [list_sources(files, workdir=workdir)]
        (tree,) = upload_sources(self._transport, groups, on_progress=on_progress, warn=warn)
        return tree

    def files_of(self, job: str, *, task: int | None = None, limit: int | None = None) -> FilesOfJob:
        """Return the trees of a job, and the output files of its attempts, at most `limit`; or of one `task`."""
        return self._files_of(job, task=task, limit=limit)

    def _files_of(
        self, job: str, *, task: int | None = None, limit: int | None = None, retry_s: float | None = None
    ) -> FilesOfJob:
        path = api_path("jobs", job, "files")
        whole = self._get(path, FilesOfJob, query={"task": task, "limit": PAGE_SIZE}, retry_s=retry_s)
        outputs, cursor = list(whole.outputs), whole.next
        while cursor is not None and (limit is None or len(outputs) < limit):
            query = {"task": task, "limit": PAGE_SIZE, "cursor": cursor}
            page = self._get(path, FilesOfJob, query=query, retry_s=retry_s)
            outputs += page.outputs
            cursor = None if page.next == cursor else page.next
        return replace(whole, outputs=outputs[:limit], next=None)

    def logs(
        self,
        job: str,
        *,
        stream: str = "stdout",
        task: int | None = None,
        attempt: int | None = None,
        offset: int = 0,
        follow: bool = True,
        file: str | bytes | None = None,
    ) -> Iterator[Output]:
        """Yield a job's output as it comes, until the job has ended. `follow=False`: only what exists now.

        Without `attempt`, the output of a retry follows that of the attempt before it, from offset 0 again. If a part
        does not begin where the last one ended, the server's limit left out the bytes between them.

        `file`: not what the job prints, but this file in its folder, until the attempt has ended; after its end from
        the output files. A file that was cut or replaced meanwhile begins at offset 0 again, and the part's `notice`
        says so.
        """
        if file is None:
            asked = OutputQuery(stream=stream, task=task, attempt=attempt, offset=offset, follow=follow)
            return self._output_parts(job, asked)
        from switchyard.sdk.files.follow_files import FileFollower

        follower = FileFollower(
            self._transport,
            job,
            file,
            task=task,
            attempt=attempt,
            offset=offset,
            follow=follow,
            files_of=lambda ref: self.files_of(ref, task=task),
            job_of=self.job,
        )
        return iter(follower.parts())

    def file_usage(self, *, project: str | None = None) -> FilesUsage:
        """Return the bytes that your files take, and the most they may take; and those of a project."""
        return self._get(api_path("files", "usage"), FilesUsage, query={"project": project})

    def wait_for_outputs(
        self,
        job: str,
        *,
        task: int | None = None,
        timeout_s: float | None = None,
        on_wait: OnWait | None = None,
    ) -> list[OutputSet]:
        """Wait until the output files of an ended job are there or cannot be had; return the last ones of each task.

        Raise TimedOut after `timeout_s`; without it, after 10 minutes in which the agent that has the files is silent.
        Files that no agent speaks of within a minute are not waited for. `on_wait`: called with the reason, again when
        it changes.
        """
        wanted = None if task is None else _parse_tasks(task)
        return self._wait_for_outputs(job, wanted, timeout_s=timeout_s, on_wait=on_wait).outputs

    def _wait_for_outputs(
        self, job: str, wanted: IdSet | None, *, timeout_s: float | None, on_wait: OnWait | None
    ) -> KnownOutputs:
        """`wanted`: of an array, only these tasks."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        pause_s, changed_at = OUTPUTS_POLL_S_FIRST, time.monotonic()
        only = next(iter(wanted)) if wanted is not None and len(wanted) == 1 else None
        outputs: list[OutputSet] = []
        files, counts, read_again_at = FilesOfJob(), None, 0.0
        tasks: list[Task] | None = None
        wait = OutputWait(on_wait)
        while True:
            current = self._job_of_wait(job, end)
            if counts is None or current.outputs != counts or time.monotonic() > read_again_at:
                began = time.monotonic()
                files = self._files_of(job, task=only, retry_s=self._patience_s(end))
                counts = current.outputs
                # An array has many pages: reading them takes a small part of the time.
                read_again_at = time.monotonic() + max(OUTPUTS_REREAD_S, 20 * (time.monotonic() - began))
            if wanted is not None and current.array is None:
                raise BadRequest(f"Job {current.id} is not an array.", next_step="Leave out the tasks.")
            latest = [output for output in latest_outputs(files.outputs) if _is_wanted(output.task, wanted)]
            if latest != outputs:
                outputs, changed_at, pause_s = latest, time.monotonic(), OUTPUTS_POLL_S_FIRST
            is_over = current.state in FINAL_STATES
            if files.out and current.tasks is not None and tasks is None:
                tasks = self._tasks_of_wait(
                    current, wanted
                )  # once: an ended array does not change, others end the wait
            known = KnownOutputs(current, outputs, tasks or [])
            if not is_over or not files.out or not (known.moving or known.is_any_awaited):
                return known
            now = time.monotonic()
            if not known.moving and now - changed_at > OUTPUTS_SILENCE_S:
                return known
            wait.report(outputs, unknown_tasks=len(known.awaited))
            if end is not None and now >= end:
                raise wait.timed_out(current.id, f" after {timeout_s:g} s", tasks=known.show_late_tasks())
            if end is None and wait.silent_s > SILENT_AGENT_S:
                raise wait.timed_out(current.id, tasks=known.show_late_tasks())
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, OUTPUTS_POLL_S_MAX)

    def _tasks_of_wait(self, job: Job, wanted: IdSet | None) -> list[Task]:
        if wanted is not None and len(wanted) <= TASKS_READ_SINGLY_MAX:
            known, _ = parse_array(job.array or "")
            return [self.task(job.id, index) for index in wanted if index in known]
        return [task for task in self.tasks(job.id) if _is_wanted(task.index, wanted)]

    def fetch(
        self,
        job: str,
        pattern: str | Sequence[str] = (),
        *,
        to: str | os.PathLike[str] = ".",
        tasks: int | str | None = None,
        force: bool = False,
        replace_before: float | None = None,
        timeout_s: float | None = None,
        on_progress: OnFiles | None = None,
        on_wait: OnWait | None = None,
    ) -> FetchedFiles:
        """Fetch the output files of a job into the folder `to`, those of tasks of an array into `to/INDEX`.

        Raise NotFound if there are none, Conflict if the job has not ended or a file is in the way, and TimedOut if
        they are not there after `timeout_s`. Of an array that runs, the files of ended tasks come, and `failed` of the
        result names the others. `pattern`: only these files. `tasks`: `3` or `3,5-7`; one task goes into
        `to` itself. Files that are there and equal are not fetched again. If one is there and differs, nothing is
        written, unless `force`, or unless all that differ were last changed before `replace_before` (seconds since
        1970). `on_wait`: called with the reason while files are on their way.
        """
        from switchyard.sdk.files.fetch import fetch_outputs
        from switchyard.sdk.uploads.patterns import FilePatterns

        wanted_files = [pattern] if isinstance(pattern, str) else pattern
        if not isinstance(wanted_files, Sequence) or not all(isinstance(text, str) for text in wanted_files):
            raise BadRequest(f"`pattern` takes a pattern or a list of patterns, not {str(pattern)[:40]!r}.")
        patterns = FilePatterns(wanted_files)
        wanted = _parse_tasks(tasks)
        known_outputs = self._wait_for_outputs(job, wanted, timeout_s=timeout_s, on_wait=on_wait)
        is_one_task = wanted is not None and len(wanted) == 1
        if not known_outputs.outputs:
            raise self._no_outputs(job, tasks)
        return fetch_outputs(
            self._transport,
            job,
            with_absent(known_outputs.outputs, known_outputs.tasks),
            patterns,
            to=to,
            is_one_task=is_one_task,
            replace_before=math.inf if force else replace_before,
            on_progress=on_progress,
        )

    def _no_outputs(self, job: str, tasks: int | str | None) -> YardError:
        """Say why there is nothing to fetch."""
        current, files = self.job(job), self.files_of(job)
        if not files.out:
            step = "Name them when you submit: --out 'results/*'."
            return BadRequest(f"Job {current.id} was submitted without output files.", next_step=step)
        if current.state not in FINAL_STATES:
            return Conflict(
                f"Job {current.id} is {current.state.value}; its files come at its end.",
                next_step=f"`yard wait {current.id}`, then fetch.",
            )
        which = "" if tasks is None else f" of tasks {tasks}"
        return NotFound(
            f"There are no output files{which} of job {current.id}: it never began, or its cluster has not sent them.",
            next_step=f"`yard show {current.id}` says what became of it.",
        )


def latest_outputs(outputs: Iterable[OutputSet]) -> list[OutputSet]:
    """Return the outputs of the last attempt of each task, by index."""
    latest: dict[int, OutputSet] = {}
    for output in outputs:
        task = -1 if output.task is None else output.task
        if task not in latest or latest[task].fence < output.fence:
            latest[task] = output
    return [latest[task] for task in sorted(latest)]


def _is_wanted(task: int | None, wanted: IdSet | None) -> bool:
    return wanted is None or (task is not None and task in wanted)


def _parse_tasks(tasks: int | str | None) -> IdSet | None:
    if tasks is None:
        return None
    try:
        return IdSet.parse(str(tasks))
    except ValueError as exc:
        raise BadRequest(f"{exc}.", next_step="Tasks are written as 3,5-7.") from exc


OnWait = Callable[[str], None]
REPORT_AFTER_S = 1.0  # most files are there before


class OutputWait:
    """One wait. `report` is called with what is known, `silent_s` says how long an agent was silent meanwhile."""

    def __init__(self, on_wait: OnWait | None) -> None:
        self._on_wait = on_wait
        self._began_at = time.monotonic()
        self._silent_at: float | None = None
        self._is_moving = False
        self._reason = ""
        self._reported_reason = ""

    @property
    def silent_s(self) -> float:
        return 0.0 if self._silent_at is None else time.monotonic() - self._silent_at

    def report(self, seen: Sequence[OutputSet], *, unknown_tasks: int = 0) -> None:
        """`unknown_tasks`: of how many tasks of an array no agent has spoken."""
        self._reason = describe_wait(seen, unknown_tasks)
        now = time.monotonic()
        moving = [outputs for outputs in seen if outputs.state is OutputState.UPLOADING]
        self._is_moving = bool(moving)
        if not moving or any(outputs.silent_since_us is None for outputs in moving):
            self._silent_at = None
        elif self._silent_at is None:
            self._silent_at = now
        if (
            self._on_wait is not None
            and self._reason != self._reported_reason
            and now - self._began_at > REPORT_AFTER_S
        ):
            self._reported_reason = self._reason
            self._on_wait(self._reason)

    def timed_out(self, job: str, when: str = "", *, tasks: str = "") -> TimedOut:
        """`tasks`: of an array, those whose files are not there."""
        of_tasks = f"{tasks} of " if tasks else ""
        text = f"The output files of {of_tasks}job {job} are not there{when}: {self._reason}."
        if self._is_moving:
            return TimedOut(text, next_step=f"`yard fetch {job}` gets them once they are there.")
        step = "If they never come, the log of the cluster's agent says why."
        return TimedOut(text, next_step=f"`yard fetch {job}` looks again. {step}")


def describe_wait(seen: Sequence[OutputSet], unknown_tasks: int = 0) -> str:
    """Why the first files that are on their way are late."""
    moving = [outputs for outputs in seen if outputs.state is OutputState.UPLOADING]
    if not moving and unknown_tasks:
        noun = "task" if unknown_tasks == 1 else "tasks"
        return f"no cluster has spoken yet of the output files of {unknown_tasks} {noun}"
    if not moving:
        return "the cluster has not spoken of its output files yet"
    late = next((outputs for outputs in moving if outputs.silent_since_us is not None), None)
    late = late or next((outputs for outputs in moving if outputs.error), moving[0])
    cluster = f" from cluster {late.cluster}" if late.cluster else ""
    way = f"output files are on their way{cluster}"
    if len(moving) > 1:
        way = f"output files of {len(moving)} tasks are on their way{cluster}"
    if late.silent_since_us is not None:
        return f"{way}; its agent has been silent{_since(late.silent_since_us)}"
    return f"{way}; delayed: {late.error}" if late.error else way


def _since(at_us: int) -> str:
    if not at_us:
        return " since the server started"
    return time.strftime(" since %Y-%m-%d %H:%M:%S UTC", time.gmtime(at_us // 1_000_000))
