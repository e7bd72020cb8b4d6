"""Which of the attempts that a step would start begin in it, which wait for room under a limit, and which fail. Pure.

A step counts its room once. So a step with a hundred attempts over a limit costs one look, and not a hundred.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from switchyard.features.flyte.workflow.engine.execution_state import AttemptFailure, TaskStart

AttemptKey = tuple[str, int]  # a node's id, and the number of the attempt


@dataclass(frozen=True, slots=True)
class WaitingStart:
    """An attempt that could begin, if a limit had room.

    `is_plan_full`: the launch plan of the node has as many live executions as it may have, so all its nodes wait.
    """

    start: TaskStart
    reason: str
    is_plan_full: bool = False


@dataclass(frozen=True, slots=True)
class StartRoom:
    """How many jobs a step may begin. None: no bound.

    `jobs`: that the limits of the owner leave. Further ones wait, and `reason` says for what. `rows`: that the bounds
    of the execution leave. Further ones fail with `failure`. `most`: first attempts of one step; the next one begins
    the rest.
    """

    jobs: int | None = None
    reason: str = ""
    rows: int | None = None
    failure: AttemptFailure | None = None
    most: int | None = None


@dataclass(slots=True)
class StartChoice:
    """`begin`: in this order. Attempts that are in none of the three are left to the next step."""

    begin: list[TaskStart] = field(default_factory=list)
    refusals: dict[AttemptKey, AttemptFailure] = field(default_factory=dict)
    waits: dict[AttemptKey, WaitingStart] = field(default_factory=dict)


def choose_starts(
    starts: Iterable[TaskStart], room: StartRoom, known: Mapping[AttemptKey, WaitingStart]
) -> StartChoice:
    """Sort the attempts of a step. `known`: attempts that are known to wait.

    Further attempts come first and all of them, because the end that they follow is stored with them.
    """
    choice = StartChoice()
    for start in sorted(starts, key=lambda start: start.attempt == 0):
        key = start.node_id, start.attempt
        if key in known:
            choice.waits[key] = known[key]
        elif room.most is not None and start.attempt == 0 and len(choice.begin) >= max(1, room.most):
            break
        elif room.failure is not None and room.rows is not None and len(choice.begin) >= room.rows:
            choice.refusals[key] = room.failure
        elif room.jobs is not None and len(choice.begin) >= room.jobs:
            choice.waits[key] = WaitingStart(start, room.reason)
        else:
            choice.begin.append(start)
    return choice
