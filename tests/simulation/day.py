"""One simulated day: jobs come, clusters fall silent or are drained, weights change, answers are lost, servers restart.

Everything is drawn from one seed. A step is some seconds of simulated time: submits, then what agents say, then what
they are given, then a round of the leader, as the server runs it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from switchyard.model.cluster.cluster import ClusterChange, Health
from switchyard.model.job.job import Job, JobRequest, State
from switchyard.model.job.lifecycle import FINAL_STATES
from switchyard.model.rules.layout import LayoutPart, SetMember, SetRequest
from switchyard.model.rules.tokens import TokenPoolRequest
from switchyard.model.wire.ids import make_id
from switchyard.server.config.config import read_config
from switchyard.service.cluster import clusters, layout
from switchyard.service.core.writes.write_condition import WriteCondition
from switchyard.service.job import jobs
from switchyard.service.lifecycle.visibility import Visibility
from switchyard.service.quote import quote_answers
from switchyard.service.quote.quote_decisions import QuoteChore
from switchyard.service.token import pool_calls
from switchyard.service.upkeep.round import LeaderRound
from switchyard.store.clusters import clusters as cluster_store
from switchyard.store.jobs import jobs as job_store
from tests.builders import a_graph
from tests.service.rig import ADMIN, Clock, Rig
from tests.simulation.machines import Ledger, Machine

POOL = "wide"
LICENCE, LICENCES = "licence", 20
TOKENS = "resourcemanager: {type: memory, resourceMaxQuota: 100}"
BEGIN_US = 1_700_000_000_000_000
STEP_S = 5.0
UPKEEP_STEPS = 2
FLUSH_STEPS = 3
END_STEPS = 3000  # after the last job came: by then all must be over
PAGE = 500


@dataclass
class Day:
    """The yard, its clusters, and everything that was done to them. `expected`: of each cluster, by weights alone."""

    folder: Path
    seed: int
    sizes: list[int]
    weights: dict[str, float]
    machines: list[Machine] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    clock: Clock = field(default_factory=lambda: Clock(BEGIN_US))
    submitted: list[str] = field(default_factory=list)
    keys: dict[str, tuple[JobRequest, str]] = field(default_factory=dict)
    drawn: Counter[str] = field(default_factory=Counter)
    expected: Counter[str] = field(default_factory=Counter)
    drained: list[str] = field(default_factory=list)
    said: Counter[str] = field(default_factory=Counter)  # how often each thing was done to it
    licensed: set[str] = field(default_factory=set)  # jobs that need a licence
    licences: int = 0  # the most that were in use at once
    is_quoting: bool = False  # agents are asked for quotes, and answer

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        numbers = count(1)
        # Ids decide the draw, so they come from the seed, too.
        self._ids = lambda: make_id(self.clock(), next(numbers) * 0x9E3779B97F4A7C15 + self.seed)
        self._steps = 0
        self._open: list[str] = []
        self._begin()
        for number, cores in enumerate(self.sizes):
            name = f"c{number:02}"
            agent = self.rig.cluster(name, graph=a_graph(cores=cores))
            self.machines.append(Machine(name, cores, agent, self.ledger))
        self.weigh(self.weights)
        pool_calls.register(self.rig.context, ADMIN, LICENCE, TokenPoolRequest(LICENCES))

    def _begin(self) -> None:
        url, config = f"sqlite:///{self.folder / 'yard.db'}", read_config(TOKENS, where="config")
        self.rig = Rig(url, self.folder, clock=self.clock, ids=self._ids, config=config)
        # By the simulated clock, no chore takes time: each is due in each round.
        self._round = LeaderRound(self.rig.context, self.rig.leader, clock=lambda: self.clock() / 1e6)
        self.handing = quote_answers.InquiryDelivery(self.rig.context)
        self._quoting = QuoteChore(self.rig.context)

    def close(self) -> None:
        self.rig.close()

    # --- what happens

    def restart(self) -> None:
        """The server stops in order, and another one begins on its database. The clusters work on."""
        self.said["restarts"] += 1
        self.rig.close()
        self._begin()
        for machine in self.machines:
            machine.agent.rig = self.rig
            machine.is_out_of_step = True

    def weigh(self, weights: dict[str, float]) -> None:
        """The weights of the pool, changed at run time."""
        self.said["weight changes"] += 1
        self.weights = weights
        members = [SetMember(name, weight) for name, weight in weights.items()]
        layout.set_put(self.rig.context, ADMIN, LayoutPart.POOL, POOL, SetRequest(members), condition=WriteCondition())
        self.rig.context.snapshots.refresh()

    def drain(self, name: str) -> None:
        self.said["drains"] += 1
        self.drained.append(name)
        clusters.cluster_change(self.rig.context, ADMIN, name, ClusterChange(is_cordoned=True, reason="maintenance"))

    def undrain(self) -> None:
        for name in self.drained:
            clusters.cluster_change(self.rig.context, ADMIN, name, ClusterChange(is_cordoned=False))
        self.drained = []

    def silence(self, machine: Machine, seconds: float) -> None:
        self.said["silences"] += 1
        machine.mute_until_us = self.clock() + int(seconds * 1e6)

    def cancel(self, job: str) -> None:
        self.said["cancels"] += 1
        jobs.job_cancel(self.rig.context, ADMIN, job, "enough")

    # --- a step

    def step(self, requests: Iterable[tuple[JobRequest, str | None]] = (), *, lose: float = 0.0) -> None:
        """`lose`: the share of answers to agents that get lost."""
        self._steps += 1
        self.clock.wait(STEP_S)
        now_us = self.clock()
        self._submit(list(requests))
        speaking = [machine for machine in self.machines if not machine.is_mute(now_us)]
        for machine in self.machines:
            machine.work(now_us)
        self.licences = max(self.licences, self._hold_licences())
        self._hear(speaking, now_us)
        self._report(speaking, now_us)
        self._quote(speaking, now_us)
        self._give(speaking, now_us, lose)
        if self._steps % UPKEEP_STEPS == 0:
            self._upkeep()

    def _submit(self, requests: list[tuple[JobRequest, str | None]]) -> None:
        if not requests:
            return
        writes = [self.rig.decided(request, key=key) for request, key in requests]
        able = self._able()
        for (request, key), result in zip(requests, self.rig.together(*writes), strict=True):
            assert not isinstance(result, Exception), result
            job = result.created.id
            if key is not None:
                assert self.keys.setdefault(key, (request, job))[1] == job, "one key, two jobs"
                assert result.is_new == (job not in self.submitted[-5000:])
            if result.is_new:
                self.submitted.append(job)
                if request.spec.tokens:
                    self.licensed.add(job)
                self._open.append(job)
                if request.pool == POOL and request.select is None and result.created.cluster:
                    self.drawn[result.created.cluster] += 1
                    self.expected.update(able)

    def _hold_licences(self) -> int:
        """How many jobs use a licence now, by the clusters' own word: never more than there are."""
        using = [job for job, _ in self.ledger.live if job in self.licensed]
        assert len(using) <= LICENCES, f"{len(using)} jobs and tasks run at once that need one of {LICENCES} licences"
        return len(using)

    def licences_held(self) -> int:
        self._upkeep()  # by which the last ones are given back
        return pool_calls.pool_get(self.rig.context, LICENCE).used

    def _able(self) -> dict[str, float]:
        """Of one job the share of each cluster of the pool, by the weights of those that are up."""
        by_name = self.rig.context.snapshots.world.by_name
        up = {name: weight for name, weight in self.weights.items() if by_name[name].health is Health.UP}
        total = sum(up.values())
        return {name: weight / total for name, weight in up.items()} if total else {}

    def _hear(self, speaking: list[Machine], now_us: int) -> None:
        """They are alive, and this is how they are; now and then that is written down."""
        snapshots = self.rig.context.snapshots
        for machine in speaking:
            snapshots.take_load(machine.agent.id, machine.load, now_us)
            snapshots.mark_seen(machine.agent.id, now_us)
        snapshots.rebuild_world()
        if self._steps % FLUSH_STEPS == 0:
            seen: dict[str, tuple[int, str | None]] = {machine.agent.id: (now_us, None) for machine in speaking}
            self.rig.committer.call(lambda batch: cluster_store.agent_set_seen(batch.tx, seen))

    def _report(self, speaking: list[Machine], now_us: int) -> None:
        telling = [machine for machine in speaking if machine.outbox and not machine.is_out_of_step]
        for machine, settled in zip(telling, self._together(machine.reports() for machine in telling), strict=True):
            machine.settled(settled.answers, now_us)

    def _give(self, speaking: list[Machine], now_us: int, lose: float) -> None:
        asking = [(machine, machine.sync_ask() if machine.is_out_of_step else machine.ask()) for machine in speaking]
        results = self._together(ask for _, ask in asking)
        for (machine, _), given in zip(asking, results, strict=True):
            is_lost = self.chance.random() < lose
            self.said["lost answers"] += is_lost
            machine.take(given, now_us, is_lost=is_lost)

    def _together(self, writes: Iterable[object]) -> list[Any]:
        listed = list(writes)
        return self.rig.together(*listed) if listed else []

    def _quote(self, speaking: list[Machine], now_us: int) -> None:
        if not self.is_quoting:
            return
        context = self.rig.context
        for machine in speaking:
            agent = context.snapshots.fleet.agents[machine.agent.id]
            if asks := self.handing.next(agent):
                self.said["quotes"] += len(asks)
                quote_answers.store_answers(context, agent, [machine.quote(ask, now_us) for ask in asks])
        self._quoting.go()

    def _upkeep(self) -> None:
        assert self.rig.leader.take(self.rig.context)
        self._round.routing.is_pending_new = True
        changed = self._round.go()
        self.said["other clusters for arrays"] += changed["refresh lessees"]
        self.said["taken over"] += changed["move jobs"]

    # --- the end

    def finish(self) -> list[Job]:
        """Everybody is well again; step on until every job has its end."""
        self.undrain()
        for machine in self.machines:
            machine.mute_until_us = 0
        for _ in range(END_STEPS):
            self.step()
            if self._steps % 10 == 0 and not self._left():
                return self.jobs()
        raise AssertionError(f"{len(self._left())} jobs have no end, e.g. {self._left()[:3]}")

    def _left(self) -> list[Any]:
        """The jobs without an end."""
        found: list[Any] = []
        with self.rig.context.database.read() as tx:
            for first in range(0, len(self._open), PAGE):
                found += job_store.job_states(tx, self._open[first : first + PAGE]).values()
        found = [row for row in found if State(row.state) not in FINAL_STATES]
        self._open = [row.id for row in found]
        return found

    def jobs(self) -> list[Job]:
        with self.rig.context.database.read() as tx:
            rows = [job_store.job_get(tx, job) for job in self.submitted]
        assert None not in rows, "a job that was accepted is gone"
        sight = Visibility(self.rig.context, ADMIN)
        return [jobs.job_view(row, sight) for row in rows if row is not None]
