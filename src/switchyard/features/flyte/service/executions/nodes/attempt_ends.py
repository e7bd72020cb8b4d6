"""How an attempt ended: its job, its files, and what they mean together.

The outputs of a raw container are files that it left, read by the declared types. Files among them are stored here.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

from flyteidl.core import errors_pb2, execution_pb2

from switchyard.errors import YardError
from switchyard.features.flyte.service.executions.calls.data_proxy import native_url
from switchyard.features.flyte.service.executions.nodes.attempt_files import read_end
from switchyard.features.flyte.service.executions.nodes.node_jobs import NodeTree, record_tree, store_objects
from switchyard.features.flyte.store.executions import data_files
from switchyard.features.flyte.store.executions.data_files import DataFileRow
from switchyard.features.flyte.store.executions.execution_nodes import LiveAttemptRow
from switchyard.features.flyte.store.executions.executions import ExecutionRow
from switchyard.features.flyte.workflow.engine.attempt_result import JobEnd, judge_attempt
from switchyard.features.flyte.workflow.engine.execution_state import AttemptEnd, NodeProgress
from switchyard.features.flyte.workflow.tasks.raw_container import (
    ERROR_BYTES_MAX,
    ERROR_FILE,
    VALUE_BYTES_MAX,
    is_file_type,
    is_raw_container,
    read_outputs,
)
from switchyard.features.flyte.workflow.tasks.task_command import CONTAINER_OUT
from switchyard.features.flyte.workflow.values.content import content_bytes
from switchyard.features.flyte.workflow.values.uploaded_files import with_addresses
from switchyard.model.files.file_tree import BadTree, Entry, FileEntry, FolderEntry, chunk_spans, decode_tree
from switchyard.model.jobspec.quantity import show_bytes
from switchyard.service.core.context import Context
from switchyard.service.core.file_storage import refuse_project_over_limit
from switchyard.service.core.writes.batch import Batch
from switchyard.storage.object_store import ObjectDamaged, ObjectMissing
from switchyard.store.files import file_trees


def end_of_attempt(
    context: Context, row: ExecutionRow, attempt: LiveAttemptRow, template: Any, node: NodeProgress | None
) -> AttemptEnd:
    """`template`: of the task; `node`: as it was before the end. Raises Unavailable if the store of files is away."""
    job_end = read_end(context, attempt)
    if is_raw_container(template):
        job_end = with_container_outputs(context, row, attempt, job_end, template)
    end = judge_attempt(
        attempt.node_id, attempt.attempt, job_end, has_outputs=bool(template.interface.outputs.variables)
    )
    if end.outputs is None or node is None or node.inputs is None:
        return end
    return dataclasses.replace(end, outputs=with_addresses(end.outputs, node.inputs))


FILE_BYTES_MAX = 64 * 2**20  # of one output that is a file


class _Unusable(Exception):
    pass


def with_container_outputs(
    context: Context, row: ExecutionRow, attempt: LiveAttemptRow, end: JobEnd, template: Any
) -> JobEnd:
    """The end of a raw container with `outputs.pb` or `error.pb`, as flytekit would have left them."""
    if attempt.output_root is None or end.state not in ("SUCCEEDED", "FAILED"):
        return end
    try:
        entries = {one.name.decode(errors="replace"): one for one in _folder(context, bytes(attempt.output_root))}
        if ERROR_FILE in entries:
            message = _content(context, entries[ERROR_FILE], ERROR_BYTES_MAX)
            return dataclasses.replace(end, files={"error.pb": _error(message)})
        if end.state != "SUCCEEDED":
            return end
        stored, values = dict[str, str](), dict[str, bytes]()
        for name, variable in sorted(template.interface.outputs.variables.items()):
            if name in entries and is_file_type(variable.type):
                stored[name] = _store(context, row, attempt, name, entries[name])
            elif name in entries:
                values[name] = _content(context, entries[name], VALUE_BYTES_MAX)
        outputs, why = read_outputs(template.interface, values, stored)
    except (_Unusable, ObjectMissing, ObjectDamaged, BadTree) as exc:
        outputs, why = None, str(exc)
    except YardError as exc:  # a limit of the user or the project
        if exc.transient:
            raise
        outputs, why = None, exc.detail
    if outputs is None:
        return dataclasses.replace(end, files={"error.pb": _error(why.encode(), code="OutputsUnreadable")})
    return dataclasses.replace(end, files={"outputs.pb": content_bytes(outputs)})


def _error(message: bytes, code: str = "USER:ContainerError") -> bytes:
    document = errors_pb2.ErrorDocument()
    document.error.code = code
    document.error.message = message.decode(errors="replace").strip()
    document.error.kind = errors_pb2.ContainerError.RECOVERABLE
    document.error.origin = execution_pb2.ExecutionError.USER
    return bytes(document.SerializeToString())


def _folder(context: Context, root: bytes) -> list[Entry]:
    entries = decode_tree(context.files.store.get(root))
    for name in CONTAINER_OUT.encode().split(b"/"):
        folder = next((one for one in entries if isinstance(one, FolderEntry) and one.name == name), None)
        if folder is None:
            return []
        entries = decode_tree(context.files.store.get(folder.tree))
    return entries


def _content(context: Context, entry: Entry, bytes_max: int) -> bytes:
    name = entry.name.decode(errors="replace")[:80]
    if not isinstance(entry, FileEntry):
        raise _Unusable(f"the output {name} is no plain file")
    if entry.size > bytes_max:
        raise _Unusable(f"the output {name} has {show_bytes(entry.size)}; the most is {show_bytes(bytes_max)}")
    spans = chunk_spans(entry.size)
    return b"".join(
        context.files.store.get(chunk) if chunk else bytes(span.size)
        for chunk, span in zip(entry.chunks, spans, strict=True)
    )


def _store(context: Context, row: ExecutionRow, attempt: LiveAttemptRow, name: str, entry: Entry) -> str:
    """Keep an output that is a file, as if a client had uploaded it. A second call changes nothing."""
    content = _content(context, entry, FILE_BYTES_MAX)
    path = f"executions/{row.name}/{attempt.job_id}/{name}/{name}"
    assert isinstance(entry, FileEntry)
    tree = NodeTree()
    tree.build({name: entry})
    began_us = store_objects(context, tree)
    md5 = hashlib.md5(content, usedforsecurity=False).digest()

    def write(batch: Batch) -> None:
        record_tree(batch, context, row.owner_id, tree, began_us=began_us)
        file = DataFileRow(
            project=row.project,
            domain=row.domain,
            path=path,
            md5=md5,
            size=entry.size,
            tree=tree.root,
            owner_id=row.owner_id,
            stored_us=batch.now_us,
        )
        if not data_files.data_file_put(batch.tx, file):
            return
        locked = file_trees.tree_lock(batch.tx, tree.root)
        if locked is not None:
            refuse_project_over_limit(batch.tx, context.files.limits, row.project, locked)
        holder = f"data-file:{hashlib.sha256(native_url(row.project, row.domain, path).encode()).hexdigest()}"
        file_trees.ref_put(batch.tx, [file_trees.FileRef(holder, tree.root, file_trees.IN, row.project)])

    context.committer.call(write)
    return native_url(row.project, row.domain, path)
