"""Submit with the tokens of clusters alone: who was chosen and why stays to be seen, and there the job stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from switchyard.features.rainbow.service import pollers, rainbow
from switchyard.features.rainbow.service.poller_access import authenticate_poller, poller_register
from switchyard.model.cluster.cluster import ClusterChange
from switchyard.model.cluster.poll import Report
from switchyard.model.cluster.selection import Select
from switchyard.model.cluster.verdict import Answer
from switchyard.model.job.job import ClusterToken, JobRequest, State
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.rules.access import GrantTarget, Role
from switchyard.model.wire.api import RetryRequest
from switchyard.service.access.submit_tokens import create_cluster_token
from switchyard.service.cluster import clusters, graphs
from switchyard.service.core.agents.fleet import AgentEntry
from switchyard.service.core.rights import Actor
from switchyard.service.job import explanation
from switchyard.service.submit import retry
from tests.builders import a_request
from tests.match.known_cases import forms_of
from tests.service.queued import promote, queued_rig
from tests.service.rig import ADMIN, Rig

GRAPH = json.dumps(forms_of({"graph": "keebler-3x12"})[0]).encode()
SMALL = b'{"nodes": 1, "each": {"core": 2}}'
PRICEY = Select("constraint", {"priorities": "- priority: 1\n  steps:\n  - filter: cost > 7\n  - select: first"})


class Town:
    """Clusters that only poll, each with its token."""

    def __init__(self, rig: Rig, **graph_of: bytes) -> None:
        self.rig, self.tokens = rig, {}
        self.entries: dict[str, AgentEntry] = {}
        for name, graph in graph_of.items():
            made = poller_register(rig.context, name, graphs.pack_graph(graph), invite=None)
            assert made is not None
            self.tokens[name] = made.token
            self.entries[name] = authenticate_poller(rig.context, name, made.secret)

    def request(self, *names: str, **fields: Any) -> JobRequest:
        return a_request(clusters=[ClusterToken(each, self.tokens[each]) for each in names], **fields)

    def submit(self, *names: str, **fields: Any) -> tuple[str, str]:
        """The job, and the cluster that the answer names."""
        request = self.request(*names, **fields)
        actor = rainbow.actor_of_cluster_tokens(self.rig.context, request.clusters)
        write = rainbow.decide(self.rig.context, self.rig.submits, actor, request, "the jobspec")
        assert self.rig.committer.do(write).cluster == write.cluster
        return write.insert.row.id, write.cluster

    def said(self, job: str) -> dict[str, tuple[Answer, str, str]]:
        plan = explanation.job_explain(self.rig.context, ADMIN, job).plan
        assert plan is not None
        return {each.cluster: (each.say, each.step, each.reason) for each in plan.verdicts}

    def fail(self, job: str, cluster: str) -> None:
        entry, context = self.entries[cluster], self.rig.context
        request = pollers.ReceiveRequest(entry=entry, most=0, lease_us=10**9, write=lambda _: "")
        given = pollers.receive_jobs(context, self.rig.yard.services.leasing, request)
        assert pollers.accept_jobs(context, entry, list(given))
        pollers.report_ends(
            context, entry, [(number, Report("", 0, ObservedState.FAILED, exit_code=1)) for number in given]
        )
        assert self.rig.job(job).state is State.FAILED


def cost(rig: Rig, **costs: int) -> None:
    for name, value in costs.items():
        clusters.cluster_change(rig.context, ADMIN, name, ClusterChange(state={"cost": value}))


def test_explain_has_the_verdicts_and_the_algorithm_by_which_it_was_chosen(lite: Rig) -> None:
    town = Town(lite, a=GRAPH, b=GRAPH, small=SMALL, other=GRAPH)
    cost(lite, a=5, b=9, small=9)
    job, chosen = town.submit("a", "b", "small", select=PRICEY, cores=6)
    found = explanation.job_explain(lite.context, ADMIN, job)
    assert found.plan is not None
    assert (chosen, found.plan.chosen, found.plan.algorithm) == ("b", "b", "constraint")
    said = town.said(job)
    assert said["a"][:2] == (Answer.WAIT, "select")
    assert said["b"][0] is Answer.YES
    assert said["small"][1] not in ("pin", "select")  # it does not fit, whatever it costs
    assert said["other"] == (Answer.NO, "pin", "the request names other clusters")
    now = {each.cluster: each.reason for each in found.now}
    assert now["a"] == "its submitter was told another cluster, or its execution runs on another one"


def test_it_stays_where_its_submitter_was_told_whatever_the_selection_would_say_now(
    sqlite_url: str, tmp_path: Path
) -> None:
    with queued_rig(sqlite_url, tmp_path) as rig:
        town = Town(rig, c=GRAPH, d=GRAPH)
        cost(rig, c=5, d=9)
        job, chosen = town.submit("c", "d", select=PRICEY, tags=["two"])
        assert (chosen, rig.job(job).state) == ("d", State.PENDING)
        cost(rig, c=9, d=5)
        promote(rig)
        assert (rig.job(job).state, rig.job(job).cluster) == (State.ASSIGNED, "d")


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_retry_goes_to_no_other_cluster_than_the_tokens_named(lite: Rig, elsewhere: bool) -> None:
    town = Town(lite, a=GRAPH, b=GRAPH, c=GRAPH, d=GRAPH)
    job, _ = town.submit("a")
    town.fail(job, "a")
    again = [
        retry.retry_job(lite.context, lite.submits, ADMIN, job, RetryRequest(elsewhere=elsewhere)) for _ in range(6)
    ]
    assert {each.cluster for each in again} == {"a"}


def test_a_retry_stays_where_its_submitter_was_told_unless_it_is_to_go_elsewhere(lite: Rig) -> None:
    town = Town(lite, a=GRAPH, b=GRAPH, c=GRAPH)
    job, chosen = town.submit("a", "b")
    town.fail(job, chosen)
    again = [retry.retry_job(lite.context, lite.submits, ADMIN, job, RetryRequest()).cluster for _ in range(6)]
    assert set(again) == {chosen}
    (other,) = {"a", "b"} - {chosen}
    assert retry.retry_job(lite.context, lite.submits, ADMIN, job, RetryRequest(elsewhere=True)).cluster == other


def test_a_retry_keeps_a_pin(lite: Rig) -> None:
    agents = {name: lite.cluster(name) for name in ("a", "b", "c", "d")}
    job = lite.submit(a_request(cluster="c")).id
    lease = agents["c"].lease_one()
    agents["c"].report(lease, ObservedState.FAILED, exit_code=1)
    again = [retry.retry_job(lite.context, lite.submits, ADMIN, job, RetryRequest()).cluster for _ in range(6)]
    assert set(again) == {"c"}
    assert retry.retry_job(lite.context, lite.submits, ADMIN, job, RetryRequest(elsewhere=True)).cluster != "c"


def test_a_token_that_was_taken_away_opens_no_retry(lite: Rig) -> None:
    agent = lite.cluster("closed", is_private=True)
    alice: Actor = lite.user("alice", (Role.SUBMIT, GrantTarget.PROJECT, "default"))
    token = create_cluster_token(lite.context, ADMIN, "closed").token
    job = lite.submit(a_request(clusters=[ClusterToken("closed", token)]), actor=alice).id
    lease = agent.lease_one()
    agent.report(lease, ObservedState.FAILED, exit_code=1)
    assert retry.retry_job(lite.context, lite.submits, alice, job, RetryRequest()).cluster == "closed"
    create_cluster_token(lite.context, ADMIN, "closed")
    refused = retry.retry_job(lite.context, lite.submits, alice, job, RetryRequest())
    assert (refused.state, refused.cluster) == ("REJECTED", None)
