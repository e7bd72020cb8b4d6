"""The file with the facts of a cluster that rarely change, for a start while the cluster does not answer."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from switchyard.agent.log import line
from switchyard.agent.private_files import replace_file
from switchyard.errors import YardError

Facts = TypeVar("Facts", bound=Struct)

log = logging.getLogger(__name__)


class ClusterFactsFile(Generic[Facts]):
    def __init__(self, path: Path, kind: type[Facts]) -> None:
        self._path, self._kind = path, kind

    def ask_or_read(self, ask: Callable[[], Facts]) -> Facts:
        """Ask the cluster and store its answer. If it does not answer: the facts of the last time, if there are any."""
        try:
            facts = ask()
        except YardError as exc:
            stored = self._read()
            if stored is None:
                raise
            log.warning(line("cluster-silent", error=exc.detail))
            return stored
        self.write(facts)
        return facts

    def write(self, facts: Facts) -> None:
        with contextlib.suppress(OSError):  # a full disk: the next start then needs an answer of the cluster
            replace_file(self._path, msgspec.json.encode(facts), is_durable=False)

    def _read(self) -> Facts | None:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=self._kind)
        except (OSError, msgspec.DecodeError):
            return None
