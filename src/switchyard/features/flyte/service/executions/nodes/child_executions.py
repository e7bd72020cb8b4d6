"""Executions that launch plan nodes start: planned before a step, inserted with it, and ended with their parent.

The name of a child follows from its parent and the node, so a reader finds it from the node alone. All executions that
began with one are a family. Its live members are bounded, and so is the number of all that it ever had. Children count
against the limits of their owner and project. At a limit of live ones an execution still has one child at a time, so
that each of them can go on.
"""

from __future__ import annotations

from base64 import b32encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from flyteidl.admin import execution_pb2
from flyteidl.core import execution_pb2 as core_execution_pb2
from flyteidl.core import literals_pb2
from msgspec import structs

from switchyard.errors import BadRequest, Conflict, YardError
from switchyard.features.flyte.service.entities.scope import require_write
from switchyard.features.flyte.service.executions.calls.creation import (
    ExecutionOrigin,
    PreparedExecution,
    insert_execution,
    prepare_execution,
)
from switchyard.features.flyte.service.executions.calls.launch_targets import inherited_spec
from switchyard.features.flyte.service.executions.driving.live_limits import executions_left
from switchyard.features.flyte.service.executions.nodes.job_starts import StartRefused
from switchyard.features.flyte.service.executions.nodes.recovered_nodes import execution_before, recover_child
from switchyard.features.flyte.store.executions import child_executions as store
from switchyard.features.flyte.store.executions import execution_recovery, executions
from switchyard.features.flyte.store.executions.executions import ExecutionKey, ExecutionRow
from switchyard.features.flyte.workflow.engine.child_room import ChildRoom, children_to_begin
from switchyard.features.flyte.workflow.engine.execution_state import (
    AttemptEnd,
    AttemptFailure,
    ExecutionPhase,
    TaskStart,
)
from switchyard.features.flyte.workflow.engine.start_choice import AttemptKey
from switchyard.features.flyte.workflow.values.limits import CONFIG_SECTION, WorkflowLimits
from switchyard.service.core.context import Context
from switchyard.service.core.snapshots.snapshots import owner_of
from switchyard.service.core.writes.batch import Batch, Topic

NESTING_MAX = 16  # executions in executions
FAMILY_MAX = 1000  # live children that began with one execution
CHILDREN_MAX = 20  # children that begin in one step
TAKEN_OVER_MAX = 5000  # nodes that the children of one step take over, after which no further child begins in it
ENDS_MAX = 200  # of children that one step reads
NAME_CHARS = 20


@dataclass(frozen=True, slots=True)
class PlannedChild:
    """`node_ids`: nodes to take over from the execution `source`, which this one recovers; empty: it recovers none."""

    start: TaskStart
    prepared: PreparedExecution
    source: str = ""
    node_ids: Sequence[str] = ()


def child_name(parent_id: str, node_id: str) -> str:
    """The name of the execution that a node starts."""
    digest = sha256(f"{parent_id}/{node_id}".encode()).digest()
    return "f" + b32encode(digest).decode().lower()[: NAME_CHARS - 1]


def children_to_start(
    context: Context, parent: ExecutionRow, wanted: Sequence[TaskStart], *, ended: int
) -> tuple[list[TaskStart], dict[AttemptKey, AttemptFailure]]:
    """Which of the wanted children begin in a step, and which never will.

    `ended`: children whose end this step stores.
    """
    if not wanted:
        return [], {}
    actor, root_id = owner_of(context.snapshots.access, parent.owner_id, parent.owner), parent.root_id or parent.id
    most = context.setting(WorkflowLimits).execution_descendants
    with context.database.read() as tx:
        used = store.descendants_count(tx, root_id)
        in_family = store.live_count(tx, root_id=root_id) - ended
        lefts = FAMILY_MAX - in_family, executions_left(tx, context, actor, parent.project)
        room = ChildRoom(
            total=most - used if most else None,
            live=min(left for left in lefts if left is not None),
            has_live=store.live_count(tx, parent_id=parent.id) > ended,
        )
    begin, refused = children_to_begin(len(wanted), room, most=CHILDREN_MAX)
    why = (
        f"the execution that all began with has started {used + begin} executions in all, with those inside them. The "
        f"limit `{CONFIG_SECTION}.execution_descendants` of the server's config file is {most}. Perhaps a launch plan "
        "starts itself"
    )
    failure = AttemptFailure("ExecutionTooLarge", why)
    doomed = wanted[len(wanted) - refused :] if refused else []
    return list(wanted[:begin]), {(start.node_id, start.attempt): failure for start in doomed}


def insert_children(
    batch: Batch, context: Context, parent: ExecutionRow, children: Sequence[PlannedChild]
) -> list[StartRefused]:
    """Insert the children of a step in its transaction. Returns the refusals: if there are any, undo the step."""
    refusals: list[StartRefused] = []
    for child in children:
        try:
            _insert_child(batch, context, child)
        except StartRefused as exc:
            refusals.append(exc)
    if children:
        store.descendants_add(batch.tx, parent.root_id or parent.id, len(children))
    return refusals


def plan_child(context: Context, parent: ExecutionRow, spec: Any, start: TaskStart) -> PlannedChild:
    """The child of a node. Raises StartRefused."""
    actor = owner_of(context.snapshots.access, parent.owner_id, parent.owner)
    key = ExecutionKey(parent.project, parent.domain, child_name(parent.id, start.node_id))
    try:
        if spec.metadata.nesting >= NESTING_MAX:
            raise BadRequest(f"executions are nested more than {NESTING_MAX} deep")
        require_write(context, actor, parent.project, parent.domain)
        child_spec, digest = _child_spec(parent, spec, start), sha256(f"{parent.id}/{start.node_id}".encode()).digest()
        origin = ExecutionOrigin(executions.CHILD_MODE, home=parent.cluster)
        prepared = prepare_execution(context, actor, key, child_spec, start.inputs, digest=digest, origin=origin)
    except YardError as exc:
        raise StartRefused(start, exc) from exc
    related = {"parent_id": parent.id, "parent_node": start.node_id, "root_id": parent.root_id or parent.id}
    row, source, node_ids = structs.replace(prepared.row, is_awaited=True, **related), "", list[str]()
    with context.database.read() as tx:
        before = execution_before(tx, parent)
    if before is not None:
        row, source, node_ids = recover_child(context, row, before, child_name(before.id, start.node_id))
    return PlannedChild(start, replace(prepared, row=row), source, node_ids)


def _child_spec(parent: ExecutionRow, spec: Any, start: TaskStart) -> Any:
    child_spec = inherited_spec(spec, start.task)
    metadata = child_spec.metadata
    metadata.mode = execution_pb2.ExecutionMetadata.CHILD_WORKFLOW
    metadata.nesting = spec.metadata.nesting + 1
    node = metadata.parent_node_execution
    node.node_id = start.node_id
    node.execution_id.project, node.execution_id.domain = parent.project, parent.domain
    node.execution_id.name = parent.name
    return child_spec


def _insert_child(batch: Batch, context: Context, child: PlannedChild) -> None:
    row = child.prepared.row
    actor = owner_of(context.snapshots.access, row.owner_id, row.owner)
    try:
        is_new = insert_execution(batch, context, actor, child.prepared)
    except YardError as exc:
        raise StartRefused(child.start, exc) from exc
    if not is_new:
        raise StartRefused(child.start, Conflict(f"There is an execution {row.key} already."))
    # If retention has removed the earlier execution meanwhile, all nodes run.
    if child.node_ids and not execution_recovery.is_removed(batch.tx, child.source):
        execution_recovery.nodes_copy(batch.tx, child.source, row.id, child.node_ids, now_us=batch.now_us)


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
