"""What an attempt of a node takes over from the attempt before it: its checkpoint.

With a place for data, checkpoints are there, and the next attempt is told where. Without one, a checkpoint is among the
output files of its attempt, and comes with the files of the next one. A task that failed and is recovered goes on from
its last checkpoint in the execution before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from flyteidl.admin import execution_pb2

from switchyard.errors import BadRequest
from switchyard.features.flyte.service.executions.calls.data_places import WHAT_TO_SET
from switchyard.features.flyte.service.executions.nodes.recovered_nodes import execution_before
from switchyard.features.flyte.store.executions import execution_nodes
from switchyard.features.flyte.store.executions.executions import ExecutionRow
from switchyard.features.flyte.workflow.engine.execution_state import TaskStart
from switchyard.features.flyte.workflow.tasks.pod_task import container_of
from switchyard.features.flyte.workflow.tasks.task_command import CHECKPOINT
from switchyard.model.files.file_tree import BadTree, FileEntry, FolderEntry, decode_tree
from switchyard.model.jobspec.quantity import show_bytes
from switchyard.service.core.context import Context
from switchyard.storage.object_store import ObjectDamaged, ObjectMissing
from switchyard.store.engine.database import Tx

FILES_MAX = 1000
BYTES_MAX = 256 * 2**20
CHECKPOINT_DEPTH_MAX = 16


@dataclass(frozen=True, slots=True)
class PreviousAttempt:
    """`execution`, `number`, `key`: whose attempt it was, which one, and the id of its job with its fence.

    `checkpoint`: its files by path, if they come with the next attempt.
    """

    execution: str = ""
    number: int = 0
    key: str = ""
    checkpoint: Mapping[str, FileEntry] = field(default_factory=dict)


NO_ATTEMPT = PreviousAttempt()


def previous_attempt(context: Context, row: ExecutionRow, start: TaskStart, template: Any) -> PreviousAttempt:
    """The attempt before this one. Of a first attempt: the last one in the execution that was recovered."""
    if not any("prevcheckpointprefix" in word.lower() for word in container_of(template).args):
        return NO_ATTEMPT
    with context.database.read() as tx:
        execution = row if start.attempt else _recovered_from(tx, row)
        if execution is None:
            return NO_ATTEMPT
        number = start.attempt - 1
        if not start.attempt:
            attempts = execution_nodes.attempt_list(tx, execution.id, start.node_id)
            number = attempts[-1].attempt if attempts else 0
        before = execution_nodes.job_of_attempt(tx, execution.id, start.node_id, number)
    if before is None:
        return NO_ATTEMPT
    files: dict[str, FileEntry] = {}
    try:
        if before.output_root is not None:
            files = _files(context, bytes(before.output_root))
    except (ObjectMissing, ObjectDamaged, BadTree):
        pass  # lost: the task begins anew, as after its first failure
    return PreviousAttempt(execution.name, number, f"{before.job_id}-{before.fence}", files)


def _recovered_from(tx: Tx, row: ExecutionRow) -> ExecutionRow | None:
    """The execution that this one recovers, if its tasks kept their data at the same place."""
    found = execution_before(tx, row)
    if found is None:
        return None
    spec: Any = execution_pb2.ExecutionSpec.FromString(row.spec)
    before: Any = execution_pb2.ExecutionSpec.FromString(found.spec)
    place, place_before = (
        (one.raw_output_data_config.output_location_prefix, one.metadata.system_metadata.execution_cluster)
        for one in (spec, before)
    )
    return found if place == place_before else None


def _files(context: Context, root: bytes) -> dict[str, FileEntry]:
    tree = root
    for name in CHECKPOINT.encode().split(b"/"):
        folders = (one for one in decode_tree(context.files.store.get(tree)) if isinstance(one, FolderEntry))
        found = next((one.tree for one in folders if one.name == name), None)
        if found is None:
            return {}
        tree = found
    files: dict[str, FileEntry] = {}
    size = 0
    for path, entry in _walk(context, tree, ()):
        files[path] = entry
        size += entry.size
        if len(files) > FILES_MAX or size > BYTES_MAX:
            raise BadRequest(
                f"The checkpoint of the last attempt has over {FILES_MAX} files or {show_bytes(BYTES_MAX)}. That needs "
                "a place for data.",
                next_step=WHAT_TO_SET,
            )
    return files


def _walk(context: Context, tree: bytes, above: tuple[str, ...]) -> Iterator[tuple[str, FileEntry]]:
    if len(above) > CHECKPOINT_DEPTH_MAX:
        return
    for entry in decode_tree(context.files.store.get(tree)):
        name = entry.name.decode(errors="surrogateescape")
        if isinstance(entry, FileEntry):
            yield "/".join((*above, name)), entry
        elif isinstance(entry, FolderEntry):
            yield from _walk(context, entry.tree, (*above, name))
