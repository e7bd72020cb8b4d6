"""One small file on the disk for each attempt with files: how far its folder has come. Read after a restart."""

from __future__ import annotations

import contextlib
import logging
import threading
from enum import StrEnum
from pathlib import Path

import msgspec
from msgspec import Struct

from switchyard.agent.journal.attempt import AttemptKey
from switchyard.agent.log import line
from switchyard.agent.private_files import replace_file

log = logging.getLogger(__name__)


class FolderStage(StrEnum):
    """How far the folder of an attempt has come."""

    STAGING = "staging"  # half written: no job has run in it
    STAGED = "staged"  # complete: a job may run or have run in it
    ENDED = "ended"  # its output files are to be uploaded
    REMOVABLE = "kept"  # to be removed at `remove_at_s`


class FolderRecord(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """`folder` is the job's; the folder above it, which the agent removes with it, has only the job's in it."""

    job: str
    fence: int
    marker: str
    folder: str
    stage: FolderStage
    account: str = ""  # of the job; empty: the agent's
    boot: str = ""  # in which the folder was staged: after a power cut the files may be incomplete
    out: list[str] = []
    ended_at_s: float = 0.0  # wall clock; of ENDED
    verdict: str | None = None  # of required output files: why the attempt has failed; empty: they are at the server
    remove_at_s: float = 0.0  # wall clock

    @property
    def key(self) -> AttemptKey:
        return (self.job, self.fence)


class FolderRecords:
    """Used by several threads. A record that a full disk refuses stays in memory, and is written with a later one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._records: dict[AttemptKey, FolderRecord] = {}
        self._unwritten: set[AttemptKey] = set()
        with contextlib.suppress(FileNotFoundError):
            for path in sorted(folder.glob("*.json")):
                self._load(path)

    def get(self, key: AttemptKey) -> FolderRecord | None:
        with self._lock:
            return self._records.get(key)

    def all(self) -> list[FolderRecord]:
        with self._lock:
            return list(self._records.values())

    def write(self, record: FolderRecord, *, is_durable: bool = False) -> None:
        with self._lock:
            self._records[record.key] = record
            self._unwritten.add(record.key)
            for key in list(self._unwritten):
                try:
                    self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                    content = msgspec.json.encode(self._records[key])
                    replace_file(self._path(self._records[key]), content, is_durable=is_durable)
                    self._unwritten.discard(key)
                except OSError as exc:
                    log.warning(line("files-record-not-written", job=key[0], fence=key[1], error=exc.strerror))
                    return

    def remove(self, key: AttemptKey) -> None:
        with self._lock:
            record = self._records.pop(key, None)
            self._unwritten.discard(key)
            if record is not None:
                with contextlib.suppress(OSError):
                    self._path(record).unlink(missing_ok=True)

    def _path(self, record: FolderRecord) -> Path:
        return self._folder / f"{record.marker}.json"

    def _load(self, path: Path) -> None:
        try:
            record = msgspec.json.decode(path.read_bytes(), type=FolderRecord)
        except (OSError, msgspec.DecodeError) as exc:
            log.error(line("files-record-unreadable", file=path, error=exc))
            return
        self._records[record.key] = record
