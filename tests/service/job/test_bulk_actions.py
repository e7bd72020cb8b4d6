"""Actions on many jobs: what one would touch, and that it touches exactly these jobs once. On both databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from switchyard.errors import Denied, Throttled
from switchyard.model.job.bulk_actions import ActedOnJobs, ActOnJobs, BulkAction, JobSelection
from switchyard.model.job.job import State
from switchyard.model.rules.access import GrantTarget, Role
from switchyard.service.core.rights import Actor
from switchyard.service.job import bulk_actions, jobs
from switchyard.service.submit.retry import retry_many
from switchyard.store.jobs.jobs import JobFilter
from tests.builders import a_request
from tests.service.rig import ADMIN, Rig, RigAgent, running


@pytest.fixture
def rig(store_url: str, tmp_path: Path) -> Iterator[Rig]:
    with running(store_url, tmp_path) as opened:
        yield opened


@pytest.fixture(autouse=True)
def agent(rig: Rig) -> RigAgent:
    """The agent of a cluster that could run the jobs: otherwise they would be rejected."""
    return rig.cluster("alpha")


def submit(rig: Rig, *, actor: Actor = ADMIN, **fields: Any) -> str:
    return rig.submit(a_request(**fields), actor=actor).id


def select(
    rig: Rig, action: BulkAction, *, actor: Actor = ADMIN, limit: int = 100, **fields: Any
) -> list[JobSelection]:
    """All rounds."""
    rounds: list[JobSelection] = []
    cursor = None
    while True:
        rounds.append(
            bulk_actions.select_jobs(rig.context, actor, JobFilter(**fields), action, before=cursor, limit=limit)
        )
        cursor = rounds[-1].next
        if cursor is None:
            return rounds


def act(rig: Rig, action: BulkAction, ids: list[str], *, actor: Actor = ADMIN, **fields: Any) -> ActedOnJobs:
    if action is BulkAction.RETRY:
        return retry_many(rig.context, rig.submits, actor, ids)
    return bulk_actions.change_many(rig.context, actor, ActOnJobs(action, ids, **fields))


def test_a_selection_counts_what_an_action_would_touch(rig: Rig, agent: RigAgent) -> None:
    leased = submit(rig, name="leased")
    agent.lease()
    held = submit(rig, name="held", hold=True)
    waits = submit(rig, name="waits")
    over = submit(rig, name="over", hold=True)
    jobs.job_cancel(rig.context, ADMIN, over, "")
    expected = {
        BulkAction.CANCEL: [waits, held, leased],
        BulkAction.HOLD: [waits],
        BulkAction.RELEASE: [held],
        BulkAction.PRIORITY: [waits, held, leased],
        BulkAction.RETRY: [],
    }
    assert {action: select(rig, action)[0].ids for action in BulkAction} == expected
    assert select(rig, BulkAction.RETRY, states=["CANCELLED", "PENDING"])[0].ids == [over]
    assert select(rig, BulkAction.CANCEL, text="HEL")[0].ids == [held]
    (found,) = select(rig, BulkAction.CANCEL, states=["PENDING", "CANCELLED"])
    assert [(part.state, part.owner, part.project, part.jobs) for part in found.counts] == [
        ("PENDING", "local-admin", "default", 1)
    ]
    assert [(job.id, job.name, job.state) for job in found.first] == [(held, "held", "PENDING")]
    rounds = select(rig, BulkAction.CANCEL, limit=2)
    assert [part.ids for part in rounds] == [[waits, held], [leased]]


def test_an_array_with_waiting_tasks_can_be_held_and_is_no_job_of_the_cluster(rig: Rig, agent: RigAgent) -> None:
    array = submit(rig, array="0-3")
    agent.lease(want=1)
    assert select(rig, BulkAction.HOLD)[0].ids == [array]
    whole = [row.id for row in [rig.row(array)] if row.cluster_id is not None]
    assert select(rig, BulkAction.CANCEL, cluster="alpha", is_by_task=True)[0].ids == whole


@pytest.mark.parametrize(
    ("action", "fields", "begin"),
    [
        (BulkAction.CANCEL, {"reason": "wrong data"}, {"hold": True}),
        (BulkAction.HOLD, {}, {}),
        (BulkAction.RELEASE, {}, {"hold": True}),
        (BulkAction.PRIORITY, {"priority": 7}, {"hold": True}),
        (BulkAction.RETRY, {}, None),
    ],
)
def test_an_action_touches_named_jobs_once(
    rig: Rig, monkeypatch: Any, action: BulkAction, fields: Any, begin: Any
) -> None:
    monkeypatch.setattr(bulk_actions, "PIECE_JOBS", 2)
    ids = [submit(rig, **({"hold": True} if begin is None else begin)) for _ in range(5)]
    if begin is None:
        for job in ids:
            jobs.job_cancel(rig.context, ADMIN, job, "")
    states = ["CANCELLED"] if begin is None else []
    (seen,) = select(rig, action, states=states)
    assert sorted(seen.ids) == sorted(ids)
    late = submit(rig, hold=begin is None or begin.get("hold", False))
    assert act(rig, action, [*seen.ids, seen.ids[0]], **fields) == ActedOnJobs(5)
    assert act(rig, action, seen.ids, **fields) == ActedOnJobs(0, 5), "a second tab"
    changed = [rig.job(job) for job in ids]
    if action is BulkAction.CANCEL:
        assert {(job.state, job.reason) for job in changed} == {
            (State.CANCELLED, "cancelled by local-admin: wrong data")
        }
    elif action is BulkAction.PRIORITY:
        assert {job.priority for job in changed} == {7}
    elif action is BulkAction.RETRY:
        page = jobs.job_list(rig.context, ADMIN, JobFilter(), before=None, limit=50, with_spec=False)
        assert sorted(job.retry_of for job in page.items if job.retry_of) == sorted(ids)
        assert select(rig, action, states=states)[0].ids == [], "what was retried is not offered again"
    else:
        assert {job.is_held for job in changed} == {action is BulkAction.HOLD}
        assert len({tuple(rig.kinds(job)) for job in ids}) == 1, "no event twice"
    assert (rig.job(late).state, rig.job(late).priority) != (State.CANCELLED, 7)


def test_jobs_that_refuse_are_named_with_the_reason(rig: Rig, agent: RigAgent) -> None:
    rig.project("p")
    ann = rig.user("ann", (Role.SUBMIT, GrantTarget.PROJECT, "p"))
    ben = rig.user("ben", (Role.SUBMIT, GrantTarget.PROJECT, "p"))
    of_ben, secret = submit(rig, actor=ben, project="p"), submit(rig, project=rig.project("q"), hold=True)
    over = submit(rig, actor=ann, project="p", hold=True)
    jobs.job_cancel(rig.context, ann, over, "")
    leased = submit(rig, actor=ann, project="p")
    agent.lease()
    mine = submit(rig, actor=ann, project="p")
    (seen,) = select(rig, BulkAction.CANCEL, actor=ann)
    assert sorted(seen.ids) == sorted([mine, leased])
    assert [(part.reason, part.jobs) for part in seen.refused] == [
        ("This needs the role operate on project p; ann has submit.", 1)
    ]
    done = act(rig, BulkAction.HOLD, [of_ben, secret, over, leased, mine, "0" * 26], actor=ann)
    assert (done.changed, done.unchanged) == (1, 0)
    assert {job.id: job.reason for job in done.refused} == {
        of_ben: "This needs the role operate on project p; ann has submit.",
        secret: f"There is no job {secret}, or it is not yours to see.",
        "0" * 26: f"There is no job {'0' * 26}, or it is not yours to see.",
        over: f"Job {over} is over: CANCELLED.",
        leased: f"Job {leased} has been handed over.",
    }
    refused = act(rig, BulkAction.RETRY, [mine, secret, over], actor=ann)
    assert (refused.changed, [job.id for job in refused.refused]) == (1, [mine, secret])
    with pytest.raises(Denied):
        select(rig, BulkAction.CANCEL, actor=ann, project="q")


def test_changes_of_others_jobs_are_audited_and_each_job_counts_for_the_limit(rig: Rig, monkeypatch: Any) -> None:
    rig.project("p")
    ann = rig.user("ann", (Role.OPERATE, GrantTarget.PROJECT, "p"))
    ids = [submit(rig, project="p", hold=True) for _ in range(3)]
    charged: list[int] = []
    monkeypatch.setattr(rig.context.changes, "charge", lambda _actor, units: charged.append(units))
    assert act(rig, BulkAction.PRIORITY, ids, actor=ann, priority=-3).changed == 3
    assert charged == [3]
    with rig.context.database.read() as tx:
        audited = tx.exec_driver_sql("SELECT object FROM audit WHERE action = 'job.change' AND actor = 'ann'").all()
    assert sorted(row[0] for row in audited) == sorted(ids)

    def refuse(_actor: Any, _units: int) -> None:
        raise Throttled

    monkeypatch.setattr(rig.context.changes, "charge", refuse)
    with pytest.raises(Throttled):
        act(rig, BulkAction.PRIORITY, ids, actor=ann, priority=-4)
    assert {rig.job(job).priority for job in ids} == {-3}, "all or none of a request"


@pytest.mark.parametrize("body", [{"action": "priority"}, {"action": "hold", "priority": 3}])
def test_a_priority_goes_with_its_action(body: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**body, "jobs": ["0" * 26]}, ActOnJobs)
