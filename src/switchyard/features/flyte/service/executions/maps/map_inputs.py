"""The inputs of maps, for what needs those of single elements: keys of the cache, and addresses of uploaded files.

The elements of a cached task are looked up before the first array, some hundred in one step, and are stored as they
succeed. A serialized task is not reserved for elements: equal elements run at the same time.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flyteidl.core import literals_pb2, workflow_pb2

from switchyard.features.flyte.service.executions.maps.map_progress import template_of
from switchyard.features.flyte.service.executions.nodes.node_cache import cache_scope
from switchyard.features.flyte.service.executions.nodes.node_jobs import read_spec
from switchyard.features.flyte.store.executions import execution_nodes
from switchyard.features.flyte.store.executions.execution_maps import MapRow
from switchyard.features.flyte.store.executions.executions import ExecutionRow
from switchyard.features.flyte.workflow.compile.entity_id import EntityKind, read_id
from switchyard.features.flyte.workflow.engine.map_elements import element_inputs
from switchyard.features.flyte.workflow.tasks.task_cache import cache_key, cache_rule
from switchyard.features.flyte.workflow.values.uploaded_files import SCHEME, uploaded_paths
from switchyard.service.core.context import Context

KEPT_BYTES_MAX = 64 * 2**20  # of inputs that are kept in memory


@dataclass(frozen=True, slots=True)
class MapInputs:
    """`literals`: None if nobody needs them. `addresses`: of uploaded files, by their paths in the job's folder."""

    literals: Any
    addresses: Mapping[str, str]
    size: int


@dataclass
class MapInputsCache:
    """The inputs of the maps that were looked at last. They never change."""

    kept: OrderedDict[tuple[str, str], MapInputs] = field(default_factory=OrderedDict)
    size: int = 0

    def read(self, context: Context, row: MapRow) -> MapInputs:
        key = row.execution_id, row.node_id
        known = self.kept.get(key)
        if known is None:
            with context.database.read() as tx:
                node = execution_nodes.node_get(tx, *key)
            known = self.kept[key] = read_inputs((node.inputs if node is not None else None) or b"", row)
            self.size += known.size
        self.kept.move_to_end(key)
        while self.size > KEPT_BYTES_MAX and len(self.kept) > 1:
            self.size -= self.kept.popitem(last=False)[1].size
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
