"""What a backend must do: the seam between the agent and whatever really runs jobs. It knows nothing of servers.

Ten calls are about jobs and the cluster: describe, look, state, quote, submit, submit_range, find, status, cancel,
output. Six more serve the agent: refresh (ask the cluster), watch and wake (when to look), held (what is there without
a journal), forget, close.

How a call fails: a transient `YardError` (or one raised after doubt, such as a timeout) means "maybe, ask again": the
agent looks the marker up before it submits again. A `YardError` that is not transient, from submit, is the cluster's
no: the attempt fails with that reason. Native states nobody has heard of become Seen.UNKNOWN with the text kept; an id
that the cluster denies is Seen.LOST, never an end that nobody saw. A job that surely never began, and never can any
more, is Seen.RETURNED: it goes back to the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

from switchyard.agent.site import Site
from switchyard.model.cluster import Load
from switchyard.model.graph import Graph
from switchyard.model.job import JobSpec, Usage
from switchyard.model.lifecycle import ObservedState
from switchyard.model.poll import Lease
from switchyard.model.quote import QUOTE_VALID_S
from switchyard.model.retry import Cause

REFRESH_S = 3600.0  # where there is nobody to ask
TERMINAL_STATES = frozenset(
    {ObservedState.SUCCEEDED, ObservedState.FAILED, ObservedState.CANCELLED, ObservedState.LOST, ObservedState.RETURNED}
)
STREAMS = ("stdout", "stderr")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What every backend is given at its start."""

    cluster: str
    directory: Path  # its own, kept over restarts
    # Given by the operator, or found on this machine. None: the backend asks its cluster.
    graph: Graph | None = None
    look: Callable[[], Graph] | None = None  # finds it anew on this machine; none: nobody does
    site: Site = field(default_factory=Site)
    is_root_allowed: bool = False  # `--allow-root`: as root without an account map, start everybody's jobs
    environment: Mapping[str, str] = field(default_factory=dict)  # what a job may inherit of the agent's own

    @property
    def known_graph(self) -> Graph:
        assert self.graph is not None, "only a backend that finds its graph is started without one"
        return self.graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """How one native job stands, and how long ago it came to that."""

    seen: ObservedState
    text: str = ""  # the native state, for the log
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None
    ago_us: int = 0
    began_ago_us: int | None = None  # of an ended one: when it began to run, if it did
    cause: Cause = Cause.JOB  # of a failure: whose fault it was
    usage: Usage | None = None  # of an ended one


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendQuote:
    """Could it run here, in how many seconds, and for how much."""

    can: bool
    eta_s: int | None = None  # none: nobody knows when
    reason: str = ""
    cost: float | None = None  # none: the server reckons with what is known of the cluster
    valid_s: int = QUOTE_VALID_S  # for so long it holds
    confidence: float = 1.0  # 0 to 1: how sure the backend is of the ETA


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """Some bytes of a stream, and how many it has in all."""

    data: bytes
    total: int


class Backend(Protocol):
    kind: ClassVar[str]
    # Submitting the same marker twice starts it once. Where that is not so, the agent writes down that it submitted
    # before it goes on, and after any doubt looks the marker up first.
    is_submit_repeatable: ClassVar[bool]
    # It has a queue of its own: it takes jobs before there is room for them.
    has_queue: ClassVar[bool]
    finds_graph: ClassVar[bool]  # it asks its cluster what there is; this machine need not be looked at
    submits_at_once: ClassVar[int]  # how many hand-overs may be under way side by side
    jobs_max: ClassVar[int]  # attempts held at once, unless the operator says otherwise

    @property
    def range_max(self) -> int:
        """How many tasks of an array it takes in one hand-over."""

    def __init__(self, setting: Setting) -> None: ...

    def describe(self) -> Graph:
        """What the cluster has, as it was last looked at."""

    def look(self) -> bool:
        """Look again, as every few minutes; true: `describe` says something new. May take seconds."""

    def state(self) -> Load:
        """What is free now, and how many jobs run and wait. What was submitted counts as taken."""

    def quote(self, spec: JobSpec) -> BackendQuote:
        """When and for how much it could run here. Asked on a thread of its own; may take seconds, and change nothing.

        The spec says what a job needs, not what it runs: its command is a stand-in.
        """

    def submit(self, lease: Lease) -> str:
        """Hand one attempt over, with `marker(lease)` in its name, and return the native id."""

    def submit_range(self, leases: Sequence[Lease]) -> list[str]:
        """Hand over neighbouring tasks of one array, in order; a native id for each. At most `range_max`."""

    def find(self, marker: str) -> str | None:
        """The native id of what was submitted under this marker; None: surely nothing was."""

    def status(self, native_ids: Iterable[str]) -> dict[str, Status]:
        """How each of these stands, in one question. Every id asked for is answered."""

    def cancel(self, native_ids: Collection[str]) -> None:
        """Ask for the end of each. May be repeated; `status` says when it is gone. Raises if not all could be asked."""

    def output(self, native_id: str, stream: str, *, offset: int, size: int) -> OutputPiece:
        """At most `size` bytes of stdout or stderr. What nobody knows of has no bytes."""

    def refresh(self) -> float:
        """Ask the cluster how all stands, for `status` and `state` to tell; in how many seconds to ask again.

        Called from a thread of its own, since a cluster that does not answer blocks it. Where there is nobody to ask
        there is nothing to do.
        """

    def watch(self, timeout_s: float) -> None:
        """Return when something may have changed, was woken, or the time is over."""

    def wake(self) -> None:
        """End a watch now. Called from other threads."""

    def held(self) -> list[Lease]:
        """Every attempt that has begun there, or may have, as an agent that lost its journal would find it."""

    def forget(self, native_id: str) -> None:
        """Remove what is kept of an attempt that is over and settled."""

    def close(self) -> None:
        """Let go of everything; what runs goes on."""


def native_name(native_id: str) -> str:
    """What people call it: a backend may keep more in its id, after a slash, to know it by."""
    return native_id.partition("/")[0]


def marker_of(lease: Lease) -> str:
    """The name under which an attempt is known to the cluster: unique for ever."""
    return f"yard-{lease.job}-{lease.attempt}-{lease.fence}"
