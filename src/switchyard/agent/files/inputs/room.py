"""Whether there is room for the files of further jobs. A look may hang with a shared folder: it has its own thread."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from switchyard.model.jobspec.quantity import show_bytes


class FilesRoom:
    """`trouble`: why no jobs with files are taken now; empty: they are taken."""

    def __init__(self, cache: Path, work: Sequence[Path], *, bytes_min: int, empty_cache: Callable[[], int]) -> None:
        """`empty_cache` removes cached files that no job uses, and returns their bytes."""
        self._cache, self._folders, self._bytes_min = cache, (cache, *work), bytes_min
        self._empty_cache = empty_cache
        self.trouble = ""

    def look(self) -> bool:
        """Look at the file systems. Returns whether the trouble began or ended.

        The cache makes room first: it may have filled the disk by itself, and is never more than a help.
        """
        before = self.trouble
        try:
            full = self._full_folder()
            if full is not None and self._is_with_cache(full) and self._empty_cache():
                full = self._full_folder()
            self.trouble = "" if full is None else self._text(full)
        except OSError as exc:  # a folder may not be looked at, or its file server is gone
            self.trouble = _error_text(exc)
        return bool(before) != bool(self.trouble)

    def _full_folder(self) -> Path | None:
        folders = (nearest_folder(folder) for folder in self._folders)
        return next((folder for folder in folders if _free_bytes(folder) < self._bytes_min), None)

    def _is_with_cache(self, folder: Path) -> bool:
        try:
            return os.stat(folder).st_dev == os.stat(self._cache).st_dev  # noqa: PTH116
        except OSError:  # there is no cache yet
            return False

    def _text(self, folder: Path) -> str:
        try:
            free = shutil.disk_usage(folder).free
        except OSError as exc:
            return _error_text(exc)
        return f"disk full for files: {show_bytes(free)} free, {show_bytes(self._bytes_min)} wanted"


def _error_text(exc: OSError) -> str:
    return f"disk error for files: {exc.strerror or exc}"


def nearest_folder(place: Path) -> Path:
    """The folder itself, or the first one above it that is there."""
    return next(folder for folder in (place, *place.parents) if folder.is_dir())


def _free_bytes(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return -1
