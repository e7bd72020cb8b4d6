"""Executions that launch plan nodes start: planned before a step, inserted with it, and ended with their parent.

The name of a child follows from its parent and the node, so a reader finds it from the node alone. All children of one
beginning are a family, whose live members are bounded. In a full family an execution still has one child at a time, so
that each of them can go on.
"""

from __future__ import annotations

from base64 import b32encode
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from flyteidl.admin import execution_pb2
from flyteidl.core import execution_pb2 as core_execution_pb2
from flyteidl.core import literals_pb2
from msgspec.structs import replace

from switchyard.errors import BadRequest, Conflict, YardError
from switchyard.service.core.audit import record_audit
from switchyard.service.core.batch import Batch, Topic
from switchyard.service.core.context import Context
from switchyard.service.core.snapshots import owner_of
from switchyard.service.entities.scope import require_write
from switchyard.service.executions.creation import ExecutionOrigin, launched_text, prepare_execution
from switchyard.service.executions.execution_counts import count_phase
from switchyard.service.executions.job_starts import StartRefused
from switchyard.store import child_executions as store
from switchyard.store import executions
from switchyard.store.executions import ExecutionKey, ExecutionRow
from switchyard.workflow.entity_id import to_message
from switchyard.workflow.execution_state import AttemptEnd, AttemptFailure, ExecutionPhase, TaskStart

NESTING_MAX = 16  # executions in executions
FAMILY_MAX = 1000  # live children that began with one execution
CHILDREN_MAX = 20  # children that begin in one step
ENDS_MAX = 200  # of children that one step reads
NAME_CHARS = 20
INHERITED = ("labels", "annotations", "security_context", "interruptible", "envs", "raw_output_data_config")
BOUNDS = ("cluster_assignment", "execution_cluster_label")  # Flyte forgets the first


@dataclass(frozen=True, slots=True)
class PlannedChild:
    start: TaskStart
    row: ExecutionRow


def child_name(parent_id: str, node_id: str) -> str:
    """The name of the execution that a node starts."""
    digest = sha256(f"{parent_id}/{node_id}".encode()).digest()
    return "f" + b32encode(digest).decode().lower()[: NAME_CHARS - 1]


def plan_children(context: Context, parent: ExecutionRow, spec: Any, starts: Iterable[TaskStart]) -> list[PlannedChild]:
    """The children of a step, as many as the family has room for. Raises StartRefused."""
    wanted = [start for start in starts if start.is_child][:CHILDREN_MAX]
    if not wanted:
        return []
    with context.database.read() as tx:
        room = FAMILY_MAX - store.live_count(tx, root_id=parent.root_id or parent.id)
        if room <= 0:
            room = 0 if store.live_count(tx, parent_id=parent.id) else 1
    return [_plan(context, parent, spec, start) for start in wanted[:room]]


def _plan(context: Context, parent: ExecutionRow, spec: Any, start: TaskStart) -> PlannedChild:
    actor = owner_of(context.snapshots.access, parent.owner_id, parent.owner)
    key = ExecutionKey(parent.project, parent.domain, child_name(parent.id, start.node_id))
    try:
        if spec.metadata.nesting >= NESTING_MAX:
            raise BadRequest(f"executions are nested more than {NESTING_MAX} deep")
        require_write(context, actor, parent.project, parent.domain)
        asked, digest = _child_spec(parent, spec, start), sha256(f"{parent.id}/{start.node_id}".encode()).digest()
        origin = ExecutionOrigin(executions.CHILD_MODE, home=parent.cluster)
        row = prepare_execution(context, actor, key, asked, start.inputs, digest=digest, origin=origin)
    except YardError as exc:
        raise StartRefused(start, exc) from exc
    related = {"parent_id": parent.id, "parent_node": start.node_id, "root_id": parent.root_id or parent.id}
    return PlannedChild(start, replace(row, is_awaited=True, **related))


def _child_spec(parent: ExecutionRow, spec: Any, start: TaskStart) -> Any:
    """What the parent says; the launch plan fills in the rest."""
    asked = execution_pb2.ExecutionSpec(launch_plan=to_message(start.task))
    for field in (*INHERITED, *BOUNDS):
        if spec.HasField(field):
            getattr(asked, field).CopyFrom(getattr(spec, field))
    asked.max_parallelism, asked.overwrite_cache = spec.max_parallelism, spec.overwrite_cache
    metadata = asked.metadata
    metadata.mode = execution_pb2.ExecutionMetadata.CHILD_WORKFLOW
    metadata.nesting = spec.metadata.nesting + 1
    node = metadata.parent_node_execution
    node.node_id = start.node_id
    node.execution_id.project, node.execution_id.domain = parent.project, parent.domain
    node.execution_id.name = parent.name
    return asked


def insert_child(batch: Batch, context: Context, child: PlannedChild) -> None:
    """Insert a child in the transaction of its parent's step. Raises StartRefused, and then nothing is stored."""
    row = child.row
    if not executions.execution_insert(batch.tx, row):
        raise StartRefused(child.start, Conflict(f"There is an execution {row.key} already."))
    batch.topics.add(Topic.EXECUTIONS)
    count_phase(batch, context, row)
    actor = owner_of(context.snapshots.access, row.owner_id, row.owner)
    record_audit(batch, context, actor, "execution.create", str(row.key), after={"launches": launched_text(row)})


def stop_children(batch: Batch, parent: ExecutionRow, scopes: Iterable[str]) -> None:
    """Ask for the end of the children of nodes whose ids begin so."""
    cause = f"execution {parent.name} stops"
    by = parent.abort_by or parent.owner
    if store.children_stop(batch.tx, parent.id, scopes, cause=cause, by=by, now_us=batch.now_us):
        batch.topics.add(Topic.EXECUTIONS)


def child_end(row: ExecutionRow) -> AttemptEnd:
    """The end of a child, as the engine takes it."""
    node_id = row.parent_node or ""
    if row.phase == ExecutionPhase.SUCCEEDED:
        return AttemptEnd(node_id, 0, outputs=literals_pb2.LiteralMap.FromString(row.outputs or b""))
    if row.phase == ExecutionPhase.ABORTED:
        return AttemptEnd(node_id, 0)
    error: Any = core_execution_pb2.ExecutionError.FromString(row.error or b"")
    is_system = error.kind == core_execution_pb2.ExecutionError.SYSTEM
    message = f"execution {row.name}: {error.message}"
    return AttemptEnd(node_id, 0, failure=AttemptFailure(error.code, message, is_system=is_system))
