"""Pools and labels as a service: what a change does to jobs that wait, arrays among them, and to who reads them."""

from __future__ import annotations

import pytest

from switchyard.errors import Conflict, Denied
from switchyard.model.cluster.cluster import ClusterChange
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.rules.access import GrantTarget, Role
from switchyard.model.rules.layout import Layout, LayoutPart, SetMember, SetRequest
from switchyard.service.cluster import clusters, layout
from switchyard.service.rules.attributes import UNCONDITIONAL
from switchyard.service.upkeep import move_jobs
from switchyard.service.upkeep.round import route_pending
from tests.builders import a_request
from tests.service.rig import ADMIN, Rig


def put(rig: Rig, name: str, **weights: float) -> None:
    request = SetRequest([SetMember(cluster, weight) for cluster, weight in weights.items()])
    layout.set_put(rig.context, ADMIN, LayoutPart.POOL, name, request, condition=UNCONDITIONAL)


def upkeep_now(rig: Rig) -> None:
    move_jobs.take_back_unleased(rig.context, rig.leader)
    route_pending(rig.context, rig.leader)


def test_an_array_with_live_tasks_is_not_rejected_under_them(rig: Rig) -> None:
    agent = rig.cluster("a")
    rig.cluster("apart")
    put(rig, "p", a=1)
    job = rig.submit(a_request(array="0-3", pool="p")).id
    held = agent.lease_one()
    agent.report(held, ObservedState.RUNNING)
    clusters.cluster_change(rig.context, ADMIN, "a", ClusterChange(is_cordoned=True))
    upkeep_now(rig)
    assert rig.row(job).state == "PENDING"
    put(rig, "p")
    upkeep_now(rig)
    assert (rig.row(job).state, rig.row(job).tasks_live) == ("PENDING", 1)
    agent.report(held, ObservedState.SUCCEEDED, exit_code=0)
    assert rig.row(job).tasks_ok == 1
    upkeep_now(rig)
    ended = rig.job(job)
    assert ended.state == "REJECTED"
    assert ended.reason.startswith("the pool p has no cluster: ")
    row = rig.row(job)
    assert (row.tasks_live, row.tasks_ok, row.tasks_cancelled, row.todo) == (0, 1, 3, "")


def test_of_a_pool_one_sees_the_members_one_may_see(rig: Rig) -> None:
    rig.cluster("open")
    rig.cluster("secret", is_private=True)
    put(rig, "p", open=1, secret=2)
    ann = rig.user("ann", (Role.VIEW, GrantTarget.PROJECT, "default"))
    found = layout.set_get(rig.context, ann, LayoutPart.POOL, "p")
    assert found.members == [SetMember("open", 1)]
    assert [each.id for each in layout.layout_view(rig.context, ADMIN).pools[0].members] == ["open", "secret"]
    with pytest.raises(Denied):
        layout.set_put(rig.context, ann, LayoutPart.POOL, "p", SetRequest([]), condition=UNCONDITIONAL)


FILE = Layout({"a": True, "b": False}, {"p": {"a": 1.0, "ghost": 2.0}}, {"l": {"b": 1.0}}, "l", {"staging": "p"})


def test_a_file_is_settled_once_and_what_operators_did_since_stays(rig: Rig) -> None:
    assert layout.store_file_layout(rig.context, FILE) == ["ghost"]
    world = rig.context.snapshots.world
    first = {member.name: (member.id, member.health.value) for member in world.members}
    assert {name: health for name, (_, health) in first.items()} == {"a": "down", "b": "cordoned"}
    put(rig, "p", b=3)
    clusters.cluster_change(rig.context, ADMIN, "b", ClusterChange(is_cordoned=False))
    clusters.cluster_change(rig.context, ADMIN, "a", ClusterChange(is_cordoned=True, reason="new disks"))
    version = rig.context.snapshots.laid.version
    layout.store_file_layout(rig.context, FILE)
    world = rig.context.snapshots.world
    assert rig.context.snapshots.laid.version == version, "nothing changed, so nobody loads anything anew"
    assert {name: member.id for name, member in world.by_name.items()} == {
        name: key for name, (key, _) in first.items()
    }
    assert (world.by_name["a"].reason, world.by_name["b"].health) == ("new disks", "down")
    assert world.pools == {"p": {"b": 3.0}}


def test_a_file_that_changed_has_its_word_on_what_it_changed(rig: Rig) -> None:
    layout.store_file_layout(rig.context, FILE)
    clusters.cluster_change(rig.context, ADMIN, "a", ClusterChange(is_cordoned=True, reason="new disks"))
    layout.store_file_layout(rig.context, Layout({"a": True, "b": True, "c": False}, {"q": {"b": 1.0}}))
    by_name = rig.context.snapshots.world.by_name
    assert {name: member.health.value for name, member in by_name.items()} == {
        "a": "cordoned",
        "b": "down",
        "c": "cordoned",
    }
    assert rig.context.snapshots.world.pools == {"q": {"b": 1.0}}
    assert rig.context.snapshots.policy.platform.labels == frozenset()
    assert "cluster-assignment" not in rig.context.snapshots.policy.platform.domain_values.get("staging", {})


def test_what_was_set_over_the_file_is_removed_or_reset(rig: Rig) -> None:
    layout.store_file_layout(rig.context, FILE)
    put(rig, "p", b=3)
    with pytest.raises(Conflict, match="the domain staging"):
        layout.remove_part(rig.context, ADMIN, LayoutPart.POOL, "p", condition=UNCONDITIONAL)
    layout.remove_part(rig.context, ADMIN, LayoutPart.DOMAIN_POOL, "staging", condition=UNCONDITIONAL)
    layout.remove_part(rig.context, ADMIN, LayoutPart.POOL, "p", condition=UNCONDITIONAL)
    assert rig.context.snapshots.world.pools == {}
    for part, name in ((LayoutPart.POOL, "p"), (LayoutPart.DOMAIN_POOL, "staging")):
        layout.remove_part(rig.context, ADMIN, part, name, condition=UNCONDITIONAL, is_reset=True)
    assert rig.context.snapshots.laid.layout == FILE
