"""How much of an attempt's output files the site and the server take, and which files are over a limit. No I/O.

The site bounds files and bytes. The server bounds the tree (bytes, entries, depth), the trees of the project, and the
objects that the owner of the job holds. A file that does not fit is left out with the reason; smaller files after it
may still fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from switchyard.agent.files.inputs.folder_writer import TreePath, show_path
from switchyard.model.files.file_tree import FILES_MAX, FOLDER_DEPTH_MAX, FOLDERS_MAX, chunk_spans
from switchyard.model.files.files import MISSING_LISTED_MAX, OutputRoom
from switchyard.model.jobspec.quantity import show_bytes

SKIPPED_CHARS_MAX = 1000
FILE_ENTRY_BYTES, CHUNK_ENTRY_BYTES = 24, 34  # in the list of a folder, besides the name: at most
FOLDER_ENTRY_BYTES = 64
LISTING_BYTES = 32  # of the list of a folder without entries
USER, TREE, PROJECT = "user", "tree", "project"  # the fields of OutputRoom


class UserRoomShort(Exception):
    """The files may be more than the owner of the job may still hold: count exactly which objects are new."""


@dataclass(frozen=True, slots=True)
class OutputBounds:
    """The limits of the site."""

    files: int
    bytes: int


class OutputBudget:
    """What was taken and left out so far. `refused`: files for which the owner has no room; None: not counted yet.

    `earlier`: files that an earlier upload took, with their sizes. They come before others.
    """

    def __init__(
        self,
        bounds: OutputBounds,
        room: OutputRoom,
        *,
        refused: frozenset[TreePath] | None,
        earlier: Mapping[TreePath, int],
        note: str = "",
    ) -> None:
        self.bounds = bounds
        self.room = room
        self.refused = refused
        self.earlier = earlier
        self.note = note  # follows the reason of files over a limit of the server
        self.files = 0
        self.bytes = 0
        self.entries = 0  # files, links and folders
        self.folders = 0
        self.skipped: list[str] = []
        self.skipped_count = 0
        self.lost_files: list[str] = []  # of the skipped ones: files that the job left and that are not kept
        self.taken_files: dict[TreePath, int] = {}  # to be `earlier` of the next upload
        self._over: dict[str, int] = {}  # limit of the server → bytes of the smallest file over it
        self._new_bytes = 0  # at most so many new bytes for the owner
        self._earlier_left = -1  # bytes of earlier files that are still to come

    def skip(self, path: TreePath, why: str, *, is_lost: bool = True) -> None:
        text = f"{show_path(path)[-SKIPPED_CHARS_MAX:]}: {why}"
        self.skipped_count += 1
        if len(self.skipped) < MISSING_LISTED_MAX:
            self.skipped.append(text)
        if is_lost and len(self.lost_files) < MISSING_LISTED_MAX:
            self.lost_files.append(text)

    def listed_skipped(self) -> list[str]:
        more = self.skipped_count - len(self.skipped)
        return [*self.skipped[:-1], f"{more + 1} more files"] if more else list(self.skipped)

    def needed(self) -> dict[str, int]:
        """Limit of the server → what it must leave so that one more file fits."""
        return {name: size if name == USER else self.bytes + size for name, size in self._over.items()}

    def has_room_for_file(self, path: TreePath, size: int) -> bool:
        """Whether a file is taken. If not, it is noted as skipped. Raises UserRoomShort if only a count can tell."""
        if self._earlier_left < 0:
            self._earlier_left = sum(self.earlier.values())
        self._earlier_left -= self.earlier.get(path, 0)
        why = self._over_site(size) or self._over_entries(path) or self._over_server(size)
        if why:
            self.skip(path, why)
            return False
        user = self.room.user
        if user is None:
            return True
        if self.refused is None:
            if self._new_bytes + size + entry_bytes(path, size) > user.left:
                raise UserRoomShort
        elif path in self.refused:
            self.skip(path, user.text + self.note)
            self._note_over(USER, size + entry_bytes(path, size))
            return False
        return True

    def has_room_for_link(self, path: TreePath) -> bool:
        if why := self._over_entries(path):
            self.skip(path, why)
        return not why

    def has_room_for_folder(self, path: TreePath) -> bool:
        """Whether the server takes one more folder at this place."""
        if len(path) >= FOLDER_DEPTH_MAX:
            self.skip(path, f"the server takes at most {FOLDER_DEPTH_MAX} folders in folders")
        elif self.folders + len(path) > FOLDERS_MAX:
            self.skip(path, f"the server takes at most {FOLDERS_MAX} folders of an attempt")
        else:
            return True
        return False

    def take_file(self, path: TreePath, size: int) -> None:
        self.files += 1
        self.entries += 1
        self.bytes += size
        self.taken_files[path] = size
        self._new_bytes += size + entry_bytes(path, size)

    def give_back_file(self, path: TreePath) -> None:
        size = self.taken_files.pop(path)
        self.files -= 1
        self.entries -= 1
        self.bytes -= size

    def take_folder(self, path: TreePath) -> None:
        self.folders += 1
        self.entries += 1
        self._new_bytes += folder_bytes(path)

    def _over_site(self, size: int) -> str:
        if self.files >= self.bounds.files:
            return f"this site takes at most {self.bounds.files} files of an attempt"
        if self.bytes + size > self.bounds.bytes:
            return f"this site takes at most {show_bytes(self.bounds.bytes)} of an attempt"
        return ""

    def _over_entries(self, path: TreePath) -> str:
        is_over = self.entries + len(path) > FILES_MAX
        return f"the server takes at most {FILES_MAX} files, folders and links of an attempt" if is_over else ""

    def _over_server(self, size: int) -> str:
        for name, limit in ((TREE, self.room.tree), (PROJECT, self.room.project)):
            if limit is not None and self.bytes + self._earlier_left + size > limit.left:
                self._note_over(name, size)
                return limit.text + self.note
        return ""

    def _note_over(self, name: str, size: int) -> None:
        self._over[name] = min(size, self._over.get(name, size))


def may_take_more(needed: dict[str, int], room: OutputRoom) -> bool:
    """Whether a file that was over a limit of the server may fit by now. `needed`: of the budget that left it out."""
    limits = {USER: room.user, TREE: room.tree, PROJECT: room.project}
    return any((limit := limits[name]) is None or limit.left >= needed[name] for name in needed)


def entry_bytes(path: TreePath, size: int) -> int:
    """The bytes that a file takes at most in the list of its folder."""
    return FILE_ENTRY_BYTES + len(path[-1]) + CHUNK_ENTRY_BYTES * len(chunk_spans(size))


def folder_bytes(path: TreePath) -> int:
    """The bytes that a folder without entries takes at most: its own list, and its entry in the folder above."""
    return LISTING_BYTES + FOLDER_ENTRY_BYTES + (len(path[-1]) if path else 0)
