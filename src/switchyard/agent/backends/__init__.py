"""The contract of backends: what the agent needs of the system that runs jobs. It knows nothing of servers.

Twelve calls are about jobs and the cluster: describe, look, state, trouble, quote, work_folder, submit, submit_range,
find, status, cancel, output. Six more serve the agent: refresh (ask the cluster), watch and wake (when to check), held
(attempts that are there without a journal), forget, close. What only some backends can do has a default in
`OptionalCalls`, from which backends are derived.

How a call fails and what states mean:

- A transient `YardError`, such as a time-out, means "maybe": the agent looks up the marker before it submits again.
- A permanent `YardError` of submit means that the cluster refused the job: the attempt fails with that reason.
- `NotTakenNow` of submit (`returns.py`) means that it refused the job for now: the job goes back to the queue.
- An unknown native state is UNKNOWN, with its text.
- An id that the cluster does not know is LOST. An end that was not observed is never assumed.
- A job that never began and never can begin is RETURNED: it goes back to the queue.
- A batch system that does not answer is a `Trouble` with `silent_s` (`contact.py`). Nothing is submitted meanwhile.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from switchyard.agent.server.client import Connection
from switchyard.agent.site.accounts import LocalAccount
from switchyard.agent.site.inherited_variables import INHERITED_VARIABLES
from switchyard.agent.site.site import Site
from switchyard.errors import PolicyRefused
from switchyard.model.cluster.cluster import Load
from switchyard.model.cluster.hardware import Hardware
from switchyard.model.cluster.poll import Lease
from switchyard.model.cluster.quote import QUOTE_VALID_S
from switchyard.model.failures.failure_kind import FailureKind
from switchyard.model.graph import Graph
from switchyard.model.job.job import JobSpec, Usage
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause

REFRESH_S = 3600.0  # where there is no cluster to ask
TERMINAL_STATES = frozenset(
    {ObservedState.SUCCEEDED, ObservedState.FAILED, ObservedState.CANCELLED, ObservedState.LOST, ObservedState.RETURNED}
)
STREAMS = ("stdout", "stderr")


@dataclass(frozen=True, slots=True)
class LocalMachine:
    """This machine as it was found at one look: the graph and the GPUs are of the same answer of the driver."""

    graph: Graph
    gpus: tuple[Hardware, ...] = ()  # by index; none: the driver does not tell the types of all


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a backend gets at its start."""

    cluster: str
    directory: Path  # the backend's folder, kept over restarts
    # From the operator, or discovered on this machine. None: the backend asks its cluster.
    graph: Graph | None = None
    look: Callable[[], LocalMachine] | None = None  # discovers this machine again; None: it is not discovered
    gpus: tuple[Hardware, ...] = ()  # of this machine at the start, by index; none: not known
    site: Site = field(default_factory=Site)
    is_root_allowed: bool = False  # `--allow-root`: as root without an account map, start everybody's jobs
    are_jobs_bound: bool = False  # `--jobs-end-with-agent`: when the agent ends, however it ends, its jobs end, too
    agent_environment: Mapping[str, str] = field(default_factory=dict)  # all variables of the agent; not for jobs

    def files_folder(self, default: Path) -> Path:
        """The folder for files of jobs: the site's, with a part for each cluster, or `default`."""
        return Path(self.site.files.folder) / self.cluster if self.site.files.folder else default

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the agent that a job may inherit. No secrets."""
        return {name: self.agent_environment[name] for name in INHERITED_VARIABLES if name in self.agent_environment}

    @property
    def known_graph(self) -> Graph:
        assert self.graph is not None, "only a backend that finds its graph is started without one"
        return self.graph


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a backend takes no new jobs now: the cause, a colon, and details.

    `silent_s`: for how long the batch system has not answered, so that all that is known of it is as old. None: it
    answers, or there is none.
    """

    text: str
    silent_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The state of one native job, and how long ago it began."""

    seen: ObservedState
    text: str = ""  # the native state, for the log
    reason: str = ""
    # Of a running job: what its user must know now, e.g. why a cancel takes long. None: this backend has no notes.
    note: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    ago_us: int = 0
    began_ago_us: int | None = None  # of an ended job: when it began to run, if it did
    cause: Cause = Cause.JOB  # of a failure: what caused it
    failure: FailureKind | None = None  # of a failure: its kind; None: what `cause`, code and signal say
    usage: Usage | None = None  # of an ended job; of a running one what it was given, if it has devices
    # Of a failure by the cluster: nothing of the job ran or will run. The job goes to another cluster, if there is one.
    is_unbegun: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendQuote:
    """Whether the job could run here, in how many seconds, and for how much."""

    can: bool
    eta_s: int | None = None  # None: not known
    reason: str = ""
    cost: float | None = None  # None: the server estimates it
    valid_s: int = QUOTE_VALID_S  # how long the quote holds
    confidence: float = 1.0  # of the ETA, 0 to 1


@dataclass(frozen=True, slots=True)
class WorkFolder:
    """Where an attempt with files runs, and the account that owns it (None: the agent's).

    `path` has a folder of the agent above it that holds nothing else; the agent makes both and removes both.
    """

    path: Path
    account: LocalAccount | None = None


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """Bytes of a stream, and the size of the whole stream."""

    data: bytes
    total: int


class ManagesNamespaces(Protocol):
    """Applies the objects that the server renders for each namespace."""

    def attach(self, server: Connection, on_ready: Callable[[], None]) -> None:
        """Called once, before the threads start. `on_ready` is to be called when a job that waited may start."""

    def note_version(self, version: str) -> None:
        """The version of all objects, as the last answer to a poll said it; empty: there are none."""

    def hold(self, lease: Lease) -> str:
        """Return why a job must not start yet; empty: it may. Never waits."""

    def run_once(self, timeout_s: float) -> None:
        """Wait for news, at most so long, then apply what is due. Called on its own thread."""

    def stop(self) -> None:
        """End a wait. Called from other threads."""


class OptionalCalls(Protocol):
    """Calls that not every backend can answer, each with the answer of a backend that cannot.

    A backend of another package that is not derived from this class gets it when it is loaded (`registry.py`).
    """

    has_expiration: ClassVar[bool] = False  # its cluster may have an end of its own

    if TYPE_CHECKING:  # every backend has these

        @property
        def kind(self) -> str: ...

        def cancel(self, native_ids: Collection[str]) -> None: ...

    @property
    def has_folders_here(self) -> bool:
        """Whether the folders of its jobs are on the agent's disk."""
        return False

    @property
    def namespaces(self) -> ManagesNamespaces | None:
        """What applies the objects of namespaces; None: nothing does."""
        return None

    @property
    def expires_s(self) -> float | None:
        """When the cluster ends, in seconds since 1970; None: it has no end."""
        return None

    def work_folder(self, lease: Lease) -> WorkFolder:  # noqa: ARG002
        """Where an attempt with files (`spec.files`) runs, if it names no `cwd`. Raises as `submit` does.

        The agent puts the files there before it calls `submit`, and takes the output files from there after the end.
        All nodes must see it under this path. Called from several threads.
        """
        raise PolicyRefused(f"The backend {self.kind} of this cluster takes no jobs with files.")

    def late_reason(self, lease: Lease) -> str:  # noqa: ARG002
        """Why the job cannot end before the cluster does; empty: it can, if it starts now."""
        return ""

    def withdraw(self, native_ids: Iterable[str]) -> list[str] | None:  # noqa: ARG002
        """Keep these jobs from beginning, whatever the cluster does with them. None: it cannot do so.

        Returns the jobs that have not begun, and will not. An id may be the marker of a submit in doubt.
        """
        return None

    def end_jobs(self, native_ids: Collection[str]) -> None:
        """End these jobs, as the cluster ends with its agent, and wait for their ends if that can be."""
        self.cancel(native_ids)


class Backend(OptionalCalls, Protocol):
    """What the agent calls. A backend derived from `OptionalCalls` needs only what has no default there."""

    @property
    def kind(self) -> str: ...

    @property
    def is_submit_repeatable(self) -> bool:
        """Whether submitting the same marker twice starts the job once.

        Else the agent records each submit before it goes on, and looks up the marker after any doubt.
        """

    @property
    def has_queue(self) -> bool:
        """Whether it takes jobs before resources are free."""

    @property
    def submits_at_once(self) -> int:
        """How many submits may run in parallel."""

    @property
    def jobs_max(self) -> int:
        """Attempts held at once, unless the operator says otherwise."""

    @property
    def range_max(self) -> int:
        """How many tasks of an array one submit takes."""

    def describe(self) -> Graph:
        """The graph of the cluster, as last discovered."""

    def look(self) -> bool:
        """Discover the graph again. True: `describe` changed. Called every few minutes; may take seconds."""

    def state(self) -> Load:
        """What is free now, and how many jobs run and are queued. Submitted jobs count as occupied."""

    def trouble(self) -> Trouble | None:
        """Why no new jobs are taken now; None: they are taken. Called often, from several threads: it asks nobody."""

    def quote(self, spec: JobSpec) -> BackendQuote:
        """When and for how much the job could run here. Called on its own thread; may take seconds; changes nothing.

        The spec has the job's needs; its command is a placeholder.
        """

    def submit(self, lease: Lease) -> str:
        """Submit one attempt, with `marker_of(lease)` in its name, and return the native id."""

    def submit_range(self, leases: Sequence[Lease]) -> list[str]:
        """Submit at most `range_max` neighbouring tasks of one array, and return their native ids in order."""

    def find(self, marker: str) -> str | None:
        """The native id of the job submitted under this marker; None: surely there is none."""

    def status(self, native_ids: Iterable[str]) -> dict[str, Status]:
        """The status of each of these jobs, in one query. Every id has an answer."""

    def cancel(self, native_ids: Collection[str]) -> None:
        """Ask the cluster to end these jobs; `status` shows when they are gone. Raises if one was not asked."""

    def output(self, native_id: str, stream: str, *, offset: int, size: int) -> OutputPiece:
        """At most `size` bytes of stdout or stderr. An unknown job has no bytes."""

    def refresh(self) -> float:
        """Ask the cluster for the data of `status` and `state`. Returns in how many seconds to ask again.

        Called on its own thread, since a cluster that does not answer blocks it.
        """

    def watch(self, timeout_s: float) -> None:
        """Return when something may have changed, `wake` was called, or the time is over."""

    def wake(self) -> None:
        """End a `watch` now. Called from other threads."""

    def held(self) -> list[Lease]:
        """Every attempt that began there or may have, for an agent that lost its journal."""

    def forget(self, native_id: str) -> None:
        """Remove all data of a settled attempt."""

    def close(self) -> None:
        """Release everything; running jobs go on."""


class BackendClass(Protocol):
    """A backend before it is made: what is known of it without its cluster."""

    @property
    def finds_graph(self) -> bool:
        """Whether it asks its cluster for the graph; else this machine is discovered."""

    @property
    def has_expiration(self) -> bool: ...

    def __call__(self, setting: Setting) -> Backend: ...


def native_name(native_id: str) -> str:
    """The id that people know: a backend may append more to its id after a slash."""
    return native_id.partition("/")[0]


def signal_name(number: int) -> str:
    """A signal as reasons show it: `SIGTERM (signal 15)`."""
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"


def marker_of(lease: Lease) -> str:
    """The name of an attempt at the cluster, unique forever."""
    return f"yard-{lease.job}-{lease.attempt}-{lease.fence}"
