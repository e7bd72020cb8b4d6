"""What one reader is told of a job, and another is not; and who is told what would let a job run."""

from __future__ import annotations

import pytest

from switchyard.model.cluster.cluster import ClusterChange, ClusterRequest
from switchyard.model.cluster.selection import Select
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.rules.access import GrantTarget, Role
from switchyard.service.cluster import clusters
from switchyard.service.job.explanation import job_explain
from tests.builders import a_graph, a_request
from tests.service.lines import quote
from tests.service.rig import ADMIN, Rig


def cordon(rig: Rig, name: str) -> None:
    clusters.cluster_change(rig.context, ADMIN, name, ClusterChange(is_cordoned=True))


def test_a_job_that_runs_or_is_over_is_told_nothing_that_would_let_it_run(lite: Rig) -> None:
    agent = lite.cluster("alpha")
    job = lite.submit().id
    held = agent.lease_one()
    agent.report(held, ObservedState.RUNNING)
    cordon(lite, "alpha")
    assert job_explain(lite.context, ADMIN, job).hints == []
    agent.report(held, ObservedState.SUCCEEDED)
    assert job_explain(lite.context, ADMIN, job).hints == []


def test_a_job_in_line_where_nobody_is_left_is_told_what_would_help(lite: Rig) -> None:
    lite.cluster("alpha")
    job = lite.submit().id
    lite.clock.wait(3600)
    lite.context.snapshots.rebuild_world()
    assert job_explain(lite.context, ADMIN, job).hints == ["bring the agent of alpha back"]


@pytest.mark.parametrize("is_hers", [False, True])
def test_shares_are_told_of_projects_that_the_reader_may_view(lite: Rig, is_hers: bool) -> None:
    lite.cluster("alpha", graph=a_graph(cores=4))
    for name in ("web", "secret"):
        lite.project(name)
        lite.submit(a_request(project=name))
    ann = lite.user("ann", (Role.SUBMIT, GrantTarget.PROJECT, "web"))
    if is_hers:
        lite.grant("ann", Role.VIEW, GrantTarget.PROJECT, "secret")
        ann = lite.actor(ann.user_id or "")
    job = lite.submit(a_request(project="web"), actor=ann).id
    standing = job_explain(lite.context, ann, job).standing
    assert standing is not None
    assert standing.ahead == 2
    assert {share.project for share in standing.shares} == ({"web", "secret"} if is_hers else {"web"})


def test_quotes_of_clusters_that_the_reader_may_not_see_are_not_told(lite: Rig) -> None:
    open_, hidden = lite.cluster("open"), lite.cluster("hidden", is_private=True)
    request = a_request(select=Select("soonest"), project="web")
    lite.project("web")
    quote(open_, request, eta_us=0)
    quote(hidden, request, eta_us=900_000_000)
    job = lite.submit(request).id
    ann = lite.user("ann", (Role.VIEW, GrantTarget.PROJECT, "web"))
    assert {each.cluster for each in job_explain(lite.context, ADMIN, job).quotes} == {"open", "hidden"}
    told = job_explain(lite.context, ann, job)
    assert {each.cluster for each in told.quotes} == {"open"}
    assert told.plan is not None
    assert {each.cluster for each in (*told.now, *told.plan.verdicts)} == {"open"}


def test_a_cordoned_cluster_without_a_living_agent_takes_more_than_to_be_uncordoned(lite: Rig) -> None:
    alpha = lite.cluster("alpha")
    cordon(lite, "alpha")
    job = lite.submit().id
    assert job_explain(lite.context, ADMIN, job).hints == ["uncordon alpha (`yard cluster uncordon alpha`)"]
    lite.clock.wait(3600)
    lite.context.snapshots.rebuild_world()
    both = "uncordon alpha (`yard cluster uncordon alpha`) and start an agent there"
    assert job_explain(lite.context, ADMIN, job).hints == [both]
    alpha.seen()
    clusters.cluster_create(lite.context, ADMIN, ClusterRequest("beta"))
    cordon(lite, "beta")
    assert job_explain(lite.context, ADMIN, job).hints[1].startswith("uncordon beta (`yard cluster uncordon beta`) and")
