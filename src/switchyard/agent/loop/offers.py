"""How much work the agent could take now, and what it says of its cluster with every poll."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from switchyard.agent.files.attempt_files import AttemptFiles
from switchyard.agent.journal.journal import Journal
from switchyard.agent.loop.batch_silence import BatchSilence
from switchyard.agent.loop.departure import Departure
from switchyard.agent.loop.lifetime import Lifetime
from switchyard.agent.loop.runner import Runner
from switchyard.model.cluster.cluster import Load
from switchyard.model.cluster.poll import BATCH_MAX, Room
from switchyard.model.cluster.selection import Scalar
from switchyard.model.jobspec.quantity import show_bytes

TROUBLE_CHARS_MAX = 200


@dataclass(frozen=True, slots=True)
class Offer:
    want: int
    room: Room | None  # None: only `want` is a bound
    load: Load

    def exceeds(self, other: Offer) -> bool:
        """Whether this offers more than `other`, the offer of a parked poll."""
        if self.want == 0 or other.want == 0:
            return self.want > other.want
        now, then = self.room, other.room
        if now is None or then is None:
            return self.want > other.want
        return now.cores > then.cores or now.gpus > then.gpus or now.memory_bytes > then.memory_bytes

    def without_work(self) -> Offer:
        return Offer(0, self.room, self.load)


class AgentCondition:
    """What keeps the agent from taking new work. Called from several threads."""

    def __init__(
        self,
        journal: Journal,
        silence: BatchSilence,
        *,
        directory: Path,
        free_bytes_min: int,
        lifetime: Lifetime | None = None,
        files: AttemptFiles | None = None,
    ) -> None:
        """`lifetime`: of an ephemeral cluster. New work is taken while `directory` has `free_bytes_min` free."""
        self._journal, self._silence = journal, silence
        self._directory, self._free_bytes_min = directory, free_bytes_min
        self._lifetime, self._files = lifetime, files

    def is_any(self) -> bool:
        return bool(self.trouble()) or self._silence.long() is not None

    def trouble(self) -> str:
        """Why no new work is taken now, although the batch system answers; empty: it is taken."""
        if self._lifetime is not None and (ending := self._lifetime.trouble()):
            return ending
        if self._journal.trouble:
            return self._journal.trouble
        try:
            free = self._free_bytes()
        except OSError as exc:
            return f"disk error: {exc.strerror}"
        if free < self._free_bytes_min:
            return f"disk full: {show_bytes(free)} free, {show_bytes(self._free_bytes_min)} wanted"
        return self._silence.other_trouble()

    def is_disk_short(self) -> bool:
        try:
            return bool(self._journal.trouble) or self._free_bytes() < self._free_bytes_min
        except OSError:
            return False

    def with_trouble(self, load: Load) -> Load:
        """The load with what the server must know of this. Of a silent batch system, only once it is silent long."""
        silence = self._silence.long()
        return msgspec.structs.replace(
            load,
            trouble=(silence.text if silence is not None else self.trouble())[:TROUBLE_CHARS_MAX],
            silent_s=int(silence.silent_s or 0) if silence is not None else None,
            files_trouble=(self._files.trouble if self._files is not None else "")[:TROUBLE_CHARS_MAX],
            ends_in_s=int(self._lifetime.left_s()) if self._lifetime is not None else None,
        )

    def _free_bytes(self) -> int:
        return shutil.disk_usage(self._directory).free


class Offers:
    """Called from several threads. `values`: state values that the site adds to the load."""

    def __init__(
        self,
        journal: Journal,
        runner: Runner,
        condition: AgentCondition,
        *,
        jobs_max: int,
        values: Callable[[], dict[str, Scalar]] = dict,
        departure: Departure | None = None,
    ) -> None:
        self._journal, self._runner, self._condition = journal, runner, condition
        self._jobs_max, self._values = jobs_max, values
        self._departure = departure

    @property
    def is_leaving(self) -> bool:
        """Whether the agent asks for no new work, because it leaves."""
        return self._departure is not None and self._departure.is_begun

    def has_trouble(self) -> bool:
        """Whether no new work is taken now, although the batch system answers."""
        return bool(self._condition.trouble())

    def load(self) -> Load:
        load = self._runner.load()
        return msgspec.structs.replace(load, values={**load.values, **self._values()})

    def offer(self) -> Offer:
        load, room = self.load(), self._runner.room()
        load = self._condition.with_trouble(load)
        live = sum(1 for attempt in self._journal.attempts() if attempt.is_live)
        is_full = room is not None and room.cores == 0
        want = 0 if load.trouble or is_full or self.is_leaving else max(0, min(self._jobs_max - live, BATCH_MAX))
        return Offer(want, room, load)
