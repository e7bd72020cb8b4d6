"""Choose among the able clusters of a ruling by a job's algorithm, with what is known of the clusters now."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from switchyard.errors import BadRequest
from switchyard.model.selection import Scalar
from switchyard.route.choose import choose
from switchyard.route.operators import Value
from switchyard.route.route import Ruling
from switchyard.route.select.selector import Failed
from switchyard.service.bounds import Bounds
from switchyard.service.context import Context
from switchyard.service.newjob import Kept, keep
from switchyard.service.states import as_value, values_of

KEPT_MAX = 256
KEPT_US = 1_000_000  # what is known of clusters grows old in steps of this


class Selecting:
    """Remembers what it chose while nothing changes: a bulk request asks the same thousands of times."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._kept: dict[tuple[object, ...], Kept] = {}
        self._kept_of: tuple[int, ...] = ()

    def among(self, kept: Kept, key: tuple[object, ...], bounds: Bounds) -> Kept:
        """The ruling with only those in it that the job's algorithm leaves. `key`: what the ruling is kept by."""
        context = self._context
        if context.selections.is_drawn(bounds.select):
            return kept
        snapshots = context.snapshots
        versions = snapshots.world.version, snapshots.access.version, snapshots.fleet.version
        state_of = *versions, snapshots.loads_number, context.now_us() // KEPT_US
        if self._kept_of != state_of or len(self._kept) > KEPT_MAX:
            self._kept, self._kept_of = {}, state_of
        held = self._kept  # another thread may begin a new one meanwhile
        found = held.get(key)
        if found is None:
            ruling = select(context, kept.ruling, bounds)
            if isinstance(ruling, Failed):
                raise BadRequest(f"The selection cannot be followed: {ruling.reason}.")
            found = held[key] = keep(ruling)
        return found


def select(context: Context, ruling: Ruling, bounds: Bounds) -> Ruling | Failed:
    """The same without memory."""
    selections, snapshots = context.selections, context.snapshots
    if selections.is_drawn(bounds.select):
        return ruling
    name, algorithm = selections.choose(bounds.select)
    states = {}
    if algorithm.reads_state and ruling.outcome == "assign":
        states = values_of(snapshots, ruling.able.names, selections, now_us=context.now_us())
    return choose(
        ruling,
        name,
        algorithm,
        world=snapshots.world,
        states=states,
        parameters=_parameters(bounds.parameters),
        order=bounds.order,
    )


def select_or_hold(context: Context, ruling: Ruling, bounds: Bounds) -> Ruling:
    """For a job that was accepted: steps that cannot be followed any more let it wait, and say why."""
    found = select(context, ruling, bounds)
    if isinstance(found, Failed):
        return replace(ruling, outcome="hold", reason=f"waits: the selection cannot be followed: {found.reason}")
    return found


def _parameters(text: str) -> dict[str, Value]:
    given = msgspec.json.decode(text, type=dict[str, Scalar]) if text else {}
    return {name: as_value(value) for name, value in given.items()}
