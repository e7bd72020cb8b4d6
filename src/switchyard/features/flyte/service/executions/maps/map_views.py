"""The elements of a map as a reader sees them."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from switchyard.features.flyte.store.executions import execution_maps
from switchyard.features.flyte.workflow.engine.map_elements import PART_SIZE, ElementState, PartResults
from switchyard.store.engine.database import Tx

PARTS_SHOWN_MAX = 2  # the first elements, some hundred each
PHASES = {
    ElementState.OPEN: "RUNNING",
    ElementState.SUCCEEDED: "SUCCEEDED",
    ElementState.FAILED: "FAILED",
    ElementState.AGAIN: "RETRYABLE_FAILED",
    ElementState.CACHED: "SUCCEEDED",
    ElementState.STOPPED: "ABORTED",
}


@dataclass(frozen=True, slots=True)
class ElementView:
    """`phase`: Flyte's word for an attempt of a task. `attempt`: the number of its last try."""

    index: int
    phase: str
    attempt: int
    is_cached: bool


def read_elements(tx: Tx, execution_id: str, node_id: str) -> list[ElementView]:
    """The first elements of a map."""
    row = execution_maps.map_get(tx, execution_id, node_id)
    parts = execution_maps.map_parts(tx, execution_id, node_id, range(PARTS_SHOWN_MAX))
    views: list[ElementView] = []
    for number, part in sorted(parts.items()):
        results = msgspec.msgpack.decode(part.results, type=PartResults)
        for position, byte in enumerate(part.states):
            index, state = number * PART_SIZE + position, ElementState(byte)
            phase = "QUEUED" if state is ElementState.OPEN and (row is None or row.job_id is None) else PHASES[state]
            if state is ElementState.OPEN and row is not None and row.phase in ("DONE", "STOPPING", "CLOSED"):
                phase = "ABORTED"
            failures = sum(results.failures.get(index, (0, 0)))
            is_last = state in (ElementState.FAILED, ElementState.AGAIN)
            views.append(ElementView(index, phase, max(0, failures - is_last), state is ElementState.CACHED))
    return views
