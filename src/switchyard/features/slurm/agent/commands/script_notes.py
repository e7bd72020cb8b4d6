"""Reads and claims the notes that the scripts of attempts leave in their folders."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set
from dataclasses import dataclass

from switchyard.agent.backends import STREAMS
from switchyard.agent.backends.shared.shared_files import ScriptFiles, ScriptNote
from switchyard.errors import YardError
from switchyard.features.slurm.agent.commands.parse import split_handle
from switchyard.features.slurm.agent.jobs.evidence import WITHDRAWN_NOTE, ScriptEvidence, ScriptStart


def read_evidence(
    files: ScriptFiles, handles: Collection[str], *, restarted: Collection[str] = ()
) -> dict[str, ScriptEvidence]:
    """Read the notes of these jobs; raises if that fails now. `restarted`: jobs that may have started twice."""
    notes = _read(files, [(handle, file) for handle in handles for file in ("started", "exit")])
    # Most jobs have left `started` or both: other files are read only if needed.
    silent = {handle for handle in handles if (handle, "started") not in notes and (handle, "exit") not in notes}
    more = [(handle, file) for handle in silent for file in STREAMS]
    notes |= _read(files, more + [(handle, "again") for handle in silent.union(restarted)])
    return {handle: _evidence_of(handle, notes) for handle in handles}


def try_read_evidence(
    files: ScriptFiles, handles: Collection[str], *, restarted: Collection[str] = ()
) -> dict[str, ScriptEvidence] | None:
    """As `read_evidence`, but None if the notes cannot be read now."""
    try:
        return read_evidence(files, handles, restarted=restarted)
    except YardError:
        return None


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """Which jobs can never begin now, and which could not be kept from it. The others began or wait."""

    withdrawn: Set[str] = frozenset()
    failed: Set[str] = frozenset()  # a full disk, or no folder


def withdraw_jobs(files: ScriptFiles, handles: Collection[str]) -> Withdrawal:
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
        {handle for handle in handles if not signs[handle].is_withdrawn and not signs[handle].has_begun},
    )


def task_file(handle: str, file: str) -> str:
    """The name of a note; for a task with its index at the end."""
    _, underline, task = split_handle(handle)[0].partition("_")
    return f"{file}.{task}" if underline else file


def _read(files: ScriptFiles, wanted: Iterable[tuple[str, str]]) -> dict[tuple[str, str], ScriptNote]:
    places = {(split_handle(handle)[1], task_file(handle, file)): (handle, file) for handle, file in wanted}
    return {places[place]: note for place, note in files.notes(places).items()}


def _evidence_of(handle: str, notes: dict[tuple[str, str], ScriptNote]) -> ScriptEvidence:
    began, ended, second_start = (notes.get((handle, file)) for file in ("started", "exit", "again"))
    if began and began.text == WITHDRAWN_NOTE:
        return ScriptEvidence(is_withdrawn=True)
    return ScriptEvidence(
        start=ScriptStart.read(began.text, began.at_s) if began else None,
        ended=ended.text if ended else None,
        ended_s=ended.at_s if ended else None,
        refused=second_start.text if second_start else "",
        has_output=any((handle, file) in notes for file in STREAMS),
    )
