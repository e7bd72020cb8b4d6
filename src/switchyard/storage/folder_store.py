"""Objects in a folder: `ab/cdef…` by the hex of the hash, in 256 folders. Several servers may share it.

An object appears under its name complete or not at all: it is written and synced in a folder in `new/`, then renamed.
Objects that come together share such a folder. Its writer holds a lock on the file `lock` in it; a folder without that
lock is the leftover of a crash. A folder is made and locked under a shared lock on the file `lock` of the store. A
start that holds that lock alone sees no folder between the two.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import secrets
import shutil
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import structlog

from switchyard.errors import Unavailable
from switchyard.log_pace import LogPace
from switchyard.model.files.files import SignedUpload
from switchyard.storage.object_store import (
    OBJECT_BYTES_MAX,
    ObjectDamaged,
    ObjectMissing,
    StoredObject,
    check_content,
    digest_of_name,
    read_one,
)

NEW_FOLDER = "new"
LOCK_FILE = "lock"
# Up to so many objects are synced one by one. More are synced by one `syncfs`, which also waits for what others write
# to the same file system: 10,000 objects of 4 kB took half the time that they took with fsync by 16 threads. Threads
# that store many objects share it.
SYNCED_SINGLY_MAX = 16
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# What files leave free on their disk: the database may be on it, too. At most this share of the disk.
RESERVE_BYTES, RESERVE_SHARE = 2**30, 0.05
PROBE = b"switchyard"
_FULL_DISK = LogPace()
log = structlog.get_logger()
_libc_syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
HAS_SYNCFS = _libc_syncfs is not None


class FolderStore:
    """A store in a folder of a file system with atomic renames. It signs nothing: all bytes pass through the server."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._new = root / NEW_FOLDER
        self._sync = SharedSync(root)
        self._turn = threading.Lock()  # to write many files: threads that do so together hinder each other

    def prepare(self) -> None:
        """Make the folder, remove what a crash left, and check that the folder can be used."""
        with _translated(self._root):
            self._new.mkdir(parents=True, exist_ok=True, mode=0o700)
            sync_folder(self._root)
            with _locked(self._root / LOCK_FILE, fcntl.LOCK_EX) as is_locked:
                for leftover in self._new.iterdir() if is_locked else ():
                    _remove_unlocked(leftover)
        self.check()

    def put(self, digest: bytes, data: bytes) -> None:
        self.put_many([(digest, data)])

    def put_many(self, objects: Iterable[tuple[bytes, bytes]], *, are_checked: bool = False) -> None:
        with _translated(self._root):
            failures = self._begin_sync()
            new: dict[bytes, bytes] = {}
            known: set[bytes] = set()  # perhaps renamed just now by another thread, which has not synced the name yet
            for digest, data in objects:
                if not are_checked:
                    check_content(digest, data)
                if self._has(digest, data):
                    known.add(digest)
                else:
                    new[digest] = data
            free = self.free_bytes() if new else None
            if free is not None and sum(map(len, new.values())) > free:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if len(new) > SYNCED_SINGLY_MAX and HAS_SYNCFS:
                self._put_synced_together(new, failures)
            else:
                self._put_synced_singly(new)
                self._sync_names({*new, *known}, failures)

    def free_bytes(self) -> int | None:
        """What is free, less the reserve. None: an operator removed the folder; the next upload makes it again."""
        with _translated(self._root):
            try:
                disk = shutil.disk_usage(self._root)
            except FileNotFoundError:
                return None
        return max(0, disk.free - min(RESERVE_BYTES, int(disk.total * RESERVE_SHARE)))

    def _begin_sync(self) -> int:
        """Return the number of syncs that failed before this upload. A sync that fails later fails the upload."""
        if not HAS_SYNCFS:
            return 0
        try:
            return self._sync.begin()
        except FileNotFoundError:  # an operator removed the folder
            self._new.mkdir(parents=True, exist_ok=True, mode=0o700)
            return self._sync.begin()

    def _put_synced_singly(self, new: dict[bytes, bytes]) -> None:
        if not new:
            return
        with self._new_folder() as folder:
            for digest, data in new.items():
                _write_file(f"{folder}/{digest.hex()}", data, is_synced=True)
            for digest in new:
                self._rename(f"{folder}/{digest.hex()}", digest)

    def _sync_names(self, digests: set[bytes], failures: int) -> None:
        """Make the names of stored objects durable. Their bytes are: they are synced before they get the name."""
        places = {digest[:1].hex() for digest in digests}
        if len(places) > SYNCED_SINGLY_MAX and HAS_SYNCFS:
            self._sync.run(failures)
        else:
            for place in places:
                sync_folder(self._root / place)

    def _put_synced_together(self, new: dict[bytes, bytes], failures: int) -> None:
        with self._new_folder() as folder:
            with self._turn:
                for digest, data in new.items():
                    _write_file(f"{folder}/{digest.hex()}", data, is_synced=False)
            self._sync.run(failures)
            with self._turn:
                for digest in new:
                    self._rename(f"{folder}/{digest.hex()}", digest)
            self._sync.run(failures)

    def get(self, digest: bytes) -> bytes:
        with _translated(self._root):
            data = _read(self._path(digest), digest)
        check_content(digest, data)
        return data

    def get_many(self, digests: Iterable[bytes]) -> Iterator[bytes | ObjectMissing | ObjectDamaged]:
        return (read_one(self, digest) for digest in digests)

    def has(self, digests: Iterable[bytes]) -> set[bytes]:
        with _translated(self._root):
            return {digest for digest in digests if Path(self._path(digest)).is_file()}

    def delete(self, digests: Iterable[bytes]) -> None:
        with _translated(self._root):
            for digest in digests:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._path(digest))  # noqa: PTH108

    def list(self, after: bytes = b"") -> Iterator[StoredObject]:
        """One folder of the 256 is read at a time."""
        for number in range(after[0] if after else 0, 256):
            with _translated(self._root):
                found = self._list_folder(f"{number:02x}")
            yield from (stored for stored in found if stored.digest > after)

    def signed_get(self, digest: bytes, *, valid_s: int) -> str | None:  # noqa: ARG002  the contract's arguments
        return None

    def signed_put(self, sender: str, digest: bytes, size: int, *, valid_s: int) -> SignedUpload | None:  # noqa: ARG002
        return None

    def accept(self, sender: str, digests: Iterable[bytes]) -> dict[bytes, int]:  # noqa: ARG002
        return {}

    def drop_incoming(self, sender: str, digests: Iterable[bytes]) -> None:
        pass

    def drop_abandoned(self, *, before_us: int, limit: int) -> int:  # noqa: ARG002
        return 0

    def check(self) -> None:
        with _translated(self._root), self._new_folder() as folder:
            probe = folder / "probe"
            _write_file(str(probe), PROBE, is_synced=True)
            if probe.read_bytes() != PROBE:
                raise Unavailable("The folder for files gives back other bytes than were written.")

    def _has(self, digest: bytes, data: bytes) -> bool:
        """Whether the object is stored. If so it is marked as used: the listing shows when it was last stored."""
        path = self._path(digest)
        if not _has_content(path, data):
            return False
        os.utime(path)
        return True

    def _rename(self, new: str, digest: bytes) -> None:
        path = self._path(digest)
        try:
            os.rename(new, path)  # noqa: PTH104
        except FileNotFoundError:  # its folder is new, or an operator removed it
            Path(path).parent.mkdir(mode=0o700, exist_ok=True)
            sync_folder(self._root)
            os.rename(new, path)  # noqa: PTH104

    @contextlib.contextmanager
    def _new_folder(self) -> Iterator[Path]:
        """A folder for new objects, locked until the end and then removed: the start of another server leaves it."""
        self._new.mkdir(parents=True, exist_ok=True, mode=0o700)  # an operator may have removed it
        folder = self._new / secrets.token_hex(8)
        with contextlib.ExitStack() as stack:
            with _locked(self._root / LOCK_FILE, fcntl.LOCK_SH):
                folder.mkdir(mode=0o700)
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
                stack.enter_context(_locked(folder / LOCK_FILE, fcntl.LOCK_EX))
            yield folder

    def _list_folder(self, name: str) -> Sequence[StoredObject]:
        found = []
        try:
            with os.scandir(self._root / name) as entries:
                for entry in entries:
                    digest = digest_of_name(name + entry.name)
                    if digest is None or not entry.is_file(follow_symlinks=False):
                        continue  # not ours
                    with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                        status = entry.stat(follow_symlinks=False)
                        found.append(StoredObject(digest, status.st_size, status.st_mtime_ns // 1_000))
        except FileNotFoundError:
            return []
        return sorted(found)

    def _path(self, digest: bytes) -> str:
        """A string: with thousands of objects, a Path of each costs more than its system calls."""
        name = digest.hex()
        return f"{self._root}/{name[:2]}/{name[2:]}"


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: fsync of a file does not cover its name."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@contextlib.contextmanager
def _locked(path: Path, kind: int) -> Iterator[bool]:
    """Hold a lock on a file. False: the file system has no locks."""
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        is_locked = False
        with contextlib.suppress(OSError):
            fcntl.flock(number, kind)
            is_locked = True
        yield is_locked
    finally:
        os.close(number)


def _write_file(name: str, data: bytes, *, is_synced: bool) -> None:
    number = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(number, rest) :]
        if is_synced:
            os.fsync(number)
    finally:
        os.close(number)


def _remove_unlocked(path: Path) -> None:
    """Remove a folder of new objects whose writer is gone."""
    with contextlib.suppress(OSError):  # another start removed it, or it is being written
        number = os.open(path / LOCK_FILE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path)
        finally:
            os.close(number)


def _read(path: str, digest: bytes) -> bytes:
    try:
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(number).st_size
            if size > OBJECT_BYTES_MAX:
                raise ObjectDamaged(digest, f"it has more than {OBJECT_BYTES_MAX} bytes")
            data = os.read(number, size)
            while len(data) < size and (more := os.read(number, size - len(data))):
                data += more
        finally:
            os.close(number)
    except FileNotFoundError:
        raise ObjectMissing(digest) from None
    except OSError as exc:
        if exc.errno != errno.EIO:
            raise
        raise ObjectDamaged(digest, "the disk cannot read it") from exc
    return data


def _has_content(path: str, data: bytes) -> bool:
    """Whether the file has exactly these bytes: a damaged object is replaced by the next upload of it."""
    try:
        return os.stat(path).st_size == len(data) and Path(path).read_bytes() == data  # noqa: PTH116
    except FileNotFoundError:
        return False
    except OSError as exc:
        if exc.errno == errno.EIO:
            return False
        raise


def _log_full_disk(root: Path, exc: OSError) -> None:
    """Tell the operator, whose users see only that their upload failed. At most one line a minute."""
    why = exc.strerror or str(exc)
    if times := _FULL_DISK.note(f"{root}: {why}"):
        try:
            free = shutil.disk_usage(root).free
        except OSError:
            free = -1  # not known
        log.warning("the disk that keeps files is full", path=str(root), free_bytes=free, error=why, times=times)


@contextlib.contextmanager
def _translated(root: Path) -> Iterator[None]:
    """Turn what the operating system says into Unavailable."""
    try:
        yield
    except OSError as exc:
        if exc.errno in FULL:
            _log_full_disk(root, exc)
            problem = Unavailable(
                "The disk that keeps files is full; the object was not stored.",
                next_step="Ask the operator of the server to free space; then send it again.",
            )
        else:
            problem = Unavailable("The folder that keeps files cannot be used.")
        problem.add_note(f"{root}: {exc.strerror or exc}.")
        raise problem from exc


class SharedSync:
    """Makes durable what was written to the file system of one folder. Threads may share it.

    A sync covers only what was written before it began. So a thread that comes during a sync waits for the next one,
    together with all others that came meanwhile.

    A failed sync is told to every thread that wrote before it ended. Linux reports a failed write once to each
    descriptor that was open at that time, and a later sync succeeds although the bytes are lost. So one descriptor
    stays open for all syncs, and failures are counted.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._change = threading.Condition()
        self._begun = 0  # syncs
        self._done = 0  # the last sync that succeeded
        self._is_running = False
        self._failures = 0
        self._failure = (errno.EIO, "")  # the last one: number and text
        self._descriptor, self._device = -1, -1
        self._close: weakref.finalize[[int], SharedSync] | None = None

    def begin(self) -> int:
        """Return the number of failed syncs, for `run`. Call this before the first write."""
        with self._change:
            while self._is_running and self._is_elsewhere():
                self._change.wait()
            if self._is_elsewhere():
                self._open()
            return self._failures

    def run(self, failures: int) -> None:
        """Return after a sync that began after this call. Raise OSError if one failed since `begin` gave `failures`."""
        with self._change:
            wanted = self._begun + 1
            while self._failures == failures and self._done < wanted:
                if self._is_running:
                    self._change.wait()
                else:
                    self._sync()
            if self._failures != failures:
                raise OSError(*self._failure, str(self._folder))

    def _sync(self) -> None:
        """Run one sync, without the lock meanwhile. Count it if it fails."""
        self._begun += 1
        number, self._is_running = self._begun, True
        self._change.release()
        is_done, failure = False, (errno.EIO, "the sync was interrupted")
        try:
            _sync_file_system(self._descriptor)
            is_done = True
        except OSError as exc:
            failure = (exc.errno or errno.EIO, exc.strerror or str(exc))
        finally:
            self._change.acquire()
            self._is_running = False
            if is_done:
                self._done = number
            else:
                self._count_failure(failure)
            self._change.notify_all()

    def _is_elsewhere(self) -> bool:
        """Whether the folder is not on the open file system: nothing is open yet, or another one was mounted."""
        return self._folder.stat().st_dev != self._device

    def _open(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        if self._close is not None:
            self._close()
            self._count_failure((errno.ESTALE, "another file system was mounted"))
        self._close = weakref.finalize(self, os.close, descriptor)
        self._descriptor, self._device = descriptor, os.fstat(descriptor).st_dev

    def _count_failure(self, failure: tuple[int, str]) -> None:
        self._failures += 1
        self._failure = failure


def _sync_file_system(descriptor: int) -> None:
    """Make everything durable that was written to this file system.

    Linux before 5.8 does not tell of a failed write here; the hash of an object is checked whenever it is read.
    """
    assert _libc_syncfs is not None
    if _libc_syncfs(descriptor) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
