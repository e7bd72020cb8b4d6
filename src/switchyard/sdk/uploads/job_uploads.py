"""Scans and uploads the files of jobs. Equal files of several jobs are scanned and sent once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from switchyard.errors import BadRequest
from switchyard.model.files.file_tree import Entry, FolderEntry, decode_tree
from switchyard.model.files.files import JobFiles
from switchyard.sdk.files.file_names import FileSource, NamePath, show_name
from switchyard.sdk.files.file_request import FileRequest
from switchyard.sdk.files.object_calls import ObjectCalls
from switchyard.sdk.files.signed_store import SignedStore
from switchyard.sdk.transport.config import file_cache_path
from switchyard.sdk.transport.transport import Transport
from switchyard.sdk.uploads.chunks import FileChanged
from switchyard.sdk.uploads.hash_cache import HashCache
from switchyard.sdk.uploads.hashing import MemoryBudget
from switchyard.sdk.uploads.scan import ScannedTree, scan_sources
from switchyard.sdk.uploads.upload import OnTransfer, upload_trees

OnFiles = Callable[[str, int, int], None]  # what is done (hash, upload, fetch), bytes done, bytes in all
Warn = Callable[[str], None]


def upload_sources(
    transport: Transport,
    groups: Sequence[Sequence[FileSource]],
    *,
    on_progress: OnFiles | None = None,
    warn: Warn | None = None,
    project: str | None = None,
    merged: Collection[tuple[int, int]] = (),
) -> list[str]:
    """Upload a tree for each group of sources, and return the hashes. A file that changes is read once more.

    `project`: of the jobs that need the trees. A project without room for them is refused before anything is sent.
    `merged`: places of two groups, the files of all tasks of an array and those by task, which must not differ.
    """
    try:
        cache = HashCache(file_cache_path())
        return _upload_once(
            transport, groups, cache=cache, on_progress=on_progress, warn=warn, project=project, merged=merged
        )
    except FileChanged:
        cache = HashCache(file_cache_path(), is_fresh=True)
        return _upload_once(
            transport, groups, cache=cache, on_progress=on_progress, warn=warn, project=project, merged=merged
        )


def upload_requests(
    transport: Transport,
    requests: Sequence[tuple[FileRequest, str | None]],
    *,
    on_progress: OnFiles | None = None,
    warn: Warn | None = None,
    project: str | None = None,
) -> list[JobFiles | None]:
    """Upload the files of many jobs, each with its array, and return what each job says of them."""
    groups: dict[tuple[FileSource, ...], int] = {}
    places: list[tuple[int | None, int | None]] = []
    for request, array in requests:
        request.job_files()  # a bad pattern is refused before anything is sent
        places.append((_place(groups, request.shared), _place(groups, tuple(request.task_sources(array)))))
    roots: list[str] = []
    if groups:
        merged = {(shared, own) for shared, own in places if shared is not None and own is not None}
        roots = upload_sources(
            transport, list(groups), on_progress=on_progress, warn=warn, project=project, merged=merged
        )
    return [
        None
        if request.is_empty
        else request.job_files(
            tree=None if shared is None else roots[shared], task_tree=None if own is None else roots[own]
        )
        for (request, _), (shared, own) in zip(requests, places, strict=True)
    ]


def shared_project(projects: Iterable[str]) -> str | None:
    """Return the project of all these jobs; None if they have several."""
    found = set(projects)
    return found.pop() if len(found) == 1 else None


def _place(groups: dict[tuple[FileSource, ...], int], group: tuple[FileSource, ...]) -> int | None:
    return groups.setdefault(group, len(groups)) if group else None


def _upload_once(
    transport: Transport,
    groups: Sequence[Sequence[FileSource]],
    cache: HashCache,
    on_progress: OnFiles | None,
    warn: Warn | None,
    *,
    project: str | None,
    merged: Collection[tuple[int, int]],
) -> list[str]:
    hashed = report_step(on_progress, "hash")
    calls = ObjectCalls(transport)
    reach, memory = calls.reach_server, MemoryBudget()
    trees = [
        scan_sources(group, cache=cache, on_progress=hashed, warn=warn, before_long_read=reach, memory=memory)
        for group in groups
    ]
    for shared, by_task in merged:
        refuse_two_for_one_name(trees[shared], trees[by_task])
    store = SignedStore(retry_s=transport.retry_s)
    try:
        upload_trees(calls, trees, store=store, on_progress=report_step(on_progress, "upload"), project=project)
    finally:
        store.close()
    return [tree.root.hex() for tree in trees]


def report_step(on_progress: OnFiles | None, step: str) -> OnTransfer | None:
    """Return a callback that reports the bytes of one step."""
    if on_progress is None:
        return None

    def report(done: int, total: int) -> None:
        on_progress(step, done, total)

    return report


def refuse_two_for_one_name(shared: ScannedTree, by_task: ScannedTree) -> None:
    """Raise BadRequest if a task would get two different files of one name. `by_task` has a folder for each index."""
    known: dict[bytes, dict[bytes, Entry]] = {}  # folders of `shared`, which every task is compared with
    for entry in decode_tree(by_task.trees[by_task.root]):
        assert isinstance(entry, FolderEntry)
        for name in _conflicts(shared, shared.root, by_task, entry.tree, known=known):
            raise BadRequest(
                f"two different files would be {show_name(name)} in the folder of task {entry.name.decode()}: "
                "one for all tasks, and one of its own.",
                next_step="Give one of them another name: --in PATH:NAME.",
            )


def _conflicts(
    shared: ScannedTree,
    shared_folder: bytes,
    by_task: ScannedTree,
    folder: bytes,
    *,
    known: dict[bytes, dict[bytes, Entry]],
    above: NamePath = (),
) -> Iterator[NamePath]:
    """Yield the names that stand for different files in two folders and the folders below them."""
    if shared_folder not in known:
        known[shared_folder] = {entry.name: entry for entry in decode_tree(shared.trees[shared_folder])}
    for entry in decode_tree(by_task.trees[folder]):
        other = known[shared_folder].get(entry.name)
        if other is None or other == entry:
            continue
        name = (*above, entry.name)
        if isinstance(entry, FolderEntry) and isinstance(other, FolderEntry):
            yield from _conflicts(shared, other.tree, by_task, entry.tree, known=known, above=name)
        else:
            yield name
