"""Counts which output files fit, if the owner of the job has not room for all of them. Nothing is sent meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from switchyard.agent.files.inputs.folder_writer import TreePath

ASKED_OBJECTS = 5000  # looked up in one request


@dataclass(slots=True)
class UploadPlan:
    """Which files have room, counted by their new objects, in the order of the walk. Objects are looked up in pages."""

    left: int
    find_new: Callable[[Sequence[bytes]], set[bytes]]  # those of some objects that the owner does not hold
    _page: list[tuple[TreePath, dict[bytes, int], int]] = field(default_factory=list)
    _page_objects: int = 0
    _counted: set[bytes] = field(default_factory=set)  # of files that have room
    _seen: set[bytes] = field(default_factory=set)
    _refused: set[TreePath] = field(default_factory=set)
    _new_bytes: int = 0  # of files that have room, with their places in the lists of folders
    _all_bytes: int = 0  # of all new objects

    def add(self, path: TreePath | None, objects: dict[bytes, int], extra_bytes: int) -> None:
        """Add a file, or the list of a folder (no path). `extra_bytes`: at most so many in the lists of folders."""
        self._page.append((path or (), objects, extra_bytes))
        self._page_objects += len(objects)
        if self._page_objects >= ASKED_OBJECTS:
            self._settle()

    def refused(self) -> frozenset[TreePath]:
        self._settle()
        # If there is room for everything, the estimate of the folders' lists does not count.
        return frozenset() if self._all_bytes <= self.left else frozenset(self._refused)

    def _settle(self) -> None:
        page, self._page, self._page_objects = self._page, [], 0
        sizes = {digest: size for _, objects, _ in page for digest, size in objects.items()}
        new: set[bytes] = set()
        for first in range(0, len(sizes), ASKED_OBJECTS):
            new |= self.find_new(list(sizes)[first : first + ASKED_OBJECTS])
        self._all_bytes += sum(size for digest, size in sizes.items() if digest in new and digest not in self._seen)
        self._seen.update(sizes)
        for path, objects, extra_bytes in page:
            cost = sum(size for digest, size in objects.items() if digest in new and digest not in self._counted)
            if path and cost and self._new_bytes + cost + extra_bytes > self.left:
                self._refused.add(path)
                continue
            self._new_bytes += (cost if path else 0) + extra_bytes
            self._counted.update(objects)
