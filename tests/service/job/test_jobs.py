"""Jobs seen from outside: look, cancel, explain; each may see what is theirs to see."""

from __future__ import annotations

import pytest

from switchyard.errors import BadRequest, Denied, NoSuchJob
from switchyard.model.cluster.cluster import ClusterChange, Load
from switchyard.model.cluster.verdict import Answer
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import ObservedState, ReportAnswer
from switchyard.model.rules.access import GrantTarget, Role
from switchyard.service.cluster import clusters
from switchyard.service.job import explanation, jobs
from switchyard.service.lifecycle.visibility import PREFIX_MIN
from switchyard.store.jobs.jobs import JobFilter
from tests.builders import a_graph, a_request
from tests.service.rig import ADMIN, Rig


def test_a_job_is_found_by_its_id_and_by_an_unambiguous_prefix(rig: Rig) -> None:
    one = rig.submit().id
    assert rig.job(one).id == rig.job(one.lower()).id == one
    pair = ["", "-"]
    while pair[0][:PREFIX_MIN] != pair[1][:PREFIX_MIN]:  # ids begin with the time, which may pass on between the two
        pair = [rig.submit().id, rig.submit().id]
    shared = pair[0][:PREFIX_MIN]
    with pytest.raises(BadRequest, match="more than one"):
        rig.job(shared)
    for bad in ("", "ABCDE", "!" * 10, one[:-1] + "\n", "Z" * 26, "ZZZZZZ", one + "0", "%", "'; --"):
        with pytest.raises(NoSuchJob) as caught:
            rig.job(bad)
        assert caught.value.next_step


def test_others_see_a_job_only_with_a_grant_on_its_project(rig: Rig) -> None:
    rig.project("web")
    ann = rig.user("ann", (Role.SUBMIT, GrantTarget.PROJECT, "web"))
    bob, eve = rig.user("bob", (Role.VIEW, GrantTarget.PROJECT, "web")), rig.user("eve")
    rig.cluster("alpha")
    made = rig.submit(a_request(project="web"), actor=ann).id

    def seen(actor) -> list[str]:
        page = jobs.job_list(rig.context, actor, JobFilter(), before=None, limit=10, with_spec=False)
        return [job.id for job in page.items]

    assert seen(ann) == seen(bob) == seen(ADMIN) == [made]
    assert seen(eve) == []
    for read in (jobs.job_get, explanation.job_explain):
        assert read(rig.context, bob, made)
        with pytest.raises(NoSuchJob):
            read(rig.context, eve, made)
    with pytest.raises(NoSuchJob):
        jobs.job_cancel(rig.context, eve, made, "")
    with pytest.raises(Denied, match="operate on project web"):
        jobs.job_cancel(rig.context, bob, made, "")
    with pytest.raises(Denied):
        jobs.job_list(rig.context, eve, JobFilter(project="web"), before=None, limit=10, with_spec=False)
    assert [e.job for e in jobs.all_events(rig.context, bob, after=0, limit=10).items] == [made]
    assert jobs.all_events(rig.context, eve, after=0, limit=10).items == []


def test_ones_own_job_stays_visible_when_the_grant_is_gone(rig: Rig) -> None:
    rig.project("web")
    ann = rig.user("ann")
    grant = rig.grant("ann", Role.SUBMIT, GrantTarget.PROJECT, "web")
    assert ann.user_id is not None
    made = rig.submit(a_request(project="web"), actor=rig.actor(ann.user_id)).id
    from switchyard.service.access import users

    users.grant_delete(rig.context, ADMIN, grant)
    ann = rig.actor(ann.user_id)
    assert jobs.job_get(rig.context, ann, made).id == made
    assert [event.job for event in jobs.all_events(rig.context, ann, after=0, limit=10).items] == [made]
    with pytest.raises(Denied):
        jobs.job_cancel(rig.context, ann, made, "")


# --- cancel


def test_a_job_that_nobody_has_is_cancelled_at_once(lite: Rig) -> None:
    waiting = lite.submit(a_request())
    agent = lite.cluster("alpha")
    assigned = lite.submit()
    assert waiting.state == "REJECTED"
    job = jobs.job_cancel(lite.context, ADMIN, assigned.id, "changed my mind")
    assert (job.state, job.cancel_requested) == (State.CANCELLED, True)
    assert job.reason == "cancelled by local-admin: changed my mind"
    assert job.ended_us == lite.clock()
    assert agent.lease() == []
    assert lite.kinds(assigned.id) == ["accepted", "cancelled"]


def test_a_leased_job_is_cancelled_only_by_its_agents_word(lite: Rig) -> None:
    agent = lite.cluster("alpha")
    made = lite.submit()
    held = agent.lease_one()
    job = jobs.job_cancel(lite.context, ADMIN, made.id, "")
    assert (job.state, job.cancel_requested, job.ended_us) == (State.ASSIGNED, True, None)
    assert jobs.job_cancel(lite.context, ADMIN, made.id, "again").reason == "cancelled by local-admin"
    assert agent.report(held, ObservedState.RUNNING) is ReportAnswer.TAKEN
    assert lite.job(made.id).cancel_requested
    assert agent.report(held, ObservedState.CANCELLED, signal=15) is ReportAnswer.TAKEN
    assert (lite.job(made.id).state, lite.job(made.id).signal) == (State.CANCELLED, 15)
    assert lite.kinds(made.id) == ["accepted", "leased", "cancel-requested", "running", "cancelled"]


def test_a_job_that_ended_by_itself_stays_as_it_ended(lite: Rig) -> None:
    agent = lite.cluster("alpha")
    made = lite.submit()
    held = agent.lease_one()
    jobs.job_cancel(lite.context, ADMIN, made.id, "")
    agent.report(held, ObservedState.SUCCEEDED, exit_code=0)
    before = lite.row(made.id)
    assert jobs.job_cancel(lite.context, ADMIN, made.id, "too late").state is State.SUCCEEDED
    assert lite.row(made.id) == before


def test_a_cancel_and_a_lease_in_one_batch_agree(rig: Rig) -> None:
    agent = rig.cluster("alpha")
    made = rig.submit()
    import threading

    done: list[State] = []
    thread = threading.Thread(target=lambda: done.append(jobs.job_cancel(rig.context, ADMIN, made.id, "").state))
    thread.start()
    given = agent.poll()
    thread.join()
    job = rig.job(made.id)
    assert (job.state is State.CANCELLED) == (given.leases == [])
    assert job.cancel_requested
    assert done == [job.state]


@pytest.mark.parametrize("reason", ["a\x00b", "two\nlines", "\x1b[2J"])
def test_a_reason_that_no_table_can_show_is_kept_readable(rig: Rig, reason: str) -> None:
    rig.cluster("alpha")
    made = rig.submit()
    assert jobs.job_cancel(rig.context, ADMIN, made.id, reason).reason.isprintable()


# --- explain


def test_an_explanation_has_the_verdicts_of_then_and_of_now(lite: Rig) -> None:
    lite.cluster("alpha")
    made = lite.submit()
    lite.cluster("beta", graph=a_graph(cores=1, memory_gib=1))
    clusters.cluster_change(lite.context, ADMIN, "alpha", ClusterChange(is_cordoned=True, reason="new disks"))
    found = explanation.job_explain(lite.context, ADMIN, made.id)
    assert found.plan is not None
    assert (found.plan.chosen, found.plan.outcome, found.plan.seed) == ("alpha", "assign", made.id)
    assert [(v.cluster, v.say) for v in found.plan.verdicts] == [("alpha", Answer.YES)]
    assert [(v.cluster, v.say, v.step) for v in found.now] == [
        ("alpha", Answer.WAIT, "health"),
        ("beta", Answer.YES, "match"),
    ]
    assert any("waits in line" in note for note in found.notes)


def test_an_explanation_judges_with_the_owners_grants_not_the_readers(lite: Rig) -> None:
    """An administrator may submit everywhere; that is no reason why the user's job should run."""
    lite.cluster("secret", is_private=True)
    ann = lite.user("ann", (Role.VIEW, GrantTarget.CLUSTER, "secret"))
    made = lite.submit(actor=ann)
    assert made.state == "REJECTED"
    found = explanation.job_explain(lite.context, ADMIN, made.id)
    assert [(v.cluster, v.say, v.step) for v in found.now] == [("secret", Answer.NO, "grant")]
    assert found.hints == ["a grant to submit to secret"]


def test_an_explanation_names_no_cluster_that_its_reader_may_not_see(lite: Rig) -> None:
    lite.project("web")
    lite.cluster("open")
    lite.cluster("secret", is_private=True)
    ann = lite.user("ann", (Role.SUBMIT, GrantTarget.PROJECT, "web"), (Role.SUBMIT, GrantTarget.CLUSTER, "secret"))
    bob = lite.user("bob", (Role.VIEW, GrantTarget.PROJECT, "web"))
    made = lite.submit(a_request(project="web"), actor=ann)
    mine, theirs = (explanation.job_explain(lite.context, actor, made.id) for actor in (ann, bob))
    assert mine.plan is not None
    assert theirs.plan is not None
    assert {v.cluster for v in mine.plan.verdicts} == {v.cluster for v in mine.now} == {"open", "secret"}
    assert {v.cluster for v in theirs.plan.verdicts} == {v.cluster for v in theirs.now} == {"open"}


def test_a_full_disk_of_the_agent_is_the_reason_why_a_job_waits(lite: Rig) -> None:
    agent = lite.cluster("alpha")
    lite.cluster("beta")
    trouble = "disk full: 63.8MiB free, 64MiB wanted"
    snapshots = lite.context.snapshots
    snapshots.take_load(agent.id, Load(trouble=trouble), lite.clock())
    job = lite.submit(a_request(cluster="alpha")).id
    assert lite.job(job).reason == f"its cluster takes nothing new now: {trouble}"
    told = explanation.job_explain(lite.context, ADMIN, job)
    (verdict,) = [verdict for verdict in told.now if verdict.cluster == "alpha"]
    assert (verdict.say, verdict.reason.endswith(f"; takes nothing new now: {trouble}")) == (Answer.YES, True)
    waits = f"assigned to alpha: it waits in line for its lease; its cluster takes nothing new now: {trouble}"
    assert waits in told.notes
    second = lite.join("alpha", "second")
    second.sync()
    snapshots.take_load(second.id, Load(), lite.clock())
    assert lite.job(job).reason == "", "another agent of the cluster takes work"
    snapshots.take_load(second.id, Load(trouble=trouble), lite.clock())
    snapshots.take_load(agent.id, Load(), lite.clock())
    attempt = agent.lease_one()
    snapshots.take_load(agent.id, Load(trouble=trouble), lite.clock())
    assert (attempt.job, lite.job(job).reason) == (job, ""), "it is leased"
