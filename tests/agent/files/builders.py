"""An object source in this process, trees of files, and waiting, for the tests of the agent's files."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from switchyard.agent.files.attempt_files import AttemptFiles, FilesPlaces
from switchyard.agent.files.inputs.staging_errors import ObjectLost
from switchyard.agent.files.object_client import AttemptRights, TakeObject
from switchyard.agent.files.records import FolderRecords, FolderStage
from switchyard.agent.journal.journal import Journal
from switchyard.agent.loop.runner import Runner
from switchyard.agent.site.site import FilesSite
from switchyard.errors import YardError
from switchyard.model.cluster.poll import Lease, Report
from switchyard.model.files.file_tree import (
    ZEROS,
    Entry,
    FileEntry,
    FolderEntry,
    LinkEntry,
    chunk_spans,
    decode_tree,
    encode_tree,
    hash_of,
)
from switchyard.model.files.file_views import FileAnswer
from switchyard.model.files.files import (
    AttemptOutputs,
    JobFiles,
    MissingAnswer,
    OutputRoom,
    SignedUpload,
    TreeAnswer,
)
from tests.agent.builders import a_lease, a_local
from tests.processes import until

WAIT_S = 60.0
Plain = dict[str | bytes, "Plain | bytes | str | Executable"]


class Executable(bytes):
    """The content of a file that can be run."""


class Objects:
    """The calls of an object store, on a dictionary shared by all its connections. Tests change its fields."""

    def __init__(self) -> None:
        self.stored: dict[bytes, bytes] = {}
        self.lock = threading.Lock()
        self.reads: list[bytes] = []
        self.sends: list[bytes] = []
        self.told: list[AttemptOutputs] = []
        self.views: list[FileAnswer] = []
        self.errors: list[YardError] = []  # raised by the next calls, one each
        self.gate = threading.Event()  # reads wait for it
        self.gate.set()
        self.is_stopped = False
        self.room_left = OutputRoom()

    def connect(self) -> Objects:
        return self

    def _step(self) -> None:
        with self.lock:
            if self.errors:
                raise self.errors.pop(0)

    def read(self, rights: AttemptRights, root: bytes, digests: Sequence[bytes], take: TakeObject) -> None:
        assert self.gate.wait(WAIT_S)
        self._step()
        for digest in digests:
            with self.lock:
                self.reads.append(digest)
            if digest not in self.stored:
                raise ObjectLost(digest, root=root)
            take(digest, self.stored[digest])

    def room(self, rights: AttemptRights) -> OutputRoom:
        """The room for outputs. That of the user gets smaller by what was sent."""
        user = self.room_left.user
        if user is None:
            return self.room_left
        sent = sum(len(self.stored[digest]) for digest in self.sends)
        return replace(self.room_left, user=replace(user, left=max(0, user.left - sent)))

    def absent(self, rights: AttemptRights, digests: Iterable[bytes]) -> set[bytes]:
        return {digest for digest in digests if digest not in self.stored}

    def missing(self, rights: AttemptRights, sizes: Mapping[bytes, int]) -> MissingAnswer:
        self._step()
        return MissingAnswer(missing=[digest.hex() for digest in sizes if digest not in self.stored])

    def send(self, rights: AttemptRights, objects: Mapping[bytes, bytes], uploads: Mapping[str, SignedUpload]) -> None:
        self._step()
        for digest, data in objects.items():
            assert hash_of(data) == digest
            self.stored[digest] = data
            self.sends.append(digest)

    def seal(self, rights: AttemptRights, root: bytes) -> TreeAnswer:
        self._step()
        return TreeAnswer(root=root.hex())

    def answer_view(self, answer: FileAnswer) -> None:
        self.views.append(answer)

    def tell(self, outputs: AttemptOutputs) -> None:
        self._step()
        self.told.append(outputs)

    def close(self) -> None:
        self.is_stopped = True

    def put(self, data: bytes) -> bytes:
        self.stored[digest := hash_of(data)] = data
        return digest

    def put_tree(self, content: Plain) -> bytes:
        """Store a folder: names to bytes (a file), text (a link) or folders."""
        return self._put_folder(content)[0]

    def _put_folder(self, content: Plain) -> tuple[bytes, int, int]:
        entries: list[Entry] = []
        files = size = 0
        for key, value in content.items():
            name = os.fsencode(key)
            if isinstance(value, dict):
                digest, files_below, size_below = self._put_folder(value)
                entries.append(FolderEntry(name, digest, files_below, size_below))
                files, size = files + files_below, size + size_below
            elif isinstance(value, str):
                entries.append(LinkEntry(name, value.encode()))
            else:
                chunks = [bytes(value[at : at + count]) for at, count in chunk_spans(len(value))]
                hashes = [self.put(chunk) if chunk.strip(b"\0") else ZEROS for chunk in chunks]
                entries.append(FileEntry(name, len(value), isinstance(value, Executable), hashes))
                files, size = files + 1, size + len(value)
        return self.put(encode_tree(entries)), files, size

    def content_of(self, root: bytes) -> Plain:
        """A stored tree as `put_tree` takes it."""
        content: Plain = {}
        for entry in decode_tree(self.stored[root]):
            if isinstance(entry, FolderEntry):
                content[entry.name] = self.content_of(entry.tree)
            elif isinstance(entry, LinkEntry):
                content[entry.name] = entry.target.decode()
            else:
                spans = zip(chunk_spans(entry.size), entry.chunks, strict=True)
                data = b"".join(self.stored[chunk] if chunk else bytes(span.size) for span, chunk in spans)
                content[entry.name] = Executable(data) if entry.is_executable else data
        return content


def content_of_folder(folder: Path) -> Plain:
    """What lies in a folder, with names as bytes."""
    content: Plain = {}
    for path in folder.iterdir():
        name = os.fsencode(path.name)
        if path.is_symlink():
            content[name] = str(path.readlink())
        elif path.is_dir():
            content[name] = content_of_folder(path)
        else:
            data = path.read_bytes()
            content[name] = Executable(data) if path.stat().st_mode & 0o100 else data
    return content


def named_in_bytes(content: Plain) -> Plain:
    return {
        os.fsencode(name): named_in_bytes(value) if isinstance(value, dict) else value
        for name, value in content.items()
    }


def wait_until(is_so: Callable[[], object], what: str, timeout_s: float = WAIT_S) -> None:
    until(is_so, timeout_s, what)


class Site:
    """One agent without its server: journal, local backend, runner and files. `restart` is a kill and a new start."""

    def __init__(self, directory: Path, journal_folder: Path | None = None) -> None:
        self.directory, self.objects = directory, Objects()
        self.journal_folder = journal_folder or directory
        self.site, self.patience_s = FilesSite(), 60.0
        self.start()

    def start(self) -> None:
        self.journal = Journal(self.journal_folder / "journal.db")
        self.backend = a_local(self.directory)
        self.files = AttemptFiles(
            self.backend,
            FilesPlaces(directory=self.directory, cache=self.directory / "files" / "cache"),
            site=self.site,
            connect=self.objects.connect,
            on_change=self.backend.wake,
            patience_s=self.patience_s,
        )
        self.runner = Runner(self.journal, self.backend, None, self.files)
        self.runner.adopt()

    def stop(self) -> None:
        self.files.stop()
        self.backend.close()
        self.journal.close()

    def restart(self) -> None:
        self.stop()
        self.start()

    def turn(self) -> None:
        self.runner.run_once(may_start=True)
        self.backend.watch(0.02)

    def reports(self, lease: Lease) -> list[Report]:
        return [q.timed.report for q in self.journal.queued() if q.key == (lease.job, lease.fence)]

    def end_of(self, lease: Lease) -> Report:
        def has_ended() -> bool:
            self.turn()
            attempt = self.journal.get((lease.job, lease.fence))
            return attempt is None or not attempt.is_live

        wait_until(has_ended, "its end")
        return self.reports(lease)[-1]

    def record(self, lease: Lease) -> FolderStage | None:
        record = FolderRecords(self.directory / "files" / "records").get((lease.job, lease.fence))
        return record.stage if record else None

    def folder(self, lease: Lease) -> Path:
        return self.backend.work_folder(lease).path

    def lease(self, script: str, files: JobFiles, **more: Any) -> Lease:
        lease = a_lease("sh", "-c", script, files=files, **more)
        self.journal.take([lease])
        return lease
