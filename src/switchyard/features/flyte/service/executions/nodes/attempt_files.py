"""What an attempt left in its output files: outputs, an error, or a dynamic workflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from switchyard.features.flyte.store.executions.execution_nodes import LiveAttemptRow
from switchyard.features.flyte.workflow.engine.attempt_result import OUTPUT_BYTES_MAX, JobEnd
from switchyard.features.flyte.workflow.tasks.task_command import OUTPUTS
from switchyard.model.files.file_tree import BadTree, Entry, FileEntry, FolderEntry, decode_tree
from switchyard.model.files.files import OutputState
from switchyard.model.job.job import State
from switchyard.service.core.context import Context
from switchyard.storage.object_store import ObjectDamaged, ObjectMissing

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
    return JobEnd(
        state=row.state,
        reason=row.reason or "",
        exit_code=row.exit_code,
        signal=row.signal,
        files=files,
        files_problem=problem,
    )


class _TooLarge(Exception):
    pass


def _read_files(context: Context, root: bytes) -> dict[str, bytes]:
    (contents,) = read_many_files(context, [root]).values()
    if isinstance(contents, Exception):
        raise contents
    return contents


def read_many_files(
    context: Context, roots: Sequence[bytes], *, bytes_max: int | None = None
) -> dict[bytes, dict[str, bytes] | Exception]:
    """What attempts left, or what is wrong with it, by the root of their output files.

    The objects of all of them are read together. `bytes_max`: roots whose files do not fit are left out, but not the
    first one.
    """
    contents_by_root: dict[bytes, dict[str, bytes] | Exception] = {}
    trees = _read_outputs(context, roots, contents_by_root)
    wanted: dict[bytes, list[FileEntry]] = {}
    total = 0
    for root, entries in trees.items():
        files = [
            one for one in entries if isinstance(one, FileEntry) and one.name.decode(errors="replace") in READ_FILES
        ]
        large = next((one for one in files if one.size > OUTPUT_BYTES_MAX), None)
        if large is not None:
            contents_by_root[root] = _TooLarge(
                f"{large.name.decode()} has {large.size} bytes; the most is {OUTPUT_BYTES_MAX}"
            )
            continue
        total += sum(one.size for one in files)
        if bytes_max is None or total <= bytes_max or not wanted:
            wanted[root] = files
    return contents_by_root | _read_contents(context, wanted)


def read_output_folders(context: Context, roots: Sequence[bytes]) -> dict[bytes, list[Entry]]:
    """What stands in the folder of outputs of each root. Roots that cannot be read are left out."""
    contents_by_root: dict[bytes, dict[str, bytes] | Exception] = {}
    entries = _read_outputs(context, roots, contents_by_root)
    return entries | {root: [] for root, content in contents_by_root.items() if not isinstance(content, Exception)}


def _read_outputs(
    context: Context, roots: Sequence[bytes], contents_by_root: dict[bytes, dict[str, bytes] | Exception]
) -> dict[bytes, list[Entry]]:
    """The entries of the folder of outputs of each root. Roots without that folder go into `contents_by_root`."""
    folders: dict[bytes, bytes | None] = {root: root for root in roots}  # the folder that was reached from each root
    for name in OUTPUTS.encode().split(b"/"):
        trees = _read_trees(context, folders, contents_by_root)
        folders = {root: _folder(entries, name) for root, entries in trees.items()}
        contents_by_root |= {root: {} for root, folder in folders.items() if folder is None}
    return _read_trees(context, folders, contents_by_root)


def _read_trees(
    context: Context, folders: Mapping[bytes, bytes | None], contents_by_root: dict[bytes, dict[str, bytes] | Exception]
) -> dict[bytes, list[Entry]]:
    """The entries of the folder of each root. Roots whose folder cannot be read go into `contents_by_root`."""
    digests = list({folder for folder in folders.values() if folder is not None})
    bodies = dict(zip(digests, context.files.store.get_many(digests), strict=True))
    trees: dict[bytes, list[Entry]] = {}
    for root, folder in folders.items():
        if folder is None:
            continue
        body = bodies[folder]
        try:
            if not isinstance(body, bytes):
                raise body
            trees[root] = decode_tree(body)
        except (ObjectMissing, ObjectDamaged, BadTree) as exc:
            contents_by_root[root] = exc
    return trees


def _folder(entries: Sequence[Entry], name: bytes) -> bytes | None:
    return next((one.tree for one in entries if isinstance(one, FolderEntry) and one.name == name), None)


def _read_contents(
    context: Context, wanted: Mapping[bytes, Sequence[FileEntry]]
) -> dict[bytes, dict[str, bytes] | Exception]:
    """The files of each root. They are small: at most one chunk each. A chunk of zeros is not stored."""
    chunks = {chunk for files in wanted.values() for one in files for chunk in one.chunks if chunk}
    bodies = dict(zip(chunks, context.files.store.get_many(chunks), strict=True))
    contents_by_root: dict[bytes, dict[str, bytes] | Exception] = {}
    for root, files in wanted.items():
        contents: dict[str, bytes] = {}
        problem: Exception | None = None
        for one in files:
            parts = [bodies[chunk] if chunk else bytes(one.size) for chunk in one.chunks]
            problem = problem or next((part for part in parts if not isinstance(part, bytes)), None)
            contents[one.name.decode()] = b"".join(part for part in parts if isinstance(part, bytes))
        contents_by_root[root] = problem or contents
    return contents_by_root
