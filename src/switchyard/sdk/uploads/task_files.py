"""Compares the files that all tasks of an array get with those of each task: no name may mean two different files."""

from __future__ import annotations

from collections.abc import Iterator

from switchyard.errors import BadRequest
from switchyard.model.files.file_tree import Entry, FolderEntry, decode_tree
from switchyard.sdk.files.file_names import NamePath, show_name
from switchyard.sdk.uploads.scan import ScannedTree


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
