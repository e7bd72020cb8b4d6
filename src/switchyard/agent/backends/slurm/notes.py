"""What the scripts of attempts leave beside their output, read from the attempts' folders."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from switchyard.agent.backends import STREAMS
from switchyard.agent.backends.slurm.evidence import WITHDRAWN, Signs, Start
from switchyard.agent.backends.slurm.output import Files, Note
from switchyard.agent.backends.slurm.parse import split_handle
from switchyard.errors import YardError


def read_signs(files: Files, handles: Collection[str], *, again: Collection[str] = ()) -> dict[str, Signs]:
    """Of each; raises where they cannot be read now. `again`: those that were perhaps started twice."""
    notes = _read(files, [(handle, file) for handle in handles for file in ("started", "exit")])
    # Most have left both, or the first: the rest is looked at only where it matters.
    silent = {handle for handle in handles if (handle, "started") not in notes and (handle, "exit") not in notes}
    more = [(handle, file) for handle in silent for file in STREAMS]
    notes |= _read(files, more + [(handle, "again") for handle in silent.union(again)])
    return {handle: _signs(handle, notes) for handle in handles}


def withdraw(files: Files, handles: Collection[str]) -> set[str]:
    """Let these not begin any more; those of them that had not. None, if nobody can do that now."""
    places = {(split_handle(handle)[1], file_of(handle, "started")): handle for handle in handles}
    try:
        return {places[place] for place in files.claim(places, WITHDRAWN)}
    except YardError:
        return set()


def file_of(handle: str, file: str) -> str:
    """The file of a task has its index after it."""
    _, underline, task = split_handle(handle)[0].partition("_")
    return f"{file}.{task}" if underline else file


def _read(files: Files, wanted: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Note]:
    places = {(split_handle(handle)[1], file_of(handle, file)): (handle, file) for handle, file in wanted}
    return {places[place]: note for place, note in files.notes(places).items()}


def _signs(handle: str, notes: dict[tuple[str, str], Note]) -> Signs:
    began, ended, again = (notes.get((handle, file)) for file in ("started", "exit", "again"))
    if began and began.text == WITHDRAWN:
        return Signs(is_withdrawn=True)
    return Signs(
        start=Start.read(began.text, began.at_s) if began else None,
        ended=ended.text if ended else None,
        ended_s=ended.at_s if ended else None,
        refused=again.text if again else "",
        has_output=any((handle, file) in notes for file in STREAMS),
    )
