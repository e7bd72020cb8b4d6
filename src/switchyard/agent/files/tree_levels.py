"""Folders of a tree, level by level: how many are read together, so that a bounded part of a tree is in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from switchyard.agent.files.inputs.folder_writer import TreePath
from switchyard.model.files.file_tree import CHUNK_BYTES, FolderEntry

FOLDERS_AT_ONCE = 200  # whose entries are in memory
FOLDERS_BYTES = 16 * 2**20  # of their trees, as estimated from the counts in the trees above them
ENTRY_BYTES = 400  # of a file in a tree: at most 255 for its name, a hash, and the numbers
CHUNK_ENTRY_BYTES = 34  # of one more chunk


class TreeFolder(NamedTuple):
    """A folder of a tree. `tree_bytes`: the estimated size of its object."""

    path: TreePath
    digest: bytes
    tree_bytes: int = FOLDERS_BYTES


def subfolder(path: TreePath, entry: FolderEntry) -> TreeFolder:
    tree_bytes = entry.files * ENTRY_BYTES + entry.size // CHUNK_BYTES * CHUNK_ENTRY_BYTES
    return TreeFolder((*path, entry.name), entry.tree, tree_bytes)


def slices(folders: list[TreeFolder]) -> Iterator[list[TreeFolder]]:
    """Folders whose trees are read together."""
    together: list[TreeFolder] = []
    tree_bytes = 0
    for folder in folders:
        if together and (len(together) >= FOLDERS_AT_ONCE or tree_bytes >= FOLDERS_BYTES):
            yield together
            together, tree_bytes = [], 0
        together.append(folder)
        tree_bytes += folder.tree_bytes
    if together:
        yield together
