"""Clients that submit all the time, and notes of every acknowledgement. They use the SDK as users do."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from switchyard import Client
from switchyard.errors import YardError
from switchyard.sdk.client import JobFields
from tests.acceptance.bed import Ledger

RETRY_S = 120.0  # an SDK client outlasts every fault here
PULSE_PAUSE_S = 0.02
LEDGER_PAUSE_S = 1.0
LOST_AFTER_S = 60  # longer than any fault here lasts: an agent that is away for less has lost nothing
ARRAY_TASKS = 4


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    at_s: float
    server: str


@dataclass
class Notes:
    """What the clients saw; threads add to it."""

    acknowledgements: list[Acknowledgement] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)  # of commands that leave a line in the ledger
    arrays: list[str] = field(default_factory=list)
    pulses: list[str] = field(default_factory=list)  # of commands that do nothing
    refusals: list[str] = field(default_factory=list)

    def rate(self, begin_s: float, end_s: float, *, server: str | None = None) -> float:
        """Acknowledgements a second between two moments; of one server, or of all."""
        seen = sum(
            begin_s <= each.at_s < end_s and server in (None, each.server) for each in list(self.acknowledgements)
        )
        return seen / (end_s - begin_s)

    def first_after(self, at_s: float) -> float | None:
        """Seconds from a moment to the next acknowledgement."""
        return min((each.at_s - at_s for each in list(self.acknowledgements) if each.at_s >= at_s), default=None)

    def longest_gap_s(self, begin_s: float, end_s: float) -> float:
        """The longest time without an acknowledgement."""
        seen = sorted(each.at_s for each in list(self.acknowledgements) if begin_s <= each.at_s < end_s)
        moments = [begin_s, *seen, end_s]
        return max(after - before for before, after in itertools.pairwise(moments))


class Load:
    """Per server one client that measures and one whose jobs leave lines in the ledger."""

    def __init__(self, servers: dict[str, str], ledger: Ledger, *, slurm: Sequence[str]) -> None:
        self.notes = Notes()
        self._ledger = ledger
        self._slurm = list(slurm)
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._keep, args=(name, url, step), name=f"{step.__name__}-{name}")
            for name, url in servers.items()
            for step in (self._pulse, self._submit_ledger_job)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(RETRY_S + 30)
        stuck = [thread.name for thread in self._threads if thread.is_alive()]
        assert not stuck, f"clients hang: {stuck}"

    def _keep(self, name: str, url: str, step: Callable[[Client, str, int], None]) -> None:
        number = 0
        with Client(url, retry_s=RETRY_S, timeout_s=10.0) as client:
            while not self._stop.is_set():
                try:
                    step(client, name, number)
                except YardError as exc:
                    self.notes.refusals.append(f"{name}: {exc.code}: {exc.detail}")
                    self._stop.wait(0.2)
                number += 1

    def _pulse(self, client: Client, name: str, _number: int) -> None:
        job = client.submit(["true"], hold=True)  # it costs a commit, and no cluster has to keep up
        self.notes.acknowledgements.append(Acknowledgement(time.monotonic(), name))
        self.notes.pulses.append(job.id)
        self._stop.wait(PULSE_PAUSE_S)

    def _submit_ledger_job(self, client: Client, _name: str, number: int) -> None:
        """Local jobs, arrays and Slurm jobs in turn; half of them say that a lost attempt is to run again."""
        on_lost: JobFields = {"on_lost": "requeue", "lost_after": LOST_AFTER_S} if number % 2 else {}
        pause = f"sleep {(0, 0.3, 2)[number % 3]}"
        if number % 5 == 4:
            command = ["/bin/sh", "-c", f'echo "$SWITCHYARD_JOB_ID/$SWITCHYARD_ARRAY_INDEX" >> "$LEDGER"; {pause}']
            job = client.submit(command, env=self._ledger.env, array=f"0-{ARRAY_TASKS - 1}", cluster="alpha", **on_lost)
            self.notes.arrays.append(job.id)
        else:
            cluster = self._slurm[number % len(self._slurm)] if self._slurm and number % 5 == 2 else "alpha"
            job = client.submit(self._ledger.command(pause), env=self._ledger.env, cluster=cluster, **on_lost)
            self.notes.jobs.append(job.id)
        self._stop.wait(LEDGER_PAUSE_S)
