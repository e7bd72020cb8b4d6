"""How many of the executions that nodes of a step would start begin in it. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChildRoom:
    """`total`: that may still begin with the root, live or not. `live`: that limits of live ones leave. None: no limit.

    `has_live`: the execution has a child that has not ended.
    """

    total: int | None = None
    live: int | None = None
    has_live: bool = False


def children_to_begin(wanted: int, room: ChildRoom, *, most: int) -> tuple[int, int]:
    """How many children begin, the first ones, and how many are refused for ever, the last ones. The others wait.

    `most`: of one step.

    An execution has one child at a time even if a limit of live executions is reached: its ancestors count against the
    same limit and wait for it, so each of them must be able to go on.
    """
    allowed = wanted if room.total is None else max(0, min(wanted, room.total))
    begin = min(allowed, most)
    if room.live is not None and room.live < begin:
        begin = max(0, room.live) or int(not room.has_live)
    return begin, wanted - allowed
