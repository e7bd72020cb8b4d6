"""Retries that learn: what a report's kind of failure makes of the next attempt, and what is counted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from switchyard.model.cluster.poll import AttemptRef
from switchyard.model.failures.failure_kind import FailureKind
from switchyard.model.failures.failure_stats import FailureDimension
from switchyard.model.job.job import Job, JobSpec, OnLost, State, Usage
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause, Retry
from switchyard.model.rules.access import GrantTarget, Role
from switchyard.model.rules.scope import Scope
from switchyard.service.core.writes.batch import Batch
from switchyard.service.job.failure_stats import failure_stats
from switchyard.service.job.jobs import job_cancel
from switchyard.service.rules import attributes
from switchyard.service.upkeep.round import route_pending
from switchyard.service.upkeep.silent_agents import lose_silent_attempts
from switchyard.service.upkeep.waiting_jobs import end_backoffs
from switchyard.store.jobs import jobs
from switchyard.store.jobs.job_update import JobUpdate
from tests.builders import a_graph, a_request
from tests.service.rig import ADMIN, Rig, RigAgent

FAILED, RUNNING = ObservedState.FAILED, ObservedState.RUNNING
OOM = FailureKind.OUT_OF_MEMORY
DOUBLE = {"out-of-memory": {"limit": 3, "memory": "x2"}}


def policy(on: dict[str, Any], **fields: Any) -> Retry:
    return msgspec.convert({"on": on, **fields}, Retry)


def again(rig: Rig) -> None:
    """The pauses before retries are over, and the leader routes."""
    rig.clock.wait(700)
    end_backoffs(rig.context, rig.leader)
    route_pending(rig.context, rig.leader)


def fail(agent: RigAgent, failure: FailureKind | None, **fields: Any) -> AttemptRef:
    """Lease the next job and report its failure."""
    agent.seen()
    held = agent.lease_one()
    agent.report(held, RUNNING, native_id="7")
    agent.report(held, FAILED, native_id="7", failure=failure, **fields)
    return held


def spec_of(job: Job) -> JobSpec:
    assert isinstance(job.spec, msgspec.Raw)
    return msgspec.json.decode(job.spec, type=JobSpec)


def test_each_attempt_asks_for_more_and_says_so(rig: Rig) -> None:
    alpha = rig.cluster("alpha")
    on = {"out-of-memory": {"limit": 2, "memory": "x2"}, "time-limit": {"limit": 1, "time": "x1.5"}}
    job = rig.submit(a_request(memory="1GiB", time_limit="1h", retry=policy(on))).id
    fail(alpha, OOM, reason="killed")
    assert rig.job(job).reason == "killed; next attempt: memory 2GiB instead of 1GiB"
    again(rig)
    assert spec_of(rig.job(job)).resources.memory == "2GiB"
    assert rig.row(job).memory_bytes == 2 * 2**30
    fail(alpha, FailureKind.TIME_LIMIT, reason="late")
    again(rig)
    fail(alpha, OOM, reason="killed")
    again(rig)
    fail(alpha, OOM, reason="killed", signal=9)
    done = rig.job(job)
    assert (done.state, done.failure, done.tries, done.signal) == (State.FAILED, OOM, 3, 9)
    told = [(attempt.failure, str(attempt.asked)) for attempt in done.attempts]
    assert told == [
        (OOM, "memory 1GiB, time limit 1h"),
        (FailureKind.TIME_LIMIT, "memory 2GiB, time limit 1h"),
        (OOM, "memory 2GiB, time limit 1h30m"),
    ]
    assert str(spec_of(done).resources.memory) == "4GiB"


def test_an_agent_is_told_the_new_amount_and_no_rules(rig: Rig) -> None:
    alpha = rig.cluster("alpha")
    rig.submit(a_request(memory="1GiB", retry=policy(DOUBLE, limit=2)))
    fail(alpha, OOM)
    again(rig)
    (lease,) = alpha.lease(1)
    assert isinstance(lease.spec, msgspec.Raw)
    spec = msgspec.json.decode(lease.spec)
    assert spec["resources"] == {"memory": "2GiB"}
    assert spec["retry"]["limit"] == 2
    assert "on" not in spec["retry"], "an older agent knows no rules"


def test_a_raise_stops_at_the_limit_of_the_rules(rig: Rig) -> None:
    alpha = rig.cluster("alpha")
    job = rig.submit(a_request(memory="300Mi", retry=policy(DOUBLE))).id
    put_rule(rig, "task-resource-attribute", {"limits": {"memory": "450Mi"}})
    fail(alpha, OOM, reason="killed")
    why = "the limit is 450Mi (project level: project default)"
    assert rig.job(job).reason == f"killed; next attempt: memory 450Mi instead of 300Mi: {why}"
    again(rig)
    fail(alpha, OOM, reason="killed")
    assert rig.job(job).reason == f"killed; next attempt: memory stays at 450Mi: {why}"
    again(rig)
    assert rig.job(job).state is State.ASSIGNED


def test_a_raised_job_goes_to_a_cluster_that_it_fits(rig: Rig) -> None:
    small, large = rig.cluster("small"), rig.cluster("large", graph=a_graph(memory_gib=64))
    job = rig.submit(a_request(memory="6GiB", retry=policy(DOUBLE))).id
    first = small if rig.job(job).cluster == "small" else large
    fail(first, OOM)
    again(rig)
    assert rig.job(job).cluster == "large"


def test_a_raise_that_no_cluster_could_ever_take_ends_the_job_with_words(rig: Rig) -> None:
    alpha = rig.cluster("alpha")
    job = rig.submit(a_request(memory="6GiB", retry=policy(DOUBLE))).id
    fail(alpha, OOM)
    again(rig)
    done = rig.job(job)
    assert done.state is State.FAILED
    assert done.reason.startswith("its next attempt cannot run: no cluster could ever run it: ")


def test_elsewhere_leaves_the_cluster_where_it_failed(rig: Rig) -> None:
    agents = {name: rig.cluster(name) for name in ("alpha", "beta")}
    job = rig.submit(a_request(retry=policy({"exit-code": {"limit": 2, "elsewhere": True}}))).id
    first = str(rig.job(job).cluster)
    fail(agents[first], None, exit_code=3)
    for agent in agents.values():
        agent.seen()
    again(rig)
    for agent in agents.values():
        agent.seen()
    route_pending(rig.context, rig.leader)
    assert rig.job(job).cluster not in (first, None)


def test_limits_of_kinds_and_of_the_policy_count_apart(rig: Rig) -> None:
    alpha = rig.cluster("alpha")
    job = rig.submit(a_request(retry=policy({"node-lost": {"limit": 2}}, limit=1))).id
    for failure in (FailureKind.NODE_LOST, None, FailureKind.NODE_LOST):
        fail(alpha, failure, exit_code=1)
        assert rig.job(job).state is State.PENDING
        again(rig)
    fail(alpha, None, exit_code=1)
    assert (rig.job(job).state, rig.job(job).failure, rig.job(job).tries) == (State.FAILED, FailureKind.EXIT_CODE, 3)


def test_a_silent_cluster_is_a_kind_of_failure(rig: Rig) -> None:
    alpha = rig.cluster("alpha")
    on = {"lost": {"limit": 1}}
    job = rig.submit(a_request(on_lost=OnLost.FAIL, lost_after=60, retry=policy(on))).id
    alpha.lease_one()
    rig.clock.wait(3700)
    lose_silent_attempts(rig.context, rig.leader)
    assert rig.job(job).state is State.PENDING
    assert [attempt.failure for attempt in rig.job(job).attempts] == [FailureKind.LOST]


def test_tasks_of_an_array_are_retried_by_kind_but_ask_for_no_more(rig: Rig) -> None:
    alpha = rig.cluster("alpha")
    job = rig.submit(a_request(array="0-1", retry=policy({"node-lost": {"limit": 1}}))).id
    (lease,) = alpha.lease()
    first, last = AttemptRef(job, lease.fence), AttemptRef(job, lease.fence + 1)
    alpha.report(first, FAILED, native_id="7", failure=FailureKind.NODE_LOST)
    alpha.report(last, FAILED, native_id="8", failure=OOM)
    tasks = rig.job(job).tasks
    assert tasks is not None
    assert (tasks.waiting, tasks.failed) == (1, 1)


def test_a_cancelled_job_is_not_promised_more(rig: Rig) -> None:
    alpha = rig.cluster("alpha")
    job = rig.submit(a_request(memory="1GiB", retry=policy(DOUBLE))).id
    held = alpha.lease_one()
    alpha.report(held, RUNNING, native_id="7")
    job_cancel(rig.context, ADMIN, job, "")
    alpha.report(held, FAILED, native_id="7", failure=OOM, reason="killed")
    assert (rig.job(job).state, rig.job(job).reason) == (State.FAILED, "killed")


def test_a_damaged_count_grants_no_retry_and_the_end_still_counts(rig: Rig) -> None:
    alpha = rig.cluster("alpha")
    job = rig.submit(a_request(memory="1GiB", retry=policy(DOUBLE))).id
    damage(rig, job, "{")
    fail(alpha, OOM)
    assert rig.job(job).state is State.FAILED


# --- rules


def put_rule(rig: Rig, kind: str, value: dict[str, Any]) -> None:
    attributes.put(rig.context, ADMIN, kind, Scope(project="default"), value)
    rig.context.snapshots.refresh(force=True)


def damage(rig: Rig, job: str, text: str) -> None:
    def apply(batch: Batch) -> None:
        jobs.job_update_many(batch.tx, {job: JobUpdate(retried=text)})

    rig.committer.call(apply, locks=[job])


# --- counts


def counts(rig: Rig, by: FailureDimension, actor: Any = ADMIN, **fields: Any) -> dict[str, int]:
    fields = {"since_s": 86_400, "project": None, **fields}
    return {row.name: row.count for row in failure_stats(rig.context, actor, by=by, **fields).rows}


def test_failures_are_counted_once_by_what_one_asks_for(rig: Rig) -> None:
    alpha, beta = rig.cluster("alpha"), rig.cluster("beta")
    ann = rig.user("ann", (Role.SUBMIT, GrantTarget.PROJECT, "default"))
    rig.project("other")
    rig.submit(a_request(cluster="alpha"))
    fail(alpha, OOM, usage=Usage(nodes="n7"))
    held = AttemptRef(rig.submit(a_request(cluster="beta"), actor=ann).id, 1)
    beta.seen()
    beta.lease_one()
    for _ in range(2):
        beta.report(held, FAILED, native_id="1", cause=Cause.CLUSTER)
    rig.submit(a_request(cluster="alpha", project="other"))
    fail(alpha, None, exit_code=1)
    assert counts(rig, "cluster") == {"alpha": 2, "beta": 1}
    assert counts(rig, "kind") == {"out-of-memory": 1, "cluster": 1, "exit-code": 1}
    assert counts(rig, "node") == {"alpha: n7": 1, "alpha: not known": 1, "beta: not known": 1}
    assert counts(rig, "owner") == {ADMIN.name: 2, "ann": 1}
    assert counts(rig, "kind", project="other") == {"exit-code": 1}
    assert counts(rig, "kind", actor=ann) == {"out-of-memory": 1, "cluster": 1}, "the other project is not ann's"
    rig.clock.wait(7200)
    assert counts(rig, "kind", since_s=3600) == {}


def test_of_many_failures_the_newest_are_counted_and_small_names_are_summed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    alpha = rig.cluster("alpha")
    for code in (None, 1, 1, 1):
        rig.submit()
        fail(alpha, OOM if code is None else None, exit_code=code)
        rig.clock.wait(1)
    monkeypatch.setattr("switchyard.service.job.failure_stats.LOOK_MAX", 3)
    stats = failure_stats(rig.context, ADMIN, by="kind", since_s=3600, project=None)
    assert (stats.is_whole, stats.looked_at, stats.failures) == (False, 3, 3)
    monkeypatch.setattr("switchyard.service.job.failure_stats.LOOK_MAX", 10_000)
    monkeypatch.setattr("switchyard.service.job.failure_stats.ROWS_MAX", 1)
    assert counts(rig, "kind") == {"exit-code": 3, "other": 1}


def test_a_kind_of_a_newer_agent_says_nothing(rig: Rig) -> None:
    alpha = rig.cluster("alpha")
    job = rig.submit().id
    held = alpha.lease_one()
    alpha.report(held, FAILED, native_id="7", failure="gone-fishing", exit_code=3)
    assert rig.job(job).failure is FailureKind.EXIT_CODE
