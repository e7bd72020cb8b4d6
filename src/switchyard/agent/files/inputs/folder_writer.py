"""Writes files, folders and links below one folder, by folder numbers: no link is ever followed.

Files of the cache are cloned (FICLONE: the blocks are shared until one side writes), else copied in the kernel. They
are never hard-linked: a second name is the same inode, with one owner, one mode and one content. A job could then
change the cached file, and with it the files of later jobs; a job under its own account would not own its files.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from switchyard.agent.site.accounts import LocalAccount, share_folder
from switchyard.errors import Conflict
from switchyard.model.job.site_needs import SITE_FOLDER

FICLONE = 0x40049409  # linux/fs.h: _IOW(0x94, 9, int)
# No clone here: another file system, one that cannot, or a kernel that does not know the call.
NO_CLONE_ERRNOS = (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM, errno.ETXTBSY)
NO_KERNEL_COPY_ERRNOS = (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EIO)
COPY_PIECE_BYTES = 2**20
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
TreePath = tuple[bytes, ...]  # names from the root of the tree


class NameTwice(Conflict):
    """Two files of the job have one name on this file system."""

    default_next = "Give the files names that differ by more than case."


@dataclass(frozen=True, slots=True)
class FileModes:
    """Modes of new files and folders. The top folder is closed to everybody but the job's account and the agent."""

    plain: int = 0o644
    executable: int = 0o755
    folder: int = 0o755


# What the site gives to the job stays closed, even if the job opens its top folder.
SITE_MODES = FileModes(plain=0o600, executable=0o700, folder=0o700)
# In a folder with an access list the middle three bits are its mask: they bound what the listed accounts may do.
ACCESS_LIST_MODES = FileModes(plain=0o660, executable=0o770, folder=0o770)


class FolderWriter:
    """Writes into `top`, which the caller made. Used by several threads, for different names."""

    def __init__(self, top: Path, account: LocalAccount | None = None) -> None:
        self._top = os.open(top, FOLDER_FLAGS)
        is_root = os.geteuid() == 0
        self._owner = (account.uid, account.gid) if account is not None and is_root else None
        is_shared = account is not None and not is_root and account.uid != os.geteuid()
        self._modes = ACCESS_LIST_MODES if is_shared else FileModes()
        self._site_modes = ACCESS_LIST_MODES if is_shared else SITE_MODES

    def close(self) -> None:
        os.close(self._top)

    def make_folder(self, path: TreePath) -> None:
        """Make a folder, unless it is there: a task's own files may add to a folder of the shared ones."""
        with self._parent(path) as parent:
            try:
                os.mkdir(path[-1], 0o700, dir_fd=parent)
            except FileExistsError:
                self._check_is_folder(path, parent)
                return
            number = os.open(path[-1], FOLDER_FLAGS, dir_fd=parent)
            try:
                self._give(number, self._modes_of(path).folder)
            finally:
                os.close(number)

    @contextlib.contextmanager
    def new_file(self, path: TreePath, *, is_executable: bool, is_replacing: bool = False) -> Iterator[int]:
        """Make a file and give its number. `is_replacing`: in place of a file of this name."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._parent(path) as parent:
            try:
                number = os.open(path[-1], flags, 0o600, dir_fd=parent)
            except FileExistsError:
                if not is_replacing:
                    raise _name_conflict(path) from None
                self._remove(path, parent)
                number = os.open(path[-1], flags, 0o600, dir_fd=parent)
        try:
            yield number
            modes = self._modes_of(path)
            self._give(number, modes.executable if is_executable else modes.plain)
        finally:
            os.close(number)

    def make_link(self, path: TreePath, target: bytes, *, is_replacing: bool = False) -> None:
        with self._parent(path) as parent:
            try:
                os.symlink(target, path[-1], dir_fd=parent)
            except FileExistsError:
                if not is_replacing:
                    raise _name_conflict(path) from None
                self._remove(path, parent)
                os.symlink(target, path[-1], dir_fd=parent)
            if self._owner is not None:
                os.chown(path[-1], *self._owner, dir_fd=parent, follow_symlinks=False)

    def _modes_of(self, path: TreePath) -> FileModes:
        return self._site_modes if path[0] == SITE_FOLDER.encode() else self._modes

    def _give(self, number: int, mode: int) -> None:
        if self._owner is not None:
            os.fchown(number, *self._owner)
        os.fchmod(number, mode)

    def _check_is_folder(self, path: TreePath, parent: int) -> None:
        try:
            os.close(os.open(path[-1], FOLDER_FLAGS, dir_fd=parent))
        except OSError as exc:
            raise _name_conflict(path) from exc

    def _remove(self, path: TreePath, parent: int) -> None:
        try:
            os.unlink(path[-1], dir_fd=parent)
        except (IsADirectoryError, PermissionError) as exc:
            raise _name_conflict(path) from exc

    @contextlib.contextmanager
    def _parent(self, path: TreePath) -> Iterator[int]:
        if len(path) == 1:
            yield self._top
            return
        number = os.open(path[0], FOLDER_FLAGS, dir_fd=self._top)
        try:
            for name in path[1:-1]:
                below = os.open(name, FOLDER_FLAGS, dir_fd=number)
                os.close(number)
                number = below
            yield number
        finally:
            os.close(number)


def make_top_folder(folder: Path, account: LocalAccount | None) -> None:
    """Make the folder of a job's files, empty and closed. The folder above it is the agent's; jobs pass through it."""
    above = folder.parent
    above.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700)
    if account is not None:
        above.chmod(0o711)
        if os.geteuid() != 0:
            share_folder(folder, account)  # before the files: they inherit its access list


def give_top_folder(folder: Path, account: LocalAccount | None) -> None:
    """Open the folder for the job's account. The last step: until then no process of the account can reach it."""
    if account is not None and os.geteuid() == 0:
        share_folder(folder, account)


def copy_content(source: int, target: int) -> int:
    """Give an empty file the content of another one: cloned, else copied without its holes.

    Returns the copied bytes.
    """
    size = os.fstat(source).st_size
    if size == 0:
        return 0
    try:
        fcntl.ioctl(target, FICLONE, source)
        return 0
    except OSError as exc:
        if exc.errno not in NO_CLONE_ERRNOS:
            raise
    copied = 0
    for begin, end in data_spans(source, size):
        _copy_span(source, target, begin, end)
        copied += end - begin
    os.ftruncate(target, size)
    return copied


def data_spans(number: int, size: int) -> Iterator[tuple[int, int]]:
    """The parts of a file that are no holes."""
    at = 0
    while at < size:
        try:
            begin = os.lseek(number, at, os.SEEK_DATA)
            end = os.lseek(number, begin, os.SEEK_HOLE)
        except OSError as exc:
            if exc.errno == errno.ENXIO:  # only a hole is left
                return
            begin, end = at, size  # a file system that knows no holes
        yield begin, min(end, size)
        at = end


def read_span(number: int, offset: int, size: int) -> bytes:
    """The bytes of a part of a file; fewer if the file ends before."""
    pieces = []
    while size > 0 and (data := os.pread(number, size, offset)):
        pieces.append(data)
        offset, size = offset + len(data), size - len(data)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def is_hole(number: int, offset: int, size: int) -> bool:
    """Whether a part of a file has no blocks, so that it has only zeros and need not be read."""
    try:
        return os.lseek(number, offset, os.SEEK_DATA) >= offset + size
    except OSError as exc:
        return exc.errno == errno.ENXIO  # no data from here to the end


def is_zeros(data: bytes) -> bool:
    return not data.strip(b"\0")


def write_at(number: int, data: bytes | memoryview, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(number, view, offset)
        view, offset = view[written:], offset + written


def _copy_span(source: int, target: int, begin: int, end: int) -> None:
    at = begin
    try:
        while at < end:
            copied = os.copy_file_range(source, target, end - at, at, at)
            if copied == 0:
                return
            at += copied
        return
    except OSError as exc:
        if exc.errno not in NO_KERNEL_COPY_ERRNOS:
            raise
    while at < end and (data := os.pread(source, min(COPY_PIECE_BYTES, end - at), at)):
        write_at(target, data, at)
        at += len(data)


def show_path(path: TreePath) -> str:
    """A path as people read it; bytes that are no UTF-8 are escaped."""
    return b"/".join(path).decode("utf-8", "backslashreplace")


def _name_conflict(path: TreePath) -> NameTwice:
    return NameTwice(
        f"{show_path(path)!r} cannot be made: another file of the job has this name here. "
        "Does the file system treat upper and lower case alike?"
    )
