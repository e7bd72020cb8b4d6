"""What an attempt left in its output files: outputs, an error, or a dynamic workflow."""

from __future__ import annotations

from switchyard.model.file_tree import BadTree, Entry, FileEntry, FolderEntry, decode_tree
from switchyard.model.files import OutputState
from switchyard.model.job import State
from switchyard.service.core.context import Context
from switchyard.storage.object_store import ObjectDamaged, ObjectMissing
from switchyard.store.execution_nodes import LiveAttemptRow
from switchyard.workflow.attempt_result import OUTPUT_BYTES_MAX, JobEnd
from switchyard.workflow.task_command import OUTPUTS

READ_FILES = ("error.pb", "futures.pb", "outputs.pb")
SILENCE_US = 600_000_000  # for output files that no agent speaks of after the end of a job
UPLOAD_US = 3_600_000_000  # for those that are on their way


def is_over(row: LiveAttemptRow, now_us: int) -> bool:
    """Whether the job has ended, and its output files are here or cannot be had."""
    if row.state is None:
        return True
    if row.state not in (State.SUCCEEDED, State.FAILED, State.CANCELLED, State.REJECTED):
        return False
    if row.output_state in (OutputState.READY, OutputState.FAILED) or row.state in (State.CANCELLED, State.REJECTED):
        return True
    if row.started_us is None and row.state != State.SUCCEEDED:
        return True  # it never ran. One that succeeded did, though nobody saw it begin
    waited_us = now_us - (row.ended_us or now_us)
    return waited_us > (UPLOAD_US if row.output_state == OutputState.UPLOADING else SILENCE_US)


def read_end(context: Context, row: LiveAttemptRow) -> JobEnd:
    """The end of a job with the files that it left. Raises Unavailable if the store of files is away."""
    if row.state is None:
        return JobEnd("FAILED", "the job was removed before its end was seen")
    files: dict[str, bytes] = {}
    problem = row.output_error or ""
    if row.output_root is None and not problem:
        problem = "no output files came from the cluster"
    if row.output_root is not None:
        try:
            files = _read_files(context, bytes(row.output_root))
        except (ObjectMissing, ObjectDamaged, BadTree, _TooLarge) as exc:
            problem = str(exc)
    return JobEnd(row.state, row.reason or "", row.exit_code, row.signal, files, problem)


class _TooLarge(Exception):
    pass


def _read_files(context: Context, root: bytes) -> dict[str, bytes]:
    entries: list[Entry] = decode_tree(context.files.store.get(root))
    for name in OUTPUTS.encode().split(b"/"):
        folder = next((one for one in entries if isinstance(one, FolderEntry) and one.name == name), None)
        if folder is None:
            return {}
        entries = decode_tree(context.files.store.get(folder.tree))
    files: dict[str, bytes] = {}
    for entry in entries:
        name_text = entry.name.decode(errors="replace")
        if not isinstance(entry, FileEntry) or name_text not in READ_FILES:
            continue
        if entry.size > OUTPUT_BYTES_MAX:
            raise _TooLarge(f"{name_text} has {entry.size} bytes; the most is {OUTPUT_BYTES_MAX}")
        files[name_text] = _content(context, entry)
    return files


def _content(context: Context, entry: FileEntry) -> bytes:
    """Small: at most one chunk. A chunk of zeros is not stored."""
    return b"".join(context.files.store.get(chunk) if chunk else bytes(entry.size) for chunk in entry.chunks)
