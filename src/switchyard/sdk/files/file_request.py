"""The local files of a job request: which are shared, which belong to one task, and what comes back."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from switchyard.errors import BadRequest, Malformed
from switchyard.model.cluster.idset import parse_array
from switchyard.model.files.files import JobFiles
from switchyard.model.wire.decode import convert
from switchyard.sdk.files.file_names import (
    INDEX_PATTERN,
    FileSource,
    FileSources,
    check_sources,
    default_name,
    fill_index,
    has_index,
    list_sources,
    parse_name,
    parse_source,
)
from switchyard.sdk.transport.request import is_utf8
from switchyard.sdk.uploads.patterns import check_pattern


@dataclass(frozen=True, slots=True)
class FileTemplate:
    """A file for each task of an array: `{index}` in the path, and perhaps in the name."""

    path: str
    name: str

    def fill(self, index: int) -> FileSource:
        name = parse_name(fill_index(self.name, index))
        return FileSource((str(index).encode(), *name), os.fsencode(fill_index(self.path, index)))


@dataclass(frozen=True, slots=True)
class FileRequest:
    """What a job sends and gets back. `ready`: trees that were uploaded before."""

    shared: tuple[FileSource, ...] = ()
    templates: tuple[FileTemplate, ...] = ()
    out: tuple[str, ...] = ()
    is_out_required: bool = False
    ready: JobFiles | None = None

    def __post_init__(self) -> None:
        for pattern in self.out:
            if not is_utf8(pattern):
                raise BadRequest(
                    f"The pattern {ascii(pattern)[:80]} of output files has bytes that are no UTF-8.",
                    next_step="Write ? for each such byte, or * for all of them, as in --out 'n?'.",
                )

    @property
    def is_empty(self) -> bool:
        return self == FileRequest()

    def job_files(self, *, tree: str | None = None, task_tree: str | None = None) -> JobFiles:
        """Return what the request says to the server. Raise BadRequest for a pattern that cannot be."""
        for pattern in self.out:
            check_pattern(pattern)
        ready = self.ready or JobFiles()
        fields: dict[str, Any] = {
            "tree": tree or ready.tree,
            "task_tree": task_tree or ready.task_tree,
            "out": list(self.out) or ready.out,
            "out_required": self.is_out_required or ready.out_required,
        }
        if fields["out_required"] and not fields["out"]:
            raise BadRequest(
                "Output files are required, but none is named.", next_step="Name them: --out 'results/*', or `out:`."
            )
        return convert({name: value for name, value in fields.items() if value}, JobFiles, where="The job's files")

    def task_sources(self, array: str | None) -> list[FileSource]:
        """Return the sources of a tree with one folder for each task."""
        if not self.templates:
            return []
        if array is None:
            raise BadRequest(
                f"{self.templates[0].path!r} stands for one file per task, but the job is no array.",
                next_step="Add --array, as in --array 0-9; or name one file.",
            )
        try:
            indexes, _ = parse_array(array)
        except ValueError as exc:
            raise Malformed(f"array: {exc}.") from exc
        return [template.fill(index) for index in indexes for template in self.templates]


def from_fields(fields: Mapping[str, Any]) -> FileRequest:
    """Return the files of the SDK's fields: `files`, `workdir`, `out`, `out_required`."""
    files: FileSources | JobFiles | None = fields.get("files")
    out = fields.get("out") or ()
    if isinstance(out, str):
        raise BadRequest("`out` takes a list of patterns, not one text.", next_step=f"Write out=[{out!r}].")
    if not isinstance(out, Sequence) or not all(isinstance(pattern, str) for pattern in out):
        raise BadRequest(
            f"`out` takes a list of patterns, not {str(out)[:40]!r}.", next_step="Write out=['results/*']."
        )
    request = FileRequest(out=tuple(out), is_out_required=bool(fields.get("out_required")))
    if isinstance(files, JobFiles):
        if fields.get("workdir") is not None:
            raise BadRequest("`workdir` goes with local files, not with trees that were uploaded before.")
        return replace(request, ready=files)
    files = () if files is None else files
    check_sources(files, fields.get("workdir"))
    templates, shared = _divide(files)
    sources = list_sources(shared, workdir=fields.get("workdir"))
    return replace(request, shared=tuple(sources), templates=tuple(templates))


def _divide(files: FileSources) -> tuple[list[FileTemplate], FileSources]:
    """Divide the files of a call into templates and the rest."""
    if isinstance(files, Mapping):
        for name, content in files.items():
            if isinstance(content, bytes) and has_index(name):
                raise BadRequest(
                    f"`files`: the name {name!r} stands for a file of each task, and bytes are one file.",
                    next_step="Write the bytes to a file and give its path, or take {index} out of the name.",
                )
        templates = [
            FileTemplate(os.fspath(path), name)
            for name, path in files.items()
            if not isinstance(path, bytes) and (has_index(os.fspath(path)) or has_index(name))
        ]
        names = {template.name for template in templates}
        return templates, {name: path for name, path in files.items() if name not in names}
    if isinstance(files, str | bytes):
        return [], files
    texts = [os.fspath(path) for path in files]
    return [_template(text) for text in texts if has_index(text)], [text for text in texts if not has_index(text)]


def from_texts(
    texts: Iterable[str],
    *,
    workdir: str | None,
    out: Sequence[str],
    is_out_required: bool,
    folder: str = "",
) -> FileRequest:
    """Return the files of a command line or a job file: each text is `PATH` or `PATH:NAME`, from `folder` on."""
    shared = [] if workdir is None else [FileSource((), os.fsencode(Path(folder, workdir)))]
    templates = []
    for text in texts:
        if has_index(text):
            templates.append(_template(text, folder=folder))
        else:
            shared.append(parse_source(text, folder=folder))
    return FileRequest(tuple(shared), tuple(templates), tuple(out), is_out_required)


def _template(text: str, *, folder: str = "") -> FileTemplate:
    path, name = split_template(text)
    if not name or not path:
        parts = default_name(text)
        return FileTemplate(os.fspath(Path(folder, text)), os.fsdecode(b"/".join(parts)))
    parse_name(name)
    return FileTemplate(os.fspath(Path(folder, path)), name)


def split_template(text: str) -> tuple[str, str]:
    """Split `PATH:NAME` at its last colon. The one of `{index:03}` does not count. No name: the text is a path."""
    ignored = [range(*match.span()) for match in INDEX_PATTERN.finditer(text)]
    colons = [place for place, char in enumerate(text) if char == ":" and not any(place in span for span in ignored)]
    return (text[: colons[-1]], text[colons[-1] + 1 :]) if colons else (text, "")
