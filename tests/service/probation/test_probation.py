"""A cluster on which jobs fail quickly, and not elsewhere, gets few tasks until canaries do well."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from switchyard.errors import Conflict, Denied
from switchyard.model.cluster.cluster import ClusterChange
from switchyard.model.cluster.poll import AttemptRef
from switchyard.model.cluster.probation import ProbationAction, ProbationChange
from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Retry
from switchyard.model.rules.access import GrantTarget, Role
from switchyard.server.config.config import Config
from switchyard.server.config.probation_section import ProbationSection
from switchyard.service.cluster import clusters, graphs, probation
from switchyard.service.cluster.cluster_show import cluster_get
from switchyard.service.run.attempt_evidence import ROWS_MAX
from switchyard.service.upkeep.waiting_jobs import end_backoffs
from switchyard.store.clusters import probations as store
from tests.builders import a_graph, a_request
from tests.service.probation.sites import Sites, tasks_in
from tests.service.rig import ADMIN, Rig, RigAgent, running


def test_a_black_hole_gets_three_tasks_of_an_array(rig: Rig) -> None:
    sites = Sites(rig, "good", "hole")
    sites.breaks("hole")
    job = rig.submit(a_request(array="0-39")).id
    for _ in range(60):
        sites.turn("hole")
        sites.turn("good")
        sites.round()
    tasks = rig.job(job).tasks
    assert tasks is not None
    assert (sites.lost("hole"), tasks.failed) == (3, 3)
    assert sites.ends["good", True] == 37


def test_an_array_sends_canaries_alone_while_its_other_cluster_is_away(rig: Rig) -> None:
    sites = Sites(rig, "good", "hole")
    sites.breaks("hole")
    rig.submit(a_request(array="0-99"))
    for _ in range(5):
        sites.turn("hole")
        sites.turn("good")
        sites.round()
    clusters.cluster_change(rig.context, ADMIN, "good", ClusterChange(is_cordoned=True))
    for _ in range(20):
        sites.round()
        sites.turn("hole", want=5)
    assert sites.lost("hole") == 3
    sites.wait(31)
    assert tasks_in(sites.turn("hole", want=5)) == 1, "a canary"


def test_one_job_that_is_tried_again_and_again_is_one_failure(rig: Rig) -> None:
    sites = Sites(rig, "one", "two")
    sites.is_broken = lambda _, lease: lease.attempt <= 4
    for number in range(3):
        rig.submit(a_request(name=f"step-{number}", retry=Retry(limit=5, backoff=1, backoff_max=1)))
    for _ in range(20):
        sites.wait(2)
        end_backoffs(rig.context, rig.leader)
        sites.round()
        sites.turn("one")
        sites.turn("two")
    assert (sites.lost("one") + sites.lost("two"), sites.ends["one", True] + sites.ends["two", True]) == (12, 3)
    assert sites.probations("one") == sites.probations("two") == []


def test_it_comes_back_when_canaries_do_well(rig: Rig) -> None:
    sites = Sites(rig, "good", "hole")
    sites.breaks("hole")
    rig.submit(a_request(array="0-999"))
    for _ in range(5):
        sites.turn("hole")
    assert sites.probations("hole") == [("local-admin", "")]
    sites.wait(31)
    assert len(sites.turn("hole", want=5)) == 1, "a canary"
    assert sites.lost("hole") == 4
    sites.wait(31)
    assert sites.turn("hole", want=5) == [], "the pause has doubled"
    sites.breaks()
    sites.wait(31)
    assert len(sites.turn("hole", want=5)) == 1
    assert len(sites.turn("hole", want=5)) == 1, "the next canary follows at once"
    assert sites.probations("hole") == []
    sites.round()
    assert tasks_in(sites.turn("hole", want=5)) == 5


def test_a_job_that_fails_everywhere_closes_nothing(rig: Rig) -> None:
    sites = Sites(rig, "one", "two")
    sites.breaks("one", "two")
    rig.submit(a_request(array="0-39"))
    for _ in range(40):
        sites.turn("one")
        sites.turn("two")
        sites.round()
    assert sites.lost("one") + sites.lost("two") == 40, "the array ended as fast as without probation"
    assert sites.probations("one") == sites.probations("two") == []


def test_plain_jobs_leave_a_black_hole(rig: Rig) -> None:
    sites = Sites(rig, "good", "hole")
    sites.breaks("hole")
    for _ in range(40):
        rig.submit(a_request(name="step"))
    for _ in range(60):
        sites.turn("hole")
        sites.turn("good")
        sites.round()
    assert sites.lost("hole") == 3
    assert sites.ends["good", True] == 37


def test_one_user_closes_a_cluster_only_for_themselves(rig: Rig) -> None:
    sites = Sites(rig, "good", "hole")
    zed, amy = (rig.user(name, (Role.SUBMIT, GrantTarget.PLATFORM, "all")) for name in ("zed", "amy"))
    sites.is_broken = lambda name, lease: name == "hole" and lease.owner == "zed"
    for _ in range(4):
        for request in (a_request(array="0-9"), a_request(name="x")):
            rig.submit(request, actor=zed)
    for _ in range(100):
        sites.turn("hole")
        sites.turn("good")
        sites.round()
    assert sites.probations("hole") == [(zed.id, "")]
    rig.submit(a_request(array="0-99"), actor=amy)
    assert tasks_in(sites.turn("hole", want=50)) == 10, "as many as may queue there"


def test_two_owners_close_a_cluster_for_all_but_not_while_a_third_does_well(rig: Rig) -> None:
    sites = Sites(rig, "good", "hole")
    ann, bob, cat = (rig.user(name, (Role.SUBMIT, GrantTarget.PLATFORM, "all")) for name in ("ann", "bob", "cat"))
    sites.is_broken = lambda name, lease: name == "hole" and lease.owner != "cat"

    def work(*, is_third_there: bool) -> list[tuple[str, str]]:
        for actor in (ann, bob):
            rig.submit(a_request(array="0-9"), actor=actor)
        for _ in range(20):
            sites.wait(0.01)
            if is_third_there:
                rig.submit(a_request(cluster="hole"), actor=cat)
            sites.turn("hole", want=3)
            sites.turn("good")
        return sites.probations("hole")

    assert work(is_third_there=True) == sorted((actor.id, "") for actor in (ann, bob))
    probation.probation_change(rig.context, ADMIN, "hole", ProbationChange(ProbationAction.CLEAR))
    assert work(is_third_there=False)[0] == ("", ""), "nobody does well there, and both do elsewhere"
    sites.wait(1)
    rig.submit(a_request(name="third"), actor=cat)
    assert [lease.owner for lease in sites.turn("hole") if lease.owner == "cat"] == []
    assert [lease.owner for lease in sites.turn("good", want=9) if lease.owner == "cat"] == ["cat"]


def test_all_clusters_on_probation_take_tasks_as_always(rig: Rig) -> None:
    sites = Sites(rig, "one", "two")
    for name in ("one", "two"):
        probation.probation_change(rig.context, ADMIN, name, ProbationChange(ProbationAction.CONFIRM, "smoke"))
    sites.wait(1)
    job = rig.submit(a_request(array="0-19")).id
    plain = rig.submit(a_request()).id
    sites.round()
    assert sum(len(sites.turn(name, want=50)) for name in ("one", "two", "one")) >= 2
    for _ in range(6):
        sites.turn("one", want=10)
        sites.turn("two", want=10)
    assert (rig.job(job).state, rig.job(plain).state) == (State.SUCCEEDED, State.SUCCEEDED)


def test_a_job_that_may_run_nowhere_else_runs_on_probation(rig: Rig) -> None:
    sites = Sites(rig, "good", "hole")
    before = rig.submit(a_request(cluster="hole")).id
    probation.probation_change(rig.context, ADMIN, "hole", ProbationChange(ProbationAction.CONFIRM))
    later = rig.submit(a_request(cluster="hole")).id
    sites.wait(0.1)
    sites.turn("hole", want=5)
    assert {rig.job(job).state for job in (before, later)} == {State.SUCCEEDED}


def test_flapping_makes_the_pauses_longer(rig: Rig) -> None:
    sites = Sites(rig, "good", "hole")
    rig.submit(a_request(array="0-999"))
    levels = []
    for _ in range(3):
        sites.breaks("hole")
        for _ in range(6):
            sites.turn("hole")
        levels.append(rig.context.snapshots.probation.rows[0].level)
        sites.breaks()
        for _ in range(4):
            sites.wait(130)
            sites.turn("hole")
        assert sites.probations("hole") == []
    assert levels == [0, 1, 2]


def test_one_broken_node_is_avoided_and_its_cluster_is_not(rig: Rig) -> None:
    sites = Sites(rig, "good")
    many = rig.join("many")
    graphs.store_agent_graph(rig.context, many.id, a_graph(count=8))
    many.sync()
    sites.agents["many"] = many
    rig.submit(a_request(array="0-99"))
    sites.breaks("many")
    for _ in range(4):
        sites.turn("many", node="n3")
    assert sites.probations("many") == [("local-admin", "n3")]
    sites.breaks()
    (lease,) = sites.turn("many", want=4, node="n1")
    assert lease.avoid_nodes == ["n3"]
    sites.wait(31)
    (lease,) = sites.turn("many", node="n3")
    assert lease.avoid_nodes == [], "the node is tried again"
    sites.wait(31)
    sites.breaks("many")
    for node in ("n1", "n2", "n4", "n5"):
        for _ in range(3):
            sites.turn("many", node=node)
    assert ("local-admin", "") in sites.probations("many"), "so many nodes: it is the cluster"


def test_a_cluster_that_an_operator_exempts_takes_everything(rig: Rig) -> None:
    sites = Sites(rig, "good", "hole")
    sites.breaks("hole")
    probation.probation_change(rig.context, ADMIN, "hole", ProbationChange(ProbationAction.OFF))
    rig.submit(a_request(array="0-19"))
    for _ in range(20):
        sites.turn("hole")
    assert (sites.lost("hole"), sites.probations("hole")) == (20, [])
    with pytest.raises(Conflict, match="exempt"):
        probation.probation_change(rig.context, ADMIN, "hole", ProbationChange(ProbationAction.CONFIRM))
    probation.probation_change(rig.context, ADMIN, "hole", ProbationChange(ProbationAction.ON))
    rig.submit(a_request(array="0-19"))
    for _ in range(20):
        sites.turn("hole")
    assert sites.lost("hole") == 23


def test_a_canary_that_runs_for_long_has_done_well(rig: Rig) -> None:
    sites = Sites(rig, "good", "hole")
    sites.breaks("hole")
    rig.submit(a_request(array="0-99"))
    for _ in range(4):
        sites.turn("hole")
    for _ in range(2):
        sites.wait(31)
        agent = sites.agents["hole"]
        (lease,) = agent.lease(1)
        agent.report(AttemptRef(lease.job, lease.fence), ObservedState.RUNNING, native_id="7")
        assert agent.lease(1) == []
        sites.wait(5)
        assert sites.probations("hole"), "it has not run for long"
        sites.wait(6)
    assert sites.probations("hole") == []


def test_a_restarted_agent_is_still_on_probation(rig: Rig) -> None:
    sites = Sites(rig, "good", "hole")
    sites.breaks("hole")
    rig.submit(a_request(array="0-99"))
    for _ in range(4):
        sites.turn("hole")
    sites.agents["hole"].sync()
    assert sites.agents["hole"].lease(5) == []


def test_evidence_about_one_user_is_bounded_and_forgotten(rig: Rig) -> None:
    sites = Sites(rig, "good", "hole")
    sites.breaks("good", "hole")
    for number in range(50):
        rig.submit(a_request(name=f"job-{number}"))
    for _ in range(60):
        sites.turn("hole")
        sites.turn("good")
    with rig.context.database.read() as tx:
        rows = store.evidence_all(tx)
    assert 0 < len(rows) <= 2 * ROWS_MAX
    sites.wait(3601)
    sites.wait(61)
    with rig.context.database.read() as tx:
        assert (store.evidence_all(tx), rig.context.snapshots.probation.gated) == ([], frozenset())


def test_without_quick_failures_nothing_is_stored(rig: Rig) -> None:
    sites = Sites(rig, "good", "hole")
    rig.submit(a_request(array="0-5"))
    for _ in range(3):
        sites.turn("hole")
        sites.turn("good")
    assert rig.context.snapshots.probation.is_empty


def test_switched_off_nothing_is_held_back(store_url: str, tmp_path: Path) -> None:
    config = msgspec.structs.replace(Config(), probation=ProbationSection(enabled=False))
    with running(store_url, tmp_path, config=config) as rig:
        sites = Sites(rig, "good", "hole")
        sites.breaks("hole")
        rig.submit(a_request(array="0-39"))
        for _ in range(40):
            sites.turn("hole")
        assert sites.lost("hole") == 40


def test_owners_see_their_own_and_operators_all(rig: Rig) -> None:
    sites = Sites(rig, "good", "hole")
    zed, amy = (rig.user(name, (Role.SUBMIT, GrantTarget.PLATFORM, "all")) for name in ("zed", "amy"))
    sites.breaks("hole")
    rig.submit(a_request(array="0-9"), actor=zed)
    for _ in range(4):
        sites.turn("hole")
    seen = {actor.name: cluster_get(rig.context, actor, "hole").probations for actor in (zed, amy, ADMIN)}
    assert [one.owner for one in seen["zed"]] == [one.owner for one in seen[ADMIN.name]] == ["zed"]
    assert seen["amy"] == []
    with pytest.raises(Denied, match="operate"):
        probation.probation_change(rig.context, zed, "hole", ProbationChange(ProbationAction.CLEAR))


def test_servers_share_probation_through_their_database(postgres_url: str, tmp_path: Path) -> None:
    with running(postgres_url, tmp_path / "one") as one, running(postgres_url, tmp_path / "two") as two:
        sites = Sites(one, "good", "hole")
        sites.breaks("hole")
        one.submit(a_request(array="0-39"))
        for _ in range(4):
            sites.turn("hole")
        two.context.snapshots.refresh()
        there = RigAgent(two, sites.agents["hole"].id, "hole", sites.agents["hole"].session)
        there.seen()
        assert there.lease(5) == []
        assert two.context.snapshots.world.owner_probations.keys() == {"local-admin"}


def test_after_the_first_failure_few_tasks_are_in_hand_until_one_runs_for_long(rig: Rig) -> None:
    sites = Sites(rig, "good", "hole")
    sites.breaks("hole")
    rig.submit(a_request(array="0-99"))
    sites.turn("hole")
    agent = sites.agents["hole"]
    leases = agent.lease(8)
    assert (tasks_in(leases), agent.lease(8)) == (2, []), "as many as may still fail"
    agent.report(AttemptRef(leases[0].job, leases[0].fence), ObservedState.RUNNING, native_id="7")
    sites.wait(5)
    assert agent.lease(8) == []
    sites.wait(6)
    assert tasks_in(agent.lease(8)) == 8, "one has run for long"
