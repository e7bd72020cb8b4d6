"""The options of `yard submit` about files, the same keys in job files, and the fetch after a wait."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from switchyard.cli.terminal.output import print_notice
from switchyard.cli.terminal.parser import Parser, add_repeatable
from switchyard.cli.terminal.progress import TransferBar
from switchyard.errors import EXIT_ERROR, Malformed, YardError
from switchyard.model.job.job import Job, JobRequest
from switchyard.model.jobspec.quantity import show_bytes
from switchyard.sdk.client import CoreClient
from switchyard.sdk.files.fetched_files import FetchedFiles
from switchyard.sdk.files.file_names import show_name
from switchyard.sdk.files.file_request import FileRequest, from_texts
from switchyard.sdk.transport.request import with_job_files

FILE_KEYS = ("in", "workdir", "out", "out_required")
TEXTS_SHOWN = 10


def add_files(parser: Parser) -> None:
    group = parser.add_argument_group("files that travel with the job")
    add_repeatable(
        group,
        "--in",
        dest="inputs",
        metavar="PATH[:NAME]",
        help="send this file or folder; with NAME it has another name there; {index}: one per array task; repeatable",
    )
    group.add_argument(
        "--workdir", metavar="DIR", help="send this folder as the job's folder, without what .yardignore names"
    )
    add_repeatable(
        group,
        "--out",
        metavar="PATTERN",
        help="keep these files at the end: 'results/*', '**/*.csv'; repeatable; --wait and `yard fetch` get them",
    )
    group.add_argument(
        "--out-required",
        action="store_true",
        default=None,
        help="the job has failed if there is no file for a pattern of --out",
    )
    group.add_argument(
        "--force", action="store_true", help="with --wait: replace files that were changed here meanwhile, too"
    )


def split_files(form: Mapping[str, Any], args: Namespace, *, file: str | None, where: str) -> tuple[Any, FileRequest]:
    """Return the form without its file keys, and the files. Flags win over the form; its paths begin at its file."""
    plain = {name: value for name, value in form.items() if name not in FILE_KEYS}
    folder = "" if file in (None, "-") else str(Path(str(file)).parent)
    texts, base = (args.inputs, "") if args.inputs else (_input_texts(form.get("in"), where=where), folder)
    workdir = form.get("workdir")
    if workdir is not None and not isinstance(workdir, str):
        raise Malformed(f"{where}: workdir: expected a folder, not {str(workdir)[:40]!r}.")
    out = args.out or _texts(form.get("out"), "out", where=where)
    is_required = form.get("out_required", False) if args.out_required is None else args.out_required
    if not isinstance(is_required, bool):
        raise Malformed(f"{where}: out_required: expected true or false, not {str(is_required)[:40]!r}.")
    files = from_texts(texts, workdir=None, out=out, is_out_required=is_required, folder=base)
    place = (args.workdir, "") if args.workdir is not None else (workdir, folder)
    if place[0] is None:
        return plain, files
    root = from_texts((), workdir=place[0], out=(), is_out_required=False, folder=place[1])
    return plain, FileRequest((*root.shared, *files.shared), files.templates, files.out, files.is_out_required)


def drop_file_keys(form: Mapping[str, Any]) -> dict[str, Any]:
    """Return the form of a job without its local files, for questions about where it fits."""
    return {name: value for name, value in form.items() if name not in FILE_KEYS}


def _input_texts(value: Any, *, where: str) -> list[str]:
    """`in: data`, `in: [data, set:input]` or `in: {input: set}`."""
    if isinstance(value, Mapping):
        for name, path in value.items():
            if not isinstance(name, str) or not isinstance(path, str):
                raise Malformed(f"{where}: in: expected names with paths, as in `input: data/x.csv`.")
        return [f"{path}:{name}" for name, path in value.items()]
    return _texts(value, "in", where=where)


def _texts(value: Any, name: str, *, where: str) -> list[str]:
    if value is None:
        return []
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise Malformed(f"{where}: {name}: expected a text or a list of texts, not {str(value)[:40]!r}.")
    return texts


def name_files(request: JobRequest, files: FileRequest) -> JobRequest:
    """Check the files of a request that is only planned: nothing is uploaded."""
    if files.is_empty:
        return request
    files.task_sources(request.array)
    return with_job_files(request, files.job_files())


def refuse_missing_files(request: JobRequest, files: FileRequest, *, where: str) -> None:
    """Refuse a job of a bulk file whose local files are not there, before anything is sent."""
    for source in (*files.shared, *files.task_sources(request.array)):
        if source.content is not None:
            continue
        try:
            os.stat(source.path)  # noqa: PTH116 — a path may be no text
        except (OSError, ValueError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else str(exc)
            raise Malformed(f"{where}: the file {show_name(source.path)} cannot be read: {why}.") from exc


def send_files(yard: CoreClient, requests: Sequence[tuple[JobRequest, FileRequest]]) -> list[JobRequest]:
    """Upload the files of these requests, with a bar, and return the requests that name them."""
    if all(files.is_empty for _, files in requests):
        return [request for request, _ in requests]
    from switchyard.sdk.uploads.job_uploads import shared_project, upload_requests

    with TransferBar() as bar:
        pairs = [(files, request.array) for request, files in requests]
        project = shared_project(request.project for request, files in requests if not files.is_empty)
        uploaded = upload_requests(yard._transport, pairs, on_progress=bar, warn=_warn, project=project)
    return [with_job_files(request, found) for (request, _), found in zip(requests, uploaded, strict=True)]


def _warn(text: str) -> None:
    print_notice(f"warning: {text}")


def fetch_after_wait(yard: CoreClient, job: Job, args: Namespace, *, since: float, timeout_s: float | None) -> int:
    """Fetch the output files of an ended job into the present folder. Return 0, or the exit code of the failure.

    Files of an earlier run are replaced; files that were changed here after `since` are not.
    """
    try:
        with TransferBar() as bar:
            result = yard.fetch(
                job.id,
                force=args.force,
                replace_before=since,
                timeout_s=timeout_s,
                on_progress=bar,
                on_wait=print_waiting,
            )
    except YardError as exc:
        print_notice(f"error: {exc.detail}")
        print_notice(f"next: {exc.next_step} `yard fetch {job.id} --to DIR` fetches again.")
        return exc.exit_code
    print_fetched(result)
    return EXIT_ERROR if result.failed or result.skipped else 0


def print_waiting(reason: str) -> None:
    """Say on stderr why files are not there yet."""
    print_notice(f"waiting: {reason}")


def print_fetched(result: FetchedFiles) -> None:
    """Say what came, and what was promised and is not there."""
    noun = "file" if result.files == 1 else "files"
    there = f"; {result.unchanged} were there already" if result.unchanged else ""
    folder = "this folder" if result.folder == "." else result.folder
    print_notice(f"Fetched {result.files} {noun} ({show_bytes(result.bytes)}) into {folder}{there}.")
    for word, texts in (
        ("no file for", result.missing),
        ("not taken", result.skipped),
        ("error: no files", result.failed),
    ):
        for text in texts[:TEXTS_SHOWN]:
            print_notice(f"{word}: {text}")
        if len(texts) > TEXTS_SHOWN:
            print_notice(f"{word}: and {len(texts) - TEXTS_SHOWN} more")
