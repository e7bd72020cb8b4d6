"""Fetches the output files of a job's attempts into a folder of this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from switchyard.errors import NotFound
from switchyard.model.files.files import OutputSet, OutputState
from switchyard.sdk.files.fetch import FetchedTree, ObjectReader, OutputGone, choose, list_tree, write_tree
from switchyard.sdk.files.fetched_files import FetchedFiles
from switchyard.sdk.files.object_calls import ObjectCalls
from switchyard.sdk.files.signed_store import SignedStore
from switchyard.sdk.files.target import TargetFolder, write_failure
from switchyard.sdk.transport.transport import Transport
from switchyard.sdk.uploads.job_uploads import OnFiles, report_step
from switchyard.sdk.uploads.patterns import FilePatterns
from switchyard.sdk.uploads.upload import OnTransfer


def fetch_outputs(
    transport: Transport,
    job: str,
    outputs: Sequence[OutputSet],
    patterns: FilePatterns,
    *,
    to: str | os.PathLike[str],
    is_one_task: bool = False,
    replace_before: float | None = None,
    on_progress: OnFiles | None = None,
) -> FetchedFiles:
    """Fetch these output files. Those of a task go into a folder named by its index, unless it is the only one."""
    target = TargetFolder(to)
    store = SignedStore(retry_s=0)  # the reader tries again, each time with a new address
    calls = ObjectCalls(transport)
    report = report_step(on_progress, "fetch")
    total, bytes_until = sum(found.bytes for found in outputs if found.state is OutputState.READY), 0
    done: list[FetchedTree] = []
    lost: list[str] = []  # why a set of files did not come as a whole
    try:
        for found in outputs:
            if found.state is not OutputState.READY or found.root is None:
                continue
            bytes_until += found.bytes
            try:
                root = bytes.fromhex(found.root)
                reader = ObjectReader(calls.reader(job, root), store, transport)
                listing = choose(list_tree(reader, root), patterns)
                under = () if found.task is None or is_one_task else (str(found.task).encode(),)
                done.append(
                    write_tree(
                        reader,
                        listing,
                        target,
                        under=under,
                        replace_before=replace_before,
                        on_progress=_report_sum(report, until=bytes_until, total=total) if patterns.is_all else report,
                    )
                )
            except OutputGone as exc:
                if len(outputs) == 1:
                    raise
                lost.append(_with_task(found, exc.detail))
    except OSError as exc:
        raise write_failure(target.path, exc) from exc
    finally:
        store.close()
        target.close()
    skipped = tuple(_with_task(found, text) for found in outputs for text in found.skipped if _is_asked(text, patterns))
    if not patterns.is_all and done and not any(tree.files or tree.unchanged for tree in done):
        text = f"The cluster did not take {skipped[0]}." if skipped else "No output file matches the pattern."
        raise NotFound(text, next_step="Without a pattern, all files are fetched.")
    return FetchedFiles(
        str(target.path),
        sum(tree.files for tree in done),
        sum(tree.bytes for tree in done),
        sum(tree.unchanged for tree in done),
        missing=tuple(
            _with_task(found, text)
            for found in outputs
            for text in found.missing
            if patterns.matches(tuple(os.fsencode(text).split(b"/")))
        ),
        skipped=skipped,
        failed=(
            *(_with_task(found, _why_absent(found)) for found in outputs if found.state is not OutputState.READY),
            *lost,
        ),
    )


def _report_sum(report: OnTransfer | None, *, until: int, total: int) -> OnTransfer | None:
    """Return a callback for one tree of several that reports the bytes of all. `until`: bytes up to its end.

    Files that were there already count as done.
    """
    if report is None:
        return None

    def report_all(done: int, tree_total: int) -> None:
        report(max(until - (tree_total - done), 0), total)

    return report_all


def _is_asked(text: str, patterns: FilePatterns) -> bool:
    """Whether the patterns mean a file that was not taken. `text`: its name as shown, a colon, the reason."""
    if patterns.is_all or text.startswith(("'", '"')):  # of an escaped name it cannot be said
        return True
    ends = [match.start() for match in re.finditer(": ", text)]  # a name may have a colon, too
    return any(patterns.matches(tuple(os.fsencode(text[:end]).split(b"/"))) for end in ends)


def _with_task(found: OutputSet, text: str) -> str:
    return text if found.task is None else f"task {found.task}: {text}"


def _why_absent(found: OutputSet) -> str:
    if found.state is OutputState.UPLOADING:
        return "still on the way"
    return found.error or "the cluster could not send them"
