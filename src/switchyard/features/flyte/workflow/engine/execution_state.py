"""The state of an execution as the engine sees it, what happens to it, and what a step decides. Values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from flyteidl.core import execution_pb2

from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind
from switchyard.features.flyte.workflow.engine.execution_graph import ExecutionGraph

USER, SYSTEM = execution_pb2.ExecutionError.USER, execution_pb2.ExecutionError.SYSTEM


class ExecutionPhase(StrEnum):
    """Flyte's words, stored."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILING = "FAILING"
    FAILED = "FAILED"
    ABORTING = "ABORTING"
    ABORTED = "ABORTED"

    @property
    def is_final(self) -> bool:
        return self in (ExecutionPhase.SUCCEEDED, ExecutionPhase.FAILED, ExecutionPhase.ABORTED)


class NodePhase(StrEnum):
    """Flyte's words, stored. A node that has not begun has no state."""

    RUNNING = "RUNNING"
    DYNAMIC_RUNNING = "DYNAMIC_RUNNING"  # its task has ended, and the workflow that the task made runs
    FAILING = "FAILING"  # a node inside it has failed, and others inside have not ended yet
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    ABORTED = "ABORTED"
    SKIPPED = "SKIPPED"

    @property
    def is_live(self) -> bool:
        """Whether the node has begun and not ended."""
        return self in LIVE_PHASES


LIVE_PHASES = frozenset({NodePhase.RUNNING, NodePhase.DYNAMIC_RUNNING, NodePhase.FAILING})


@dataclass(frozen=True, slots=True)
class NodeProgress:
    """One node. `attempts`: how many jobs were started for it. `spec_id`: its id in the compiled workflow."""

    node_id: str
    parent_id: str
    spec_id: str
    phase: NodePhase
    is_parent: bool = False
    attempts: int = 0
    user_failures: int = 0
    system_failures: int = 0
    is_array: bool = False  # it is a map: its elements are tasks of an array
    cache_status: str = ""  # of a cached task
    cache_key: bytes = b""
    cache_source: str = ""  # who made the outputs that came from the cache
    inputs: Any = None  # a LiteralMap
    outputs: Any = None  # a LiteralMap
    error: Any = None  # an ExecutionError
    wake_us: int | None = None  # when a step must look at it, whatever happens
    signal_id: str = ""  # what a gate waits for

    @property
    def prefix(self) -> str:
        """What stands before the ids of all nodes in its scope."""
        return self.node_id[: len(self.node_id) - len(self.spec_id)]

    @property
    def has_job(self) -> bool:
        """Whether it counts against max_parallelism."""
        return self.phase is NodePhase.RUNNING and not self.is_parent and self.attempts > 0

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for a person or a time."""
        return self.phase is NodePhase.RUNNING and not self.is_parent and self.attempts == 0


@dataclass(slots=True)
class ScopeCount:
    """How many nodes of one scope have begun, of these run, and have succeeded."""

    begun: int = 0
    live: int = 0
    succeeded: int = 0

    def add(self, state: NodeProgress, sign: int) -> None:
        self.begun += sign
        self.live += sign * state.phase.is_live
        self.succeeded += sign * (state.phase is NodePhase.SUCCEEDED)


class NodeTable:
    """The nodes of an execution, counted, so that a step need not look at all of them.

    `base`: a table below this one. It is read and never changed; what is put goes into this table alone.
    """

    def __init__(self, nodes: Iterable[NodeProgress] = (), *, base: NodeTable | None = None) -> None:
        self._base = base
        self._nodes: dict[str, NodeProgress] = {}
        self._counts: dict[str, ScopeCount] = {}
        self._waiting: dict[str, None] = {}  # those in `_nodes` that wait for a person or a time
        self.jobs: int = base.jobs if base is not None else 0
        for state in nodes:
            self.put(state)

    def __len__(self) -> int:
        return len(self._nodes) if self._base is None else sum(1 for _ in self.values())

    def waiting(self) -> list[NodeProgress]:
        """The nodes that wait for a person or a time."""
        below = self._base.waiting() if self._base is not None else []
        own = (self._nodes[node_id] for node_id in self._waiting)
        return [*(state for state in below if state.node_id not in self._nodes), *own]

    def get(self, node_id: str) -> NodeProgress | None:
        state = self._nodes.get(node_id)
        return self._base.get(node_id) if state is None and self._base is not None else state

    def put(self, state: NodeProgress) -> None:
        old, count = self.get(state.node_id), self._own_count(state.prefix)
        if old is not None:
            count.add(old, -1)
            self.jobs -= old.has_job
        count.add(state, 1)
        self.jobs += state.has_job
        self._nodes[state.node_id] = state
        self._waiting.pop(state.node_id, None)
        if state.is_waiting:
            self._waiting[state.node_id] = None

    def count(self, prefix: str) -> ScopeCount:
        """Of the nodes whose ids are this prefix and their spec id."""
        count = self._counts.get(prefix)
        if count is None:
            return self._base.count(prefix) if self._base is not None else ScopeCount()
        return count

    def changes(self) -> Collection[NodeProgress]:
        """What was put into this table, in the order of the first time."""
        return self._nodes.values()

    def values(self) -> Iterator[NodeProgress]:
        below = self._base.values() if self._base is not None else ()
        yield from (state for state in below if state.node_id not in self._nodes)
        yield from self._nodes.values()

    def _own_count(self, prefix: str) -> ScopeCount:
        if prefix not in self._counts:
            self._counts[prefix] = replace(self.count(prefix))
        return self._counts[prefix]


@dataclass(frozen=True, slots=True)
class ExecutionState:
    """An execution before a step.

    `max_parallelism`: task nodes that run at once; 0: no bound. `is_due`: a step must look at all nodes, and not only
    at those behind the nodes that have ended: the execution is new, is to stop, or the step before left nodes out.
    `signals`: the values that were given for the signals that nodes wait for. `bytes_left`: how many more bytes the
    inputs and outputs of all nodes may have; None: no bound.
    """

    phase: ExecutionPhase
    inputs: Any  # a LiteralMap
    nodes: NodeTable = field(default_factory=NodeTable)
    is_stopping: bool = False
    error: Any = None  # the first error
    max_parallelism: int = 0
    is_due: bool = True
    now_us: int = 0
    signals: Mapping[str, Any] = field(default_factory=dict)
    dynamics: Mapping[tuple[str, int], ExecutionGraph] = field(default_factory=dict)  # by node and attempt, if they run
    bytes_left: int | None = None


@dataclass(frozen=True, slots=True)
class AttemptFailure:
    """Why an attempt failed. `is_system`: not the user's fault, and counted apart."""

    code: str
    message: str
    is_recoverable: bool = False
    is_system: bool = False


CANCELLED = AttemptFailure("Cancelled", "the job was cancelled")  # by hand, and not because the execution stops


@dataclass(frozen=True, slots=True)
class DynamicWorkflow:
    """The workflow that an attempt of a dynamic task made. `closure`: compiled, as it is stored."""

    graph: ExecutionGraph
    closure: Any


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """An attempt of a node is over: it has outputs, a workflow to run, or a failure; nothing: it was stopped.

    `futures`: the workflow as the task left it, not checked yet. `dynamic`: the workflow, checked and compiled.
    """

    node_id: str
    attempt: int
    outputs: Any = None
    failure: AttemptFailure | None = None
    futures: bytes | None = None
    dynamic: DynamicWorkflow | None = None


@dataclass(frozen=True, slots=True)
class TaskStart:
    """Start an attempt of a node. Attempts count from 0.

    It is a job, or a map of this `shape` (a MapShape), or an execution if `task` is a launch plan.
    """

    node_id: str
    attempt: int
    task: EntityId
    node: Any
    inputs: Any
    template: Any = None  # of the task
    shape: Any = None

    @property
    def is_child(self) -> bool:
        return self.task.kind is EntityKind.LAUNCH_PLAN

    @property
    def is_job(self) -> bool:
        return self.shape is None and not self.is_child


@dataclass(frozen=True, slots=True)
class SignalRequest:
    """A gate waits for a value of this type."""

    signal_id: str
    type: Any  # a LiteralType


@dataclass(frozen=True, slots=True)
class EngineStep:
    """What to store and what to do, in one transaction.

    `is_stopping`: all jobs of the execution that are not in `starts` were or are to be cancelled; but not those that
    start later, to clean up. `stopped_scopes`: likewise, of the jobs whose node ids begin so. `is_due`: nodes were left
    out or ask for signals, and the next step must look at all.
    """

    phase: ExecutionPhase
    nodes: tuple[NodeProgress, ...] = ()
    starts: tuple[TaskStart, ...] = ()
    is_stopping: bool = False
    outputs: Any = None
    error: Any = None
    stopped_scopes: tuple[str, ...] = ()
    is_due: bool = False
    signals: tuple[SignalRequest, ...] = ()
    dynamics: tuple[tuple[str, int, DynamicWorkflow], ...] = ()  # by node and attempt


def execution_error(code: str, message: str, *, kind: int = USER) -> Any:
    return execution_pb2.ExecutionError(code=code, message=message, kind=kind)
