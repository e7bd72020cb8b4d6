"""Submit: accepted means durable, the same key means the same job, and nothing is stored that was refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa
from msgspec import structs

from switchyard.errors import Denied, KeyReused, UnknownName, YardError
from switchyard.model.cluster.cluster import ClusterChange
from switchyard.model.job.job import ClusterToken, State
from switchyard.model.rules.access import GrantTarget, Role
from switchyard.service.access import submit_tokens
from switchyard.service.cluster import clusters
from switchyard.service.job import explanation, jobs
from switchyard.service.placement.decision import QUICK_GRAPH_SIZE_MAX, TooSlowForLoop
from switchyard.service.submit.submit import AcceptedJob
from switchyard.store.tables.schema import idempotency
from tests.builders import a_graph, a_group, a_request
from tests.service.lookups import count
from tests.service.rig import ADMIN, Rig, running


def test_a_job_that_fits_is_assigned_on_arrival(rig: Rig) -> None:
    rig.cluster("alpha")
    made = rig.submit(a_request("echo", "hi", labels={"team": "red"}, priority=7, cores=2, memory="1GiB", tasks=2))
    job = rig.job(made.id)
    assert (made.state, made.cluster) == ("ASSIGNED", "alpha")
    assert (job.state, job.cluster, job.attempt, job.fence, job.name) == (State.ASSIGNED, "alpha", 1, 1, "echo")
    assert (job.labels, job.priority, job.owner) == ({"team": "red"}, 7, "local-admin")
    row = rig.row(made.id)
    assert (row.cores, row.memory_bytes, row.lane) == (4, 2 * 2**30, "default/default")
    assert rig.kinds(made.id) == ["accepted"]


def test_a_job_whose_clusters_are_away_waits_with_the_reason(rig: Rig) -> None:
    rig.cluster("alpha")
    rig.clock.wait(3600)
    rig.context.snapshots.rebuild_world()
    made = rig.submit()
    assert (made.state, made.cluster, made.reason) == ("PENDING", None, "waits for alpha: down: its agent is silent")


def test_a_job_that_no_cluster_could_ever_run_is_stored_as_rejected(rig: Rig) -> None:
    rig.cluster("alpha")
    made = rig.submit(a_request(cores=99))
    assert made.state == "REJECTED"
    assert "alpha: needs 99 core per task" in made.reason
    job = rig.job(made.id)
    assert job.state is State.REJECTED
    assert job.ended_us == job.created_us


@pytest.mark.parametrize(
    "asked", [{"cores": 2**63 - 1, "tasks": 10**7}, {"memory": "7Ei", "tasks": 99}, {"gpus": 10**7, "tasks": 10**7}]
)
def test_the_largest_request_is_rejected_and_stored_not_broken(rig: Rig, asked) -> None:
    rig.cluster("alpha")
    assert rig.submit(a_request(**asked)).state == "REJECTED"


@pytest.mark.parametrize("word", ["a\nb", "\x1b[31mred", "\x9b31m", "/usr/bin/\t", "é", "/", "日本"])
def test_a_name_taken_from_the_command_has_no_control_characters(lite: Rig, word: str) -> None:
    name = lite.job(lite.submit(a_request(word)).id).name
    assert name
    assert name.isprintable()


def test_what_is_unknown_or_denied_is_refused_and_nothing_is_stored(rig: Rig) -> None:
    rig.cluster("alpha")
    rig.cluster("secret", is_private=True)
    rig.project("web")
    ann = rig.user("ann")
    refused = [
        (a_request(project="nowhere"), Denied),  # as for a project that exists
        (a_request(domain="nowhere"), UnknownName),
        (a_request(cluster="nowhere"), UnknownName),
        (a_request(cluster="secret"), UnknownName),
        (a_request(project="web"), Denied),
        (a_request(clusters=[ClusterToken("alpha", "wrong")]), Denied),
        (a_request(clusters=[ClusterToken("nowhere", "wrong")]), Denied),
    ]
    for request, error in refused:
        with pytest.raises(error) as caught:
            rig.submit(request, actor=ann, key="k")
        assert caught.value.next_step
        assert "secret" not in caught.value.next_step
    assert count(rig) == 0
    assert rig.submit(actor=ann, key="k").state == "ASSIGNED", "a refusal uses up no key"


def test_a_submit_token_opens_a_private_cluster_and_bounds_the_job_to_it(lite: Rig) -> None:
    lite.cluster("alpha")
    lite.cluster("secret", is_private=True)
    ann = lite.user("ann")
    token = submit_tokens.create_cluster_token(lite.context, ADMIN, "secret").token
    assert lite.submit(a_request(clusters=[ClusterToken("secret", token)]), actor=ann).cluster == "secret"
    newer = submit_tokens.create_cluster_token(lite.context, ADMIN, "secret").token
    with pytest.raises(Denied):
        lite.submit(a_request(clusters=[ClusterToken("secret", token)]), actor=ann)
    both = [ClusterToken("secret", newer), ClusterToken("alpha", "wrong")]
    with pytest.raises(Denied, match="alpha"):
        lite.submit(a_request(clusters=both), actor=ann)


def test_a_pin_outside_the_tokens_leaves_no_cluster(lite: Rig) -> None:
    lite.cluster("alpha")
    lite.cluster("beta")
    token = submit_tokens.create_cluster_token(lite.context, ADMIN, "beta").token
    made = lite.submit(a_request(cluster="alpha", clusters=[ClusterToken("beta", token)]))
    assert made.state == "REJECTED"


def test_planning_stores_nothing(lite: Rig) -> None:
    lite.cluster("alpha")
    assert lite.submits.plan(ADMIN, a_request()).chosen == "alpha"
    assert count(lite) == 0


# --- idempotency


def test_the_same_key_and_body_give_the_same_job(rig: Rig) -> None:
    rig.cluster("alpha")
    first = rig.accept(key="k")
    again = rig.accept(key="k")
    assert first.is_new
    assert again == AcceptedJob(first.created, is_new=False)
    assert count(rig) == 1


def test_the_same_key_in_one_batch_gives_one_job_and_one_answer(rig: Rig) -> None:
    for name in ("alpha", "beta", "gamma", "delta"):
        rig.cluster(name)
    for attempt in range(6):  # the clusters of the two draws differ three times in four
        first, second, other = rig.together(
            *(rig.decided(key=key) for key in (f"k{attempt}", f"k{attempt}", f"l{attempt}"))
        )
        assert first.is_new
        assert second == AcceptedJob(first.created, is_new=False)
        assert other.is_new
        assert rig.job(first.created.id).cluster == first.created.cluster
    assert count(rig) == 12


def test_the_same_key_with_another_body_is_a_conflict(rig: Rig) -> None:
    made = rig.submit(a_request("a"), key="k")
    with pytest.raises(KeyReused, match=made.id):
        rig.submit(a_request("b"), key="k")
    one, two = rig.together(rig.decided(a_request("a"), key="new"), rig.decided(a_request("b"), key="new"))
    assert one.is_new
    assert isinstance(two, KeyReused)
    assert count(rig) == 2


def test_keys_of_two_people_are_two_keys(lite: Rig) -> None:
    ann, bob = lite.user("ann"), lite.user("bob")
    assert lite.submit(actor=ann, key="k").id != lite.submit(actor=bob, key="k").id


def test_a_repeated_submit_tells_how_the_job_stands_now(rig: Rig) -> None:
    agent = rig.cluster("alpha")
    made = rig.submit(key="k")
    agent.lease_one()
    jobs.job_cancel(rig.context, ADMIN, rig.submit(key="other").id, "")
    again = rig.accept(key="k")
    assert (again.created.id, again.created.state, again.is_new) == (made.id, "ASSIGNED", False)
    assert rig.accept(key="other").created.state == "CANCELLED"


def test_a_key_holds_across_a_restart(store_url: str, tmp_path: Path) -> None:
    with running(store_url, tmp_path) as rig:
        made = rig.submit(key="k")
    with running(store_url, tmp_path) as rig:
        assert rig.accept(key="k") == AcceptedJob(made, is_new=False)
        assert count(rig) == 1


def test_a_key_holds_though_the_request_would_be_refused_now(rig: Rig) -> None:
    """The answer got lost, and meanwhile the cluster went: the job is accepted all the same."""
    rig.cluster("alpha")
    request = a_request(cluster="alpha")
    made = rig.submit(request, key="k")
    clusters.cluster_delete(rig.context, ADMIN, "alpha")
    body = msgspec.json.encode(request)
    with pytest.raises(UnknownName):
        rig.submits.decide(ADMIN, request, key="k", body=body)
    again = rig.submits.repeated(ADMIN, key="k", body=body)
    assert again is not None
    assert (again.created.id, again.is_new) == (made.id, False)
    assert rig.submits.repeated(ADMIN, key="unused", body=body) is None
    with pytest.raises(KeyReused):
        rig.submits.repeated(ADMIN, key="k", body=b"another")


# --- what is shared between jobs


def test_specs_and_verdicts_are_stored_though_an_earlier_batch_was_undone(lite: Rig) -> None:
    """What a failed batch put must not count as stored: its verdicts would be missing for ever."""
    lite.cluster("alpha")
    spec_stored = lite.submit(a_request("a"))
    clusters.cluster_change(lite.context, ADMIN, "alpha", ClusterChange(labels={"new": "world"}))
    lite.cluster("beta")
    good = lite.decided(a_request("a"))
    bad = replace(good, row=structs.replace(good.row, name=object()))  # no database takes this
    assert isinstance(lite.failure(bad), YardError)
    lite.leader.take(lite.context)  # a commit that has nothing to do with it
    made = lite.submit(a_request("a"))
    plan = explanation.job_explain(lite.context, ADMIN, made.id).plan
    assert plan is not None
    assert {verdict.cluster for verdict in plan.verdicts} == {"alpha", "beta"}
    assert explanation.job_explain(lite.context, ADMIN, spec_stored.id).plan is not None


def test_equal_specs_are_one_row(rig: Rig) -> None:
    one, two = (
        rig.submit(a_request("a", env={"B": "1", "A": "2"})),
        rig.submit(a_request("a", env={"A": "2", "B": "1"})),
    )
    assert rig.row(one.id).spec_hash == rig.row(two.id).spec_hash
    with rig.context.database.read() as tx:
        assert tx.execute(sa.select(sa.func.count()).select_from(idempotency)).scalar() == 0


def test_an_eligibility_is_not_kept_beyond_a_change_of_grants_or_clusters(lite: Rig) -> None:
    lite.cluster("secret", is_private=True)
    ann = lite.user("ann")
    assert lite.submit(actor=ann).state == "REJECTED"
    lite.grant("ann", Role.SUBMIT, GrantTarget.CLUSTER, "secret")
    assert ann.user_id is not None
    assert lite.submit(actor=lite.actor(ann.user_id)).cluster == "secret"
    lite.cluster("wide", graph=a_graph(cores=64))
    assert lite.submit(a_request(cores=64), actor=lite.actor(ann.user_id)).cluster == "wide"


def test_a_new_shape_is_not_matched_on_the_loop_with_a_large_graph(rig: Rig) -> None:
    """Only what is asked for the first time is work: afterwards the same shape is decided on the loop."""
    kinds = QUICK_GRAPH_SIZE_MAX // 4  # of nodes: each is a shape with three edges
    rig.cluster("large", graph=a_graph(*(a_group(cores=cores) for cores in range(1, kinds))))
    rig.cluster("small")

    def decide_on_loop(cores: int) -> str:
        request = a_request(cores=cores)
        write = rig.submits.decide(ADMIN, request, key=None, body=msgspec.json.encode(request), is_quick=True)
        return str(write.created.state)

    for cores in (2, 3):
        with pytest.raises(TooSlowForLoop):
            decide_on_loop(cores)
        rig.submit(a_request(cores=cores))
        assert decide_on_loop(cores) == "ASSIGNED"


def test_a_new_shape_is_matched_on_the_loop_with_small_graphs(rig: Rig) -> None:
    rig.cluster("small")
    request = a_request(cores=2)
    write = rig.submits.decide(ADMIN, request, key=None, body=msgspec.json.encode(request), is_quick=True)
    assert write.created.state == "ASSIGNED"
