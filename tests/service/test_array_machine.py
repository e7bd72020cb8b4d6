"""Any order of leases, reports, retries, cancels and losses of an array's tasks: each is always in one place."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from switchyard.errors import Resync
from switchyard.model.cluster.idset import IdSet
from switchyard.model.cluster.poll import AttemptRef, Report
from switchyard.model.job import taskset
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import FINAL_STATES, ObservedState, ReportAnswer
from switchyard.model.job.retry import Cause, Retry
from switchyard.model.job.task_states import read_task
from switchyard.model.job.taskset import DELAY_TIMES_MAX
from switchyard.model.wire.ids import make_id
from switchyard.service.job import job_control, jobs
from switchyard.service.lifecycle.array_job import ArrayJob
from switchyard.service.lifecycle.damage import damage_of
from switchyard.service.lifecycle.transitions import refused_clusters
from switchyard.service.upkeep.move_jobs import take_back_unleased
from switchyard.service.upkeep.refresh_lessees import LesseeRefresh
from switchyard.service.upkeep.round import route_pending
from switchyard.service.upkeep.silent_agents import lose_silent_tasks
from switchyard.service.upkeep.waiting_jobs import end_backoffs
from switchyard.store.engine import ranges
from switchyard.store.jobs import unreadable_jobs
from tests.builders import a_request
from tests.service.rig import ADMIN, Clock, Rig, RigAgent
from tests.service.state_machine import run
from tests.services import Postgres
from tests.store.prepared import emptied, migrated_file

INDEXES = IdSet.parse("0-4,6-12:2,20,30-31")
LOST_AFTER_S = 60
TASKS = st.sampled_from(list(INDEXES))


class ArrayMachine(RuleBasedStateMachine):
    """One array, two clusters. `ok`: tasks that succeeded, once and for ever."""

    url: str
    folder: Path
    is_together = False

    attempts = Bundle("attempts")

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock(1_700_000_000_000_000)
        numbers = count(1)  # ids decide the draw: with random ones no example could be shown again
        self.prepare()
        self.rig = Rig(
            self.url,
            self.folder,
            clock=self.clock,
            ids=lambda: make_id(self.clock(), next(numbers) * 0x9E3779B97F4A7C15),
        )
        self.agents: list[RigAgent] = [self.rig.cluster(name) for name in ("alpha", "beta")]
        request = a_request(
            array=f"{INDEXES}%5",
            together=self.is_together,
            on_lost="requeue",
            lost_after=LOST_AFTER_S,
            retry=Retry(limit=1, backoff=10),
        )
        self.job = self.rig.submit(request).id
        self.ok: set[int] = set()
        self.handed: dict[int, set[int]] = {}  # an index → the fences it was given out under
        self.fence = 0
        self.end: Any = None

    def prepare(self) -> None: ...

    def teardown(self) -> None:
        try:
            self.finish()
        finally:
            self.rig.close()

    @rule(target=attempts, who=st.integers(0, 1), want=st.integers(1, 4), is_answer_lost=st.booleans())
    def lease(self, who: int, want: int, is_answer_lost: bool) -> Any:
        agent = self.agents[who]
        agent.seen()
        try:
            given = agent.lease(want)
        except Resync:
            given = agent.sync().leases
        if is_answer_lost:
            given = agent.sync().leases  # knows nothing: everything it holds comes again
        found = [
            (agent.id, lease.fence + index - lease.lo, index)
            for lease in given
            if lease.lo is not None and lease.hi is not None
            for index in range(lease.lo, lease.hi + 1)
        ]
        assert len(found) == len(set(found))
        for _, fence, index in found:
            self.handed.setdefault(index, set()).add(fence)
        for lease in given:
            tries = {len(self.handed[index]) for index in range(lease.lo or 0, (lease.hi or 0) + 1)}
            assert tries == {lease.attempt}, "all tasks of a lease are at the same attempt"
        return multiple(*found)

    @rule(
        attempt=attempts,
        seen=st.sampled_from(ObservedState),
        cause=st.sampled_from([Cause.JOB, Cause.CLUSTER]),
        is_twice=st.booleans(),
    )
    def report(self, attempt: tuple[str, int, int], seen: ObservedState, cause: Cause, is_twice: bool) -> None:
        agent_id, fence, index = attempt
        agent = next(agent for agent in self.agents if agent.id == agent_id)
        code = 0 if seen is ObservedState.SUCCEEDED else 1
        said = [Report(self.job, fence, seen, exit_code=code, cause=cause)] * (2 if is_twice else 1)
        answers = self.rig.committer.do(agent.write(*said)).answers
        if is_twice:
            assert answers[1] is not ReportAnswer.TAKEN
        if seen is ObservedState.SUCCEEDED and answers[0] is ReportAnswer.TAKEN:
            assert index not in self.ok, "a task succeeded twice"
            self.ok.add(index)

    @rule(attempt=attempts, seen=st.sampled_from(ObservedState))
    def report_of_another(self, attempt: tuple[str, int, int], seen: ObservedState) -> None:
        agent_id, fence, _ = attempt
        other = next(agent for agent in self.agents if agent.id != agent_id)
        before = self.rig.row(self.job)
        assert other.report(AttemptRef(self.job, fence), seen) is ReportAnswer.STOP
        assert self.rig.row(self.job) == before

    @rule(index=TASKS)
    def cancel_a_task(self, index: int) -> None:
        job_control.tasks_cancel(self.rig.context, ADMIN, self.job, IdSet.of([index]))

    @rule(luck=st.integers(0, 9))
    def cancel_all(self, luck: int) -> None:
        if luck == 0:
            jobs.job_cancel(self.rig.context, ADMIN, self.job, "enough")

    @rule(seconds=st.sampled_from([1, 20, 100]))
    def pass_time(self, seconds: int) -> None:
        for _ in range(0, seconds, 10):
            self.clock.wait(min(seconds, 10))
            self.rig.leader.take(self.rig.context)
        self.rig.context.snapshots.rebuild_world()

    @rule()
    def upkeep(self) -> None:
        context, leader = self.rig.context, self.rig.leader
        leader.take(context)
        end_backoffs(context, leader)
        take_back_unleased(context, leader)
        LesseeRefresh().look(context, leader)
        lose_silent_tasks(context, leader)
        route_pending(context, leader)

    @invariant()
    def each_task_is_in_one_place(self) -> None:
        row = self.rig.row(self.job)
        assert row.fence >= self.fence, "the fence fell"
        self.fence = row.fence
        if self.end is not None:
            assert row == self.end, "what is over has changed"
            return
        array = ArrayJob.of(row)
        with self.rig.context.database.read() as tx:
            assert not damage_of(unreadable_jobs.jobs_with_specs(tx, [self.job])[0])
        assert len(array.later) <= DELAY_TIMES_MAX
        later = [index for _, tasks in array.later for index in tasks]
        live, done = self.in_ranges()
        waiting = [*array.todo, *later]
        is_refused = row.state == State.FAILED.value and bool(refused_clusters(row))
        if row.cancel_us is None and not is_refused:
            assert sorted([*waiting, *live, *done]) == list(INDEXES)
        assert (array.live, array.ok) == (len(live), len(self.ok))
        assert array.live <= 5, "the bound after the percent sign"
        if State(row.state) in FINAL_STATES:
            assert not waiting
            assert not live
            self.end = row

    def in_ranges(self) -> tuple[list[int], list[int]]:
        """The tasks that are live, and those that have ended; a task that went back counts in neither."""
        with self.rig.context.database.read() as tx:
            rows = ranges.range_list(tx, self.job)
        live, done = [], []
        for each in rows:
            for position in range(each.hi - each.lo + 1):
                task = read_task(each.tasks, position)
                if task.is_live:
                    live.append(each.lo + position)
                elif task.state is not None:
                    done.append(each.lo + position)
        assert len(live) == len(set(live)), "two live attempts of one task"
        return live, done

    def finish(self) -> None:
        """The array has an end within reach."""
        for _ in range(12):
            self.pass_time(20)
            for agent in self.agents:
                agent.seen()
            self.rig.context.snapshots.rebuild_world()
            self.upkeep()
            for agent in self.agents:
                given = agent.sync()
                held = [*given.leases, *agent.lease(100)]
                for lease in held:
                    assert lease.lo is not None and lease.hi is not None  # noqa: PT018 - for the type checker
                    for index in range(lease.lo, lease.hi + 1):
                        fence = lease.fence + index - lease.lo
                        if (
                            agent.report(AttemptRef(self.job, fence), ObservedState.SUCCEEDED, exit_code=0)
                            is ReportAnswer.TAKEN
                        ):
                            self.ok.add(index)
            if State(self.rig.row(self.job).state) in FINAL_STATES:
                break
        assert State(self.rig.row(self.job).state) in FINAL_STATES
        self.each_task_is_in_one_place()


def test_any_order_of_a_tasks_events_on_sqlite(tmp_path: Path) -> None:
    class OnSqlite(ArrayMachine):
        def prepare(self) -> None:
            self.folder = tmp_path
            (tmp_path / "yard.db").write_bytes(migrated_file())
            for rest in ("yard.db-wal", "yard.db-shm"):
                (tmp_path / rest).unlink(missing_ok=True)
            self.url = f"sqlite:///{tmp_path / 'yard.db'}"

    run(OnSqlite, examples=10, steps=30)


def test_any_order_of_the_events_of_an_array_that_stays_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused by one cluster before anything began, it goes to the other one as a whole."""
    monkeypatch.setattr(ArrayMachine, "is_together", True)
    test_any_order_of_a_tasks_events_on_sqlite(tmp_path)


def test_any_order_of_a_tasks_events_with_scattered_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets of more than one run are kept as bits from the beginning on."""
    monkeypatch.setattr(taskset, "RUNS_MAX", 1)
    test_any_order_of_a_tasks_events_on_sqlite(tmp_path)


def test_any_order_of_a_tasks_events_on_postgresql(postgres: Postgres, tmp_path: Path) -> None:
    class OnPostgresql(ArrayMachine):
        def prepare(self) -> None:
            self.folder, self.url = tmp_path, emptied(postgres)

    run(OnPostgresql, examples=4, steps=30)


def test_a_task_that_begins_to_run_while_it_is_cancelled_is_still_cancelled(tmp_path: Path) -> None:
    (tmp_path / "yard.db").write_bytes(migrated_file())
    rig = Rig(f"sqlite:///{tmp_path / 'yard.db'}", tmp_path)
    try:
        agent = rig.cluster("alpha")
        job = rig.submit(a_request(array="0-3")).id
        (lease,) = agent.lease(4)
        job_control.tasks_cancel(rig.context, ADMIN, job, IdSet.parse("2"))
        assert agent.report(AttemptRef(job, lease.fence + 2), ObservedState.RUNNING) is ReportAnswer.TAKEN
        assert agent.poll(0).cancels == [AttemptRef(job, lease.fence + 2)]
    finally:
        rig.close()
