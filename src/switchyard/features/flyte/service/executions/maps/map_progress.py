"""A map as its elements end: its rows, what an end means for an element, and whether the map has failed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from flyteidl.core import execution_pb2, tasks_pb2

from switchyard.features.flyte.store.executions import execution_maps
from switchyard.features.flyte.store.executions.execution_maps import MapPart, MapRow, MapUpdate
from switchyard.features.flyte.workflow.engine.attempt_result import OUTPUT_BYTES_MAX, JobEnd, judge_attempt
from switchyard.features.flyte.workflow.engine.execution_state import (
    CANCELLED,
    AttemptEnd,
    AttemptFailure,
    TaskStart,
    execution_error,
)
from switchyard.features.flyte.workflow.engine.map_elements import (
    PART_SIZE,
    ElementState,
    MapShape,
    PartResults,
    is_lost,
    map_failure,
    next_state,
    part_size,
)
from switchyard.features.flyte.workflow.values.content import content_bytes
from switchyard.features.flyte.workflow.values.uploaded_files import with_places
from switchyard.model.cluster.idset import TEXT_CHARS_MAX, IdSet
from switchyard.service.core.writes.batch import Batch

NO_RESULTS = msgspec.msgpack.encode(PartResults())
# LOOKING: its elements are looked up in the cache. CLOSED: the engine knows the end.
LOOKING = "LOOKING"
STARTING, RUNNING, STOPPING, DONE, CLOSED = "STARTING", "RUNNING", "STOPPING", "DONE", "CLOSED"


DYNAMIC_ELEMENT = AttemptFailure(
    "DynamicMapElement",
    "the task left a workflow in place of outputs (futures.pb), and a map cannot run workflows. Call the dynamic task "
    "in a loop of another dynamic task",
)


@dataclass
class MapProgress:
    """A map while a batch of ends is added to it. `first`: the first element of the batch that failed for good."""

    row: MapRow
    succeeded: int
    failed: int
    output_bytes: int
    parts: dict[int, tuple[bytearray, PartResults]] = field(default_factory=dict)
    first: tuple[int, AttemptFailure] | None = None

    @property
    def is_complete(self) -> bool:
        return self.succeeded + self.failed >= self.row.size


def new_map(
    execution_id: str, start: TaskStart, now_us: int, *, is_cached: bool, overwrites: bool
) -> tuple[MapRow, list[MapPart]]:
    """The rows of a map that begins. `is_cached`: its elements are; `overwrites`: they are not looked up."""
    shape: MapShape = start.shape
    row = MapRow(
        execution_id=execution_id,
        node_id=start.node_id,
        phase=LOOKING if is_cached and not overwrites else STARTING,
        size=shape.size,
        minimum=shape.minimum,
        parallelism=shape.parallelism,
        runs_all=shape.runs_all,
        is_stopped=False,
        node=content_bytes(start.node),
        template=content_bytes(start.template),
        attempt=-1,
        job_id=None,
        indexes="",
        seen=0,
        succeeded=0,
        failed=0,
        output_bytes=0,
        error=None,
        changes=0,
        updated_us=now_us,
        bound=json.dumps(shape.bound) if is_cached else None,
    )
    count = -(-shape.size // PART_SIZE)
    return row, [MapPart(part, bytes(part_size(shape.size, part)), NO_RESULTS) for part in range(count)]


def judge_element(
    row: MapRow, index: int, end: JobEnd, declared: frozenset[str], addresses: Mapping[str, str]
) -> AttemptEnd:
    """What the end of an element means. `addresses`: of uploaded files, by the paths that elements know."""
    judged = judge_attempt(row.node_id, index, end, has_outputs=bool(declared))
    if judged.futures is not None:
        return AttemptEnd(row.node_id, index, failure=DYNAMIC_ELEMENT)
    if judged.outputs is not None and (absent := sorted(declared - set(judged.outputs.literals))):
        words = f"the task left no value for {', '.join(absent[:20])}"
        return AttemptEnd(row.node_id, index, failure=AttemptFailure("OutputsNotFound", words, is_recoverable=True))
    if judged.outputs is not None and addresses:
        return replace(judged, outputs=with_places(judged.outputs, addresses))
    return judged


def add_cached(progress: MapProgress, index: int, outputs: bytes) -> None:
    """An element has its outputs from the cache."""
    states, results = progress.parts[index // PART_SIZE]
    if states[index % PART_SIZE] == ElementState.OPEN:
        states[index % PART_SIZE] = ElementState.CACHED
        results.outputs[index] = outputs
        progress.succeeded += 1
        progress.output_bytes += len(outputs)


def add_end(progress: MapProgress, index: int, end: AttemptEnd, *, retries: int, is_stopping: bool) -> None:
    states, results = progress.parts[index // PART_SIZE]
    position = index % PART_SIZE
    if states[position] != ElementState.OPEN:
        return
    if end.outputs is not None:
        body = content_bytes(end.outputs)
        results.outputs[index] = body
        states[position] = ElementState.SUCCEEDED
        progress.succeeded += 1
        progress.output_bytes += len(body)
        return
    if end.failure is None and is_stopping:
        states[position] = ElementState.STOPPED
        return
    failure = end.failure or CANCELLED
    user, system = results.failures.get(index, (0, 0))
    user, system = user + (not failure.is_system), system + failure.is_system
    results.failures[index] = user, system
    state = ElementState.FAILED if is_stopping else next_state(failure, user, system, retries=retries)
    states[position] = state
    if state == ElementState.FAILED:
        progress.failed += 1
        progress.first = progress.first or (index, failure)


def error_of(progress: MapProgress) -> bytes | None:
    """The failure of a map after a batch of ends. None: it has not failed."""
    row = progress.row
    if progress.output_bytes > OUTPUT_BYTES_MAX:
        words = f"the outputs of the elements have over {OUTPUT_BYTES_MAX} bytes. Return large data as files."
        return encoded_failure(AttemptFailure("OutputsTooLarge", words))
    if progress.first is not None and is_lost(row.size, row.minimum, progress.failed):
        return encoded_failure(map_failure(row.size, row.minimum, progress.failed, progress.first))
    return None


def fitting_indexes(indexes: Iterable[int]) -> IdSet:
    """As many elements as the text of one array takes. The others are in the next array."""
    wanted = list(indexes)
    while len(str(found := IdSet.of(wanted))) > TEXT_CHARS_MAX - 16:
        wanted = wanted[: len(wanted) // 2]
    return found


def reopened(part: int, states: bytes, indexes: IdSet) -> bytes:
    """The states of a part whose elements are tried again by an array of these indexes."""
    changed = bytearray(states)
    for position, state in enumerate(states):
        if state == ElementState.AGAIN and part * PART_SIZE + position in indexes:
            changed[position] = ElementState.OPEN
    return bytes(changed)


def close_map(batch: Batch, execution_id: str, node_id: str) -> None:
    """The engine knows the end of a map: forget the outputs of its elements. What else is known of them stays."""
    row = execution_maps.map_get(batch.tx, execution_id, node_id)
    if row is not None:
        execution_maps.map_update(batch.tx, row, MapUpdate(phase=CLOSED, updated_us=batch.now_us))
    parts = execution_maps.map_parts(batch.tx, execution_id, node_id).values()
    kept = (MapPart(one.part, one.states, _without_outputs(one.results)) for one in parts)
    execution_maps.parts_put(batch.tx, execution_id, node_id, kept)


def _without_outputs(results: bytes) -> bytes:
    return msgspec.msgpack.encode(PartResults(failures=results_of(results).failures))


def template_of(row: MapRow) -> Any:
    return tasks_pb2.TaskTemplate.FromString(row.template)


def results_of(body: bytes) -> PartResults:
    return msgspec.msgpack.decode(body, type=PartResults)


def encoded_failure(failure: AttemptFailure) -> bytes:
    error = execution_pb2.ExecutionError
    kind = error.SYSTEM if failure.is_system else error.USER
    return content_bytes(execution_error(failure.code, failure.message, kind=kind))
