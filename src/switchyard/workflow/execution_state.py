"""The state of an execution as the engine sees it, what happens to it, and what a step decides. Values."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from flyteidl.core import execution_pb2

from switchyard.workflow.entity_id import EntityId

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
    FAILING = "FAILING"  # a node inside it has failed, and others inside have not ended yet
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    ABORTED = "ABORTED"
    SKIPPED = "SKIPPED"

    @property
    def is_live(self) -> bool:
        """Whether the node has begun and not ended."""
        return self in LIVE_PHASES


LIVE_PHASES = frozenset({NodePhase.RUNNING, NodePhase.FAILING})


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
    inputs: Any = None  # a LiteralMap
    outputs: Any = None  # a LiteralMap
    error: Any = None  # an ExecutionError

    @property
    def prefix(self) -> str:
        """What stands before the ids of all nodes in its scope."""
        return self.node_id[: len(self.node_id) - len(self.spec_id)]

    @property
    def has_job(self) -> bool:
        """Whether it counts against max_parallelism."""
        return self.phase is NodePhase.RUNNING and not self.is_parent and self.attempts > 0


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
        self.jobs: int = base.jobs if base is not None else 0
        for state in nodes:
            self.put(state)

    def __len__(self) -> int:
        return sum(1 for _ in self.values())

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
    """

    phase: ExecutionPhase
    inputs: Any  # a LiteralMap
    nodes: NodeTable = field(default_factory=NodeTable)
    is_stopping: bool = False
    error: Any = None  # the first error
    max_parallelism: int = 0
    is_due: bool = True


@dataclass(frozen=True, slots=True)
class AttemptFailure:
    """Why an attempt failed. `is_system`: not the user's fault, and counted apart."""

    code: str
    message: str
    is_recoverable: bool = False
    is_system: bool = False


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """An attempt of a node is over: it has outputs, or a failure; neither: it was stopped."""

    node_id: str
    attempt: int
    outputs: Any = None
    failure: AttemptFailure | None = None


@dataclass(frozen=True, slots=True)
class TaskStart:
    """Start a job for an attempt of a node. Attempts count from 0."""

    node_id: str
    attempt: int
    task: EntityId
    node: Any
    inputs: Any


@dataclass(frozen=True, slots=True)
class EngineStep:
    """What to store and what to do, in one transaction.

    `is_stopping`: all jobs of the execution that are not in `starts` were or are to be cancelled; but not those that
    start later, to clean up. `stopped_scopes`: likewise, of the jobs whose node ids begin so. `is_due`: nodes were left
    out, and the next step must look at all.
    """

    phase: ExecutionPhase
    nodes: tuple[NodeProgress, ...] = ()
    starts: tuple[TaskStart, ...] = ()
    is_stopping: bool = False
    outputs: Any = None
    error: Any = None
    stopped_scopes: tuple[str, ...] = ()
    is_due: bool = False


def execution_error(code: str, message: str, *, kind: int = USER) -> Any:
    return execution_pb2.ExecutionError(code=code, message=message, kind=kind)
