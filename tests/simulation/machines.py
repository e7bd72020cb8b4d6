"""Clusters that are not there: their agents speak as real ones do, and what they ran is written into one ledger."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from switchyard.errors import Resync
from switchyard.model.cluster.cluster import Load
from switchyard.model.cluster.poll import Lease, Report, Room
from switchyard.model.cluster.quote import QuoteAsk, QuoteGiven
from switchyard.model.job.job import JobSpec, OnLost
from switchyard.model.job.lifecycle import ObservedState, ReportAnswer
from switchyard.service.lifecycle.lease_request import LeaseRequest
from switchyard.service.run.lease import LeaseAnswer, SyncRequest
from switchyard.service.run.report import ReportWrite
from tests.service.rig import RigAgent

VALID_S = 20.0  # a quote of these agents holds for so long
WANT = 64


@dataclass(frozen=True, slots=True)
class Run:
    """One attempt that a cluster really ran."""

    job: str
    fence: int
    cluster: str
    began_us: int
    cores: int
    ends_us: int
    task: int | None = None  # of an array

    @property
    def unit(self) -> str:
        """What may run once: a job, or one task of an array."""
        return self.job if self.task is None else f"{self.job}[{self.task}]"


@dataclass
class Ledger:
    """What ran where, by the clusters' own word; judged at once, since nothing may ever run twice."""

    runs: dict[str, list[Run]] = field(default_factory=dict)  # by job, or by task of an array
    live: dict[tuple[str, int], Run] = field(default_factory=dict)
    ended_us: dict[tuple[str, int], int] = field(default_factory=dict)
    may_repeat: set[str] = field(default_factory=set)  # jobs that asked to be run again when they are lost

    def begin(self, run: Run) -> None:
        before = self.runs.setdefault(run.unit, [])
        assert run.job in self.may_repeat or not before, f"{run.job} ran already: {before}"
        assert all(run.fence > each.fence for each in before), f"the fence of {run.job} fell: {before}, {run}"
        before.append(run)
        self.live[run.job, run.fence] = run

    def end(self, run: Run, at_us: int) -> None:
        del self.live[run.job, run.fence]
        self.ended_us[run.job, run.fence] = at_us


@dataclass
class Machine:
    """A cluster of some cores with its agent. Mute, it works on and says nothing; dead, it forgets what it was told."""

    name: str
    cores: int
    agent: RigAgent
    ledger: Ledger
    mute_until_us: int = 0
    running: dict[tuple[str, int], Run] = field(default_factory=dict)
    outbox: list[Report] = field(default_factory=list)
    is_out_of_step: bool = True  # an answer may have been lost: it must say what it holds before it asks for more

    def is_mute(self, now_us: int) -> bool:
        return now_us < self.mute_until_us

    @property
    def free(self) -> int:
        return self.cores - sum(run.cores for run in self.running.values())

    @property
    def load(self) -> Load:
        return Load(free_cores=self.free, free_gpus=0, running=len(self.running))

    def work(self, now_us: int) -> None:
        """Whatever has run for its time ends, and waits to be reported."""
        for key, run in list(self.running.items()):
            if run.ends_us <= now_us:
                del self.running[key]
                self.ledger.end(run, run.ends_us)
                ago_us = now_us - run.ends_us
                self.outbox.append(Report(run.job, run.fence, ObservedState.SUCCEEDED, ago_us=ago_us, exit_code=0))

    def reports(self) -> ReportWrite:
        return self.agent.write(*self.outbox)

    def settled(self, answers: Iterable[ReportAnswer], now_us: int) -> None:
        """The server has heard; what it wants stopped is stopped."""
        sent, self.outbox = self.outbox, []
        for report, answer in zip(sent, answers, strict=True):
            if answer is ReportAnswer.STOP:
                self.stop(report.job, report.fence, now_us)

    def ask(self) -> LeaseRequest:
        return self.agent.ask(WANT, Room(self.free, 0, 2**50))

    def sync_ask(self) -> SyncRequest:
        held = {(each.job, each.fence) for each in self.outbox} | self.running.keys()
        return self.agent.sync_ask(*held)

    def take(self, given: LeaseAnswer | Exception, now_us: int, *, is_lost: bool = False) -> None:
        """The answer to an ask or a sync. `is_lost`: it never arrived."""
        if isinstance(given, Resync) or is_lost:
            self.is_out_of_step = True
            return
        if isinstance(given, Exception):
            raise given
        self.agent.session, self.is_out_of_step = given.session, False
        for lease in given.leases:
            self._begin(lease, now_us)
        for held in given.cancels:
            if self.stop(held.job, held.fence, now_us):
                self.outbox.append(Report(held.job, held.fence, ObservedState.CANCELLED))
        for stop in given.stops:
            self.stop(stop.job, stop.fence, now_us)
            self.outbox = [each for each in self.outbox if (each.job, each.fence) != (stop.job, stop.fence)]

    def stop(self, job: str, fence: int, now_us: int) -> bool:
        run = self.running.pop((job, fence), None)
        if run is not None:
            self.ledger.end(run, now_us)
        return run is not None

    def _begin(self, lease: Lease, now_us: int) -> None:
        if lease.lo is None or lease.hi is None:
            self._begin_attempt(lease, lease.fence, None, now_us)
            return
        for index in range(lease.lo, lease.hi + 1):
            self._begin_attempt(lease, lease.fence + index - lease.lo, index, now_us)

    def _begin_attempt(self, lease: Lease, fence: int, task: int | None, now_us: int) -> None:
        key = (lease.job, fence)
        if key in self.running or any((each.job, each.fence) == key for each in self.outbox):
            return  # told again what it knows
        spec = msgspec.json.decode(bytes(lease.spec), type=JobSpec)  # type: ignore[arg-type]
        seconds, cores = int(spec.command[1]), (spec.resources.cores or 1) * (spec.resources.tasks or 1)
        if spec.on_lost is OnLost.REQUEUE:
            self.ledger.may_repeat.add(lease.job)
        run = Run(lease.job, fence, self.name, now_us, int(cores), now_us + seconds * 1_000_000, task)
        self.ledger.begin(run)
        self.running[key] = run
        assert self.free >= 0, f"{self.name} was given more than it has room for"
        self.outbox.append(Report(lease.job, fence, ObservedState.RUNNING))

    def quote(self, ask: QuoteAsk, now_us: int) -> QuoteGiven:
        """When there is room, by the ends of what runs here: as a batch system reckons with time limits."""
        body = bytes(ask.spec) if isinstance(ask.spec, msgspec.Raw) else msgspec.json.encode(ask.spec)
        spec = msgspec.json.decode(body, type=JobSpec)
        needs = int((spec.resources.cores or 1) * (spec.resources.tasks or 1))
        if needs > self.cores:
            return QuoteGiven(shape=ask.shape, can=False, reason="too small")
        free, eta_us = self.free, now_us
        for run in sorted(self.running.values(), key=lambda each: each.ends_us):
            if free >= needs:
                break
            free, eta_us = free + run.cores, run.ends_us
        return QuoteGiven(shape=ask.shape, can=True, eta_s=max(0, eta_us - now_us) / 1e6, valid_s=VALID_S)
