"""State values that a site adds: names and values in a file, read again when it changes."""

from __future__ import annotations

import logging
from pathlib import Path

from switchyard.agent.log import line
from switchyard.agent.private_files import file_version, read_bounded
from switchyard.errors import Malformed
from switchyard.model.cluster.selection import NamedValues, Scalar, refuse_infinite
from switchyard.model.wire.decode import convert, load_yaml

STATE_FILE_BYTES_MAX = 64 * 1024

log = logging.getLogger(__name__)


def _read(path: Path) -> bytes:
    return read_bounded(path, STATE_FILE_BYTES_MAX, advice="Give --state a file that is there.")[0]


def _values(body: bytes, path: Path) -> dict[str, Scalar]:
    """Decode the values: YAML or JSON, one level."""
    values: dict[str, Scalar] = convert(load_yaml(body, where=str(path)) or {}, NamedValues, where=str(path))
    try:
        refuse_infinite(values)
    except ValueError as exc:
        raise Malformed(f"{path}: {exc}.") from exc
    return values


class SiteState:
    """The values of the file. If the file becomes invalid, the last values stay: it may be half written."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._version: tuple[int, ...] = ()
        self._values: dict[str, Scalar] = {}
        if path is not None:
            self._version, self._values = file_version(path), _values(_read(path), path)

    def values(self) -> dict[str, Scalar]:
        if self._path is None or (version := file_version(self._path)) == self._version:
            return self._values
        self._version = version
        try:
            # A program may empty the file before it writes, so an empty file is ignored; `{}` removes all values.
            if body := _read(self._path):
                self._values = _values(body, self._path)
        except Malformed as exc:
            log.warning(line("state-file", error=exc.detail))
        return self._values
