"""Trees for tests: folders as plain dictionaries, and the objects that they consist of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from switchyard.model.files.file_frames import FrameKind, encode_frame
from switchyard.model.files.file_tree import (
    ZEROS,
    Entry,
    FileEntry,
    FolderEntry,
    LinkEntry,
    chunk_spans,
    encode_tree,
    hash_of,
)
from switchyard.model.files.files import JobFiles, StoredObjects
from switchyard.model.job.job import JobRequest
from switchyard.service.core.agents.agent_calls import AgentAttempt, AgentCaller, CallRule, admit_call
from switchyard.service.core.context import Context
from switchyard.service.files.intake import ObjectIntake
from switchyard.service.files.seal import seal_tree
from tests.builders import a_request
from tests.service.rig import RigAgent

Folder = dict[str, Any]  # a name → bytes of a file, a folder, or a Link


@dataclass(frozen=True)
class Link:
    target: str


@dataclass
class Tree:
    """The objects of a tree, by hash, the root last."""

    objects: dict[bytes, bytes] = field(default_factory=dict)
    root: bytes = b""
    files: int = 0
    size: int = 0

    @property
    def name(self) -> str:
        return self.root.hex()

    def frames(self, *digests: bytes) -> bytes:
        """The body of an upload: these objects, by default all."""
        return frames({digest: self.objects[digest] for digest in digests or self.objects})

    def add(self, data: bytes) -> bytes:
        digest = hash_of(data)
        self.objects[digest] = data
        return digest


def a_tree(folder: Folder) -> Tree:
    tree = Tree()
    top = _add(tree, b"", folder)
    tree.root, tree.files, tree.size = top.tree, top.files, top.size
    return tree


def _add(tree: Tree, name: bytes, folder: Folder) -> FolderEntry:
    entries: list[Entry] = []
    files = size = 0
    for key, value in folder.items():
        if isinstance(value, Link):
            entries.append(LinkEntry(key.encode(), value.target.encode()))
        elif isinstance(value, bytes):
            chunks = [value[span.offset : span.offset + span.size] for span in chunk_spans(len(value))]
            digests = [tree.add(chunk) if any(chunk) else ZEROS for chunk in chunks]
            entries.append(FileEntry(key.encode(), len(value), False, digests))
            files, size = files + 1, size + len(value)
        else:
            entry = _add(tree, key.encode(), value)
            entries.append(entry)
            files, size = files + entry.files, size + entry.size
    return FolderEntry(name or b".", tree.add(encode_tree(entries)), files, size)


def frames(objects: dict[bytes, bytes]) -> bytes:
    return b"".join(encode_frame(FrameKind.CONTENT, digest, data) for digest, data in objects.items())


def send(
    context: Context, owner: str, body: bytes, *, piece: int = 100_000, attempt: AgentAttempt | None = None
) -> StoredObjects:
    """Send a body as a client does, piece by piece; with an attempt, as its agent does."""
    intake = ObjectIntake(context, owner, attempt)
    intake.begin()
    for start in range(0, len(body), piece):
        intake.feed(body[start : start + piece])
    return intake.end()


def admitted(agent: RigAgent, rule: CallRule, job: str, fence: int) -> AgentAttempt:
    """The attempt of a call that the server lets in by a rule of its table."""
    context = agent.rig.context
    attempt = admit_call(context, AgentCaller(context.snapshots.fleet.agents[agent.id]), rule, job, fence)
    assert attempt is not None
    return attempt


def send_outputs(context: Context, attempt: AgentAttempt, tree: Tree) -> None:
    """Send and seal a tree as an agent does for an attempt."""
    send(context, attempt.owner, tree.frames(), attempt=attempt)
    assert seal_tree(context, attempt.owner, tree.name, attempt=attempt).missing == []


def with_files(files: JobFiles, **fields: Any) -> JobRequest:
    request = a_request(**fields)
    return msgspec.structs.replace(request, spec=msgspec.structs.replace(request.spec, files=files))
