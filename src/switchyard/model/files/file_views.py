"""The live view of a file in a job's folder: what a reader asks, what an agent is asked, what both are told. Pure."""

from __future__ import annotations

from enum import StrEnum
from hashlib import sha256
from typing import Annotated

from msgspec import Meta, Struct

from switchyard.model.cluster.idset import INDEX_MAX
from switchyard.model.files.file_tree import FOLDER_DEPTH_MAX, bad_name

VIEW_BYTES_MAX = 256 * 1024  # of one answer
VIEW_WAIT_S_MAX = 30.0  # of one request: an agent looks at a file no longer for a reader who may have gone
NAME_BYTES_MAX = 4096
TAIL_BYTES = 64  # before the offset: what a reader has seen last
BASE64_PATTERN = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?(?!\n)$"
ASKS_IN_POLL_MAX = 16

FileName = Annotated[bytes, Meta(max_length=NAME_BYTES_MAX, extra_json_schema={"pattern": BASE64_PATTERN})]
FileOffset = Annotated[int, Meta(ge=0, le=2**62)]
FileVersion = Annotated[str, Meta(max_length=100, pattern=r"^[0-9a-f.]*(?!\n)$")]
AskId = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[0-9a-z-]+(?!\n)$")]
ViewText = Annotated[str, Meta(max_length=4096)]


class ViewState(StrEnum):
    """What could be seen of the file."""

    SEEN = "seen"  # the file is there; `data` has what follows the offset
    ABSENT = "absent"  # the folder has no such file as yet
    PENDING = "pending"  # the attempt has not begun, so it has no folder
    AWAY = "away"  # the agent does not answer
    OVER = "over"  # the attempt has ended: its output files have what was kept
    GONE = "gone"  # the attempt has ended, and its folder was removed
    REFUSED = "refused"  # of an agent: it does not read this file; a reader gets an error


class FileViewQuery(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """`POST /v1/jobs/{job}/files/live`: the content of a file in the job's folder, from an offset on.

    `name`: `results/score.csv`, from the job's folder on; or `name_bytes` (base64), if it is not UTF-8. `version`: of
    the answer before. `wait_s`: wait so long for more of the file, at most 30 s. `is_final`: also after the attempt's
    end, while its folder is there.
    """

    name: Annotated[str, Meta(max_length=NAME_BYTES_MAX)] = ""
    name_bytes: FileName | None = None
    task: Annotated[int, Meta(ge=0, le=INDEX_MAX)] | None = None
    attempt: Annotated[int, Meta(ge=1, le=10**6)] | None = None
    offset: FileOffset = 0
    version: FileVersion = ""
    wait_s: Annotated[float, Meta(ge=0, le=10**6)] = 0
    is_final: bool = False


class FileView(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A part of a file; ask again from `offset` plus the length of `data` on, with `version`.

    `is_restarted`: the file is another one than that of `version`, or was cut: this part begins at 0 again. `size`: of
    the file now. `is_over`: the attempt has ended. `fence`: of the attempt, as in the list of output files; 0: none.
    """

    job: str
    state: ViewState
    attempt: int = 1
    fence: int = 0
    offset: int = 0
    data: bytes = b""
    size: int = 0
    version: str = ""
    is_restarted: bool = False
    is_over: bool = False
    why: str = ""


class FileAsk(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An agent is asked, with the answer to its poll, for a part of a file. It may wait `wait_s` for more of it."""

    id: str
    agent: str
    cluster: str
    job: str
    fence: int
    name: bytes
    offset: int = 0
    version: str = ""
    wait_s: float = 0


class FileAnswer(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """`POST /v1/agents/files/views`: what the agent saw. Nobody may be waiting any more; it is then dropped."""

    id: AskId
    state: ViewState
    offset: FileOffset = 0
    data: Annotated[bytes, Meta(max_length=VIEW_BYTES_MAX, extra_json_schema={"pattern": BASE64_PATTERN})] = b""
    size: FileOffset = 0
    version: FileVersion = ""
    is_restarted: bool = False
    why: ViewText = ""


def split_name(name: bytes) -> tuple[bytes, ...]:
    """The folders and the name of a file, from the job's folder on. Raises ValueError: the name leaves it."""
    if name.startswith(b"/"):
        raise ValueError("it is absolute")
    parts = tuple(part for part in name.split(b"/") if part not in (b"", b"."))
    if not parts:
        raise ValueError("it names no file")
    if name.endswith(b"/"):
        raise ValueError("it ends with `/`, as the name of a folder")
    if b".." in parts:
        raise ValueError("it has `..` in it")
    for part in parts:
        if why := bad_name(part):
            raise ValueError(why)
    if len(parts) > FOLDER_DEPTH_MAX:
        raise ValueError(f"it has more than {FOLDER_DEPTH_MAX} folders")
    return parts


def link_target(folder: tuple[bytes, ...], target: bytes) -> tuple[bytes, ...]:
    """Where a link in `folder` leads, in names from the root. The caller knows that it stays inside (`is_inside`)."""
    names = [name for name in target.split(b"/") if name not in (b"", b".")]
    climb = sum(name == b".." for name in names)
    return (*folder[: len(folder) - climb], *names[climb:])


def version_of(inode: int, tail: bytes) -> str:
    """Names a file by its inode and by the last bytes that a reader has seen: a file that was written anew differs."""
    return f"{inode:x}.{sha256(tail).hexdigest()[:16]}"
