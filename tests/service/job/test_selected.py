"""Cancelling all that a selector means, listing by ids and by age, tasks by state: on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from switchyard.errors import BadRequest, Denied, Malformed
from switchyard.model.job.job import State
from switchyard.model.rules.access import GrantTarget, Role
from switchyard.model.wire.api import CancelMany, JobSelector
from switchyard.service.core.rights import Actor
from switchyard.service.core.writes.clock import IdGenerator
from switchyard.service.job import bulk_actions, job_control, jobs, tasks
from switchyard.store.jobs.jobs import JobFilter
from tests.builders import a_request
from tests.service.rig import ADMIN, Clock, Rig, RigAgent, running


@pytest.fixture
def rig(store_url: str, tmp_path: Path) -> Iterator[Rig]:
    """Ids made by the rig's own clock, so that ages can be told."""
    clock = Clock()
    with running(store_url, tmp_path, clock=clock, ids=IdGenerator(clock)) as opened:
        yield opened


@pytest.fixture(autouse=True)
def agent(rig: Rig) -> RigAgent:
    """The agent of a cluster that could run the jobs: otherwise they would be rejected."""
    return rig.cluster("alpha")


def submit(rig: Rig, *, actor: Actor = ADMIN, **fields: Any) -> str:
    return rig.submit(a_request(**fields), actor=actor).id


def cancel(rig: Rig, selector: JobSelector | None = None, *, actor: Actor = ADMIN, **rest: Any) -> list[Any]:
    """All rounds."""
    found: list[Any] = []
    cursor = None
    while True:
        wanted = CancelMany(selector or JobSelector(), cursor=cursor, **rest)
        found.append(bulk_actions.cancel_many(rig.context, actor, wanted))
        cursor = found[-1].next
        if cursor is None:
            return found


def test_a_round_is_cut_into_short_transactions_with_other_writes_between(rig: Rig, monkeypatch: Any) -> None:
    monkeypatch.setattr(bulk_actions, "PIECE_JOBS", 3)
    mine = [submit(rig, labels={"run": "7"}, hold=True) for _ in range(8)]
    pieces: list[tuple[str, int, int]] = []
    call_large = rig.committer.call_large

    def noted(function: Any, *, locks: Any, user: str) -> Any:
        writes: list[int] = []

        def counted(batch: Any) -> Any:
            writes.append(batch.writes)
            return function(batch)

        cancelled = call_large(counted, locks=locks, user=user)
        pieces.append((user, len(locks), writes[0]))
        assert rig.job(submit(rig, hold=True)).state is State.PENDING, "a submit between two pieces"
        return cancelled

    monkeypatch.setattr(rig.committer, "call_large", noted)
    [done] = cancel(rig, JobSelector(labels={"run": "7"}))
    assert pieces == [(ADMIN.id, 3, 1), (ADMIN.id, 3, 1), (ADMIN.id, 2, 1)], "each alone in its transaction"
    assert (done.asked, sorted(done.ids)) == (8, mine)
    assert {rig.job(job).state for job in mine} == {State.CANCELLED}


def test_rounds_are_bounded_and_meet_every_job_once(rig: Rig) -> None:
    mine = [submit(rig, labels={"run": "7"}, hold=True) for _ in range(7)]
    other = submit(rig, labels={"run": "70"}, hold=True)
    rounds = cancel(rig, JobSelector(labels={"run": "7"}), limit=3, reason="wrong data")
    assert [len(each.ids) for each in rounds] == [3, 3, 1]
    assert sorted(job for each in rounds for job in each.ids) == mine
    assert {rig.job(job).state for job in mine} == {State.CANCELLED}
    assert rig.job(mine[0]).reason == "cancelled by local-admin: wrong data"
    assert rig.kinds(mine[0])[-1] == "cancelled"
    assert rig.job(other).state is State.PENDING
    assert sum(each.asked for each in cancel(rig, JobSelector(labels={"run": "7"}))) == 0, "they are over"


def test_what_a_cluster_has_is_asked_to_end_and_arrays_with_it(rig: Rig, agent: RigAgent) -> None:
    job, array = submit(rig), submit(rig, array="0-2")
    agent.lease()
    (found,) = cancel(rig, JobSelector(cluster="alpha"))
    assert sorted(found.ids) == sorted([job, array])
    assert [rig.job(each).cancel_requested for each in (job, array)] == [True, True]
    assert rig.job(job).state is not State.CANCELLED, "only its cluster can say so"
    (again,) = cancel(rig, JobSelector(cluster="alpha"))
    assert again.ids == [], "asked once is asked"


def test_a_dry_run_changes_nothing(rig: Rig) -> None:
    job = submit(rig, hold=True)
    (found,) = cancel(rig, everything=True, dry_run=True)
    assert (found.asked, found.ids) == (1, [job])
    assert rig.job(job).state is State.PENDING


def test_selectors(rig: Rig) -> None:
    rig.project("p")
    job = submit(rig, project="p", domain="production", hold=True, labels={"a": "b", "c": "d"})
    submit(rig, hold=True)
    for selector in (
        JobSelector(project="p"),
        JobSelector(domain="production"),
        JobSelector(labels={"a": "b"}, owner="local-admin"),
        JobSelector(states=[State.PENDING, State.SUCCEEDED], project="p"),
    ):
        (found,) = cancel(rig, selector, dry_run=True)
        assert found.ids == [job], selector
    for selector in (
        JobSelector(labels={"a": "b", "c": "x"}),
        JobSelector(owner="nobody"),
        JobSelector(cluster="alpha"),
        JobSelector(states=[State.SUCCEEDED]),
        JobSelector(states=[State.RUNNING]),
    ):
        (found,) = cancel(rig, selector, dry_run=True)
        assert found.ids == [], selector


def test_others_jobs_are_counted_and_left_alone(rig: Rig) -> None:
    rig.project("p")
    ann = rig.user("ann", (Role.SUBMIT, GrantTarget.PROJECT, "p"))
    ben = rig.user("ben", (Role.SUBMIT, GrantTarget.PROJECT, "p"))
    of_ann, of_ben = (submit(rig, actor=who, project="p", hold=True) for who in (ann, ben))
    secret = submit(rig, project=rig.project("q"), hold=True)
    (found,) = cancel(rig, actor=ann, everything=True)
    assert (found.ids, found.refused) == ([of_ann], 1), "what she may not see is not even counted"
    assert {rig.job(job).state for job in (of_ben, secret)} == {State.PENDING}
    with pytest.raises(Denied):
        cancel(rig, JobSelector(project="elsewhere"), actor=ann)


@pytest.mark.parametrize(
    ("wanted", "error"),
    [(CancelMany(), BadRequest), (CancelMany(everything=True, cursor="0" * 25), Malformed)],
)
def test_mistakes(rig: Rig, wanted: CancelMany, error: type[Exception]) -> None:
    with pytest.raises(error):
        bulk_actions.cancel_many(rig.context, ADMIN, wanted)


def test_jobs_and_events_by_age(rig: Rig) -> None:
    old = submit(rig, hold=True)
    rig.clock.wait(100)
    young = submit(rig, hold=True)
    rig.clock.wait(5)

    def listed(since_s: int | None) -> list[str]:
        wanted = JobFilter(oldest=bulk_actions.lowest_id_since(rig.context, since_s))
        page = jobs.job_list(rig.context, ADMIN, wanted, before=None, limit=10, with_spec=False)
        return [job.id for job in page.items]

    assert (listed(None), listed(200), listed(10), listed(1)) == ([young, old], [young, old], [young], [])

    def happened(since_s: int | None) -> list[str]:
        return [event.job for event in jobs.all_events(rig.context, ADMIN, after=0, limit=10, since_s=since_s).items]

    assert (happened(None), happened(200), happened(10), happened(1)) == ([old, young], [old, young], [young], [])
    jobs.job_cancel(rig.context, ADMIN, old, "")
    assert (happened(1), happened(10)) == ([old], [young, old])


def test_jobs_by_ids(rig: Rig) -> None:
    made = [submit(rig, hold=True) for _ in range(4)]
    page = jobs.job_list(rig.context, ADMIN, JobFilter(ids=[made[2], made[0]]), before=None, limit=10, with_spec=False)
    assert ([job.id for job in page.items], page.next) == ([made[2], made[0]], None)


def test_tasks_by_state_in_pages(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    job = submit(rig, array="0-99", hold=True)
    job_control.tasks_cancel(rig.context, ADMIN, job, job_control.IdSet.parse("3,50-52,98"))
    monkeypatch.setattr(tasks, "SCAN_MAX", 40)  # a page ends when it has looked at so many

    def walk(*states: State, limit: int) -> list[int]:
        found: list[int] = []
        after: int | None = -1
        while after is not None:
            page, after = tasks.task_list(rig.context, ADMIN, job, states=frozenset(states), after=after, limit=limit)
            assert len(page) <= limit
            found += [task.index for task in page]
        return found

    assert walk(limit=7) == list(range(100))
    assert walk(State.CANCELLED, limit=2) == [3, 50, 51, 52, 98]
    assert walk(State.CANCELLED, State.PENDING, limit=100) == list(range(100))
    assert walk(State.RUNNING, limit=10) == []
