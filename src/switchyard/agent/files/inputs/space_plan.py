"""How many bytes the input files of an attempt take on the agent's disk: from the sizes in their trees.

The sizes in the root are enough for nearly every job. They count zeros, which take no space, and nothing of what the
cache has. So before a job waits or is refused, all its folders are read.
"""

from __future__ import annotations

from switchyard.agent.files.inputs.content_cache import ContentCache, name_of_file
from switchyard.agent.files.inputs.staging_space import SpaceNeed
from switchyard.agent.files.object_fetch import ObjectFetch
from switchyard.agent.files.tree_levels import TreeFolder, slices, subfolder
from switchyard.model.files.file_tree import (
    FOLDER_DEPTH_MAX,
    ZEROS,
    BadTree,
    FileEntry,
    FolderEntry,
    LinkEntry,
    chunk_spans,
    decode_tree,
)

BLOCK_BYTES = 4096  # a file takes whole blocks; of nearly all file systems


def rough_need(data: bytes) -> SpaceNeed:
    """At most so much is needed for the files of a tree, by the sums in its root."""
    entries = [entry for entry in decode_tree(data) if not isinstance(entry, LinkEntry)]
    size = sum(entry.size for entry in entries)
    files = sum(entry.files if isinstance(entry, FolderEntry) else 1 for entry in entries)
    most = size + files * BLOCK_BYTES
    return SpaceNeed(most, most, most)


def total_need(needs: list[SpaceNeed]) -> SpaceNeed:
    return SpaceNeed(
        sum(need.folder for need in needs),
        sum(need.folder_alone for need in needs),
        sum(need.cache for need in needs),
    )


class SpacePlan:
    """Reads all folders of a tree. `can_clone`: a file in the job's folder shares the blocks of a cached file."""

    def __init__(self, fetch: ObjectFetch, cache: ContentCache, *, can_clone: bool) -> None:
        self._fetch, self._cache, self._can_clone = fetch, cache, can_clone

    def need(self, root: bytes, top: bytes) -> SpaceNeed:
        folder = alone = cache = 0
        level = [TreeFolder((), top)]
        for _ in range(FOLDER_DEPTH_MAX + 1):
            below: list[TreeFolder] = []
            for folders in slices(level):
                self._fetch.check_wanted()
                for (path, _, _), data in zip(folders, self._fetch.read_trees(root, folders), strict=True):
                    for entry in decode_tree(data):
                        if isinstance(entry, FolderEntry):
                            below.append(subfolder(path, entry))
                        elif isinstance(entry, FileEntry):
                            more = self._need_of_file(entry)
                            folder, alone, cache = folder + more.folder, alone + more.folder_alone, cache + more.cache
            if not below:
                return SpaceNeed(folder, alone, cache)
            level = below
        raise BadTree(f"it has more than {FOLDER_DEPTH_MAX} folders in folders")

    def _need_of_file(self, entry: FileEntry) -> SpaceNeed:
        spans = zip(chunk_spans(entry.size), entry.chunks, strict=True)
        stored = sum(-(-span.size // BLOCK_BYTES) * BLOCK_BYTES for span, chunk in spans if chunk != ZEROS)
        if not stored:
            return SpaceNeed(0, 0, 0)
        is_large = len(entry.chunks) > 1
        is_cached = self._cache.touch(name_of_file(entry) if is_large else entry.chunks[0].hex())
        is_to_be_cached = not is_cached and self._cache.takes(stored)
        # A small file that is fetched is written twice; a large one is assembled in the cache, and cloned from there.
        is_shared = self._can_clone and (is_cached or (is_large and is_to_be_cached))
        return SpaceNeed(
            0 if is_shared else stored,
            0 if self._can_clone and is_cached else stored,
            stored if is_to_be_cached else 0,
        )
