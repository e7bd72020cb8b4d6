"""What an attempt of a node takes over from the attempt before it: its checkpoint.

With a place for data, checkpoints are there, and the next attempt is told where. Without one, a checkpoint is among the
output files of its attempt, and comes with the files of the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from switchyard.errors import BadRequest
from switchyard.model.file_tree import BadTree, FileEntry, FolderEntry, decode_tree
from switchyard.model.quantity import show_bytes
from switchyard.service.core.context import Context
from switchyard.service.executions.data_places import WHAT_TO_SET
from switchyard.storage.object_store import ObjectDamaged, ObjectMissing
from switchyard.store import execution_nodes
from switchyard.store.executions import ExecutionRow
from switchyard.workflow.execution_state import TaskStart
from switchyard.workflow.task_command import CHECKPOINT

FILES_MAX = 1000
BYTES_MAX = 256 * 2**20
DEPTH_MAX = 16


@dataclass(frozen=True, slots=True)
class PreviousAttempt:
    """`key`: the id of its job and its fence. `checkpoint`: its files by path, if they come with the next attempt."""

    key: str = ""
    checkpoint: Mapping[str, FileEntry] = field(default_factory=dict)


NO_ATTEMPT = PreviousAttempt()


def previous_attempt(context: Context, row: ExecutionRow, start: TaskStart, template: Any) -> PreviousAttempt:
    if not start.attempt or not any("prevcheckpointprefix" in word.lower() for word in template.container.args):
        return NO_ATTEMPT
    with context.database.read() as tx:
        before = execution_nodes.job_of_attempt(tx, row.id, start.node_id, start.attempt - 1)
    if before is None:
        return NO_ATTEMPT
    files: dict[str, FileEntry] = {}
    try:
        if before.output_root is not None:
            files = _files(context, bytes(before.output_root))
    except (ObjectMissing, ObjectDamaged, BadTree):
        pass  # lost: the task begins anew, as after its first failure
    return PreviousAttempt(f"{before.job_id}-{before.fence}", files)


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
    if len(above) > DEPTH_MAX:
        return
    for entry in decode_tree(context.files.store.get(tree)):
        name = entry.name.decode(errors="surrogateescape")
        if isinstance(entry, FileEntry):
            yield "/".join((*above, name)), entry
        elif isinstance(entry, FolderEntry):
            yield from _walk(context, entry.tree, (*above, name))
