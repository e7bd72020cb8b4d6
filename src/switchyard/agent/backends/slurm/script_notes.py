"""What the scripts of attempts leave beside their output, read from the attempts' folders."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set
from dataclasses import dataclass

from switchyard.agent.backends import STREAMS
from switchyard.agent.backends.slurm.evidence import WITHDRAWN_NOTE, ScriptEvidence, ScriptStart
from switchyard.agent.backends.slurm.job_files import JobFiles, ScriptNote
from switchyard.agent.backends.slurm.parse import split_handle
from switchyard.errors import YardError


def read_evidence(
    files: JobFiles, handles: Collection[str], *, again: Collection[str] = ()
) -> dict[str, ScriptEvidence]:
    """Of each; raises where they cannot be read now. `again`: those that were perhaps started twice."""
    notes = _read(files, [(handle, file) for handle in handles for file in ("started", "exit")])
    # Most have left both, or the first: the rest is looked at only where it matters.
    silent = {handle for handle in handles if (handle, "started") not in notes and (handle, "exit") not in notes}
    more = [(handle, file) for handle in silent for file in STREAMS]
    notes |= _read(files, more + [(handle, "again") for handle in silent.union(again)])
    return {handle: _evidence_of(handle, notes) for handle in handles}


def try_read_evidence(
    files: JobFiles, handles: Collection[str], *, again: Collection[str] = ()
) -> dict[str, ScriptEvidence] | None:
    """As `read_signs`. None: they cannot be read now."""
    try:
        return read_evidence(files, handles, again=again)
    except YardError:
        return None


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """Which jobs can never begin any more, and which nobody can keep from it. The others have begun, or wait."""

    withdrawn: Set[str] = frozenset()
    failed: Set[str] = frozenset()  # on a disk that is full, or without their folder


def withdraw_jobs(files: JobFiles, handles: Collection[str]) -> Withdrawal:
    """Claim the start of these jobs, so that they cannot begin, and read back that it is claimed."""
    if not handles:
        return Withdrawal()
    try:
        files.claim([(split_handle(handle)[1], task_file(handle, "started")) for handle in handles], WITHDRAWN_NOTE)
        signs = read_evidence(files, handles)
    except YardError:
        return Withdrawal()
    return Withdrawal(
        {handle for handle in handles if signs[handle].is_withdrawn},
        {handle for handle in handles if not signs[handle].is_withdrawn and not signs[handle].is_any},
    )


def task_file(handle: str, file: str) -> str:
    """The file of a task has its index after it."""
    _, underline, task = split_handle(handle)[0].partition("_")
    return f"{file}.{task}" if underline else file


def _read(files: JobFiles, wanted: Iterable[tuple[str, str]]) -> dict[tuple[str, str], ScriptNote]:
    places = {(split_handle(handle)[1], task_file(handle, file)): (handle, file) for handle, file in wanted}
    return {places[place]: note for place, note in files.notes(places).items()}


def _evidence_of(handle: str, notes: dict[tuple[str, str], ScriptNote]) -> ScriptEvidence:
    began, ended, again = (notes.get((handle, file)) for file in ("started", "exit", "again"))
    if began and began.text == WITHDRAWN_NOTE:
        return ScriptEvidence(is_withdrawn=True)
    return ScriptEvidence(
        start=ScriptStart.read(began.text, began.at_s) if began else None,
        ended=ended.text if ended else None,
        ended_s=ended.at_s if ended else None,
        refused=again.text if again else "",
        has_output=any((handle, file) in notes for file in STREAMS),
    )
