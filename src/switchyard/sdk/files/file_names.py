"""The names of files that travel: which local file gets which name in the job's folder. It reads no content."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from switchyard.errors import BadRequest
from switchyard.model.files.file_tree import FOLDER_DEPTH_MAX, bad_name

INDEX_PATTERN = re.compile(r"\{index(?::0?([1-9]))?\}")  # {index}, or {index:03} for three digits
# A path to a file or folder, or the bytes of a file.
FileContent = str | os.PathLike[str] | bytes
# By the name in the job's folder; or paths alone, which keep their names.
FileSources = Mapping[str, FileContent] | Sequence[str | os.PathLike[str]]
NamePath = tuple[bytes, ...]  # from the job's folder; () is the folder itself


@dataclass(frozen=True, slots=True)
class FileSource:
    """One file or folder to send. It has a path, or its content in memory."""

    name: NamePath
    path: bytes = b""
    content: bytes | None = None


def list_sources(files: FileSources, *, workdir: str | os.PathLike[str] | None = None) -> list[FileSource]:
    """Return the sources of a call: `workdir` becomes the job's folder, `files` are added to it."""
    check_sources(files, workdir)
    sources = [] if workdir is None else [FileSource((), os.fsencode(workdir))]
    if isinstance(files, Mapping):
        return [*sources, *(_named_source(name, content) for name, content in files.items())]
    return [*sources, *(FileSource(default_name(os.fspath(path)), os.fsencode(path)) for path in files)]


def check_sources(files: object, workdir: object = None) -> None:
    """Refuse arguments of other types than `FileSources` and a folder."""
    if isinstance(files, str | bytes):
        raise BadRequest("`files` takes a mapping of names to paths, or a list of paths, not one text.")
    if not isinstance(files, Mapping | Sequence | Set):
        raise BadRequest(f"`files` takes a mapping of names to paths, or a list of paths, not {_type_name(files)}.")
    for key in files:
        content = files[key] if isinstance(files, Mapping) else key
        if isinstance(files, Mapping) and not isinstance(key, str):
            raise BadRequest(f"`files`: a name in the job's folder is a text, not {_type_name(key)}.")
        kinds = str | os.PathLike | bytes if isinstance(files, Mapping) else str | os.PathLike
        if not isinstance(content, kinds):
            expected = "a path, or the bytes of a file" if isinstance(files, Mapping) else "a path"
            raise BadRequest(f"`files`: expected {expected}, not {_type_name(content)}.")
    if workdir is not None and not isinstance(workdir, str | os.PathLike):
        raise BadRequest(f"`workdir` takes a folder, not {_type_name(workdir)}.")


def _type_name(value: object) -> str:
    return "None" if value is None else f"{type(value).__name__} {str(value)[:40]!r}"


def _named_source(name: str, content: FileContent) -> FileSource:
    parts = parse_name(name)
    if isinstance(content, bytes):
        if not parts:
            raise BadRequest(f"{name!r} names a folder; the content of a file needs a file's name.")
        return FileSource(parts, content=content)
    return FileSource(parts, os.fsencode(content))


def parse_source(text: str, *, folder: str = "") -> FileSource:
    """Parse `PATH` or `PATH:NAME`. A relative path begins at `folder`. A path that exists may have a colon in it."""
    if not text:
        raise BadRequest("An empty text names no file.", next_step="Write PATH, or PATH:NAME for another name there.")
    path, colon, name = text.rpartition(":")
    if not colon or not path or Path(folder, text).exists():
        return FileSource(default_name(text), os.fsencode(Path(folder, text)))
    return FileSource(parse_name(name), os.fsencode(Path(folder, path)))


def parse_name(text: str) -> NamePath:
    """Parse a name in the job's folder: `a/b`, or `.` for the folder itself. It cannot leave the folder."""
    if text.startswith("/"):
        raise BadRequest(
            f"The name {text!r} is absolute.", next_step="Name a place in the job's folder, such as data/x.csv."
        )
    parts = tuple(part for part in os.fsencode(text).split(b"/") if part not in (b"", b"."))
    if not parts and text.strip("/") != ".":
        raise BadRequest(f"{text!r} names no file.", next_step="Write a name such as data/x.csv, or . for the folder.")
    if b".." in parts:
        raise BadRequest(f"The name {text!r} leaves the job's folder.", next_step="Write a name without `..`.")
    for part in parts:
        if why := bad_name(part):
            raise BadRequest(f"The name {text!r} is not possible: {why}.")
    if len(parts) > FOLDER_DEPTH_MAX:
        raise BadRequest(f"The name {text[:80]!r}… has more than {FOLDER_DEPTH_MAX} folders.")
    return parts


def default_name(path: str) -> NamePath:
    """Return the name of a path that was given without one.

    A relative path keeps its folders, so that a command that works here works there. A path that is absolute or begins
    above this folder keeps its last part alone.
    """
    if path.startswith("/") or ".." in path.split("/"):
        last = Path(os.path.realpath(path) if path.rstrip("/").endswith("..") else path).name
        return parse_name(last or path)
    return parse_name(path)


def has_index(text: str) -> bool:
    """Whether the text stands for one file per task of an array."""
    return INDEX_PATTERN.search(text) is not None


def fill_index(text: str, index: int) -> str:
    """Replace `{index}` by the number of a task."""
    return INDEX_PATTERN.sub(lambda match: str(index).zfill(int(match[1] or 1)), text)


def show_name(path: bytes | Iterable[bytes]) -> str:
    """Return a name for messages. Bytes that no terminal should see are escaped."""
    text = os.fsdecode(path if isinstance(path, bytes) else b"/".join(path))
    return text if text.isprintable() else ascii(text)
