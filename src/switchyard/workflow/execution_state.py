"""The state of an execution as the engine sees it, what happens to it, and what a step decides. Values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    ABORTED = "ABORTED"
    SKIPPED = "SKIPPED"


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


@dataclass(frozen=True, slots=True)
class ExecutionState:
    """An execution before a step. `max_parallelism`: task nodes that run at once; 0: no bound."""

    phase: ExecutionPhase
    inputs: Any  # a LiteralMap
    nodes: Mapping[str, NodeProgress] = field(default_factory=dict)
    is_stopping: bool = False
    error: Any = None  # the first error
    max_parallelism: int = 0


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

    `is_stopping`: all jobs of the execution that are not in `starts` were or are to be cancelled.
    """

    phase: ExecutionPhase
    nodes: tuple[NodeProgress, ...] = ()
    starts: tuple[TaskStart, ...] = ()
    is_stopping: bool = False
    outputs: Any = None
    error: Any = None


def execution_error(code: str, message: str, *, kind: int = USER) -> Any:
    return execution_pb2.ExecutionError(code=code, message=message, kind=kind)
