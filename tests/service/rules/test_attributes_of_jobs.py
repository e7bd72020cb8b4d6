"""What rules do to jobs while they live: how many run at once, preemption, lateness, which backend; the record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from switchyard.errors import PolicyRefused
from switchyard.model.cluster.cluster import ClusterChange
from switchyard.model.cluster.poll import AttemptRef, Lease
from switchyard.model.executions.execution import ExecutionConfig, QualityOfService
from switchyard.model.job.job import JobSpec, State
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause, Retry
from switchyard.model.rules.scope import Scope
from switchyard.model.wire.api import RetryRequest
from switchyard.service.cluster import clusters
from switchyard.service.job import explanation, jobs
from switchyard.service.rules import attributes
from switchyard.service.submit import retry
from switchyard.service.upkeep import waiting_jobs
from switchyard.service.upkeep.retention import RetentionChore, RetentionTerms
from switchyard.service.upkeep.round import route_pending
from switchyard.store.jobs import concurrency_groups
from tests.builders import a_graph, a_request
from tests.service.rig import ADMIN, Rig, RigAgent, running

CONFIG, PLUGIN, TASK = "workflow-execution-config", "plugin-override", "task-resource-attribute"
HERE = Scope("development", "default")
FLOW = Scope("development", "default", "flow")


def rule(rig: Rig, kind: str, scope: Scope, value: Any) -> None:
    attributes.put(rig.context, ADMIN, kind, scope, value)


def held(lease: Lease) -> AttemptRef:
    return AttemptRef(lease.job, lease.fence)


def end(agent: RigAgent, lease: Lease, seen: ObservedState = ObservedState.SUCCEEDED, **fields: Any) -> None:
    agent.report(held(lease), seen, **fields)


def test_a_workflow_runs_no_more_jobs_at_once_than_its_rule_says(rig: Rig) -> None:
    agent = rig.cluster("alpha", graph=a_graph(cores=64))
    rule(rig, CONFIG, FLOW, {"max_parallelism": 2})
    mine = [rig.submit(a_request(workflow="flow")).id for _ in range(5)]
    other = rig.submit(a_request()).id
    first = agent.lease()
    assert {lease.job for lease in first} == {*mine[:2], other}
    assert agent.lease() == []
    assert "max_parallelism" in rig.job(mine[2]).reason
    end(agent, next(lease for lease in first if lease.job == mine[0]))
    (second,) = agent.lease()
    assert (second.job, rig.job(mine[2]).reason) == (mine[2], "")
    end(agent, second, ObservedState.FAILED, exit_code=1)
    end(agent, next(lease for lease in first if lease.job == mine[1]))
    assert [lease.job for lease in agent.lease()] == mine[3:]


def test_the_bound_holds_across_clusters_and_counts_the_tasks_of_arrays(rig: Rig) -> None:
    alpha, beta = rig.cluster("alpha", graph=a_graph(cores=64)), rig.cluster("beta", graph=a_graph(cores=64))
    rule(rig, CONFIG, FLOW, {"max_parallelism": 3})
    array = rig.submit(a_request(workflow="flow", array="0-9", cluster="alpha")).id
    single = rig.submit(a_request(workflow="flow", cluster="beta")).id
    assert rig.job(array).array == "0-9%3"
    (lease,) = alpha.lease()
    assert (lease.lo, lease.hi) == (0, 2)
    assert beta.lease() == []
    alpha.report(AttemptRef(array, lease.fence), ObservedState.SUCCEEDED)
    # The first that was let go was the older one, the array; the chore finds what others leave.
    assert len(alpha.lease()) + len(beta.lease()) == 1
    for fence in range(1, 12):
        alpha.report(AttemptRef(array, fence), ObservedState.SUCCEEDED)
        waiting_jobs.release_concurrency_groups(rig.context, rig.leader)
        alpha.lease()
        beta.lease()
    assert rig.row(single).agent_id == beta.id


def test_jobs_of_other_workflows_and_of_none_are_not_held_up(rig: Rig) -> None:
    agent = rig.cluster("alpha", graph=a_graph(cores=64))
    rule(rig, CONFIG, HERE, {"max_parallelism": 1})
    jobs_ = [rig.submit(a_request(**fields)).id for fields in ({"workflow": "a"}, {"workflow": "b"}, {}, {})]
    assert {lease.job for lease in agent.lease()} == set(jobs_)


def test_a_parked_job_can_be_cancelled_and_the_others_move_up(rig: Rig) -> None:
    agent = rig.cluster("alpha", graph=a_graph(cores=64))
    rule(rig, CONFIG, FLOW, {"max_parallelism": 1})
    first, second, third = (rig.submit(a_request(workflow="flow")).id for _ in range(3))
    (lease,) = agent.lease()
    assert lease.job == first
    assert agent.lease() == []
    assert jobs.job_cancel(rig.context, ADMIN, second, "").state is State.CANCELLED
    end(agent, lease)
    assert [lease.job for lease in agent.lease()] == [third]


def test_a_launch_plan_with_a_larger_bound_does_not_wait_behind_those_with_a_smaller(rig: Rig) -> None:
    agent = rig.cluster("alpha", graph=a_graph(cores=64))
    rule(rig, CONFIG, FLOW, {"max_parallelism": 1})
    rule(rig, CONFIG, Scope("development", "default", "flow", "wide"), {"max_parallelism": 3})
    narrow = [rig.submit(a_request(workflow="flow")).id for _ in range(4)]
    (lease,) = agent.lease()
    wide = rig.submit(a_request(workflow="flow", launch_plan="wide")).id
    rig.context.committer.call(lambda batch: concurrency_groups.concurrency_group_park(batch.tx, [wide], "full"))
    waiting_jobs.release_concurrency_groups(rig.context, rig.leader)
    assert (lease.job, [each.job for each in agent.lease()]) == (narrow[0], [wide])


def test_full_groups_hide_no_group_with_a_free_slot(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """One user may have more full groups than a round looks at."""
    monkeypatch.setattr(waiting_jobs, "ROUND_MAX", 1)
    agent = rig.cluster("alpha", graph=a_graph(cores=64))
    rule(rig, CONFIG, HERE, {"max_parallelism": 1})
    for workflow in ("a", "b"):
        for _ in range(2):
            rig.submit(a_request(workflow=workflow))
    assert len(agent.lease()) == 2
    assert agent.lease() == []
    free = rig.submit(a_request(workflow="z")).id
    rig.context.committer.call(lambda batch: concurrency_groups.concurrency_group_park(batch.tx, [free], "full"))
    for _ in range(4):  # three groups, and the turn of none
        waiting_jobs.release_concurrency_groups(rig.context, rig.leader)
    assert [lease.job for lease in agent.lease()] == [free]


def test_two_servers_together_keep_the_bound(postgres_url: str, tmp_path: Path) -> None:
    with running(postgres_url, tmp_path) as one, running(postgres_url, tmp_path) as two:
        rule(one, CONFIG, FLOW, {"max_parallelism": 3})
        agents = [one.cluster(f"c{number}", graph=a_graph(cores=64)) for number in range(4)]
        for agent in agents:
            for _ in range(5):
                one.submit(a_request(workflow="flow", cluster=agent.cluster))
        two.context.snapshots.refresh(force=True)
        asks = [agent.ask() for agent in agents]
        done: list[Any] = []
        for ask, server in zip(asks, (one, two, one, two), strict=True):
            server.committer.put(ask, done.append)
        for server in (one, two):
            server.committer.call(lambda _batch: None)
        assert sum(len(given.leases) for given in done) == 3


def test_a_preempted_job_that_is_interruptible_runs_again_and_no_retry_is_counted(rig: Rig) -> None:
    agent = rig.cluster("alpha")
    rule(rig, CONFIG, HERE, {"interruptible": True})
    job = rig.submit(a_request(retry=Retry(limit=1))).id
    end(agent, agent.lease()[0], ObservedState.FAILED, cause=Cause.PREEMPTED, reason="a more urgent job came")
    assert (rig.job(job).state, rig.job(job).tries) == (State.PENDING, 0)
    assert rig.kinds(job)[-1] == "preempted"
    route_pending(rig.context, rig.leader)
    end(agent, agent.lease()[0], ObservedState.FAILED, exit_code=1)
    assert rig.job(job).tries == 1


def test_a_preempted_job_that_is_not_interruptible_is_left_to_its_retries(rig: Rig) -> None:
    agent = rig.cluster("alpha")
    job, patient = rig.submit(a_request()).id, rig.submit(a_request(retry=Retry(limit=1))).id
    for lease in agent.lease():
        end(agent, lease, ObservedState.FAILED, cause=Cause.PREEMPTED)
    assert rig.job(job).state is State.FAILED
    assert (rig.job(patient).state, rig.job(patient).tries) == (State.PENDING, 1)


def test_a_preempted_task_of_an_array_runs_again_and_no_try_is_counted(rig: Rig) -> None:
    agent = rig.cluster("alpha")
    spec = a_request(array="0-1", retry=Retry(limit=1, backoff=1), execution=ExecutionConfig(interruptible=True))
    job = rig.submit(spec).id
    for cause in (Cause.PREEMPTED, Cause.PREEMPTED, Cause.JOB):
        (lease, *_) = agent.lease()
        end(agent, lease, ObservedState.FAILED, cause=cause)
        assert rig.job(job).state is not State.FAILED
        rig.clock.wait(5)
        waiting_jobs.end_backoffs(rig.context, rig.leader)
    leases = agent.lease()
    end(agent, next(lease for lease in leases if lease.lo == 0), ObservedState.FAILED, exit_code=1)
    assert rig.job(job).tasks is not None
    assert rig.job(job).tasks.failed == 1  # type: ignore[union-attr]


def test_a_job_that_waits_for_longer_than_its_budget_is_reported_late_once(rig: Rig) -> None:
    rule(rig, "quality-of-service", HERE, {"queueing_budget": "5m"})
    job = rig.submit(a_request()).id  # no cluster is there: PENDING is REJECTED
    assert rig.job(job).state is State.REJECTED
    agent = rig.cluster("alpha")
    late, early = (
        rig.submit(a_request()).id,
        rig.submit(a_request(quality_of_service=QualityOfService(queueing_budget=9999))).id,
    )
    rig.clock.wait(200)
    assert waiting_jobs.report_late_jobs(rig.context, rig.leader) == 0
    rig.clock.wait(101)
    assert waiting_jobs.report_late_jobs(rig.context, rig.leader) == 1
    assert waiting_jobs.report_late_jobs(rig.context, rig.leader) == 0
    assert (rig.job(late).late_us, rig.job(early).late_us) == (rig.clock(), None)
    assert rig.kinds(late) == ["accepted", "late"]
    assert any("late" in note for note in explanation.job_explain(rig.context, ADMIN, late).notes)
    agent.seen()
    agent.lease()
    rig.clock.wait(100_000)
    assert waiting_jobs.report_late_jobs(rig.context, rig.leader) == 0


def test_a_plugin_override_chooses_the_backend_where_a_cluster_has_several(rig: Rig) -> None:
    fake = rig.cluster("alpha")
    other = rig.join("alpha", "second", journal="j2", backend="slurm")
    other.sync()
    wanted = [{"task_type": "container", "plugin_id": ["flux", "slurm", "fake"]}]
    rule(rig, PLUGIN, HERE, {"overrides": wanted})
    job, plain = rig.submit(a_request(task_type="container")).id, rig.submit(a_request()).id
    assert [lease.job for lease in fake.lease()] == [plain]
    assert [lease.job for lease in other.lease()] == [job]


@pytest.mark.parametrize(("behaviour", "state"), [("FAIL", State.REJECTED), ("USE_DEFAULT", State.ASSIGNED)])
def test_a_cluster_without_the_backend_is_no_place_or_the_default(rig: Rig, behaviour: str, state: State) -> None:
    agent = rig.cluster("alpha")
    override = {"task_type": "container", "plugin_id": ["flux"], "missing_plugin_behavior": behaviour}
    rule(rig, PLUGIN, HERE, {"overrides": [override]})
    made = rig.submit(a_request(task_type="container"))
    assert rig.job(made.id).state is state
    if state is State.REJECTED:
        assert "has none of the backends flux" in made.reason
    else:
        assert [lease.job for lease in agent.lease()] == [made.id]


def test_what_a_job_was_admitted_under_is_kept_with_it(rig: Rig) -> None:
    agent = rig.cluster("alpha")
    rule(rig, TASK, HERE, {"defaults": {"cpu": "1500m"}, "limits": {"cpu": "2"}})
    job = rig.submit(a_request()).id
    rule(rig, TASK, HERE, {"defaults": {"cpu": "1"}})
    policy = rig.job(job).policy
    assert policy is not None
    assert [(used.field, used.value, used.level.value) for used in policy.values] == [  # type: ignore[union-attr]
        ("defaults.cpu", "1500m", "project+domain"),
        ("limits.cpu", "2", "project+domain"),
    ]
    assert policy.version < rig.context.snapshots.policy.version  # type: ignore[union-attr]
    assert explanation.job_explain(rig.context, ADMIN, job).policy == policy
    (lease,) = agent.lease()
    assert b'"cores":"1500m"' in bytes(lease.spec)  # type: ignore[arg-type]


def test_a_retry_is_admitted_by_the_rules_of_then(rig: Rig) -> None:
    agent = rig.cluster("alpha")
    rule(rig, TASK, HERE, {"defaults": {"cpu": "2"}})
    rule(rig, CONFIG, HERE, {"envs": {"A": "1"}})
    job = rig.submit(a_request(memory="1Gi", workflow="flow")).id
    end(agent, agent.lease()[0], ObservedState.FAILED, exit_code=1)
    rule(rig, TASK, HERE, {"defaults": {"cpu": "1"}, "limits": {"cpu": "1"}})
    attributes.delete_exact(rig.context, ADMIN, CONFIG, HERE)
    again = rig.job(retry.retry_job(rig.context, rig.submits, ADMIN, job, RetryRequest()).id)
    assert again.workflow == "flow"
    spec = decoded(again.spec)
    assert (spec.resources.cores, spec.resources.memory, spec.execution) == ("1", "1Gi", None)


def test_a_refused_job_leaves_nothing_behind(rig: Rig) -> None:
    rig.cluster("alpha")
    rule(rig, TASK, HERE, {"limits": {"cpu": "1"}})
    with pytest.raises(PolicyRefused):
        rig.submit(a_request(cores=2))
    assert jobs.job_list(rig.context, ADMIN, jobs.jobs.JobFilter(), before=None, limit=9, with_spec=False).items == []


def decoded(spec: Any) -> JobSpec:
    import msgspec

    return spec if isinstance(spec, JobSpec) else msgspec.json.decode(bytes(spec), type=JobSpec)


def test_a_cluster_whose_nodes_may_be_taken_away_is_only_for_jobs_that_bear_it(rig: Rig) -> None:
    rig.cluster("spot")
    clusters.cluster_change(rig.context, ADMIN, "spot", ClusterChange(labels={"interruptible": "true"}))
    firm = rig.submit(a_request())
    assert (firm.state, "may be taken away" in firm.reason) == ("REJECTED", True)
    assert rig.submit(a_request(execution=ExecutionConfig(interruptible=True))).cluster == "spot"
    rule(rig, CONFIG, HERE, {"interruptible": True})
    assert rig.submit(a_request()).cluster == "spot"


def test_what_was_deleted_long_ago_is_forgotten(rig: Rig) -> None:
    rule(rig, CONFIG, HERE, {"interruptible": True})
    rule(rig, CONFIG, FLOW, {"interruptible": True})
    attributes.delete_exact(rig.context, ADMIN, CONFIG, FLOW)
    retention = RetentionChore(RetentionTerms())
    retention.go(rig.context, rig.leader)
    assert "attributes" not in retention.removed
    rig.clock.wait(2 * 86_400)
    retention.go(rig.context, rig.leader)
    assert retention.removed["attributes"] == 1
    assert attributes.get_exact(rig.context, ADMIN, CONFIG, HERE).value == {"interruptible": True}
