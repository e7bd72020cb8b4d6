"""The interface of a kind of nodes. A kind holds no state: what is known of a node is its NodeProgress."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from switchyard.features.flyte.workflow.engine.engine_run import EngineRun, NodePlace, RunScope
from switchyard.features.flyte.workflow.engine.execution_state import AttemptEnd, NodeProgress


class EngineNodeKind(ABC):
    """How nodes of one kind run. A node's outputs are the `outputs` of its progress once it has SUCCEEDED.

    `takes_room`: a node that runs counts against max_parallelism.
    """

    takes_room = False

    def waits_for(self, place: NodePlace) -> Sequence[str]:
        """The ids of nodes in the same scope that must have succeeded before `begin`."""
        return place.scope.workflow.upstream.get(place.node.id, ())

    def must_wait(self, run: EngineRun, place: NodePlace) -> bool:
        """Whether a node that could begin does not begin in this step."""
        return False

    @abstractmethod
    def begin(self, run: EngineRun, place: NodePlace, state: NodeProgress) -> None:
        """Begin a node. `state`: RUNNING, with its inputs, and not put yet."""

    def advance(self, run: EngineRun, place: NodePlace, state: NodeProgress) -> None:
        """Go on with a node that runs, after something around it or inside it has changed."""

    def end_attempt(self, run: EngineRun, place: NodePlace, state: NodeProgress, event: AttemptEnd) -> None:
        """The last attempt of a node that runs is over."""

    def inner_scope(self, run: EngineRun, place: NodePlace, state: NodeProgress) -> RunScope | None:
        """The workflow that runs inside a node. None: there is none."""
        return None

    def is_failure_kept(self, run: EngineRun, place: NodePlace, state: NodeProgress, error: Any) -> bool:
        """Whether a failure inside a node need not fail the node: it will try again."""
        return False
