"""Nodes that a recovered execution takes over from the one before it, with their outputs.

An execution of a launch plan node is recovered together with its parent: it takes over the nodes of the execution that
the same node started before, if that one ran the same launch plan with the same inputs.
"""

from __future__ import annotations

from typing import Any

from flyteidl.admin import execution_pb2
from msgspec import structs

from switchyard.features.flyte.store.executions import execution_recovery, executions
from switchyard.features.flyte.store.executions.execution_recovery import RecoverableNode
from switchyard.features.flyte.store.executions.executions import CHILD_MODE, ExecutionKey, ExecutionRow
from switchyard.features.flyte.workflow.engine.execution_state import ExecutionPhase
from switchyard.features.flyte.workflow.values.content import content_bytes
from switchyard.service.core.context import Context
from switchyard.store.engine.database import Tx

RECOVERED_MODE = "RECOVERED"
_SAME = ("entity_kind", "entity_project", "entity_domain", "entity_name", "entity_version", "inputs")


def nodes_to_take_over(nodes: list[RecoverableNode]) -> list[str]:
    """The nodes that a recovered execution need not run again.

    Nodes inside another one count only if they will be inside it again: the outer node is taken over too, or it is
    one that no task has made and that began once. A dynamic task that runs again may make another workflow.
    """
    by_id = {node.node_id: node for node in nodes}
    taken: list[str] = []
    for node in nodes:
        outer, is_kept = node, True
        while outer.parent_id and is_kept:
            parent = by_id.get(outer.parent_id)
            is_kept = parent is not None and (parent.is_done or (not parent.has_jobs and parent.attempts == 1))
            outer = parent or outer
        if is_kept and node.is_done:
            taken.append(node.node_id)
    return taken


def execution_before(tx: Tx, row: ExecutionRow) -> ExecutionRow | None:
    """The execution that this one recovers. None: it recovers none, or that one was removed."""
    if row.mode not in (RECOVERED_MODE, CHILD_MODE):
        return None
    reference = _spec(row).metadata.reference_execution
    if not reference.name:
        return None
    return executions.execution_get(tx, ExecutionKey(row.project, row.domain, reference.name))


def recover_child(
    context: Context, child: ExecutionRow, parent_before: ExecutionRow, name: str
) -> tuple[ExecutionRow, str, list[str]]:
    """A new execution of a launch plan node, as one that recovers the earlier execution of that node.

    `parent_before`: the execution that the parent recovers. `name`: of the earlier execution. Returns the new row, the
    id of the earlier execution and the nodes to take over; no id: there is nothing to recover.
    """
    with context.database.read() as tx:
        before = executions.execution_get(tx, ExecutionKey(parent_before.project, parent_before.domain, name))
        if before is None or not ExecutionPhase(before.phase).is_final or not _is_same(child, before):
            return child, "", []
        node_ids = nodes_to_take_over(execution_recovery.recoverable_nodes(tx, before.id))
    spec = _spec(child)
    reference = spec.metadata.reference_execution
    reference.project, reference.domain, reference.name = before.project, before.domain, before.name
    return structs.replace(child, spec=content_bytes(spec)), before.id, node_ids


def _is_same(child: ExecutionRow, before: ExecutionRow) -> bool:
    """Whether two executions run the same on the same inputs, and the data of the earlier one is within reach."""
    if any(getattr(child, field) != getattr(before, field) for field in _SAME):
        return False
    cluster = data_cluster(_spec(before))
    return not cluster or cluster == data_cluster(_spec(child))


def data_cluster(spec: Any) -> str:
    """The cluster whose folder has the data of an execution; empty: the data is in no folder."""
    if not spec.raw_output_data_config.output_location_prefix.startswith("/"):
        return ""
    return str(spec.metadata.system_metadata.execution_cluster)


def _spec(row: ExecutionRow) -> Any:
    return execution_pb2.ExecutionSpec.FromString(row.spec)
