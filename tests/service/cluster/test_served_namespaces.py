"""Kubernetes clusters: what makes a cluster one, who says it, and whose objects its agents get."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from switchyard.errors import Conflict, Denied, NotFound
from switchyard.features.kubernetes.service import namespace_status
from switchyard.model.cluster.cluster import ClusterChange, ClusterRequest, GroupInviteRequest, InviteRequest
from switchyard.model.cluster.namespace_resources import serves_namespace
from switchyard.model.rules.access import GrantTarget, Role
from switchyard.service.cluster import clusters, group_invites
from switchyard.store.engine.database import Database, upgrade_schema
from tests.service.rig import ADMIN, Rig, RigAgent
from tests.service.upkeep.town import Town

OWN, OTHER = "default-staging", "secretive-staging"


def invited(rig: Rig, cluster: str, **fields: object) -> str:
    return clusters.invite_create(rig.context, ADMIN, cluster, InviteRequest(**fields)).token  # type: ignore[arg-type]


def namespaces_of(town: Town, agent: RigAgent) -> set[str]:
    index = namespace_status.namespace_index(town.rig.context, town.agent_entry(agent))
    return {entry.namespace for entry in index.namespaces}


@pytest.mark.parametrize("backend", ["kubernetes", "rainbow"])
def test_a_backend_that_gives_rights_is_not_believed(lite: Rig, backend: str) -> None:
    tokens = {
        "plain": invited(lite, "plain"),
        "many": invited(lite, "many", is_reusable=True),
        "group": group_invites.group_invite_create(lite.context, ADMIN, "pilots", GroupInviteRequest()).token,
    }
    for cluster, token in tokens.items():
        with pytest.raises(Denied) as refused:
            lite.join(cluster, token=token, backend=backend)
        assert refused.value.next_step
        lite.join(cluster, token=token)  # the refusal did not use it up


def test_a_platform_administrator_says_it_at_registration_in_the_invite_and_later(lite: Rig) -> None:
    made = clusters.cluster_create(lite.context, ADMIN, ClusterRequest("a", namespaces=["x-*", "y"]))
    assert made.namespaces == ["x-*", "y"]
    lite.join("a", token=invited(lite, "a"), backend="kubernetes")
    lite.join("b", token=invited(lite, "b", namespaces=["*"]), backend="kubernetes")
    token = invited(lite, "c")
    clusters.cluster_change(lite.context, ADMIN, "c", ClusterChange(namespaces=["z"]))
    lite.join("c", token=token, backend="kubernetes")
    request = GroupInviteRequest(namespaces=["z"])
    group = group_invites.group_invite_create(lite.context, ADMIN, "burst", request)
    assert group.info.namespaces == ["z"]
    lite.join("d", token=group.token, backend="kubernetes")
    assert clusters.cluster_change(lite.context, ADMIN, "d", ClusterChange()).namespaces == ["z"]


def test_an_administrator_of_the_cluster_does_not_say_it(lite: Rig) -> None:
    lite.cluster("alpha")
    ann = lite.user("ann", (Role.ADMIN, GrantTarget.CLUSTER, "alpha"))
    for act in (
        lambda: clusters.cluster_change(lite.context, ann, "alpha", ClusterChange(namespaces=["*"])),
        lambda: clusters.cluster_change(lite.context, ann, "alpha", ClusterChange(namespaces=[])),
        lambda: clusters.invite_create(lite.context, ann, "alpha", InviteRequest(namespaces=["*"])),
    ):
        with pytest.raises(Denied, match="on the platform"):
            act()
    clusters.invite_create(lite.context, ann, "alpha", InviteRequest())


def test_the_token_of_a_pilot_is_for_no_kubernetes_cluster_unless_it_was_made_so(lite: Rig) -> None:
    clusters.cluster_create(lite.context, ADMIN, ClusterRequest("k", namespaces=["*"]))
    with pytest.raises(Conflict, match="token of a pilot"):
        invited(lite, "k", is_for_job=True)
    invited(lite, "k", is_for_job=True, namespaces=["*"])


def test_an_agent_gets_the_objects_of_the_namespaces_that_its_cluster_serves(rig: Rig, tmp_path: Path) -> None:
    town = Town(rig, tmp_path / "templates")
    rig.project("secretive")
    every = town.kubernetes("every")
    clusters.cluster_create(rig.context, ADMIN, ClusterRequest("few", namespaces=["default-*"]))
    few = town.kubernetes("few")
    assert town.render() == 6
    assert {OWN, OTHER} <= namespaces_of(town, every)
    assert namespaces_of(town, few) == {f"default-{domain}" for domain in ("development", "staging", "production")}
    assert town.quota(OWN, few) == town.quota(OTHER, every) == "4"
    with pytest.raises(NotFound, match="does not serve it"):
        town.quota(OTHER, few)
    assert {state.namespace for state in town.states(cluster="few")} == namespaces_of(town, few)


def test_what_a_cluster_serves_changes_at_once_for_its_agents(lite: Rig, tmp_path: Path) -> None:
    town = Town(lite, tmp_path / "templates")
    agent = town.kubernetes("alpha")
    town.render()

    def version() -> str:
        return namespace_status.namespace_index(lite.context, town.agent_entry(agent)).version

    before = version()
    clusters.cluster_change(lite.context, ADMIN, "alpha", ClusterChange(namespaces=["none"]))
    assert version() != before, "the agent reads the index again"
    clusters.cluster_change(lite.context, ADMIN, "alpha", ClusterChange(namespaces=[]))
    with pytest.raises(Denied, match="serves no namespaces") as refused:
        version()
    assert "yard cluster edit alpha --namespaces" in refused.value.next_step
    told = {state.reason for state in town.states(cluster="alpha")}
    assert all("yard cluster edit alpha --namespaces" in reason for reason in told)
    assert told


def test_patterns_match_whole_names() -> None:
    assert serves_namespace(("a", "b-*"), "b-c")
    assert serves_namespace(("?",), "a")
    assert not any(serves_namespace(("a", "b-*"), name) for name in ("aa", "xb-c", "b", ""))
    assert not serves_namespace((), "a")


def test_after_an_upgrade_only_clusters_with_kubernetes_agents_alone_serve_namespaces(database_url: str) -> None:
    """Another agent beside them may have joined with a token that was never meant for Kubernetes."""
    with closing(Database(database_url)) as database:
        upgrade_schema(database, "0051")
        cases: list[tuple[str, list[str], dict[str, object]]] = [
            ("alone", ["kubernetes", "kubernetes"], {}),
            ("beside", ["slurm", "kubernetes"], {}),
            ("empty", [], {}),
            ("ephemeral", ["kubernetes"], {"is_ephemeral": True}),
            ("grouped", ["kubernetes"], {"group_invite_id": "g"}),
        ]
        for name, backends, columns in cases:
            _insert(database, name, backends, columns)
        upgrade_schema(database)
        with database.read() as tx:
            served = {row.name: row.namespaces for row in tx.execute(sa.text("SELECT name, namespaces FROM clusters"))}
    assert served.pop("alone") == '["*"]'
    assert set(served.values()) == {"[]"}


def _insert(database: Database, name: str, backends: list[str], columns: dict[str, object]) -> None:
    with database.write() as tx:
        tables = sa.MetaData()
        tables.reflect(tx, only=["clusters", "agents"])
        texts = dict.fromkeys(("reason", "backend"), "")
        row = texts | {"groups": "[]", "labels": "{}", "state": "{}", "is_private": False, "is_cordoned": False}
        tx.execute(
            sa.insert(tables.tables["clusters"]).values(
                id=name, name=name, created_us=1, **{"is_ephemeral": False} | row | columns
            )
        )
        for number, backend in enumerate(backends):
            words = dict.fromkeys(("journal", "credential_hash", "incarnation", "version", "reason"), "")
            flags = {"is_rotation_asked": False, "is_paused": False, "session": 0, "created_us": 1}
            identity = {"id": f"{name}-{number}", "cluster_id": name, "name": str(number), "backend": backend}
            tx.execute(sa.insert(tables.tables["agents"]).values(**words | flags | identity))
