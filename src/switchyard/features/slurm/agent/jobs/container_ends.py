"""Holds back the end of a Slurm job until its container is gone, and removes a container that was left.

podman and docker run a container outside of the Slurm job. If Slurm kills the job's script, or the node loses its
slurmd, the container runs on and nobody on the node removes it. So an end counts only with the note `removed` of the
script (script_images.py). Without it, a small job goes to the same node, removes the container and writes the note.
Removing twice does no harm: the container's name is that of the attempt, and is never used again.

| the attempt | its end |
|---|---|
| has the note `removed` | is told, with what the runtime said of the container |
| left no sign of a start, and Slurm shows none | is told: there was no container |
| ended by a failure of its node, and nobody cancelled it | is told once the small job is queued |
| has no note for longer than the site's bound | is told, and says where the container may still be |
| else | waits |
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace

from switchyard.agent.backends import TERMINAL_STATES, Status
from switchyard.agent.backends.shared.container_end import KILL, OUT_OF_MEMORY_REASON, ran_out_of_memory, start_failure
from switchyard.agent.backends.shared.script_images import REMOVED_NOTE
from switchyard.agent.backends.shared.shared_files import ScriptFiles, ScriptNote
from switchyard.agent.backends.shared.submissions import SubmissionRegister
from switchyard.agent.log import line
from switchyard.errors import YardError
from switchyard.features.slurm.agent.commands.parse import split_handle
from switchyard.features.slurm.agent.commands.script_notes import task_file
from switchyard.features.slurm.agent.jobs.evidence import NODE_FAIL, ScriptStart
from switchyard.features.slurm.agent.jobs.removal_jobs import RemovalJobs
from switchyard.features.slurm.agent.jobs.submitted_scripts import SubmittedScript
from switchyard.features.slurm.agent.slurm_site import SlurmSite
from switchyard.model.failures.failure_kind import FailureKind
from switchyard.model.job.lifecycle import ObservedState

REMOVAL_PAUSE_S = 60.0  # until the next small job, if the last one ended and the container is still there
LAST_WORDS_BYTES = 4096

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _WaitingEnd:
    """An end that waits for the removal of its container."""

    since: float
    node: str = ""  # where the container is; empty: not known
    tried_at: float | None = None  # the last small job


@dataclass(frozen=True, slots=True)
class _ReportedEnd:
    """An end that may be told. `container`: what the runtime said of it; None: nothing is known."""

    container: str | None = None
    last_words: str = ""
    left_on: str = ""  # the node on which the container may still be


@dataclass(slots=True)
class ContainerEnds:
    """`refresh` belongs to one thread, `status` and `forget` to any."""

    files: ScriptFiles
    register: SubmissionRegister[SubmittedScript]
    site: SlurmSite
    removals: RemovalJobs
    _waiting_ends: dict[str, _WaitingEnd] = field(default_factory=dict)
    _reported_ends: dict[str, _ReportedEnd] = field(default_factory=dict)

    def is_contained(self, handle: str) -> bool:
        submitted = self.register.get(split_handle(handle)[1])
        return submitted is not None and bool(submitted.container)

    def refresh(self, over: Iterable[str], status_of: Callable[[str], Status], cancelled: Collection[str]) -> bool:
        """Look at the ends of jobs in containers. True: one more may be told.

        `status_of`: the end of a job as Slurm tells it; `cancelled`: the jobs whose end we asked for.
        """
        ends = {
            handle: status_of(handle)
            for handle in over
            if handle not in self._reported_ends and self.is_contained(handle)
        }
        waiting = [handle for handle, status in ends.items() if self._needs_removal(handle, status)]
        if not waiting:
            return False
        now = time.monotonic()
        try:
            notes = self._read(waiting, REMOVED_NOTE, "started")
        except YardError as exc:
            log.warning(line("container-notes-unread", jobs=len(waiting), error=exc.detail))
            return False
        left: dict[tuple[str, str], list[str]] = {}  # submission and node → jobs
        for handle in waiting:
            if (note := notes.get((handle, REMOVED_NOTE))) is not None:
                self._tell(handle, _ReportedEnd(note.text, self._last_words(handle, ends[handle])))
            elif (node := self._node_of(handle, ends[handle], notes.get((handle, "started")), now)) is None:
                self._tell(handle, _ReportedEnd())
            elif node:
                left.setdefault((split_handle(handle)[1], node), []).append(handle)
        for (name, node), handles in left.items():
            self._remove(name, node, handles, now)
        for handle in [handle for handle in waiting if handle in self._waiting_ends]:
            wait = self._waiting_ends[handle]
            is_failed_node = ends[handle].text == NODE_FAIL and handle not in cancelled and wait.tried_at is not None
            if is_failed_node or now - wait.since >= self.site.container_wait_s:
                self._tell(handle, _ReportedEnd(left_on=wait.node or "its node"))
        return any(handle in self._reported_ends for handle in waiting)

    def status(self, handle: str, status: Status) -> Status:
        """The status to tell: as given, corrected, or that the job is not over."""
        if not self._needs_removal(handle, status):
            return status
        end = self._reported_ends.get(handle)
        if end is None:
            return Status(seen=ObservedState.RUNNING, text=f"{status.text}, and its container is not removed yet")
        return _corrected(status, end)

    def forget(self, handle: str) -> None:
        self._reported_ends.pop(handle, None)
        self._waiting_ends.pop(handle, None)

    def _needs_removal(self, handle: str, status: Status) -> bool:
        is_end = status.seen in TERMINAL_STATES and status.seen is not ObservedState.RETURNED
        return is_end and self.is_contained(handle)

    def _read(self, handles: Iterable[str], *files: str) -> dict[tuple[str, str], ScriptNote]:
        places = {
            (split_handle(handle)[1], task_file(handle, file)): (handle, file) for handle in handles for file in files
        }
        return {places[place]: note for place, note in self.files.notes(places).items()}

    def _node_of(self, handle: str, status: Status, started: ScriptNote | None, now: float) -> str | None:
        """The node where the container may be; None: there was none; empty: it is not known yet."""
        wait = self._waiting_ends.setdefault(handle, _WaitingEnd(now))
        if started is not None:
            wait.node = ScriptStart.read(started.text).node
            return wait.node
        has_node = status.usage is not None and bool(status.usage.nodes)
        # Files of a node may appear later than the controller's report.
        return "" if has_node and now - wait.since < self.site.settle_s else None

    def _remove(self, name: str, node: str, handles: Collection[str], now: float) -> None:
        """Send one small job for all these tasks of one submission."""
        submitted = self.register.get(name)
        due = [
            handle
            for handle in handles
            if (tried_at := self._waiting_ends[handle].tried_at) is None or now - tried_at >= REMOVAL_PAUSE_S
        ]
        if submitted is None or not due:
            return
        try:
            self.removals.submit(submitted, due, node, self.files.folder(name))
        except YardError as exc:
            log.warning(line("container-not-removed", name=name, node=node, error=exc.detail))
            return
        log.warning(line("container-left", name=name, node=node, tasks=len(due)))
        for handle in due:
            self._waiting_ends[handle].tried_at = now

    def _tell(self, handle: str, end: _ReportedEnd) -> None:
        self._reported_ends[handle] = end
        self._waiting_ends.pop(handle, None)

    def _last_words(self, handle: str, status: Status) -> str:
        """The last line of stderr, where a runtime says what is wrong."""
        if start_failure(status.exit_code, "", last_words="") is None:
            return ""
        name, file = split_handle(handle)[1], task_file(handle, "stderr")
        try:
            total = self.files.read(name, file, offset=0, size=0).total
            data = self.files.read(name, file, offset=max(0, total - LAST_WORDS_BYTES), size=LAST_WORDS_BYTES).data
        except YardError:
            return ""
        lines = data.decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""


def _corrected(status: Status, end: _ReportedEnd) -> Status:
    if end.left_on:
        also = f"its container may still be on {end.left_on}"
        return replace(status, reason=f"{status.reason}; {also}" if status.reason else also)
    if end.container is None or status.seen is not ObservedState.FAILED:
        return status
    if failure := start_failure(status.exit_code, end.container, last_words=end.last_words):
        return replace(status, reason=failure[0], cause=failure[1], failure=FailureKind.START)
    if ran_out_of_memory(end.container) and status.signal == KILL:
        words = f"{status.reason}; {OUT_OF_MEMORY_REASON}"
        return replace(status, reason=words, failure=FailureKind.OUT_OF_MEMORY)
    return status
