"""Hashes of local files from earlier scans, kept on disk, so that an unchanged file is not read again.

A file counts as unchanged if its size, its times (mtime and ctime) and its inode are the same. A file that changed a
moment before the scan is not kept: a second change could leave the same times.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from switchyard.model.files.file_tree import ChunkDigest

FORMAT = b"yard-hashes 1\n"
FOLDERS_MAX = 200  # cached folders; the ones that were used longest ago are removed
SLACK_ENTRIES = 10_000  # of files that this scan did not see
FINE_MARGIN_NS = 100_000_000  # clocks of local file systems tick every 10 ms or finer
COARSE_MARGIN_NS = 3_000_000_000  # for times in whole seconds, as on old file systems


class FileState(NamedTuple):
    """What changes when a file changes."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @staticmethod
    def of(stat: os.stat_result) -> FileState:
        return FileState(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)


class CachedFile(Struct, frozen=True, array_like=True, gc=False):
    """One file of an earlier scan."""

    state: tuple[int, int, int, int]
    chunks: list[ChunkDigest]


class HashCache:
    """The hashes of one scan: `lookup` before a file is read, `add` after it, `save` at the end."""

    def __init__(self, folder: Path | None, *, is_fresh: bool = False) -> None:
        """`folder`: where the cache is kept; None: nothing is kept. `is_fresh`: do not use what is there."""
        self._folder = folder
        self._is_fresh = is_fresh
        self._now_ns = time.time_ns()
        self._shards: dict[bytes, _Shard] = {}

    def lookup(self, folder: bytes, path: bytes, state: FileState) -> list[bytes] | None:
        """Return the chunks of the file as an earlier scan found them, or None."""
        shard = self._shard(folder)
        cached = shard.files.get(path)
        if cached is None or cached.state != state:
            return None
        shard.seen_paths.add(path)
        return cached.chunks

    def add(self, folder: bytes, path: bytes, state: FileState, chunks: list[bytes]) -> None:
        # Every change sets the ctime, and no program can set it back.
        margin_ns = FINE_MARGIN_NS if state.ctime_ns % 1_000_000_000 else COARSE_MARGIN_NS
        if self._now_ns - state.ctime_ns < margin_ns:
            return
        shard = self._shard(folder)
        shard.files[path] = CachedFile(state, chunks)
        shard.seen_paths.add(path)
        shard.is_changed = True

    def save(self) -> None:
        """Write what was added. A cache that cannot be written costs time and nothing else."""
        if self._folder is None:
            return
        for shard in self._shards.values():
            if shard.is_changed:
                with suppress(OSError):
                    _write(self._folder, shard)

    def _shard(self, folder: bytes) -> _Shard:
        shard = self._shards.get(folder)
        if shard is None:
            shard = self._shards[folder] = _Shard(folder)
            if self._folder is not None and not self._is_fresh:
                shard.load(self._folder)
        return shard


class _Shard:
    """The cached files of one folder, in one file of the cache."""

    def __init__(self, folder: bytes) -> None:
        self.file_name = hashlib.sha256(folder).hexdigest()[:32]
        self.files: dict[bytes, CachedFile] = {}
        self.seen_paths: set[bytes] = set()
        self.is_changed = False

    def load(self, cache: Path) -> None:
        try:
            data = (cache / self.file_name).read_bytes()
        except OSError:
            return
        if data.startswith(FORMAT):
            with suppress(msgspec.MsgspecError, UnicodeDecodeError):
                self.files = _decoder.decode(memoryview(data)[len(FORMAT) :])

    def encode(self) -> bytes:
        if len(self.files) > 2 * len(self.seen_paths) + SLACK_ENTRIES:
            self.files = {path: cached for path, cached in self.files.items() if path in self.seen_paths}
        return FORMAT + _encoder.encode(self.files)


def _write(cache: Path, shard: _Shard) -> None:
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, fresh = tempfile.mkstemp(prefix=".new-", dir=cache)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(shard.encode())
        Path(fresh).replace(cache / shard.file_name)
    finally:
        Path(fresh).unlink(missing_ok=True)
    shards = sorted(cache.iterdir(), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for old in shards[FOLDERS_MAX:]:
        old.unlink(missing_ok=True)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(dict[bytes, CachedFile])
