"""Files that Flyte's clients upload, such as bundles of code: addresses for them, and the bytes.

An address is a random word. It reads or writes one path, for a bounded time; after an upload it is used up. A path
never gets another content, so a bundle that a task names stays what it was. Nobody can take the path of another user's
upload: a path begins with the hash of the content, or with a word of the user.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from dataclasses import dataclass, field
from typing import Any

from switchyard.errors import BadRequest, Denied, NameTaken, NotFound, TooLarge, Unavailable
from switchyard.features.flyte.service.entities.scope import require_active_project, require_read, require_write
from switchyard.features.flyte.service.executions.calls.execution_switch import require_executions
from switchyard.features.flyte.store.executions import data_files
from switchyard.features.flyte.store.executions.data_files import DataFileRow, DataGrantRow
from switchyard.features.flyte.workflow.values.uploaded_files import SCHEME
from switchyard.model.files.file_frames import FrameKind, encode_frame
from switchyard.model.files.file_tree import (
    CHUNK_BYTES,
    BadTree,
    FileEntry,
    FolderEntry,
    decode_tree,
    encode_tree,
    hash_of,
)
from switchyard.model.jobspec.quantity import show_bytes
from switchyard.model.rules.names import printable_line
from switchyard.service.core.context import Context
from switchyard.service.core.file_storage import refuse_project_over_limit
from switchyard.service.core.rights import Actor
from switchyard.service.core.writes.batch import Batch
from switchyard.service.files.intake import ObjectIntake
from switchyard.service.files.seal import seal_tree
from switchyard.storage.object_store import ObjectDamaged, ObjectMissing
from switchyard.store.files import file_outputs, file_trees

UPLOAD_BYTES_MAX = 256 * 2**20  # of one file
GRANT_S_MAX = 3600
PATH_CHARS_MAX = 1000
MD5_BYTES = 16


@dataclass(frozen=True, slots=True)
class DataPlace:
    """Where a file is."""

    project: str
    domain: str
    path: str


@dataclass(frozen=True, slots=True)
class DataAddress:
    """An address that was given out. `native_url`: the name of the file for ever."""

    token: str
    native_url: str
    expires_us: int
    filename: str


def create_upload_location(context: Context, actor: Actor, request: Any) -> DataAddress:
    require_write(context, actor, request.project, request.domain)
    require_executions(context)
    if not request.content_md5 and not request.filename_root:
        raise BadRequest("content_md5 or filename_root must be given")
    if request.content_md5 and len(request.content_md5) != MD5_BYTES:
        raise BadRequest("content_md5 must be the 16 bytes of an MD5")
    path = f"{_folder_of(actor, request)}/{request.filename or secrets.token_hex(10)}"
    _check_path(path)
    with context.database.read() as tx:
        stored = data_files.data_file_get(tx, request.project, request.domain, path)
    if stored is not None and stored.md5 != request.content_md5:
        raise _path_taken(path)
    place = DataPlace(request.project, request.domain, path)
    return _grant(context, actor, "PUT", place, md5=request.content_md5, validity=request.expires_in)


def _folder_of(actor: Actor, request: Any) -> str:
    """The folder of an upload: named by the content, or chosen by the client and then the user's own.

    Otherwise another user of the project could store something under the name first. Lower case letters begin the
    folders of users, upper case letters those of contents.
    """
    if not request.filename_root:
        return base64.b32encode(request.content_md5).decode().rstrip("=")
    return f"u{hashlib.sha256(actor.id.encode()).hexdigest()[:16]}/{request.filename_root}"


def create_download_location(context: Context, actor: Actor, request: Any) -> DataAddress:
    project, domain, path = split_native_url(request.native_url)
    require_read(actor, project, domain)
    with context.database.read() as tx:
        stored = data_files.data_file_get(tx, project, domain, path)
    if stored is None:
        raise NotFound(f"There is no file {request.native_url[:200]!r} here.")
    place = DataPlace(project, domain, path)
    return _grant(context, actor, "GET", place, md5=stored.md5, validity=request.expires_in)


def native_url(project: str, domain: str, path: str) -> str:
    return f"{SCHEME}{project}/{domain}/{path}"


def split_native_url(url: str) -> tuple[str, str, str]:
    """Project, domain and path of a file here."""
    parts = url.removeprefix(SCHEME).split("/", 2) if url.startswith(SCHEME) and "\0" not in url else []
    if len(parts) != 3 or not all(parts):
        raise BadRequest(f"{url[:200]!r} is no address of a file here; they begin with {SCHEME}")
    return parts[0], parts[1], parts[2]


def find_grant(context: Context, token: str, verb: str) -> DataGrantRow:
    """The grant of an address. In the same words for all that is wrong with it."""
    token_hash = _hash(token)
    with context.database.read() as tx:
        row = data_files.grant_get(tx, token_hash)
    if row is None or row.verb != verb or row.expires_us < context.now_us():
        raise Denied(
            "This address is not valid: it was used, its time is over, or it is for something else.",
            next_step="Ask for another with CreateUploadLocation or CreateDownloadLocation.",
        )
    return row


@dataclass(slots=True)
class DataUpload:
    """The upload of one file. Every call may block: use it on a thread."""

    context: Context
    grant: DataGrantRow
    _rest: bytearray = field(default_factory=bytearray)
    _chunks: list[bytes] = field(default_factory=list)
    _size: int = 0
    _md5: Any = field(default_factory=lambda: hashlib.md5(usedforsecurity=False))

    def feed(self, *pieces: bytes) -> None:
        for piece in pieces:
            self._size += len(piece)
            if self._size > UPLOAD_BYTES_MAX:
                raise TooLarge(f"The file is over {show_bytes(UPLOAD_BYTES_MAX)}, the most of one upload.")
            self._md5.update(piece)
            self._rest += piece
        while len(self._rest) >= CHUNK_BYTES:
            self._put_chunk(bytes(self._rest[:CHUNK_BYTES]))
            del self._rest[:CHUNK_BYTES]

    def end(self) -> None:
        """Store the file, if it is the one that was announced."""
        if self.grant.md5 and self._md5.digest() != self.grant.md5:
            raise BadRequest("The content has another MD5 than the one that the address was asked for.")
        if self._rest:
            self._put_chunk(bytes(self._rest))
        name = self.grant.path.rpartition("/")[2].encode()
        tree = encode_tree([FileEntry(name, self._size, False, self._chunks)])
        self._put(tree)
        owner, root = self.grant.owner_id, hash_of(tree)
        if seal_tree(self.context, owner, root.hex()).missing:
            raise Unavailable("Parts of the file were removed while it came.", next_step="Send it again.")
        self.context.committer.call(lambda batch: self._record(batch, root))

    def _record(self, batch: Batch, root: bytes) -> None:
        grant = self.grant
        require_active_project(batch.tx, grant.project, grant.domain)
        if not data_files.grant_delete(batch.tx, grant.token_hash):
            raise Denied("This address was used meanwhile.")
        md5 = self._md5.digest()
        row = DataFileRow(
            project=grant.project,
            domain=grant.domain,
            path=grant.path,
            md5=md5,
            size=self._size,
            tree=root,
            owner_id=grant.owner_id,
            stored_us=batch.now_us,
        )
        if not data_files.data_file_put(batch.tx, row):
            stored = data_files.data_file_get(batch.tx, grant.project, grant.domain, grant.path)
            if stored is None or bytes(stored.tree) != root:  # two contents may have the same MD5
                raise _path_taken(grant.path)
            return
        tree = file_trees.tree_lock(batch.tx, root)
        if tree is None:
            raise Unavailable("Parts of the file were removed while it came.", next_step="Send it again.")
        refuse_project_over_limit(batch.tx, self.context.files.limits, grant.project, tree)
        # Kept for ever, as the task that names it. No job has such an id.
        holder = f"data-file:{hashlib.sha256(native_url(row.project, row.domain, row.path).encode()).hexdigest()}"
        file_trees.ref_put(batch.tx, [file_trees.FileRef(holder, root, file_trees.IN, grant.project)])

    def _put_chunk(self, chunk: bytes) -> None:
        self._chunks.append(self._put(chunk))

    def _put(self, data: bytes) -> bytes:
        digest = hash_of(data)
        intake = ObjectIntake(self.context, self.grant.owner_id)
        intake.begin()
        intake.feed(encode_frame(FrameKind.CONTENT, digest, data))
        intake.end()
        return digest


def file_entry(context: Context, row: DataFileRow) -> FileEntry:
    """The chunks of a stored file."""
    try:
        (entry,) = decode_tree(context.files.store.get(bytes(row.tree)))
    except (ObjectMissing, ObjectDamaged) as exc:
        raise NotFound(f"The file {row.path[:200]} is lost: {exc}.", next_step="Upload it again.") from exc
    assert isinstance(entry, FileEntry)
    return entry


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file among the output files of an attempt. In a grant its path begins with `/`, as that of no upload does."""

    job_id: str
    fence: int
    path: str

    @property
    def grant_path(self) -> str:
        return f"/{self.job_id}/{self.fence}/{self.path}"


def create_output_location(
    context: Context, actor: Actor, project: str, domain: str, file: OutputFile, *, expires_in: Any
) -> DataAddress:
    """An address that reads an output file. The caller has checked that the reader may."""
    return _grant(context, actor, "GET", DataPlace(project, domain, file.grant_path), md5=b"", validity=expires_in)


def output_file_entry(context: Context, file: OutputFile) -> FileEntry | None:
    """The chunks of an output file. None: there is no such file, or it is gone."""
    with context.database.read() as tx:
        outputs = file_outputs.output_get(tx, file.job_id, file.fence)
    if outputs is None or outputs.root is None:
        return None
    *folders, name = file.path.encode().split(b"/")
    try:
        entries = decode_tree(context.files.store.get(bytes(outputs.root)))
        for word in folders:
            folder = next((one for one in entries if isinstance(one, FolderEntry) and one.name == word), None)
            if folder is None:
                return None
            entries = decode_tree(context.files.store.get(folder.tree))
    except (ObjectMissing, ObjectDamaged, BadTree):
        return None
    return next((one for one in entries if isinstance(one, FileEntry) and one.name == name), None)


def file_to_read(context: Context, grant: DataGrantRow) -> FileEntry:
    if grant.path.startswith("/"):
        job_id, fence, path = grant.path[1:].split("/", 2)
        entry = output_file_entry(context, OutputFile(job_id, int(fence), path))
        if entry is None:
            raise NotFound("There is no such file any more.")
        return entry
    with context.database.read() as tx:
        row = data_files.data_file_get(tx, grant.project, grant.domain, grant.path)
    if row is None:
        raise NotFound("There is no such file.")
    return file_entry(context, row)


def _grant(context: Context, actor: Actor, verb: str, place: DataPlace, *, md5: bytes, validity: Any) -> DataAddress:
    valid_s = validity.seconds or GRANT_S_MAX
    if not 0 < valid_s <= GRANT_S_MAX:
        raise BadRequest(f"expires_in must be at most {GRANT_S_MAX} seconds")
    token = secrets.token_urlsafe(32)
    expires_us = context.now_us() + valid_s * 1_000_000
    row = DataGrantRow(
        token_hash=_hash(token),
        verb=verb,
        project=place.project,
        domain=place.domain,
        path=place.path,
        md5=md5,
        owner_id=actor.id,
        expires_us=expires_us,
    )
    context.committer.call(lambda batch: data_files.grant_put(batch.tx, row, now_us=batch.now_us))
    name = native_url(place.project, place.domain, place.path)
    return DataAddress(token, name, expires_us, place.path.rpartition("/")[2])


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _check_path(path: str) -> None:
    parts = path.split("/")
    if len(path) > PATH_CHARS_MAX or any(part in ("", ".", "..") or len(part.encode()) > 255 for part in parts):
        raise BadRequest("filename and filename_root must be names of files, with at most 1000 characters")
    if printable_line(path) != path:
        raise BadRequest("filename and filename_root have control characters or invisible ones")


def _path_taken(path: str) -> NameTaken:
    return NameTaken(f"The file {path[:200]} is stored already, with another content.", next_step="Use another name.")
