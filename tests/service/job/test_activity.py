"""Counts that the dashboard shows: by field, over time, and as flows; on both databases, and only of visible jobs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from switchyard.features.dashboard.service import job_groups
from switchyard.features.dashboard.service.job_groups import sorted_jobs
from switchyard.features.dashboard.service.queue_shares import queue_shares
from switchyard.features.dashboard.store import job_windows
from switchyard.model.rules.access import GrantTarget, Role
from switchyard.model.wire.api import JobChange
from switchyard.service.core.rights import Actor
from switchyard.service.job import stats, tasks
from switchyard.service.job.job_control import job_change
from switchyard.service.job.jobs import job_events, job_list, newest_job_events
from switchyard.service.lifecycle.visibility import HIDDEN
from switchyard.store.jobs.jobs import JobFilter
from tests.builders import a_request
from tests.service.rig import ADMIN, Rig


def counts(rig: Rig, actor: object, by: str, wanted: JobFilter | None = None) -> dict[str, int]:
    found = job_groups.count_groups(rig.context, actor, wanted or JobFilter(), by=by)  # type: ignore[arg-type]
    return dict(found.counts)


def test_jobs_are_counted_by_any_field_that_a_reader_may_see(rig: Rig) -> None:
    rig.cluster("vault", is_private=True)
    rig.cluster("plain")
    rig.project("web")
    ann = rig.user("ann", (Role.SUBMIT, GrantTarget.CLUSTER, "vault"))
    bob = rig.user("bob")
    rig.submit(a_request(cluster="vault"), actor=ann)
    rig.submit(a_request(cluster="plain"), actor=bob)
    rig.submit(a_request(project="web", cluster="plain"))
    assert counts(rig, ADMIN, "cluster") == {"plain": 2, "vault": 1}
    assert counts(rig, ann, "cluster") == {"vault": 1, "plain": 1}
    assert counts(rig, bob, "cluster") == {HIDDEN: 1, "plain": 1}
    assert counts(rig, ADMIN, "project") == {"default": 2, "web": 1}
    assert counts(rig, bob, "project") == {"default": 2}
    assert counts(rig, ADMIN, "state") == {"ASSIGNED": 3}
    assert counts(rig, ADMIN, "queue") == {"default": 3}
    assert counts(rig, ADMIN, "owner", JobFilter(project="default")) == {"ann": 1, "bob": 1}
    assert counts(rig, ADMIN, "workflow") == {"": 3}


def test_jobs_are_counted_by_the_keys_and_the_values_of_labels(rig: Rig) -> None:
    rig.cluster("plain")
    for labels in ({"run": "a", "team": "x"}, {"run": "a"}, {"run": "b"}, {}):
        rig.submit(a_request(labels=labels))
    rig.user("eve")
    count = partial(job_groups.count_groups, rig.context, ADMIN, JobFilter(), by="label")
    assert count().counts == [("run", 3), ("team", 1)]
    assert dict(count(key="run").counts) == {"a": 2, "b": 1, "": 1}
    assert dict(count(key='no"such').counts) == {"": 4}


def test_jobs_are_sorted_in_pages(rig: Rig) -> None:
    rig.cluster("plain")
    for name, priority in (("b", 1), ("c", 3), ("a", 2)):
        rig.clock.wait(1)
        rig.submit(a_request(name=name, priority=priority, hold=True))

    def names(order: str, offset: int = 0, actor: Actor = ADMIN) -> tuple[list[str], int | None]:
        found = sorted_jobs(rig.context, actor, JobFilter(), order=order, offset=offset, limit=2)
        return [job.name for job in found.jobs], found.following

    assert (names("priority"), names("priority", 2)) == ((["c", "a"], 2), (["b"], None))
    assert names("oldest")[0] == ["b", "c"]
    assert names("waited")[0] == ["b", "c"]
    assert names("name")[0] == ["a", "b"]
    assert names("ran")[0] == ["a", "c"], "none has started: the newest first"
    rig.project("apart")
    rig.submit(a_request(project="apart", name="unseen", priority=9))
    assert names("priority", actor=rig.user("eve"))[0] == ["c", "a"]


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (JobFilter(text="TRAIN"), ["train_1"]),
        (JobFilter(text="train_"), ["train_1"]),
        (JobFilter(text="%"), []),
        (JobFilter(queue="default"), ["other", "train_1"]),
        (JobFilter(queue="d_fault"), []),
    ],
)
def test_jobs_are_found_by_a_part_of_the_name_and_by_queue(rig: Rig, wanted: JobFilter, names: list[str]) -> None:
    rig.cluster("alpha")
    for name in ("train_1", "other"):
        rig.submit(a_request(name=name))
    found = job_list(rig.context, ADMIN, wanted, before=None, limit=10, with_spec=False)
    assert [job.name for job in found.items] == names


def test_activity_has_spans_of_time_and_flows(rig: Rig) -> None:
    rig.cluster("alpha")
    rig.submit()
    rig.clock.wait(600)
    rig.submit()
    rig.submit(a_request(hold=True))
    seen = stats.recent_activity(rig.context, ADMIN, since_s=3600, spans=60)
    assert len(seen.spans) == 60
    filled = [(dict(span.by_state), dict(span.by_cluster)) for span in seen.spans if span.by_state]
    assert filled[0] == ({"ASSIGNED": 1}, {"alpha": 1})
    assert {key: sum(span.by_state[key] for span in seen.spans) for key in ("ASSIGNED", "PENDING")} == {
        "ASSIGNED": 2,
        "PENDING": 1,
    }
    assert dict(seen.flows) == {("any cluster", "alpha"): 2, ("any cluster", "no cluster yet"): 1}
    assert (seen.jobs, seen.is_whole) == (3, True)
    rig.clock.wait(7200)
    assert stats.recent_activity(rig.context, ADMIN, since_s=3600, spans=60).jobs == 0


def test_counts_say_when_they_are_of_the_newest_only(lite: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    lite.cluster("alpha")
    for _ in range(5):
        lite.submit()
    monkeypatch.setattr(job_groups, "READ_MAX", 3)
    found = job_groups.count_groups(lite.context, ADMIN, JobFilter(), by="state")
    assert (found.counts, found.jobs_read, found.is_whole) == ([("ASSIGNED", 3)], 3, False)


@pytest.mark.parametrize("order", ["waited", "oldest"])
def test_many_jobs_of_one_user_hide_no_others(rig: Rig, monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    rig.cluster("alpha")
    ann, eve = rig.user("ann"), rig.user("eve")
    users = (ann, *[eve] * 9) if order != "oldest" else (*[eve] * 9, ann)
    for user in users:
        rig.submit(a_request(name=user.name, hold=True), actor=user)
    monkeypatch.setattr(job_groups, "READ_MAX", 3)
    monkeypatch.setattr(job_groups, "READ_MAX", 3)
    context = replace(rig.context, list_budget=3)

    def first_names(wanted: JobFilter) -> tuple[list[str], bool]:
        found = sorted_jobs(rig.context, ADMIN, wanted, order=order, offset=0, limit=9)
        return [job.name for job in found.jobs], found.is_whole

    wanted = JobFilter(owner="ann")
    assert first_names(wanted) == (["ann"], True)
    assert first_names(JobFilter()) == (["eve"] * 3, False)
    listed = job_list(context, ADMIN, wanted, before=None, limit=9, with_spec=False, reads_max=4)
    assert ([job.name for job in listed.items], listed.next) == (["ann"], None)
    assert counts(rig, ADMIN, "state", wanted) == {"PENDING": 1}
    monkeypatch.setattr(job_windows, "WINDOWS_MAX", 2)
    assert first_names(wanted) == ([], False), "not all jobs were read, and the answer says so"


def test_the_map_of_an_array_has_a_cell_for_every_task(lite: Rig) -> None:
    lite.cluster("alpha")
    job = lite.submit(a_request(array="0-98:2")).id
    drawn = tasks.task_map(lite.context, ADMIN, job)
    assert drawn is not None
    assert [(cell.word, cell.index) for cell in drawn.cells] == [("waiting", index) for index in range(0, 99, 2)]
    assert tasks.task_map(lite.context, ADMIN, lite.submit().id) is None


def test_a_large_array_is_drawn_in_few_cells(lite: Rig) -> None:
    lite.cluster("alpha")
    drawn = tasks.task_map(lite.context, ADMIN, lite.submit(a_request(array="0-99999")).id)
    assert drawn is not None
    assert (drawn.total, drawn.per_cell, len(drawn.cells)) == (100_000, 50, 2000)


def test_cores_of_hidden_projects_are_in_no_sum(rig: Rig) -> None:
    agent = rig.cluster("alpha")
    rig.project("web")
    bob = rig.user("bob")
    rig.submit(a_request(project="web"))
    rig.submit(actor=bob)
    assert len(agent.lease()) == 2
    assert queue_shares(rig.context, ADMIN).cores == 2
    shares = queue_shares(rig.context, bob)
    assert ([share.project for share in shares.projects], shares.cores) == (["default"], 1)


def test_an_array_in_too_many_ranges_has_counts_and_no_wrong_map(lite: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = lite.cluster("alpha")
    job = lite.submit(a_request(array="0-9")).id
    for _ in range(3):
        assert agent.lease(want=1)
    monkeypatch.setattr(tasks, "RANGES_MAX", 3)
    drawn = tasks.task_map(lite.context, ADMIN, job)
    assert drawn is not None
    assert [cell.word for cell in drawn.cells] == ["assigned"] * 3 + ["waiting"] * 7
    assert agent.lease(want=1)
    assert tasks.task_map(lite.context, ADMIN, job) == tasks.TaskMap(10, 0)


def test_the_newest_events_of_a_job_are_its_last_ones(rig: Rig) -> None:
    rig.cluster("alpha")
    job = rig.submit().id
    for is_held in (True, False) * 3:
        job_change(rig.context, ADMIN, job, JobChange(hold=is_held))
    every = job_events(rig.context, ADMIN, job, after=0, limit=100).items
    assert len(every) > 5
    assert newest_job_events(rig.context, ADMIN, job, limit=4) == (every[-4:], False)
    assert newest_job_events(rig.context, ADMIN, job, limit=len(every)) == (every, True)
