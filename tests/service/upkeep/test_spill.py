"""Spill rules: a pool opens after a time, a job is rejected after another, and rules come from somewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from switchyard.model.cluster.cluster import ClusterChange
from switchyard.model.cluster.verdict import Answer, Verdict
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.wire.api import JobChange
from switchyard.server.config.config import Config
from switchyard.service.cluster import clusters
from switchyard.service.job import explanation, job_control
from switchyard.service.rules.attributes import UNCONDITIONAL
from switchyard.service.upkeep.move_jobs import JobMover
from switchyard.service.upkeep.round import route_pending
from switchyard.service.upkeep.waiting_jobs import expire_jobs, settle_dependencies
from tests.builders import a_graph, a_request
from tests.service.lines import in_line_at_full, pool, say, two, wait
from tests.service.rig import ADMIN, Rig, RigAgent, running

# --- spill rules


SPILL = ["after 10m try pool burst", "reject after 24h"]


def test_a_job_that_waits_may_run_in_the_pool_its_rule_opens(rig: Rig) -> None:
    full, idle = two(rig)
    pool(rig, "main", full=1)
    pool(rig, "burst", idle=1)
    (job,) = in_line_at_full(rig, pool="main", spill=SPILL)
    mover = JobMover()
    wait(rig, 599, full, idle)
    say(idle, free_cores=8)
    assert mover.look(rig.context, rig.leader) == 0
    wait(rig, 1, full, idle)
    assert mover.look(rig.context, rig.leader) == 1
    assert rig.job(job).cluster == "idle"


def test_a_rule_opens_a_pool_for_jobs_of_a_sticky_one_too(lite: Rig) -> None:
    full, idle = two(lite)
    pool(lite, "main", full=1, sticky=True)
    pool(lite, "burst", idle=1)
    (job,) = in_line_at_full(lite, pool="main", spill=SPILL)
    wait(lite, 601, full, idle)
    say(idle, free_cores=8)
    assert JobMover().look(lite.context, lite.leader) == 1
    assert lite.job(job).cluster == "idle"


def test_a_pending_job_takes_the_way_its_rule_opens_and_grants_hold_there_too(lite: Rig) -> None:
    full, idle = lite.cluster("full"), lite.cluster("idle", is_private=True)
    pool(lite, "main", full=1)
    pool(lite, "burst", idle=1)
    clusters.cluster_change(lite.context, ADMIN, "full", ClusterChange(is_cordoned=True))
    ann = lite.user("ann")
    mine, hers = (
        lite.submit(a_request(pool="main", spill=SPILL)),
        lite.submit(a_request(pool="main", spill=SPILL), actor=ann),
    )
    wait(lite, 599, full, idle)
    assert route_pending(lite.context, lite.leader) == 0
    wait(lite, 1, full, idle)
    assert route_pending(lite.context, lite.leader) == 1
    assert lite.job(mine.id).cluster == "idle"
    assert (lite.job(hers.id).state, "full: cordoned" in lite.job(hers.id).reason) == (State.PENDING, True)


def test_a_rule_rejects_what_has_not_begun_and_says_which(rig: Rig, store_url: str, tmp_path: Path) -> None:
    full = rig.cluster("full")
    pool(rig, "burst")
    asks = {"pool": "main", "spill": SPILL}
    pool(rig, "main", full=1)
    began, in_line = rig.submit(a_request(**asks)), rig.submit(a_request(**asks))
    full.lease_one()
    clusters.cluster_change(rig.context, ADMIN, "full", ClusterChange(is_cordoned=True))
    pending = rig.submit(a_request(**asks, expires_after="48h"))
    sooner = rig.submit(a_request(**asks, expires_after="1h"))
    with running(store_url, tmp_path, clock=rig.clock) as again:  # another server, after the first
        again.clock.wait(86_399)
        again.leader.take(again.context)
        assert expire_jobs(again.context, again.leader) == 1
        assert again.job(sooner.id).state is State.FAILED
        again.clock.wait(1)
        assert expire_jobs(again.context, again.leader) == 2
        for job in (in_line, pending):
            ended = again.job(job.id)
            said = "it has not begun after 24h: rule `reject after 24h` (the request)"
            assert (ended.state, ended.reason) == (State.REJECTED, said)
        assert again.job(began.id).state is State.ASSIGNED
        assert full.lease(1) == []


CONFIGURED = """
clusters: {poolNameClusterMap: {main: [], burst: [], other: []}}
spill: {default: [reject after 7d], pools: {main: [after 10m try pool burst]}}
"""


def test_rules_come_from_the_request_else_the_scope_else_the_config(sqlite_url: str, tmp_path: Path) -> None:
    from switchyard.model.rules.scope import Scope
    from switchyard.model.wire.decode import load_yaml
    from switchyard.service.rules import attributes

    config = msgspec.convert(load_yaml(CONFIGURED, where="here"), Config)
    with running(sqlite_url, tmp_path, config=config) as rig:
        rig.project("bound")
        value = {"cluster_pool_name": "main", "spill": ["reject after 3d"]}
        attributes.put(rig.context, ADMIN, "cluster-assignment", Scope(project="bound"), value, condition=UNCONDITIONAL)

        def rules(**fields: Any) -> tuple[Any, str]:
            bounds = msgspec.json.decode(rig.decided(a_request(**fields)).row.bounds)
            return bounds.get("spill"), bounds.get("spill_from", "")

        assert rules() == (["reject after 7d"], "platform config")
        assert rules(pool="main") == (["after 10m try pool burst"], "platform config, pool main")
        assert rules(pool="other") == (["reject after 7d"], "platform config")
        assert rules(project="bound") == (["reject after 3d"], "project level: project bound")
        own = ["after 1m try pool main"]
        assert rules(project="bound", spill=own) == (own, "the request")


def test_what_only_a_later_pool_could_run_waits_for_it(lite: Rig) -> None:
    small, large = lite.cluster("small"), lite.cluster("large", graph=a_graph(cores=16))
    pool(lite, "main", small=1)
    pool(lite, "burst", large=1)
    made = lite.submit(a_request(cores=16, pool="main", spill=SPILL))
    assert made.state == "PENDING"
    assert made.reason.startswith("waits: after 10m it may run in pool burst; no cluster could ever run it: small: ")
    assert lite.submit(a_request(cores=32, pool="main", spill=SPILL)).state == "REJECTED"
    wait(lite, 601, small, large)
    assert route_pending(lite.context, lite.leader) == 1
    assert lite.job(made.id).cluster == "large"
    pool(lite, "main")  # empties: what waits for the next pool goes on waiting
    assert lite.submit(a_request(pool="main", spill=SPILL)).state == "PENDING"


# --- held back


@pytest.mark.parametrize("how", ["hold", "after"])
def test_the_clock_of_the_rules_stands_while_a_job_is_held_back(rig: Rig, how: str) -> None:
    full, idle = two(rig)
    pool(rig, "main", full=1)
    pool(rig, "burst", idle=1)
    clusters.cluster_change(rig.context, ADMIN, "idle", ClusterChange(is_cordoned=False))
    first = rig.submit(a_request(cluster="idle"))
    held = {"hold": True} if how == "hold" else {"after": [first.id]}
    job = rig.submit(a_request(pool="main", spill=SPILL, **held)).id
    later(rig, 90_000, full, idle)
    assert expire_jobs(rig.context, rig.leader) == 1, "its end is put off"
    assert expire_jobs(rig.context, rig.leader) == 0
    assert rig.job(job).state is State.PENDING
    assert [verdict.cluster for verdict in explained_now(rig, job) if verdict.say is Answer.YES] == ["full"]
    if how == "hold":
        job_control.job_change(rig.context, ADMIN, job, JobChange(hold=False))
    else:
        finish(idle)
        assert settle_dependencies(rig.context, rig.leader) == 1
    clusters.cluster_change(rig.context, ADMIN, "full", ClusterChange(is_cordoned=True))
    assert route_pending(rig.context, rig.leader) == 0, "burst is not open yet"
    later(rig, 600, full, idle)
    assert route_pending(rig.context, rig.leader) == 1
    assert rig.job(job).cluster == "idle"
    later(rig, 86_400 - 601, full, idle)
    assert expire_jobs(rig.context, rig.leader) == 0
    later(rig, 1, full, idle)
    assert expire_jobs(rig.context, rig.leader) == 1
    assert rig.job(job).state is State.REJECTED


def test_its_own_word_ends_a_job_whether_it_is_held_or_not(lite: Rig) -> None:
    lite.cluster("alpha")
    job = lite.submit(a_request(hold=True, spill=["reject after 1h"], expires_after="2h")).id
    later(lite, 3601)
    assert expire_jobs(lite.context, lite.leader) == 1
    assert lite.job(job).state is State.PENDING
    later(lite, 3600)
    assert expire_jobs(lite.context, lite.leader) == 1
    assert (lite.job(job).state, lite.job(job).reason) == (State.FAILED, "expired: it did not begin in time")


def test_holding_a_job_that_began_once_gives_it_no_new_end(lite: Rig) -> None:
    alpha = lite.cluster("alpha")
    job = lite.submit(a_request(spill=["reject after 1h"])).id
    alpha.report(alpha.lease_one(), ObservedState.RETURNED)
    job_control.job_change(lite.context, ADMIN, job, JobChange(hold=True))
    job_control.job_change(lite.context, ADMIN, job, JobChange(hold=False))
    assert lite.row(job).expires_us is None


def explained_now(rig: Rig, job: str) -> list[Verdict]:
    return explanation.job_explain(rig.context, ADMIN, job).now


def finish(agent: RigAgent) -> None:
    held = agent.lease_one()
    agent.report(held, ObservedState.RUNNING)
    agent.report(held, ObservedState.SUCCEEDED)


def later(rig: Rig, seconds: float, *alive: RigAgent) -> None:
    """Hours at once."""
    rig.clock.wait(seconds)
    assert rig.leader.take(rig.context)
    for agent in alive:
        agent.seen()
