"""What a site adds to what the agent itself sees: names and values in a file, read again when it changes."""

from __future__ import annotations

import logging
from pathlib import Path

from switchyard.agent.log import line
from switchyard.errors import Malformed
from switchyard.model.decode import convert, load_yaml
from switchyard.model.selection import NamedValues, Scalar, refuse_infinite

FILE_BYTES_MAX = 64 * 1024

log = logging.getLogger(__name__)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            body = file.read(FILE_BYTES_MAX + 1)
    except OSError as exc:
        raise Malformed(f"Cannot read {path}: {exc.strerror}.", next_step="Give --state a file that is there.") from exc
    if len(body) > FILE_BYTES_MAX:
        raise Malformed(f"{path}: over {FILE_BYTES_MAX} bytes.")
    return body


def _values(body: bytes, path: Path) -> dict[str, Scalar]:
    """The values of a file: YAML or JSON, one level."""
    found: dict[str, Scalar] = convert(load_yaml(body, where=str(path)) or {}, NamedValues, where=str(path))
    try:
        refuse_infinite(found)
    except ValueError as exc:
        raise Malformed(f"{path}: {exc}.") from exc
    return found


class SiteState:
    """A file that was right at the start and is wrong now keeps its last values: it may be half written."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._mark: tuple[int, ...] = ()
        self._values: dict[str, Scalar] = {}
        if path is not None:
            self._mark, self._values = _file_version(path), _values(_read(path), path)

    def values(self) -> dict[str, Scalar]:
        if self._path is None or (mark := _file_version(self._path)) == self._mark:
            return self._values
        self._mark = mark
        try:
            # Who writes a file in place empties it first, so an empty one is half written; `{}` takes all away.
            if body := _read(self._path):
                self._values = _values(body, self._path)
        except Malformed as exc:
            log.warning(line("state-file", error=exc.detail))
        return self._values


def _file_version(path: Path) -> tuple[int, ...]:
    """By what a change of the file is seen."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino
