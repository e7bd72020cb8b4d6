"""Files that travel with a job: what a job says about them, and the messages that carry them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from switchyard.model.files.file_tree import TREE_BYTES_MAX
from switchyard.model.jobspec.quantity import DURATION_S_MAX
from switchyard.model.rules.names import Name

OBJECTS_ASKED_MAX = 10_000  # hashes in one request
OUT_PATTERNS_MAX = 100
TREES_ANNOUNCED_MAX = 1000
MISSING_LISTED_MAX = 100  # patterns without a file that are told
ObjectHash = Annotated[str, Meta(min_length=64, max_length=64, pattern=r"^[0-9a-f]{64}(?!\n)$")]
OutPattern = Annotated[str, Meta(min_length=1, max_length=1024, pattern=r"^[^\u0000/][^\u0000]*(?!\n)$")]
ObjectBytes = Annotated[int, Meta(ge=0, le=TREE_BYTES_MAX)]
MOUNTS_MAX = 16
MountPath = Annotated[str, Meta(max_length=1024, pattern=r"^(/(?!\.{1,2}(/|$|\n))[^\u0000-\u0020:,/]+)+(?!\n)$")]
InnerPath = Annotated[
    str, Meta(max_length=1024, pattern=r"^(?!/)((^|/)(?!\.{1,2}(/|$|\n))[^\u0000-\u0020:,/]+)+(?!\n)$")
]
FileCount = Annotated[int, Meta(ge=0, le=2**62)]
FileText = Annotated[str, Meta(max_length=4096)]


class JobFiles(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The files of a job. A tree is named by the SHA-256 of its root folder; upload it before the submit."""

    tree: ObjectHash | None = None  # appears in the job's folder before the start
    # Of an array: its root has one folder for each index, by its number; a task gets only the files of its own folder.
    task_tree: ObjectHash | None = None
    out: Annotated[list[OutPattern], Meta(max_length=OUT_PATTERNS_MAX)] = []  # `results/*`, `**/*.csv`: kept at the end
    out_required: bool = False  # an attempt that leaves no file for a pattern has failed
    # In a container: the path under which it sees a folder of the job's folder, and that folder. Not on the host.
    mounts: Annotated[dict[MountPath, InnerPath], Meta(max_length=MOUNTS_MAX)] = {}

    def __post_init__(self) -> None:
        for pattern in self.out:
            if ".." in pattern.split("/"):
                raise ValueError(f"out: {pattern!r} leaves the job's folder")


class MissingQuery(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`POST /v1/files/missing`: which of these objects must the caller still send?

    With `sizes`, in the order of the objects, the answer may have addresses to upload large objects to.
    """

    objects: Annotated[list[ObjectHash], Meta(min_length=1, max_length=OBJECTS_ASKED_MAX)]
    sizes: Annotated[list[ObjectBytes], Meta(max_length=OBJECTS_ASKED_MAX)] = []


class SignedUpload(Struct, frozen=True):
    """Where to PUT one object, with exactly these headers, for a bounded time."""

    url: str
    headers: dict[str, str] = {}


class MissingAnswer(Struct, frozen=True, omit_defaults=True):
    """Send the missing objects to `POST /v1/files/objects`.

    An object in `uploads` may go straight to the object store: PUT it there, then send a frame UPLOADED instead of its
    content. The server takes the content of such objects, too.
    """

    missing: list[ObjectHash]
    uploads: dict[str, SignedUpload] = {}


class TreeSize(Struct, frozen=True, forbid_unknown_fields=True):
    """A tree that is to be uploaded, and the bytes of its files."""

    root: ObjectHash
    bytes: FileCount


class UploadQuery(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`POST /v1/files/room`: do these files fit? Asked before the first byte is sent.

    `new_bytes`: of the objects to send; with `is_exact`, the caller has asked which objects are missing, and files that
    do not fit are refused. `project`: of the jobs that need the trees.
    """

    new_bytes: FileCount
    is_exact: bool = False
    trees: Annotated[list[TreeSize], Meta(max_length=TREES_ANNOUNCED_MAX)] = []
    project: Name | None = None


class UploadRoom(Struct, frozen=True, omit_defaults=True):
    """`released`: bytes of unused objects that the server took from the user to make room. Ask again what to send."""

    fits: bool = True
    released: int = 0


class StoredObjects(Struct, frozen=True):
    """`POST /v1/files/objects`: how many objects and bytes of the body are stored now."""

    objects: int
    bytes: int


class TreeQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`POST /v1/files/trees`: check that this tree is complete, and keep it for the jobs to come."""

    root: ObjectHash


class TreeAnswer(Struct, frozen=True, omit_defaults=True):
    """`missing` is not empty: the tree is not kept; send these objects and ask again. There may be more below them."""

    root: ObjectHash
    files: int = 0
    bytes: int = 0
    missing: list[ObjectHash] = []


class ObjectsQuery(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Read objects of a tree of the job. The answer has one frame for each, in order.

    docs/explanation/files.md has the format of frames.

    `is_read_by_server`: the answer has no addresses. Ask so for an object that is not at its address, or is damaged
    there: the server then knows that the store has lost it, and takes it again.
    """

    root: ObjectHash
    objects: Annotated[list[ObjectHash], Meta(min_length=1, max_length=OBJECTS_ASKED_MAX)]
    is_read_by_server: bool = False


class OutputState(StrEnum):
    """Where the output files of an attempt are."""

    UPLOADING = "uploading"  # at the agent, on their way
    READY = "ready"
    FAILED = "failed"  # they cannot be had; `error` says why


class AttemptOutputs(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`POST /v1/agents/outputs`: the output files of one attempt. The last message of an attempt holds."""

    job: Annotated[str, Meta(min_length=26, max_length=26, pattern=r"^[0-9A-Z]{26}(?!\n)$")]
    fence: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    state: OutputState
    root: ObjectHash | None = None  # of READY
    files: FileCount = 0
    bytes: FileCount = 0
    missing: Annotated[list[OutPattern], Meta(max_length=MISSING_LISTED_MAX)] = []  # patterns without a file
    skipped: Annotated[list[FileText], Meta(max_length=MISSING_LISTED_MAX)] = []  # matching files not taken, with why
    error: FileText = ""
    retry_s: Annotated[int, Meta(ge=0, le=DURATION_S_MAX)] = 0  # how long the agent tries files that did not fit


class RoomLimit(Struct, frozen=True):
    """A limit of the server. `left`: bytes that still fit; `text`: why a file that does not fit is not taken."""

    left: int
    text: str


class OutputRoom(Struct, frozen=True, omit_defaults=True):
    """`POST /v1/agents/files/room`: how much of an attempt's output files the server takes. Null: no limit.

    `tree` and `project` bound the bytes of all output files, `user` the bytes of objects that the owner does not hold.
    """

    tree: RoomLimit | None = None
    project: RoomLimit | None = None
    user: RoomLimit | None = None


class OutputSet(Struct, frozen=True, omit_defaults=True):
    """The output files of one attempt, as a reader sees them."""

    fence: int
    state: OutputState
    task: int | None = None
    cluster: str | None = None
    root: ObjectHash | None = None
    files: int = 0
    bytes: int = 0
    missing: list[str] = []
    skipped: list[str] = []
    error: str = ""  # why there are none, or not all; of files on their way: why they are late
    silent_since_us: int | None = None  # of files on their way: when the server last heard of a silent agent


class TaskOutputs(Struct, frozen=True, omit_defaults=True):
    """The output files of the last attempt of a task."""

    state: OutputState
    files: int = 0
    bytes: int = 0
    error: str = ""  # as in OutputSet


class FilesOfJob(Struct, frozen=True, omit_defaults=True):
    """`GET /v1/jobs/{job}/files`: its trees, and the output files of its attempts (of an array: in pages)."""

    tree: ObjectHash | None = None
    task_tree: ObjectHash | None = None
    out: list[str] = []
    outputs: list[OutputSet] = []
    next: str | None = None  # a cursor


class FileUsage(Struct, frozen=True, omit_defaults=True):
    """What the files of one user or project take, and the most they may take."""

    bytes: int
    bytes_max: int  # 0: no limit
    trees: int = 0


class FilesUsage(Struct, frozen=True):
    """`GET /v1/files/usage`: of the caller, and of a project if one is named."""

    user: FileUsage
    project: FileUsage | None = None


class OutputCounts(Struct, frozen=True, omit_defaults=True):
    """How many attempts of a job have output files, by where these are; and how many files are ready."""

    uploading: int = 0
    ready: int = 0
    failed: int = 0
    files: int = 0
    bytes: int = 0
