"""Stages the input files of one attempt: walks its trees, fetches what the cache lacks, writes the folder.

Memory is bounded: folders are read level by level in slices, small files are fetched in batches, and large ones chunk
by chunk into their place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from switchyard.agent.files.inputs.content_cache import ContentCache, name_of_file
from switchyard.agent.files.inputs.folder_writer import (
    FolderWriter,
    TreePath,
    copy_content,
    is_hole,
    is_zeros,
    read_span,
    show_path,
    write_at,
)
from switchyard.agent.files.inputs.staging_errors import FilesUnusable, ObjectLost
from switchyard.agent.files.inputs.staging_space import SpaceClaim, SpacePlan, rough_need, total_need
from switchyard.agent.files.object_client import AttemptRights, ObjectStoreCalls
from switchyard.agent.files.object_fetch import ObjectFetch, StagingProgress, TreeFolder, slices, subfolder
from switchyard.agent.files.transfer_threads import Transfer, TransferThreads
from switchyard.model.files.file_tree import (
    CHUNK_BYTES,
    FILES_MAX,
    FOLDER_DEPTH_MAX,
    ZEROS,
    BadTree,
    ChunkSpan,
    Digest,
    FileEntry,
    FolderEntry,
    LinkEntry,
    chunk_spans,
    decode_tree,
    hash_of,
    is_inside,
)

BATCH_BYTES = 2 * CHUNK_BYTES  # fetched in one request
BATCH_FILES = 500


@dataclass(frozen=True, slots=True)
class StageRequest:
    """The trees of one attempt. `index`: of the array's task; it gets one folder of `task_tree`."""

    rights: AttemptRights
    tree: bytes | None = None
    task_tree: bytes | None = None
    index: int | None = None


class _Top(NamedTuple):
    """What is staged into the job's folder: a tree, or one folder of it. `is_replacing`: over files that are there."""

    root: bytes
    digest: bytes
    is_replacing: bool


@dataclass(slots=True)
class _SmallFile:
    path: TreePath
    size: int
    is_executable: bool
    is_replacing: bool


@dataclass(slots=True)
class _Batch:
    """Files of at most one chunk, by the hash of the chunk: equal files are fetched once."""

    files: dict[Digest, list[_SmallFile]] = field(default_factory=dict)
    count: int = 0
    bytes: int = 0

    @property
    def is_full(self) -> bool:
        return self.count >= BATCH_FILES or self.bytes >= BATCH_BYTES


class StageIn:
    """One run for one attempt; `is_over` ends it early. `lost_object`: what the store lacked in the last run."""

    def __init__(
        self,
        cache: ContentCache,
        threads: TransferThreads,
        writer: FolderWriter,
        request: StageRequest,
        *,
        space: SpaceClaim,
        is_over: Callable[[], bool],
        progress: StagingProgress,
        lost_object: ObjectLost | None = None,
    ) -> None:
        self._cache, self._threads, self._writer, self._request = cache, threads, writer, request
        self._space, self._lost_object, self._progress = space, lost_object, progress
        self._fetch = ObjectFetch(cache, threads, request.rights, is_over=is_over, progress=progress)
        self._is_over = is_over
        self._top = _Top(b"", b"", False)  # what is being staged

    def run(self) -> None:
        """Raises FilesUnusable, OSError, or a transient YardError after which a new run may succeed."""
        try:
            if self._lost_object is not None:
                self._fetch.read_again(self._lost_object)
            tops = self._tops()
            self._reserve_space(tops)
            for self._top in tops:
                self._stage()
        except BadTree as exc:
            raise FilesUnusable(f"The job's files cannot be read: {exc}.") from exc
        finally:
            self._space.release()

    def _tops(self) -> list[_Top]:
        tops: list[_Top] = []
        if (tree := self._request.tree) is not None:
            tops.append(_Top(tree, tree, is_replacing=False))
        if (task_tree := self._request.task_tree) is not None:
            tops.append(_Top(task_tree, self._task_folder(task_tree), is_replacing=True))
        return tops

    def _task_folder(self, root: bytes) -> bytes:
        """The tree of this task's own files: the folder with its index as the name."""
        name = str(self._request.index).encode()
        [data] = self._fetch.read_trees(root, [TreeFolder((), root)])
        for entry in decode_tree(data):
            if isinstance(entry, FolderEntry) and entry.name == name:
                return entry.tree
        raise FilesUnusable(f"The job has no files for the index {self._request.index}.")

    def _reserve_space(self, tops: list[_Top]) -> None:
        """Reserve the space that the files need, before they are fetched. Raises FilesTooLarge or NoRoomNow."""
        roots = [self._fetch.read_trees(top.root, [TreeFolder((), top.digest)])[0] for top in tops]
        if self._space.take_if_ample(total_need([rough_need(data) for data in roots])):
            return
        self._fetch.is_caching = False  # the disk is nearly full, perhaps too full for the folders, too
        plan = SpacePlan(self._fetch, self._cache, can_clone=self._space.can_clone)
        need = self._space.need or total_need([plan.need(top.root, top.digest) for top in tops])
        self._space.need = need
        self._fetch.is_caching = self._space.take(need)

    def _stage(self) -> None:
        level = [TreeFolder((), self._top.digest)]
        for depth in range(FOLDER_DEPTH_MAX + 1):
            below: list[TreeFolder] = []
            for folders in slices(level):
                below += self._stage_folders(folders, is_top=depth == 0)
            if not below:
                return
            level = below
        raise BadTree(f"it has more than {FOLDER_DEPTH_MAX} folders in folders")

    def _stage_folders(self, folders: list[TreeFolder], *, is_top: bool) -> list[TreeFolder]:
        """Stage the files of these folders. Returns their subfolders."""
        below: list[TreeFolder] = []
        large: list[tuple[TreePath, FileEntry]] = []
        trees = self._fetch.read_trees(self._top.root, folders)
        self._threads.run(self._small_files(folders, trees, below, large, is_top=is_top))
        for path, entry in large:
            self._stage_large(path, entry)
        return below

    def _small_files(
        self,
        folders: list[TreeFolder],
        trees: list[bytes],
        below: list[TreeFolder],
        large: list[tuple[TreePath, FileEntry]],
        *,
        is_top: bool,
    ) -> Iterator[Transfer]:
        """Make subfolders, links and empty files; give the transfers of small files; leave the others in `large`."""
        batch = _Batch()
        for (folder, _, _), data in zip(folders, trees, strict=True):
            self._fetch.check_wanted()
            entries = decode_tree(data)
            if is_top:
                self._progress.bytes_total += sum(e.size for e in entries if not isinstance(e, LinkEntry))
            for entry in entries:
                path = (*folder, entry.name)
                if isinstance(entry, FolderEntry):
                    self._writer.make_folder(path)
                    below.append(subfolder(folder, entry))
                elif isinstance(entry, LinkEntry):
                    if not is_inside(folder, entry.target):
                        raise BadTree(f"the link {show_path(path)!r} leaves the job's folder")
                    self._writer.make_link(path, entry.target, is_replacing=self._top.is_replacing)
                elif all(chunk == ZEROS for chunk in entry.chunks):
                    self._write_zeros(path, entry)
                elif len(entry.chunks) > 1:
                    large.append((path, entry))
                else:
                    places = batch.files.setdefault(entry.chunks[0], [])
                    batch.bytes += 0 if places else entry.size
                    batch.count += 1
                    places.append(_SmallFile(path, entry.size, entry.is_executable, self._top.is_replacing))
                    if batch.is_full:
                        yield partial(self._stage_small, batch.files)
                        batch = _Batch()
                self._count_entry()
        if batch.files:
            yield partial(self._stage_small, batch.files)

    def _write_zeros(self, path: TreePath, entry: FileEntry) -> None:
        with self._writer.new_file(
            path, is_executable=entry.is_executable, is_replacing=self._top.is_replacing
        ) as number:
            os.ftruncate(number, entry.size)
        self._progress.bytes += entry.size

    def _count_entry(self) -> None:
        self._progress.files += 1
        if self._progress.files > FILES_MAX:
            raise BadTree(f"it has more than {FILES_MAX} files")

    def _stage_small(self, files: dict[Digest, list[_SmallFile]], calls: ObjectStoreCalls) -> None:
        def write(digest: bytes, content: bytes | int) -> None:
            for file in files[digest]:
                with self._writer.new_file(
                    file.path, is_executable=file.is_executable, is_replacing=file.is_replacing
                ) as number:
                    if isinstance(content, bytes):
                        write_at(number, content, 0)
                        self._progress.count_folder(len(content))
                    else:
                        self._progress.count_folder(copy_content(content, number))
                    if os.fstat(number).st_size != file.size:
                        raise BadTree(f"{show_path(file.path)!r} has another size than its chunk")
                self._progress.bytes += file.size

        try:
            self._fetch.fetch(self._top.root, set(files), write, calls)
        except ObjectLost as exc:
            raise exc.of_file(show_path(files[exc.digest][0].path)) from exc

    def _stage_large(self, path: TreePath, entry: FileEntry) -> None:
        """A file of several chunks: assembled once in the cache, or in its place if it is not to be cached."""
        with self._writer.new_file(
            path, is_executable=entry.is_executable, is_replacing=self._top.is_replacing
        ) as target:
            try:
                while not self._try_large(entry, target):
                    self._cache.wait_for([name_of_file(entry)], is_over=self._is_over)
            except ObjectLost as exc:
                raise exc.of_file(show_path(path)) from exc
        self._progress.bytes += entry.size

    def _try_large(self, entry: FileEntry, target: int) -> bool:
        """Write the file. False: another attempt fetches the same file just now."""
        self._fetch.check_wanted()
        progress, name = self._progress, name_of_file(entry)
        with self._cache.open(name, partial(_is_file, entry)) as number:
            if number is not None:
                progress.count_folder(copy_content(number, target))
                return True
        stored = sum(span.size for span, _ in _chunks_of(entry))
        if not self._fetch.is_caching or not self._cache.takes(stored):
            self._assemble(entry, target, progress.count_folder)
            return True
        if not self._cache.claim([name]):
            return False
        try:
            with self._cache.new_file() as new:
                self._assemble(entry, new.number, progress.count_cache)
                progress.count_folder(copy_content(new.number, target))
                self._cache.add(new, name, stored)
        finally:
            self._cache.release([name])
        return True

    def _assemble(self, entry: FileEntry, number: int, count: Callable[[int], None]) -> None:
        os.ftruncate(number, entry.size)
        spans: dict[bytes, list[ChunkSpan]] = {}
        for span, digest in _chunks_of(entry):
            spans.setdefault(digest, []).append(span)

        def fetch(digests: list[bytes], calls: ObjectStoreCalls) -> None:
            def take(digest: bytes, data: bytes) -> None:
                self._fetch.check_wanted()
                self._progress.fetched_bytes += len(data)
                for span in spans[digest]:
                    if len(data) != span.size:
                        raise BadTree(f"a chunk of {entry.name[:80]!r} has another size than the file says")
                    write_at(number, data, span.offset)
                    count(len(data))

            self._fetch.read_objects(self._top.root, digests, take, calls)

        several = list(spans)
        self._threads.run(partial(fetch, several[first : first + 2]) for first in range(0, len(several), 2))


def _chunks_of(entry: FileEntry) -> Iterator[tuple[ChunkSpan, bytes]]:
    """The chunks that are stored, with their places."""
    return ((span, chunk) for span, chunk in zip(chunk_spans(entry.size), entry.chunks, strict=True) if chunk != ZEROS)


def _is_file(entry: FileEntry, number: int) -> bool:
    if os.fstat(number).st_size != entry.size:
        return False
    return all(
        (is_hole(number, *span) or is_zeros(read_span(number, *span)))
        if chunk == ZEROS
        else hash_of(read_span(number, *span)) == chunk
        for span, chunk in zip(chunk_spans(entry.size), entry.chunks, strict=True)
    )
