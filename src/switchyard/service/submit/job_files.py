"""The trees that new jobs name: each is sealed and belongs to the job's owner. Jobs without files cost nothing here."""

from __future__ import annotations

from dataclasses import dataclass

from switchyard.errors import BadValue, UnknownName, YardError
from switchyard.model.cluster.idset import IdSet, parse_array
from switchyard.service.core.file_storage import FileLimits, owned_trees, refuse_project_over_limit, show_period
from switchyard.service.core.writes.batch import Batch
from switchyard.service.submit.new_job import JobInsert, unknown_dependencies
from switchyard.store.files import file_trees
from switchyard.store.files.file_trees import IN, FileRef, TreeRow

SEND_AGAIN = "Send the files again with a new job: `yard submit --in`."
UPLOAD_IT = "Upload the files, then submit again: `yard submit --in` does both; else `POST /v1/files/trees` says how."


@dataclass(frozen=True, slots=True)
class _NamedTree:
    """A tree that a job names. `is_by_task`: it has a folder for each task."""

    root: bytes
    is_by_task: bool


def refused_inserts(batch: Batch, limits: FileLimits, writes: list[JobInsert]) -> dict[int, YardError]:
    """Return an error, by `id(write)`, for each job that depends on an unknown job, or names a tree it cannot have."""
    return {**unknown_dependencies(batch, writes), **_unusable_trees(batch, limits, writes)}


def _unusable_trees(batch: Batch, limits: FileLimits, writes: list[JobInsert]) -> dict[int, YardError]:
    """Return an error, by `id(write)`, for each job whose trees it cannot have."""
    with_files = [write for write in writes if write.files is not None]
    if not with_files:
        return {}
    owned = owned_trees(
        batch.tx, ((write.row.owner_id, tree.root) for write in with_files for tree in _named_trees(write))
    )
    refused: dict[int, YardError] = {}
    checked: set[tuple[str, bytes]] = set()  # projects and trees within the project's limit
    for write in with_files:
        try:
            for named in _named_trees(write):
                tree = owned.get((write.row.owner_id, named.root)) or _tree_of_retried_job(batch, write, named.root)
                if tree is None:
                    raise _unknown_tree(limits, write, named.root)
                if named.is_by_task:
                    _refuse_missing_tasks(write, tree)
                if (write.row.project, named.root) not in checked:
                    refuse_project_over_limit(batch.tx, limits, write.row.project, tree)
                    checked.add((write.row.project, named.root))
        except YardError as exc:
            refused[id(write)] = exc
    return refused


def _unknown_tree(limits: FileLimits, write: JobInsert, root: bytes) -> UnknownName:
    """The error for a tree that is not there for this user: never sent, or expired. The database does not say which."""
    period = f"files of a job are kept for {show_period(limits.keep_us)} after its end" if limits.keep_us else ""
    if (retried := write.row.retry_of) is not None:
        why = f" ({period})" if period else ""
        return UnknownName(f"The files of job {retried} have expired{why}.", next_step=SEND_AGAIN)
    idle = f"files that no job needs are kept for {show_period(limits.grace_us)} after their last use"
    return UnknownName(
        f"The tree {root.hex()} is not here: you have not uploaded it, or it has expired "
        f"({'; '.join(filter(None, (period, idle)))}).",
        next_step=UPLOAD_IT,
    )


def refer_to_trees(batch: Batch, writes: list[JobInsert]) -> None:
    """Store which trees the accepted jobs need, in the transaction that stores the jobs."""
    refs = [
        FileRef(write.row.id, tree.root, IN, write.row.project)
        for write in writes
        if write.files is not None
        for tree in _named_trees(write)
    ]
    if refs:
        file_trees.ref_put(batch.tx, refs)


def _named_trees(write: JobInsert) -> list[_NamedTree]:
    files = write.files
    if files is None:
        return []
    trees = [_NamedTree(bytes.fromhex(files.tree), False)] if files.tree else []
    return trees + ([_NamedTree(bytes.fromhex(files.task_tree), True)] if files.task_tree else [])


def _tree_of_retried_job(batch: Batch, write: JobInsert, root: bytes) -> TreeRow | None:
    """The tree of a job that is retried by somebody else, who may use it from now on: this user controls that job."""
    retried = write.row.retry_of
    if retried is None or IN not in file_trees.ref_kinds(batch.tx, retried, root):
        return None
    tree = file_trees.tree_lock(batch.tx, root)
    if tree is not None:
        file_trees.owner_put(batch.tx, root, [write.row.owner_id], now_us=batch.now_us)
    return tree


def _refuse_missing_tasks(write: JobInsert, tree: TreeRow) -> None:
    """Refuse a tree by task that has no folder for some task of the array."""
    array = write.row.array
    if array is None:
        raise BadValue("`files.task_tree` has one folder for each task of an array, and the job is no array.")
    indexes, _ = parse_array(array)
    if not indexes.is_within(IdSet.stored(tree.indexes)):
        without = next(index for index in indexes if index not in IdSet.stored(tree.indexes))
        raise BadValue(
            f"`files.task_tree` has no folder for task {without}.",
            next_step="Its root needs one folder for each index of the array, called by the number.",
        )
