"""Drives the elements of maps: starts arrays, stores the ends of elements in batches, and ends the map.

A map is beside the engine: the engine starts it and learns its end. Each step here is one transaction that changes one
map by at most one batch of elements or one array, so a large map holds up nobody for long. A kill at any line leaves
the map before a step or after it.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec
from flyteidl.core import execution_pb2, literals_pb2, workflow_pb2

from switchyard.errors import Busy, LimitReached, YardError
from switchyard.features.flyte.service.executions.maps.map_progress import (
    DONE,
    LOOKING,
    RUNNING,
    STARTING,
    STOPPING,
    MapProgress,
    add_cached,
    add_end,
    encoded_failure,
    error_of,
    fitting_indexes,
    judge_element,
    reopened,
    results_of,
    template_of,
)
from switchyard.features.flyte.service.executions.maps.map_results import (
    BATCH_MAX,
    OutputScan,
    ends_of_ended,
    ends_of_running,
    gone_ends,
    open_elements,
    read_ends,
)
from switchyard.features.flyte.service.executions.nodes.job_starts import (
    JobStarter,
    PlannedJob,
    StartRefused,
    StartsRefused,
)
from switchyard.features.flyte.service.executions.nodes.node_cache import ENTRY_BYTES_MAX, cache_scope, put_entries
from switchyard.features.flyte.service.executions.nodes.node_jobs import read_spec
from switchyard.features.flyte.service.executions.nodes.node_rows import waiting_row
from switchyard.features.flyte.store.executions import execution_maps, execution_nodes, executions, task_cache
from switchyard.features.flyte.store.executions.execution_maps import MapJob, MapPart, MapRow, MapUpdate
from switchyard.features.flyte.store.executions.executions import ExecutionKey, ExecutionRow
from switchyard.features.flyte.store.executions.task_cache import CacheRow
from switchyard.features.flyte.workflow.compile.entity_id import EntityKind, read_id
from switchyard.features.flyte.workflow.engine.attempt_result import OUTPUT_BYTES_MAX, JobEnd
from switchyard.features.flyte.workflow.engine.execution_state import (
    AttemptEnd,
    AttemptFailure,
    ExecutionPhase,
    TaskStart,
)
from switchyard.features.flyte.workflow.engine.map_elements import (
    PART_SIZE,
    ElementState,
    element_inputs,
    elements_to_start,
    gather_outputs,
)
from switchyard.features.flyte.workflow.tasks.task_cache import cache_key, cache_rule
from switchyard.features.flyte.workflow.values.uploaded_files import SCHEME, uploaded_paths
from switchyard.model.cluster.idset import IdSet
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import FINAL_STATES
from switchyard.service.core.context import Context
from switchyard.service.core.snapshots.snapshots import owner_of
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.service.job.jobs import request_cancel
from switchyard.service.upkeep.leadership import Leadership
from switchyard.store.jobs import jobs

MAPS_MAX = 10  # of one execution that go on in one round
MAP_PAUSE_US = 200_000  # between two looks at the elements of one map, unless there is a full batch of ends
SCANS_MAX = 1000  # arrays whose scans are remembered
AGAIN = bytes([ElementState.AGAIN])
CHANGED = "The map has changed since it was read."


def map_end(context: Context, row: MapRow) -> AttemptEnd:
    """The end of a map that is done, as the engine takes it."""
    if row.error is not None:
        error: Any = execution_pb2.ExecutionError.FromString(row.error)
        is_system = error.kind == execution_pb2.ExecutionError.SYSTEM
        return AttemptEnd(row.node_id, 0, failure=AttemptFailure(error.code, error.message, is_system=is_system))
    if row.succeeded + row.failed < row.size:
        return AttemptEnd(row.node_id, 0)  # it was stopped
    with context.database.read() as tx:
        parts = execution_maps.map_parts(tx, row.execution_id, row.node_id)
    results = {number: results_of(part.results) for number, part in parts.items()}
    declared = sorted(template_of(row).interface.outputs.variables)
    return AttemptEnd(row.node_id, 0, outputs=gather_outputs(declared, row.size, results))


class MapDriver:
    def __init__(self, starter: JobStarter) -> None:
        self._starter = starter
        self._scans: dict[str, OutputScan] = {}  # by the id of the array
        self._inputs = MapInputsCache()
        self._next_us: dict[tuple[str, str], int] = {}  # when a map is looked at again, on the steady clock

    def go(self, context: Context, leadership: Leadership, key: ExecutionKey) -> tuple[int, YardError | None]:
        """Go on with maps of an execution, each by one step.

        Returns how many steps were stored, and why the last of the maps that cannot go on does not.
        """
        with context.database.read() as tx:
            row = executions.execution_get(tx, key)
            live = execution_maps.maps_live(tx, row.id, limit=MAPS_MAX) if row is not None else []
        if row is None:
            return 0, None
        if len(self._scans) > SCANS_MAX:
            self._scans.clear()
        now_us = context.steady_us()
        self._next_us = {place: at_us for place, at_us in self._next_us.items() if at_us > now_us}
        stored, trouble = 0, None
        for one in live:
            if one.phase == RUNNING and (one.execution_id, one.node_id) in self._next_us:
                continue
            step = MapStep(
                context=context,
                leadership=leadership,
                execution=row,
                row=one,
                starter=self._starter,
                scans=self._scans,
                inputs=self._inputs,
            )
            try:
                stored += step.advance()
            except YardError as exc:
                trouble = exc
            if one.phase == RUNNING and step.end_count < BATCH_MAX:
                self._next_us[one.execution_id, one.node_id] = now_us + MAP_PAUSE_US
        return stored, trouble


@dataclass(slots=True)
class MapStep:
    """One step of one map. `end_count`: of elements whose ends it stores."""

    context: Context
    leadership: Leadership
    execution: ExecutionRow
    row: MapRow
    starter: JobStarter
    scans: dict[str, OutputScan]
    inputs: MapInputsCache
    end_count: int = 0

    def advance(self) -> int:
        """Returns how many steps were stored: 0 or 1."""
        row = self.row
        if row.phase == LOOKING:
            return self._look_up()
        if row.phase == STARTING:
            try:
                return self._start()
            except LimitReached as exc:
                self._tell_wait(exc.detail)
                raise  # the next round tries again
        with self.context.database.read() as tx:
            job = execution_maps.map_job(tx, row.job_id or "")
            states = execution_maps.map_states(tx, row.execution_id, row.node_id)
        if row.phase == STOPPING:
            return self._end(job) if job is None or job.state in FINAL_STATES else 0
        wanted = list(islice(open_elements(row, states), BATCH_MAX))
        ends = self._read_ends(job, states, wanted) if wanted else []
        if not ends and wanted:
            return 0  # output files are on their way
        return self._store_ends(job, ends)

    def _read_ends(
        self, job: MapJob | None, states: Mapping[int, bytes], wanted: Sequence[int]
    ) -> list[tuple[int, JobEnd]]:
        """The ends of elements that are not stored yet, at most one batch. `wanted`: the first such elements."""
        if job is None:
            return gone_ends(wanted)
        with self.context.database.read() as tx:
            if job.state in FINAL_STATES:
                self.scans.pop(job.id, None)
                found = ends_of_ended(tx, job, wanted, self.context.now_us())
            else:
                found = ends_of_running(tx, job, states, self.scans.setdefault(job.id, OutputScan()))
        return read_ends(self.context, job, found)

    def _look_up(self) -> int:
        """Look up the next elements in the cache."""
        row = self.row
        if row.is_stopped or self.execution.phase == ExecutionPhase.ABORTING:
            return self._end(None)
        indexes = range(row.seen, min(row.size, row.seen + PART_SIZE))
        keys = element_keys(self.execution, row, self.inputs.read(self.context, row), indexes)
        with self.context.database.read() as tx:
            found = task_cache.cache_get(tx, list(set(keys.values())))

        def apply(batch: Batch) -> int:
            if not self._holds(batch):
                return 0
            progress = self._progress(batch, indexes)
            for index, key in keys.items():
                if key in found:
                    add_cached(progress, index, bytes(found[key].outputs))
            self._put_looked_up(batch, progress, indexes.stop)
            return 1

        return self.leadership.commit(self.context, apply)

    def _put_looked_up(self, batch: Batch, progress: MapProgress, seen: int) -> None:
        """Store what the cache had. After the last elements, the others start."""
        row, error = self.row, error_of(progress)
        is_over, is_done = seen >= row.size, error is not None or progress.is_complete
        self._put_parts(batch, progress)
        update = MapUpdate(
            phase=DONE if is_done else STARTING if is_over else LOOKING,
            seen=0 if is_over else seen,
            succeeded=progress.succeeded,
            output_bytes=progress.output_bytes,
            updated_us=batch.now_us,
        )
        self._update(batch, update, error)

    def _start(self) -> int:
        """Start an array for all elements that are open or tried again."""
        row, execution = self.row, self.execution
        with self.context.database.read() as tx:
            states = execution_maps.map_states(tx, row.execution_id, row.node_id)
            node = execution_nodes.node_get(tx, row.execution_id, row.node_id)
        wanted = [
            part * PART_SIZE + position
            for part, body in states.items()
            for position, state in enumerate(body)
            if state in (ElementState.OPEN, ElementState.AGAIN)
        ]
        is_stopping = row.is_stopped or execution.phase == ExecutionPhase.ABORTING
        if not wanted or is_stopping or node is None:
            return self._end(None)
        indexes = fitting_indexes(wanted[: self._room(len(wanted))])
        template, inputs = template_of(row), literals_pb2.LiteralMap.FromString(node.inputs or b"")
        task = read_id(template.id, EntityKind.TASK)
        start = TaskStart(row.node_id, row.attempt + 1, task, workflow_pb2.Node.FromString(row.node), inputs)
        most = f"%{row.parallelism}" if 0 < row.parallelism < len(indexes) else ""
        try:
            planned = self.starter.plan(self.context, execution, start, template, array=f"{indexes}{most}")
            self.starter.store_files(self.context, [planned])
            return self.leadership.commit(
                self.context, lambda batch: self._store_start(batch, planned, indexes, states)
            )
        except (StartRefused, StartsRefused) as exc:
            error = (exc if isinstance(exc, StartRefused) else exc.refusals[0]).error
            if error.transient or isinstance(error, LimitReached):
                raise error from exc  # the next round tries again
            return self._end(None, AttemptFailure("Refused", error.detail))

    def _room(self, wanted: int) -> int:
        """How many elements may be in the next array. Raises LimitReached if there are too few to begin with.

        A map with more elements than the user may have tasks runs as several arrays, one after the other.
        """
        context = self.context
        actor = owner_of(context.snapshots.access, self.execution.owner_id, self.execution.owner)
        room = context.usage.room(actor)
        if room.tasks is not None and room.tasks < wanted and context.usage.freshen(context.database, actor.name):
            room = context.usage.room(actor)
        count = elements_to_start(wanted, room=room.tasks, limit=room.tasks_limit)
        if not count:
            context.usage.refuse_over(actor, tasks=(room.tasks or 0) + 1)
            raise Busy("Tasks of other arrays have just ended. The map begins with the next round.")
        return count

    def _tell_wait(self, reason: str) -> None:
        """Store for readers why the next array does not begin, once."""
        row, task = self.row, read_id(template_of(self.row).id, EntityKind.TASK)
        start = TaskStart(row.node_id, row.attempt + 1, task, None, None)
        with self.context.database.read() as tx:
            stored = execution_nodes.attempt_list(tx, row.execution_id, row.node_id)
        new = waiting_row(row.execution_id, start, reason=reason, now_us=self.context.now_us())
        if any((one.attempt, one.reason) == (new.attempt, new.reason) for one in stored):
            return

        def apply(batch: Batch) -> int:
            if self._holds(batch):
                execution_nodes.waiting_put(batch.tx, new)
            return 0

        self.leadership.commit(self.context, apply)

    def _store_start(self, batch: Batch, planned: PlannedJob, indexes: IdSet, states: Mapping[int, bytes]) -> int:
        row = self.row
        if not self._holds(batch):
            return 0
        execution_nodes.waiting_delete(batch.tx, row.execution_id, [row.node_id])
        self.starter.insert(batch, self.context, self.execution, [planned])
        update = MapUpdate(
            phase=RUNNING,
            attempt=planned.start.attempt,
            job_id=planned.write.row.id,
            indexes=str(indexes),
            seen=0,
            updated_us=batch.now_us,
        )
        self._update(batch, update)
        changed = {part: reopened(part, body, indexes) for part, body in states.items() if AGAIN in body}
        execution_maps.states_put(batch.tx, row.execution_id, row.node_id, changed)
        return 1

    def _store_ends(self, job: MapJob | None, ends: Sequence[tuple[int, JobEnd]]) -> int:
        row, template = self.row, template_of(self.row)
        self.end_count = len(ends)
        inner: Any = workflow_pb2.Node.FromString(row.node)
        retries = int(inner.metadata.retries.retries or template.metadata.retries.retries)
        declared = frozenset(template.interface.outputs.variables)
        inputs = self.inputs.read(self.context, row)
        judged = [(index, judge_element(row, index, end, declared, inputs.addresses)) for index, end in ends]
        good = [index for index, end in judged if end.outputs is not None]
        keys = element_keys(self.execution, row, inputs, good)

        def apply(batch: Batch) -> int:
            if not self._holds(batch):
                return 0
            progress = self._progress(batch, [index for index, _ in judged])
            for index, end in judged:
                add_end(progress, index, end, retries=retries, is_stopping=bool(row.is_stopped))
            self._put(batch, job, progress, len(judged))
            put_entries(batch, self._entries(progress, keys, batch.now_us))
            return 1

        return self.leadership.commit(self.context, apply, locks=[job.id] if job is not None else [])

    def _progress(self, batch: Batch, indexes: Iterable[int]) -> MapProgress:
        """The map as it is stored, with the parts of these elements."""
        row, numbers = self.row, {index // PART_SIZE for index in indexes}
        stored = execution_maps.map_parts(batch.tx, row.execution_id, row.node_id, numbers)
        parts = {number: (bytearray(part.states), results_of(part.results)) for number, part in stored.items()}
        return MapProgress(row, row.succeeded, row.failed, row.output_bytes, parts)

    def _entries(self, progress: MapProgress, keys: Mapping[int, bytes], now_us: int) -> list[CacheRow]:
        """The outputs of elements for the cache."""
        source = f"{self.execution.name}/{self.row.node_id}/{self.row.attempt}"
        bodies = ((key, progress.parts[index // PART_SIZE][1].outputs.get(index)) for index, key in keys.items())
        return [
            CacheRow(key, self.execution.project, body, source, now_us)
            for key, body in bodies
            if body is not None and len(body) <= ENTRY_BYTES_MAX
        ]

    def _put_parts(self, batch: Batch, progress: MapProgress) -> None:
        parts = [
            MapPart(number, bytes(states), msgspec.msgpack.encode(results))
            for number, (states, results) in progress.parts.items()
        ]
        execution_maps.parts_put(batch.tx, self.row.execution_id, self.row.node_id, parts)

    def _put(self, batch: Batch, job: MapJob | None, progress: MapProgress, count: int) -> None:
        """Store a batch of ends, and what follows from it: another array, the end, or that the rest is cancelled."""
        row, tx = self.row, batch.tx
        self._put_parts(batch, progress)
        error = error_of(progress) if row.error is None else None
        is_failed = error is not None or row.error is not None
        seen, phase = row.seen + count, RUNNING
        if seen >= len(IdSet.stored(row.indexes)):
            phase = DONE if is_failed or progress.is_complete or row.is_stopped else STARTING
            _end_attempt(batch, row, job, error=error or row.error)
        elif is_failed and not (row.runs_all and progress.output_bytes <= OUTPUT_BYTES_MAX):
            phase = STOPPING
            if job is not None:
                words = f"map {row.node_id} of execution {self.execution.name} has failed"
                request_cancel(batch, list(jobs.job_lock(tx, [job.id]).values()), words)
        update = MapUpdate(
            phase=phase,
            seen=seen,
            succeeded=progress.succeeded,
            failed=progress.failed,
            output_bytes=progress.output_bytes,
            updated_us=batch.now_us,
        )
        self._update(batch, update, error)

    def _end(self, job: MapJob | None, failure: AttemptFailure | None = None) -> int:
        """End a map whose array is over or was never started."""
        row = self.row

        def apply(batch: Batch) -> int:
            if not self._holds(batch):
                return 0
            if row.job_id is not None:
                _end_attempt(batch, row, job, error=row.error)
            error = encoded_failure(failure) if failure is not None else None
            self._update(batch, MapUpdate(phase=DONE, updated_us=batch.now_us), error)
            return 1

        return self.leadership.commit(self.context, apply)

    def _update(self, batch: Batch, update: MapUpdate, error: bytes | None = None) -> None:
        """Change the map, and have the leader look at it again."""
        if not execution_maps.map_update(batch.tx, self.row, update, error=error):
            raise Busy(CHANGED)
        batch.topics.add(Topic.EXECUTIONS)

    def _holds(self, batch: Batch) -> bool:
        """Whether the execution is as it was read: no stop and no step of the engine came between."""
        locked = executions.execution_lock(batch.tx, self.execution.key)
        return locked is not None and locked.steps == self.execution.steps


def _end_attempt(batch: Batch, row: MapRow, job: MapJob | None, *, error: bytes | None) -> None:
    """Store the end of the array of a map."""
    live = execution_nodes.live_attempts(batch.tx, row.execution_id)
    for attempt in live:
        if (attempt.node_id, attempt.attempt) == (row.node_id, row.attempt):
            is_aborted = job is not None and job.state == State.CANCELLED and error is None
            phase = "FAILED" if error is not None else "ABORTED" if is_aborted else "SUCCEEDED"
            reason = (job.reason if job is not None else "") or ""
            execution_nodes.attempt_end(
                batch.tx,
                attempt,
                execution_id=row.execution_id,
                phase=phase,
                reason=reason,
                error=error,
                at_us=batch.now_us,
            )


CACHE_BYTES_MAX = 64 * 2**20  # of inputs that are kept in memory


@dataclass(frozen=True, slots=True)
class MapInputs:
    """`literals`: None if nobody needs them. `addresses`: of uploaded files, by their paths in the job's folder."""

    literals: Any
    addresses: Mapping[str, str]
    size: int


@dataclass
class MapInputsCache:
    """The inputs of the maps that were looked at last. They never change."""

    inputs: OrderedDict[tuple[str, str], MapInputs] = field(default_factory=OrderedDict)
    size: int = 0

    def read(self, context: Context, row: MapRow) -> MapInputs:
        key = row.execution_id, row.node_id
        known = self.inputs.get(key)
        if known is None:
            with context.database.read() as tx:
                node = execution_nodes.node_get(tx, *key)
            known = self.inputs[key] = read_inputs((node.inputs if node is not None else None) or b"", row)
            self.size += known.size
        self.inputs.move_to_end(key)
        while self.size > CACHE_BYTES_MAX and len(self.inputs) > 1:
            self.size -= self.inputs.popitem(last=False)[1].size
        return known


def read_inputs(body: bytes, row: MapRow) -> MapInputs:
    has_files = SCHEME.encode() in body
    if not has_files and row.bound is None:
        return MapInputs(None, {}, 500)
    literals = literals_pb2.LiteralMap.FromString(body)
    paths = uploaded_paths(literals) if has_files else {}
    return MapInputs(literals, {path: address for address, path in paths.items()}, 500 + 4 * len(body))


def element_keys(execution: ExecutionRow, row: MapRow, inputs: MapInputs, indexes: Sequence[int]) -> dict[int, bytes]:
    """The keys of elements in the cache, by index. Empty: the map is not cached."""
    template = template_of(row)
    rule = cache_rule(template, workflow_pb2.Node.FromString(row.node))
    if row.bound is None or rule is None:
        return {}
    scope, task = cache_scope(execution, read_spec(execution)), read_id(template.id, EntityKind.TASK)
    bound = json.loads(row.bound)
    return {
        index: cache_key(task, template, rule, element_inputs(bound, inputs.literals, index), scope=scope)
        for index in indexes
    }
