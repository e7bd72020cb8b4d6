"""Reads a part of a file in a job's folder for somebody who looks at it while the job runs.

The job may have put anything into its folder. So the path is opened step by step, by folder numbers. A link is read and
not followed; the path goes on where it leads, if that is inside the folder. Only plain files are opened.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from switchyard.agent.files.inputs.folder_writer import FOLDER_FLAGS, TreePath, read_span, show_path
from switchyard.agent.site.accounts import LocalAccount
from switchyard.model.files.file_tree import is_inside
from switchyard.model.files.file_views import TAIL_BYTES, VIEW_BYTES_MAX, link_target, split_name, version_of
from switchyard.model.job.site_needs import SITE_FOLDER

LINKS_MAX = 8  # on the way to one file
FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# The job changes its folder while we look: what was a file or a folder a moment ago is something else, or is gone.
ABSENT_ERRNOS = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE)


class NotViewable(Exception):
    """Nobody may look at this file; the text says why."""


class NotThere(Exception):
    """The folder has no such file now."""


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of a file. `is_restarted`: it is another file than the reader saw, or it was cut; the part begins at 0."""

    offset: int
    data: bytes
    size: int
    version: str
    is_restarted: bool = False

    @property
    def is_at_end(self) -> bool:
        return self.offset + len(self.data) >= self.size


def read_part(folder: Path, name: bytes, *, offset: int, version: str, account: LocalAccount | None = None) -> FilePart:
    """Read what follows the offset. `version`: of the part before; empty: the reader has seen nothing.

    Raises NotThere and NotViewable, and OSError.
    """
    try:
        path = split_name(name)
    except ValueError as exc:
        raise NotViewable(f"the name is not possible: {exc}") from exc
    uid = account.uid if account is not None and os.geteuid() == 0 else None
    number = _open(folder, path, uid)
    try:
        return _read(number, offset, version)
    finally:
        os.close(number)


def _read(number: int, offset: int, version: str) -> FilePart:
    status = os.fstat(number)
    is_restarted = bool(version) and (
        status.st_size < offset or version_of(status.st_ino, _tail(number, offset)) != version
    )
    begin = 0 if is_restarted else offset
    data = read_span(number, begin, min(VIEW_BYTES_MAX, max(0, status.st_size - begin)))
    if begin > status.st_size:  # the reader waits for a later part, and has seen nothing
        return FilePart(begin, b"", status.st_size, "")
    tail = (_tail(number, begin) + data)[-TAIL_BYTES:]
    size = max(status.st_size, begin + len(data))
    return FilePart(begin, data, size=size, version=version_of(status.st_ino, tail), is_restarted=is_restarted)


def _tail(number: int, offset: int) -> bytes:
    begin = max(0, offset - TAIL_BYTES)
    return read_span(number, begin, offset - begin)


def _open(folder: Path, path: TreePath, uid: int | None) -> int:
    """Open the file. Each link on the way begins the walk again, at the place where the link leads."""
    for _ in range(LINKS_MAX + 1):
        if path[:1] == (SITE_FOLDER.encode(),):
            raise NotViewable("the site gave it to the job alone")
        found = _walk(folder, path, uid)
        if isinstance(found, int):
            return found
        path = found
    raise NotViewable(f"it is behind more than {LINKS_MAX} links")


def _walk(folder: Path, path: TreePath, uid: int | None) -> int | TreePath:
    """Open the file; or return the path without its first link."""
    try:
        parent = os.open(folder, FOLDER_FLAGS)
    except OSError as exc:
        raise _meaning(exc) from exc
    try:
        for depth, name in enumerate(path):
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
            is_last = depth == len(path) - 1
            if stat.S_ISLNK(status.st_mode):
                target = os.readlink(name, dir_fd=parent)
                if not is_inside(path[:depth], target):
                    raise NotViewable(f"{show_path(path[: depth + 1])} is a link to a place outside the job's folder")
                return (*link_target(path[:depth], target), *path[depth + 1 :])
            if is_last:
                return _open_file(parent, path, status, uid)
            if not stat.S_ISDIR(status.st_mode):
                raise NotViewable(f"{show_path(path[: depth + 1])} is no folder")
            below = os.open(name, FOLDER_FLAGS, dir_fd=parent)
            os.close(parent)
            parent = below
        raise NotViewable("it is a folder")  # a link to the job's folder itself
    except OSError as exc:
        raise _meaning(exc) from exc
    finally:
        os.close(parent)


def _open_file(parent: int, path: TreePath, status: os.stat_result, uid: int | None) -> int:
    _refuse_other(status, uid)  # before it is opened: to open a device may have an effect
    number = os.open(path[-1], FILE_FLAGS, dir_fd=parent)
    try:
        _refuse_other(os.fstat(number), uid)
    except NotViewable:
        os.close(number)
        raise
    return number


def _refuse_other(status: os.stat_result, uid: int | None) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise NotViewable("it is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise NotViewable("it is no plain file, but a pipe, a socket or a device")
    if uid is not None and status.st_uid != uid:
        raise NotViewable("it belongs to another account than the job's")


def _meaning(exc: OSError) -> Exception:
    if exc.errno in ABSENT_ERRNOS:
        return NotThere()
    if isinstance(exc, PermissionError):
        return NotViewable(f"the agent cannot read it: {exc.strerror}")
    return exc
