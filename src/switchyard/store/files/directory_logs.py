"""The log store in a directory: one folder per stream, one file per run of bytes, named by its offset.

The names and lengths of the files are the index, so no index can be lost. A file that a crash cut short is a shorter
run; a piece that is written twice writes the same bytes to the same place. Several servers may share the directory.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from switchyard.errors import Unavailable
from switchyard.model.job.log import STREAMS, ByteRange, LogPiece, LogWindow, Stream, uncovered_ranges
from switchyard.store.engine.database import Tx

FILE_BYTES_MAX = 256 * 1024  # of one file, which is deleted as a whole
OFFSET_NAME = re.compile(r"[0-9]{19}")  # an offset; other files in a folder are not ours
JOB_ID = re.compile(r"[0-9A-Z]{26}")


class DirectoryLogs:
    """A log store that keeps output out of the database. Its writes belong to no transaction."""

    is_outside = True

    def __init__(self, root: Path, window: LogWindow | None = None) -> None:
        self._root = root
        self._window = window or LogWindow()
        self._file_bytes = max(1, min(FILE_BYTES_MAX, self._window.half // 4))  # a log is bounded to within one file

    def prepare(self) -> None:
        """Make the directory, or say why it cannot be used."""
        try:
            self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
            probe = self._root / f".probe-{os.getpid()}"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as exc:
            raise Unavailable(
                f"The directory for logs, {self._root}, cannot be written: {exc.strerror}.",
                next_step="Make it writable for the server, or set `logs: {store: database}`.",
            ) from exc

    def keep(self, _tx: Tx | None, pieces: Sequence[LogPiece]) -> Counter[str]:
        """Store the bytes that are not stored yet. Returns how many bytes each job has more, or fewer, than before."""
        added: Counter[str] = Counter()
        with _translated():
            for stream, group in groupby(sorted(pieces), key=lambda piece: piece.stream):
                added[stream.job] += self._keep_stream(self._folder(stream), [piece for piece in group if piece.data])
        return added

    def _keep_stream(self, folder: Path, pieces: list[LogPiece]) -> int:
        if not pieces:
            return 0
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        stored = _runs(folder)
        before = _length(stored)
        end = max(stored[-1][1] if stored else 0, *(piece.end for piece in pieces))
        for piece in pieces:
            for part in self._window.kept((piece.offset, piece.end), end):
                for span in uncovered_ranges(part, stored):
                    data = piece.data[span[0] - piece.offset : span[1] - piece.offset]
                    stored = self._write(folder, stored, span, data)
        cut = self._window.tail_from(end)
        dropped = [(lo, hi) for lo, hi in stored if lo >= self._window.half and hi <= cut]
        for lo, _ in dropped:
            (folder / _name(lo)).unlink(missing_ok=True)
        return _length(stored) - _length(dropped) - before

    def _write(self, folder: Path, stored: list[ByteRange], span: ByteRange, data: bytes) -> list[ByteRange]:
        """Append to the file that ends where the span begins, up to the size of a file; then start new files."""
        lo, hi = span
        while lo < hi:
            begin = next((run[0] for run in stored if run[1] == lo and self._may_grow(run)), lo)
            to = min(hi, begin + self._file_bytes)
            _write_at(folder / _name(begin), lo - begin, data[lo - span[0] : to - span[0]])
            stored = sorted([*(run for run in stored if run[0] != begin), (begin, to)])
            lo = to
        return stored

    def _may_grow(self, run: ByteRange) -> bool:
        is_small = run[1] - run[0] < self._file_bytes
        return is_small and run[1] != self._window.half  # head and tail are never in one file

    def read(
        self, _tx: Tx | None, stream: Stream, offset: int, *, bytes_max: int
    ) -> tuple[list[tuple[int, bytes]], int]:
        """Return up to `bytes_max` bytes from an offset on, in order, and the end of the stream."""
        with _translated():
            folder = self._folder(stream)
            runs = _runs(folder)
            chunks: list[tuple[int, bytes]] = []
            reached, left = offset, bytes_max
            for lo, hi in runs:
                begin = max(lo, reached)
                if hi <= begin or left <= 0:
                    continue
                data = _read_at(folder / _name(lo), begin - lo, min(left, hi - begin))
                if data:
                    chunks.append((begin, data))
                    reached, left = begin + len(data), left - len(data)
            return chunks, max((hi for _, hi in runs), default=0)

    def remove(self, _tx: Tx | None, job_ids: Iterable[str]) -> Counter[str]:
        """Delete the output of these jobs. Returns the number of bytes of each job."""
        removed: Counter[str] = Counter()
        for job in job_ids:
            folder = self._job_folder(job)
            with contextlib.suppress(OSError):  # no folder, or another server deletes it now
                removed[job] = sum(_length(_runs(stream)) for stream in folder.iterdir())
            shutil.rmtree(folder, ignore_errors=True)
        return removed

    def _job_folder(self, job: str) -> Path:
        assert JOB_ID.fullmatch(job), "ids are checked on arrival: no other text becomes a path"
        return self._root / job[-2:] / job  # the end of an id is random: the folders fill evenly

    def _folder(self, stream: Stream) -> Path:
        assert stream.name in STREAMS, "streams are checked on arrival"
        return self._job_folder(stream.job) / f"{int(stream.fence)}-{stream.name}"


def _name(offset: int) -> str:
    return f"{offset:019d}"


def _runs(folder: Path) -> list[ByteRange]:
    """Return the stored runs of bytes, in order. Another server may delete a file meanwhile."""
    runs: list[ByteRange] = []
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if OFFSET_NAME.fullmatch(entry.name):
                with contextlib.suppress(FileNotFoundError):
                    runs.append((int(entry.name), int(entry.name) + entry.stat().st_size))
    return sorted(run for run in runs if run[0] < run[1])


def _length(runs: Iterable[ByteRange]) -> int:
    return sum(hi - lo for lo, hi in runs)


def _write_at(path: Path, position: int, data: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        while data:
            written = os.pwrite(file, data, position)
            position, data = position + written, data[written:]
    finally:
        os.close(file)


def _read_at(path: Path, position: int, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(position)
            return file.read(size)
    except FileNotFoundError:  # deleted meanwhile: the reader sees a gap
        return b""


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Turn errors of the disk into Unavailable."""
    try:
        yield
    except OSError as exc:
        raise Unavailable(f"The logs cannot be reached: {exc.strerror or exc}.") from exc
