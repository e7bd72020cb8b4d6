"""The cache of tasks: looked up before a step starts nodes, and written in the transaction that ends them.

A node that runs a serialized task holds its key until it ends. The key is released in the same transaction, so a killed
server leaves none behind, and a further attempt of the node keeps it. A node inside of one that holds a key never waits
for a key: it runs beside the node that has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flyteidl.core import literals_pb2

from switchyard.features.flyte.store.executions import child_executions
from switchyard.features.flyte.store.executions import task_cache as store
from switchyard.features.flyte.store.executions.executions import ExecutionRow
from switchyard.features.flyte.store.executions.task_cache import CacheRow
from switchyard.features.flyte.workflow.engine.execution_state import (
    EngineStep,
    NodePhase,
    NodeProgress,
    NodeTable,
    TaskStart,
)
from switchyard.features.flyte.workflow.tasks.task_cache import (
    HIT,
    MISS,
    POPULATED,
    SKIPPED,
    CacheAnswer,
    CacheRule,
    cache_key,
    cache_rule,
    is_inside_holder,
)
from switchyard.features.flyte.workflow.values.content import content_bytes
from switchyard.service.core.context import Context
from switchyard.service.core.writes.batch import Batch

ENTRIES_MAX = 10_000  # of one project; older ones go
KEEP_US = 90 * 86_400_000_000  # an entry
ELEMENTS_CACHED_MAX = ENTRIES_MAX // 2  # of a map; a larger one would push out the entries of others
ENTRY_BYTES_MAX = 256 * 2**10
LOOKS_MAX = 20  # in one step; nodes behind that are looked up by the next one

LAUNCHERS_MAX = 32  # executions around another one; they are nested less deeply
LATER = CacheAnswer(MISS, b"", must_wait=True)
Answers = dict[tuple[str, int], CacheAnswer]


def look_up(
    context: Context,
    execution: ExecutionRow,
    spec: Any,
    engine_step: EngineStep,
    known: Mapping[Any, CacheAnswer],
    *,
    before: NodeTable,
) -> Answers:
    """What the cache says of nodes that would start, without those whose answer is known.

    Outputs of nodes that succeed in this very step count, too: they are stored with it. `before`: the nodes before it.
    """
    keys_by_place: dict[tuple[str, int], tuple[bytes, bool]] = {}
    for start in engine_step.starts:
        place = start.node_id, start.attempt
        rule = _rule(start) if place not in known else None
        if rule is not None:
            key = cache_key(start.task, start.template, rule, start.inputs, scope=cache_scope(execution, spec))
            keys_by_place[place] = key, rule.is_serial
    if not keys_by_place:
        return {}
    keys = [key for key, _ in keys_by_place.values()]
    with context.database.read() as tx:
        rows = store.cache_get(tx, keys) if not spec.overwrite_cache else {}
        reserved = store.reserved_keys(tx, [key for key, is_serial in keys_by_place.values() if is_serial])
    if not spec.overwrite_cache:
        rows |= {node.cache_key: _cache_row(execution, node, 0) for node in engine_step.nodes if _is_new(node)}
    reserved |= {one.key for one in known.values() if one.is_serial and not one.must_wait and one.outputs is None}
    has_serial = any(is_serial for _, is_serial in keys_by_place.values())
    holders = _Holders.read(context, execution, NodeTable(engine_step.nodes, base=before)) if has_serial else None
    answers: Answers = {}
    for place, (key, is_serial) in keys_by_place.items():
        row = rows.get(key)
        if row is not None:
            outputs = literals_pb2.LiteralMap.FromString(row.outputs)
            answers[place] = CacheAnswer(HIT, key, outputs, row.source)
            continue
        status = SKIPPED if spec.overwrite_cache else MISS
        # A node inside of a holder runs beside the node that has the key.
        is_beside = key in reserved and holders is not None and holders.are_around(place[0])
        waits = is_serial and key in reserved and not is_beside
        answers[place] = CacheAnswer(status, key, must_wait=waits, is_serial=is_serial and not is_beside)
        if is_serial:
            reserved.add(key)
    return answers


@dataclass(frozen=True, slots=True)
class _Holders:
    """Nodes that hold keys, of an execution and of those that it is inside of."""

    execution_id: str
    nodes: NodeTable
    launchers: list[tuple[str, str]]
    holders: set[tuple[str, str]]

    @classmethod
    def read(cls, context: Context, execution: ExecutionRow, nodes: NodeTable) -> _Holders:
        with context.database.read() as tx:
            launchers = child_executions.launchers(tx, execution.parent_id, execution.parent_node, limit=LAUNCHERS_MAX)
            holders = store.holders(tx, [execution.id, *(outer for outer, _ in launchers)])
        return cls(execution.id, nodes, launchers, holders)

    def are_around(self, node_id: str) -> bool:
        around: list[str] = []
        state = self.nodes.get(node_id)
        while state is not None and state.parent_id:
            around.append(state.parent_id)
            state = self.nodes.get(state.parent_id)
        return is_inside_holder(around, self.launchers, self.holders, execution=self.execution_id)


def cache_scope(execution: ExecutionRow, spec: Any) -> tuple[str, str, str]:
    """Project and domain; with data in a folder of a cluster, also the cluster, the folder and the owner.

    Other clusters do not have the folder, and with an account map other users cannot read the owner's data.
    """
    prefix = spec.raw_output_data_config.output_location_prefix
    is_folder = prefix.startswith("/")
    cluster = spec.metadata.system_metadata.execution_cluster
    return execution.project, execution.domain, f"{cluster}:{execution.owner_id}:{prefix}" if is_folder else ""


def ask_later(starts: Iterable[TaskStart], known: Mapping[Any, CacheAnswer]) -> Answers:
    """Answers that leave cached nodes to the next step: a chain of hits must not make one step long."""
    places = [(start.node_id, start.attempt) for start in starts if _rule(start) is not None]
    return {place: LATER for place in places if place not in known}


def _rule(start: TaskStart) -> CacheRule | None:
    return cache_rule(start.template, start.node) if start.is_job and not start.attempt else None


def store_cache(
    batch: Batch, execution: ExecutionRow, nodes: Iterable[NodeProgress], answers: Mapping[Any, CacheAnswer]
) -> None:
    """Write what a step means for the cache: outputs of nodes that ended, keys that nodes hold, and nodes that wait."""
    ended: list[str] = []
    new: list[CacheRow] = []
    begun: set[str] = set()
    for node in nodes:
        begun.add(node.node_id)
        if not node.cache_key or node.phase.is_live:
            continue
        ended.append(node.node_id)
        if _is_new(node):
            new.append(_cache_row(execution, node, batch.now_us))
    put_entries(batch, new)
    store.release(batch.tx, execution.id, ended)
    for (node_id, _), answer in answers.items():
        if answer.is_serial and not answer.must_wait and node_id in begun and node_id not in ended:
            store.reserve(batch.tx, answer.key, execution.id, node_id)
    waits = [(node_id, answer.key) for (node_id, _), answer in answers.items() if answer.must_wait and answer.key]
    store.wait_put(batch.tx, execution.id, waits)


def put_entries(batch: Batch, rows: Sequence[CacheRow]) -> None:
    """Store outputs in the cache of a project."""
    if rows:
        store.cache_put(batch.tx, rows, entries_max=ENTRIES_MAX, stored_after_us=batch.now_us - KEEP_US)


def is_map_cached(start: TaskStart) -> bool:
    """Whether the elements of a map are looked up and stored: its task is cached, and it leaves room for others."""
    return cache_rule(start.template, start.node) is not None and start.shape.size <= ELEMENTS_CACHED_MAX


def stored_status(node: NodeProgress) -> str | None:
    """The status of a node's cache, as it is stored: outputs of a node that succeeded are in the cache."""
    return POPULATED if _is_new(node) else node.cache_status or None


def _is_new(node: NodeProgress) -> bool:
    """Whether a node has outputs for the cache."""
    has_run = node.phase is NodePhase.SUCCEEDED and node.cache_status in (MISS, SKIPPED)
    return has_run and node.outputs is not None and node.outputs.ByteSize() <= ENTRY_BYTES_MAX


def _cache_row(execution: ExecutionRow, node: NodeProgress, now_us: int) -> CacheRow:
    source = f"{execution.name}/{node.node_id}/{node.attempts - 1}"
    return CacheRow(node.cache_key, execution.project, content_bytes(node.outputs), source, now_us)
