"""What explain and the list of tasks say of an array on several clusters: who has which tasks, who refused them."""

from __future__ import annotations

import pytest

from switchyard.model.cluster.poll import AttemptRef, Room
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause
from switchyard.model.rules.access import GrantTarget, Role
from switchyard.service.job import task_notes, tasks
from switchyard.service.job.explanation import job_explain
from tests.builders import a_graph, a_request
from tests.service.lookups import attempts
from tests.service.rig import ADMIN, Rig, RigAgent

NO_ACCOUNT = "The user ann has no account on this cluster."


@pytest.fixture
def agents(lite: Rig) -> dict[str, RigAgent]:
    return {name: lite.cluster(name, graph=a_graph(cores=8)) for name in ("alpha", "beta", "gamma")}


def lease(agent: RigAgent, count: int) -> dict[int, AttemptRef]:
    return attempts(agent.lease(count, Room(count)))


def refuse(agent: RigAgent, count: int, reason: str = NO_ACCOUNT) -> None:
    for attempt in lease(agent, count).values():
        agent.report(attempt, ObservedState.FAILED, reason=reason, cause=Cause.CLUSTER)


def reasons(rig: Rig, job: str) -> dict[int, str]:
    listed, _ = tasks.task_list(rig.context, ADMIN, job, states=frozenset(), after=-1, limit=100)
    return {task.index: task.reason for task in listed if task.reason}


def test_explain_tells_which_clusters_have_which_tasks_and_which_refused_them(
    lite: Rig, agents: dict[str, RigAgent]
) -> None:
    job = lite.submit(a_request(array="0-5")).id
    refuse(agents["alpha"], 2)
    held = lease(agents["gamma"], 1)
    assert list(held) == [0]
    notes = job_explain(lite.context, ADMIN, job).notes
    assert "gamma has or had task 0" in notes
    assert f"alpha refused tasks 0-1 before the start: {NO_ACCOUNT}" in notes
    assert reasons(lite, job) == {1: NO_ACCOUNT}, "it waits, as a cluster refused it"
    for name, count in (("gamma", 0), ("beta", 5)):
        held |= lease(agents[name], count) if count else {}
        for index, attempt in held.items():
            code = 3 if index == 4 else 0
            seen = ObservedState.FAILED if code else ObservedState.SUCCEEDED
            agents[name].report(attempt, ObservedState.RUNNING)
            agents[name].report(attempt, seen, exit_code=code, cause=Cause.JOB, reason="exit 3" if code else "")
        held = {}
    assert lite.job(job).state is State.FAILED
    notes = job_explain(lite.context, ADMIN, job).notes
    assert [note for note in notes if " had " in note] == ["beta had tasks 1-5", "gamma had task 0"]
    assert "task 4 failed on beta: exit 3" in notes
    assert reasons(lite, job) == {4: "exit 3"}


def test_a_task_that_all_clusters_refused_has_the_reason_of_each(lite: Rig, agents: dict[str, RigAgent]) -> None:
    job = lite.submit(a_request(array="0-1")).id
    for name in ("beta", "gamma", "alpha"):
        refuse(agents[name], 2, f"{name} does not know her")
    told = "beta refused it: beta does not know her; gamma refused it: gamma does not know her; alpha: alpha does not"
    assert {index: text.startswith(told) for index, text in reasons(lite, job).items()} == {0: True, 1: True}
    notes = job_explain(lite.context, ADMIN, job).notes
    assert [note for note in notes if "refused" in note or "failed" in note][1:] == [
        "beta refused tasks 0-1 before the start: beta does not know her",
        "gamma refused tasks 0-1 before the start: gamma does not know her",
        "tasks 0-1 failed on alpha: alpha does not know her",
    ]


def test_no_note_names_a_cluster_that_its_reader_may_not_see(lite: Rig) -> None:
    lite.project("web")
    secret, open_ = lite.cluster("secret", is_private=True), lite.cluster("open")
    ann = lite.user("ann", (Role.SUBMIT, GrantTarget.PROJECT, "web"), (Role.SUBMIT, GrantTarget.CLUSTER, "secret"))
    bob = lite.user("bob", (Role.VIEW, GrantTarget.PROJECT, "web"))
    job = lite.submit(a_request(array="0-3", project="web"), actor=ann).id
    refuse(secret, 1)
    lease(open_, 1)
    lease(secret, 1)
    for actor, name in ((ann, "secret"), (bob, "(hidden)")):
        notes = job_explain(lite.context, actor, job).notes
        assert f"{name} refused task 0 before the start: {NO_ACCOUNT}" in notes
        assert f"{name} has or had task 1" in notes
    assert "secret" not in str(job_explain(lite.context, bob, job))


def test_of_a_large_array_the_tasks_are_counted(
    lite: Rig, agents: dict[str, RigAgent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_notes, "TASKS_READ_MAX", 3)
    job = lite.submit(a_request(array="0-5")).id
    lease(agents["alpha"], 4)
    assert "alpha has or had 4 tasks" in job_explain(lite.context, ADMIN, job).notes


@pytest.mark.parametrize(
    ("indexes", "text"),
    [
        ([3], "task 3"),
        ([0, 1, 2, 7], "tasks 0-2,7"),
        (range(0, 100, 2), "tasks 0-98:2"),
        ([number * number for number in range(20)], "tasks 0-1,4,9,16,25,36,49,64 and 11 more"),
    ],
)
def test_a_set_of_tasks_is_shown_in_short(indexes: list[int], text: str) -> None:
    assert task_notes.show_tasks(indexes) == text
