"""Leases: in order, while they fit, under the session that asked; a sync brings back what got lost."""

from __future__ import annotations

from msgspec import Raw

from switchyard.errors import Gone, Resync
from switchyard.model.cluster.cluster import ClusterChange
from switchyard.model.cluster.poll import AttemptRef, Room
from switchyard.model.job.lifecycle import ObservedState, ReportAnswer
from switchyard.model.rules.access import GranteeKind, GrantTarget, Role, UserChange
from switchyard.service.access import users
from switchyard.service.cluster import agents, clusters
from switchyard.service.core.snapshots.snapshots import owner_of
from switchyard.service.job import jobs
from tests.builders import a_graph, a_request
from tests.service.rig import ADMIN, Rig

WIDE = a_graph(cores=64, gpus=8, memory_gib=64)


def test_leases_come_by_priority_then_arrival_across_projects(rig: Rig) -> None:
    agent = rig.cluster("alpha", graph=WIDE)
    rig.project("web")
    asked = [("a", 0), ("b", 5), ("c", 0), ("d", 5), ("e", -3)]
    made = {
        name: rig.submit(a_request(name, priority=priority, project="web" if name in "bc" else "default")).id
        for name, priority in asked
    }
    got = [lease.job for lease in agent.lease(4)]
    assert got == [made[name] for name in "bdac"]
    assert [lease.job for lease in agent.lease(4)] == [made["e"]]
    assert agent.lease(4) == []


def test_a_lease_carries_what_the_agent_needs(lite: Rig) -> None:
    agent = lite.cluster("alpha")
    made = lite.submit(a_request("echo", "é", labels={"a": "b"}, priority=3))
    (lease,) = agent.lease()
    assert (lease.job, lease.attempt, lease.fence, lease.cluster) == (made.id, 1, 1, "alpha")
    assert (lease.labels, lease.owner, lease.project, lease.domain) == (
        {"a": "b"},
        "local-admin",
        "default",
        "development",
    )
    assert isinstance(lease.spec, Raw)
    assert bytes(lease.spec) == '{"command":["echo","é"]}'.encode()
    assert lite.kinds(made.id) == ["accepted", "leased"]
    assert lite.job(made.id).leased_us == lite.clock()


def test_a_lease_says_whether_its_owner_administers_the_platform(lite: Rig) -> None:
    """By the grants of now: an agent of root's runs jobs of administrators as root."""
    agent = lite.cluster("alpha")
    ada = lite.user("ada", (Role.ADMIN, GrantTarget.PROJECT, "default"), (Role.ADMIN, GrantTarget.CLUSTER, "alpha"))
    root = lite.user("root", (Role.ADMIN, GrantTarget.PLATFORM, "all"))
    grace = lite.user("grace", groups=["staff"])
    lite.grant("staff", Role.ADMIN, GrantTarget.PLATFORM, to=GranteeKind.GROUP)
    operator = lite.user("operator", (Role.OPERATE, GrantTarget.PLATFORM, "all"))
    for actor in (ADMIN, ada, root, grace, operator):
        lite.submit(actor=actor)
    found = {lease.owner: lease.is_owner_admin for lease in agent.lease(8)}
    assert found == {"local-admin": True, "ada": False, "root": True, "grace": True, "operator": False}
    users.user_change(lite.context, ADMIN, "root", UserChange(is_enabled=False))
    access = lite.context.snapshots.access
    owners = [*(actor.id for actor in (ADMIN, ada, root, grace, operator)), "rainbow", "nobody"]
    assert [owner in access.platform_admins for owner in owners] == [
        owner_of(access, owner, "").is_platform_admin for owner in owners
    ]
    assert root.id not in access.platform_admins
    assert access.admin_names == {"local-admin", "grace"}


def test_jobs_are_leased_while_they_fit_and_smaller_ones_pass_for_a_while(rig: Rig) -> None:
    agent = rig.cluster("alpha", graph=WIDE)
    small, big, *tiny = (rig.submit(a_request(cores=cores, memory="1GiB", gpus=1)).id for cores in (2, 8, 1, 1, 1))
    gib = 2**30
    assert agent.lease(9, Room(cores=0)) == []
    assert agent.lease(9, Room(2, 0, 9 * gib)) == []
    assert agent.lease(9, Room(2, 1, gib - 1)) == []
    assert [lease.job for lease in agent.lease(2, Room(9, 8, 9 * gib))] == [small, tiny[0]]
    assert [lease.job for lease in agent.lease(1, Room(7, 8, 9 * gib))] == [tiny[1]], "it slips past the big one"
    rig.clock.wait(300)
    assert agent.lease(9, Room(7, 8, 9 * gib)) == [], "from now on nobody does"
    assert [lease.job for lease in agent.lease(9, Room(9, 8, 9 * gib))] == [big, tiny[2]]


def test_want_bounds_the_leases_and_none_wanted_gives_none(rig: Rig) -> None:
    agent = rig.cluster("alpha")
    for _ in range(5):
        rig.submit()
    assert agent.lease(0) == []
    assert [len(agent.lease(want)) for want in (2, 2, 2, 2)] == [2, 2, 1, 0]


def test_two_agents_of_a_cluster_share_its_line_in_one_batch(lite: Rig) -> None:
    one = lite.cluster("alpha")
    two = lite.join("alpha", "second", journal="j2")
    two.sync()
    made = [lite.submit().id for _ in range(5)]
    first, second = lite.together(one.ask(2), two.ask(9))
    assert [lease.job for lease in first.leases] == made[:2]
    assert [lease.job for lease in second.leases] == made[2:]


def test_a_cluster_gets_only_its_own_jobs(lite: Rig) -> None:
    alpha, beta = lite.cluster("alpha"), lite.cluster("beta")
    made = {name: lite.submit(a_request(cluster=name)).id for name in ("alpha", "beta")}
    first, second = lite.together(alpha.ask(), beta.ask())
    assert [lease.job for lease in first.leases] == [made["alpha"]]
    assert [lease.job for lease in second.leases] == [made["beta"]]


def test_a_cordoned_cluster_gets_no_new_job_and_keeps_those_it_has(rig: Rig) -> None:
    agent = rig.cluster("alpha")
    running, waiting = rig.submit().id, rig.submit().id
    held = agent.lease_one()
    assert held.job == running
    clusters.cluster_change(rig.context, ADMIN, "alpha", ClusterChange(is_cordoned=True, reason="new disks"))
    assert agent.lease() == []
    assert agent.report(held, ObservedState.SUCCEEDED) is ReportAnswer.TAKEN
    clusters.cluster_change(rig.context, ADMIN, "alpha", ClusterChange(is_cordoned=False))
    assert [lease.job for lease in agent.lease()] == [waiting]


def test_uncordoning_wakes_the_polls_that_wait_there(lite: Rig) -> None:
    agent = lite.cluster("alpha")
    told = []
    before = lite.committer.after_commit
    lite.committer.after_commit = lambda woken: (told.append(woken), before(woken))  # type: ignore[assignment, return-value]
    clusters.cluster_change(lite.context, ADMIN, "alpha", ClusterChange(is_cordoned=False))
    assert any(agent.cluster_id in woken.clusters for woken in told)


# --- sessions


def test_an_older_session_is_told_to_sync_and_gets_nothing(rig: Rig) -> None:
    agent = rig.cluster("alpha")
    rig.submit()
    stale = agent.ask()
    agent.sync()
    assert isinstance(rig.failure(stale), Resync)
    assert len(agent.lease()) == 1


def test_a_sync_in_the_same_batch_ends_the_session_before_its_leases(rig: Rig) -> None:
    agent = rig.cluster("alpha")
    rig.submit()
    lease, sync = rig.together(agent.ask(), agent.sync_ask())
    assert isinstance(lease, Resync)
    assert sync.leases == [], "so nothing was given that the new session would not know of"


def test_two_syncs_in_one_batch_get_each_its_own_answer(rig: Rig) -> None:
    agent, other = rig.cluster("alpha"), rig.cluster("beta")
    made = rig.submit(a_request(cluster="alpha"))
    held = agent.lease_one()
    first, elsewhere, second = rig.together(
        agent.sync_ask((made.id, held.fence)), other.sync_ask(("X" * 26, 1)), agent.sync_ask()
    )
    assert second.session == first.session + 1
    assert first.leases == []
    assert [lease.job for lease in second.leases] == [made.id]
    assert [stop.job for stop in elsewhere.stops] == ["X" * 26]


def test_a_removed_agent_is_gone(rig: Rig) -> None:
    agent = rig.cluster("alpha")
    ask, sync = agent.ask(), agent.sync_ask()
    agents.agent_remove(rig.context, ADMIN, agent.id)
    assert isinstance(rig.failure(ask), Gone)
    assert isinstance(rig.failure(sync), Gone)


def test_a_sync_redelivers_what_never_arrived_and_stops_what_is_not_leased(rig: Rig) -> None:
    agent = rig.cluster("alpha")
    ids = [rig.submit().id for _ in range(4)]
    leases = agent.lease(3)
    agent.report(AttemptRef(ids[2], 1), ObservedState.SUCCEEDED)
    given = agent.sync((ids[0], 1), (ids[2], 1), (ids[3], 1), ("A" * 26, 7))
    assert [(lease.job, lease.fence) for lease in given.leases] == [(ids[1], 1)]
    assert [(stop.job, stop.fence) for stop in given.stops] == sorted([(ids[2], 1), (ids[3], 1), ("A" * 26, 7)])
    assert given.leases[0] == leases[1], "the very same lease"
    assert agent.sync((ids[0], 1), (ids[1], 1)).leases == []
    assert rig.kinds(ids[1]) == ["accepted", "leased"], "a redelivery is no new event"


def test_a_sync_with_an_older_fence_gets_the_new_lease_and_stops_the_old(rig: Rig) -> None:
    agent = rig.cluster("alpha")
    made = rig.submit(a_request(on_lost="requeue"))
    held = agent.lease_one()
    agent.report(held, ObservedState.LOST)
    _route(rig)
    again = agent.lease_one()
    assert (again.job, again.fence > held.fence) == (made.id, True)
    given = agent.sync((held.job, held.fence))
    assert [(lease.job, lease.fence) for lease in given.leases] == [(again.job, again.fence)]
    assert [(stop.job, stop.fence) for stop in given.stops] == [(held.job, held.fence)]


def _route(rig: Rig) -> None:
    from switchyard.service.upkeep.round import route_pending

    assert route_pending(rig.context, rig.leader) == 1


# --- cancels


def test_a_cancel_is_told_until_the_agent_says_it_knows(lite: Rig) -> None:
    agent = lite.cluster("alpha")
    made = lite.submit()
    held = agent.lease_one()
    jobs.job_cancel(lite.context, ADMIN, made.id, "enough")
    assert agent.poll().cancels == [held]
    assert agent.poll().cancels == [held]
    assert lite.committer.do(agent.ask(cancelling=[(held.job, held.fence)])).cancels == []
    assert agent.sync((held.job, held.fence)).cancels == [held]
    agent.report(held, ObservedState.CANCELLED)
    assert agent.poll().cancels == []
