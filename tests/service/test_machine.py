"""Any order of submits, leases, reports, cancels, losses and restarts, on a real database: what must always hold."""

from __future__ import annotations

import shutil
import tempfile
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)

from switchyard.errors import KeyReused, Resync
from switchyard.model.cluster.cluster import Load
from switchyard.model.cluster.poll import AttemptRef, Report
from switchyard.model.job.job import OnLost, State
from switchyard.model.job.lifecycle import FINAL_STATES, ObservedState, ReportAnswer
from switchyard.model.wire.ids import make_id
from switchyard.service.job import jobs
from switchyard.service.upkeep.move_jobs import JobMover, take_back_unleased
from switchyard.service.upkeep.round import route_pending
from switchyard.service.upkeep.silent_agents import lose_silent_attempts
from switchyard.store.jobs import leases
from tests.builders import a_request
from tests.service.rig import ADMIN, Clock, Rig, RigAgent
from tests.service.state_machine import run
from tests.services import Postgres
from tests.store.prepared import emptied, migrated_file

KEYS = st.sampled_from(["k1", "k2", "k3"])
LOST_AFTER_S = 60


class YardMachine(RuleBasedStateMachine):
    """Two clusters, one agent each. `told`: what each agent believes to hold; `ended`: final rows as first seen."""

    url: str  # set by the test: where the database is
    folder: Path

    ids = Bundle("ids")
    attempts = Bundle("attempts")

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock(1_700_000_000_000_000)
        numbers = count(1)  # ids decide the draw: with random ones no example could be shown again
        self.ids_made = lambda: make_id(self.clock(), next(numbers) * 0x9E3779B97F4A7C15)
        self.prepare()
        self.rig = Rig(self.url, self.folder, clock=self.clock, ids=self.ids_made)
        self.agents: list[RigAgent] = [self.rig.cluster(name) for name in ("alpha", "beta")]
        self.told: dict[str, set[AttemptRef]] = {agent.id: set() for agent in self.agents}
        self.fences: dict[str, int] = {}
        self.ended: dict[str, Any] = {}
        self.keys: dict[str, str] = {}
        self.stopped: set[tuple[str, int]] = set()
        self.mover = JobMover()

    def prepare(self) -> None: ...

    def teardown(self) -> None:
        try:
            self.finish()
        finally:
            self.rig.close()

    # --- what people do

    @rule(target=ids, on_lost=st.sampled_from(OnLost), priority=st.integers(-1, 1))
    def submit(self, on_lost: OnLost, priority: int) -> str:
        return self.rig.submit(a_request(on_lost=on_lost, priority=priority, lost_after=LOST_AFTER_S)).id

    @rule(target=ids, key=KEYS, command=st.sampled_from(["a", "b"]))
    def submit_with_a_key(self, key: str, command: str) -> Any:
        request = a_request(command, on_lost="requeue", lost_after=LOST_AFTER_S)
        try:
            accepted = self.rig.accept(request, key=key)
        except KeyReused:
            assert key in self.keys
            return multiple()
        assert accepted.is_new == (key not in self.keys)
        assert self.keys.setdefault(key, accepted.created.id) == accepted.created.id
        return accepted.created.id

    @rule(job=ids)
    def cancel(self, job: str) -> None:
        before = self.rig.job(job)
        after = jobs.job_cancel(self.rig.context, ADMIN, job, "enough")
        if before.state not in FINAL_STATES:
            assert after.cancel_requested

    # --- what agents do

    @rule(target=attempts, who=st.integers(0, 1), want=st.integers(1, 3), is_answer_lost=st.booleans())
    def lease(self, who: int, want: int, is_answer_lost: bool) -> Any:
        agent = self.agents[who]
        agent.seen()
        try:
            given = [AttemptRef(lease.job, lease.fence) for lease in agent.lease(want)]
        except Resync:  # it was judged silent: it must say what it holds before it gets anything
            return self.say_what_is_held(who)
        if is_answer_lost:
            agent.sync(*((held.job, held.fence) for held in self.told[agent.id]))
            # The sync's own answer got lost too: the next one must bring everything again.
            return multiple()
        self.told[agent.id] |= set(given)
        return multiple(*((agent.id, held) for held in given))

    @rule(target=attempts, who=st.integers(0, 1))
    def sync(self, who: int) -> Any:
        return self.say_what_is_held(who)

    def say_what_is_held(self, who: int) -> Any:
        agent = self.agents[who]
        agent.seen()
        given = agent.sync(*((held.job, held.fence) for held in self.told[agent.id]))
        self.told[agent.id] -= {AttemptRef(stop.job, stop.fence) for stop in given.stops}
        new = [AttemptRef(lease.job, lease.fence) for lease in given.leases]
        assert not set(new) & self.told[agent.id]
        self.told[agent.id] |= set(new)
        with self.rig.context.database.read() as tx:
            held = {AttemptRef(row.id, row.fence) for row in leases.leased_by(tx, agent.id)}
        assert self.told[agent.id] == held, "after a sync both sides know the same"
        return multiple(*((agent.id, each) for each in new))

    @rule(who=st.integers(0, 1), cores=st.integers(0, 3))
    def say_what_is_free(self, who: int, cores: int) -> None:
        self.agents[who].seen()
        self.rig.context.snapshots.take_load(self.agents[who].id, Load(free_cores=cores), self.clock())

    @rule(attempt=attempts, seen=st.sampled_from(ObservedState), is_twice=st.booleans())
    def report(self, attempt: tuple[str, AttemptRef], seen: ObservedState, is_twice: bool) -> None:
        """Of now or of long ago: every attempt that ever was stays in the bundle."""
        agent_id, held = attempt
        agent = next(agent for agent in self.agents if agent.id == agent_id)
        before = self.rig.row(held.job)
        reports = [Report(held.job, held.fence, seen)] * (2 if is_twice else 1)
        answers = self.rig.committer.do(agent.write(*reports)).answers
        after = self.rig.row(held.job)
        if held.fence < before.fence or (held.job, held.fence) in self.stopped:
            assert answers[0] is ReportAnswer.STOP
            assert after == before
        if before.state in {state.value for state in FINAL_STATES}:
            assert ReportAnswer.TAKEN not in answers
        if is_twice:
            assert answers[1] is not ReportAnswer.TAKEN
        if answers[0] is ReportAnswer.STOP:
            self.told[agent_id].discard(held)
        if answers[0] is ReportAnswer.STOP and before.state not in {state.value for state in FINAL_STATES}:
            self.stopped.add((held.job, held.fence))

    @rule(attempt=attempts, who=st.integers(0, 1), seen=st.sampled_from(ObservedState))
    def report_of_another(self, attempt: tuple[str, AttemptRef], who: int, seen: ObservedState) -> None:
        _, held = attempt
        agent = self.agents[who]
        before = self.rig.row(held.job)
        if before.agent_id != agent.id:
            assert agent.report(held, seen) is ReportAnswer.STOP
            assert self.rig.row(held.job) == before

    @rule(attempt=consumes(attempts))
    def finish_one(self, attempt: tuple[str, AttemptRef]) -> None:
        agent_id, held = attempt
        next(agent for agent in self.agents if agent.id == agent_id).report(held, ObservedState.SUCCEEDED)
        self.told[agent_id].discard(held)

    # --- what time does

    @rule(seconds=st.sampled_from([1, 20, 100]))
    def pass_time(self, seconds: int) -> None:
        for _ in range(0, seconds, 10):
            self.clock.wait(min(seconds, 10))
            self.rig.leader.take(self.rig.context)
        self.rig.context.snapshots.rebuild_world()

    @rule()
    def upkeep(self) -> None:
        self.rig.leader.take(self.rig.context)
        take_back_unleased(self.rig.context, self.rig.leader)
        lose_silent_attempts(self.rig.context, self.rig.leader)
        route_pending(self.rig.context, self.rig.leader)
        self.mover.look(self.rig.context, self.rig.leader)

    @rule(luck=st.integers(0, 5))
    def restart(self, luck: int) -> None:
        if luck:
            return
        self.rig.close()
        self.rig = Rig(self.url, self.folder, clock=self.clock, ids=self.ids_made)
        for agent in self.agents:
            agent.rig = self.rig

    # --- what must hold

    @invariant()
    def what_must_hold(self) -> None:
        rows = self.rows()
        self.fences_never_fall_and_ends_never_change(rows)
        self.only_live_jobs_are_held_and_each_by_one(rows)

    def fences_never_fall_and_ends_never_change(self, rows: list[Any]) -> None:
        for row in rows:
            assert row.fence >= self.fences.get(row.id, 0)
            self.fences[row.id] = row.fence
            if row.id in self.ended:
                assert row == self.ended[row.id]
            elif row.state in {state.value for state in FINAL_STATES}:
                self.ended[row.id] = row

    def only_live_jobs_are_held_and_each_by_one(self, rows: list[Any]) -> None:
        for row in rows:
            if row.state == State.PENDING.value:
                assert row.agent_id is None
                assert row.cluster_id is None
            if row.state in ("SUBMITTED", "RUNNING"):
                assert row.agent_id is not None
            believers = [
                held for holds in self.told.values() for held in holds if (held.job, held.fence) == (row.id, row.fence)
            ]
            assert len(believers) <= 1, "two agents hold the same attempt"

    def rows(self) -> list[Any]:
        from switchyard.store.jobs.jobs import JobFilter, job_list

        with self.rig.context.database.read() as tx:
            return job_list(tx, JobFilter(), before=None, limit=500, budget=5000, with_spec=False)[0]

    def finish(self) -> None:
        """Every job has an end within reach: agents sync, report and upkeep runs, and all are over."""
        for _ in range(4):
            for agent in self.agents:
                agent.sync()
                agent.lease(100)
            self.upkeep()
            for agent in self.agents:
                with self.rig.context.database.read() as tx:
                    held = [AttemptRef(row.id, row.fence) for row in leases.leased_by(tx, agent.id)]
                for each in held:
                    assert agent.report(each, ObservedState.SUCCEEDED) is ReportAnswer.TAKEN
        left = [row for row in self.rows() if row.state not in {state.value for state in FINAL_STATES}]
        assert left == []
        self.what_must_hold()
        for row in self.rows():
            kinds = self.rig.kinds(row.id)
            assert kinds[0] == "accepted"
            assert sum(kind in ("succeeded", "failed", "cancelled", "rejected", "lost") for kind in kinds) == 1


def on_sqlite(folder: Path) -> type[YardMachine]:
    class OnSqlite(YardMachine):
        def prepare(self) -> None:
            self.folder = Path(tempfile.mkdtemp(dir=folder))
            (self.folder / "yard.db").write_bytes(migrated_file())
            self.url = f"sqlite:///{self.folder / 'yard.db'}"

        def teardown(self) -> None:
            super().teardown()
            shutil.rmtree(self.folder)

    return OnSqlite


def on_postgresql(server: Postgres, folder: Path) -> type[YardMachine]:
    class OnPostgresql(YardMachine):
        def prepare(self) -> None:
            self.folder, self.url = folder, emptied(server)

    return OnPostgresql


def test_any_order_of_events_on_sqlite(tmp_path: Path) -> None:
    run(on_sqlite(tmp_path), examples=8, steps=25)


def test_any_order_of_events_on_postgresql(postgres: Postgres, tmp_path: Path) -> None:
    run(on_postgresql(postgres, tmp_path), examples=4, steps=25)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_any_order_of_events_for_long(postgres: Postgres, tmp_path: Path) -> None:
    run(on_sqlite(tmp_path), examples=500, steps=60)
    run(on_postgresql(postgres, tmp_path), examples=100, steps=60)
