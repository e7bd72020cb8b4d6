"""Pools and cluster labels from outside: changes at run time, while jobs wait, at two servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from switchyard import Client, State
from switchyard.errors import EXIT_CONFLICT, EXIT_NOT_FOUND, EXIT_USAGE
from tests.acceptance.rules.pools import ANY, CONFIG, FIRST, WORK, laid_out, plan, pool_of, set_pool, steps, write
from tests.acceptance.scripted import ScriptedAgent
from tests.acceptance.stage import SOON_S, Stage
from tests.processes import until
from tests.programs import call, start_server
from tests.services import Postgres
from tests.store.prepared import migrated

pytestmark = pytest.mark.xdist_group("pools_changed")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with laid_out(tmp_path_factory.mktemp("pools")) as made:
        yield made


# --- at run time


def test_a_pool_is_set_shown_and_removed_without_a_restart(stage: Stage) -> None:
    stage.yard("pool", "set", "new", "a=2", "b=6", check=True)
    assert "75.0%" in stage.yard("pool", "show", "new", check=True).stdout
    assert set(steps(plan(stage, pool="new")).values()) == {"match", "pool"}
    stage.yard("pool", "set", "new", "c", check=True)
    assert plan(stage, pool="new")["chosen"] == "c"
    assert stage.yard("pool", "rm", "new").returncode == EXIT_USAGE, "without a terminal it is not asked"
    stage.yard("pool", "rm", "new", "--force", check=True)
    assert stage.yard("pool", "show", "new").returncode == EXIT_NOT_FOUND
    assert stage.call("POST", "/v1/plan", WORK | {"pool": "new"}).status == 400
    audit = [entry for entry in stage.walk("/v1/audit", limit=100) if entry["object"] == "new"]
    assert [entry["action"] for entry in audit] == ["pool.delete", "pool.put", "pool.put"]
    assert audit[1]["before"] == {"a": 2, "b": 6}


def test_what_the_file_has_can_be_changed_removed_and_given_back(stage: Stage) -> None:
    with Client(stage.url) as client:
        was = client.cluster_label("a")
        assert was.source == "file"
        changed = client.put_cluster_label("a", {"b": 1}, etag=was.etag)
        assert (changed.source, changed.changed_by) == ("set", "local-admin")
        assert plan(stage, cluster_label="a")["chosen"] == "b"
        client.delete_cluster_label("a", etag=changed.etag)
        assert stage.call("POST", "/v1/plan", WORK | {"cluster_label": "a"}).status == 400
        client.delete_cluster_label("a", reset=True)
        assert client.cluster_label("a") == was
    assert plan(stage, cluster_label="a")["chosen"] == "a"


def test_the_defaults_are_changed_at_run_time_too(stage: Stage) -> None:
    stage.yard("cluster-label", "default", "a", check=True)
    try:
        assert plan(stage)["chosen"] == "a"
        assert plan(stage, cluster_label="bc")["chosen"] in ("b", "c")
        assert plan(stage, pool="c")["chosen"] == "c", "the default label is for jobs without a pool"
        assert stage.yard("cluster-label", "rm", "a", "--force").returncode == EXIT_CONFLICT
    finally:
        stage.yard("cluster-label", "default", "--none", check=True)
    stage.yard("pool", "assign", "production", "c", check=True)
    try:
        assert plan(stage, domain="production")["chosen"] == "c"
        refused = stage.yard("pool", "rm", "c", "--force")
        assert (refused.returncode, "the domain production" in refused.stderr) == (EXIT_CONFLICT, True)
    finally:
        stage.yard("pool", "unassign", "production", check=True)
    view = stage.get("/v1/layout")
    assert view.get("default_label") is None
    assert [each["domain"] for each in view["domain_pools"]] == ["staging"]


def test_a_pool_that_an_attribute_names_is_not_removed(stage: Stage) -> None:
    set_pool(stage, "kept", a=1)
    stage.post("/v1/projects", {"name": "keeper"})
    at = "/v1/attributes/cluster-assignment?project=keeper"
    assert stage.call("PUT", at, {"cluster_pool_name": "kept"}, headers=FIRST).status == 200
    refused = stage.call("DELETE", "/v1/pools/kept", headers=ANY)
    assert (refused.status, "1 attribute of kind cluster-assignment" in refused.json["detail"]) == (409, True)
    assert stage.call("DELETE", at, headers=ANY).status == 200
    assert stage.call("DELETE", "/v1/pools/kept", headers=ANY).status == 200


MEMBERS = {"members": [{"id": "a"}]}
BAD: list[tuple[str, str, Any, dict[str, str], int, str]] = [
    ("no condition", "PUT /v1/pools/x", MEMBERS, {}, 428, "needs a condition"),
    ("there already", "PUT /v1/pools/ab", MEMBERS, FIRST, 412, "already"),
    ("changed since", "PUT /v1/pools/ab", MEMBERS, {"If-Match": '"old"'}, 412, "no longer what you read"),
    ("no ETag", "PUT /v1/pools/ab", MEMBERS, {"If-Match": '"a b"'}, 400, "must be an ETag"),
    ("not there", "PUT /v1/pools/x", MEMBERS, ANY, 412, "it is gone"),
    ("a bad name", "PUT /v1/pools/a%20b", MEMBERS, FIRST, 400, "not a valid name"),
    ("no members", "PUT /v1/pools/x", {}, FIRST, 400, "members"),
    ("a stranger", "PUT /v1/pools/x", {"members": [{"id": "mars"}]}, FIRST, 400, "known: a, b, c"),
    ("a word for a weight", "PUT /v1/pools/x", {"members": [{"id": "a", "weight": "much"}]}, FIRST, 400, "weight"),
    ("an unknown field", "PUT /v1/pools/x", {"members": [], "colour": 1}, FIRST, 400, "colour"),
    ("nothing to remove", "DELETE /v1/pools/x", None, ANY, 404, "no pool x"),
    ("nothing to reset", "DELETE /v1/pools/ab?reset=true", None, ANY, 404, "Nothing was set"),
    ("a label that is not", "PUT /v1/layout/default-label", {"label": "mars"}, FIRST, 400, "no cluster label 'mars'"),
    ("a pool that is not", "PUT /v1/layout/domain-pools/production", {"pool": "x"}, FIRST, 400, "no pool 'x'"),
    ("a domain that is not", "PUT /v1/layout/domain-pools/mars", {"pool": "ab"}, FIRST, 400, "no domain 'mars'"),
]


@pytest.mark.parametrize(
    ("route", "body", "headers", "status", "says"), [row[1:] for row in BAD], ids=[r[0] for r in BAD]
)
def test_a_bad_change_changes_nothing(
    stage: Stage, route: str, body: Any, headers: dict[str, str], status: int, says: str
) -> None:
    before = stage.get("/v1/layout")
    method, path = route.split()
    answer = stage.call(method, path, body, headers=headers)
    assert (answer.status, says in answer.json["detail"]) == (status, True), answer.json
    assert stage.get("/v1/layout") == before


def test_every_mistake_of_a_set_is_said_at_once(stage: Stage) -> None:
    members = [{"id": "a", "weight": -1}, {"id": "a"}, {"id": "mars"}, {"id": "b", "weight": 1e300}, {"id": "no name"}]
    said = stage.call("PUT", "/v1/pools/x", {"members": members}, headers=FIRST).json["detail"]
    for mistake in (
        "'a' is given twice",
        "weight -1",
        "'mars' is no cluster",
        "weight 1e+300",
        "'no name' is not a valid",
    ):
        assert mistake in said, said


# --- while jobs wait


def test_a_pool_that_empties_lets_nothing_wait_for_ever(stage: Stage) -> None:
    set_pool(stage, "shrinking", dark=1)
    waiting = [stage.submitted("true", pool="shrinking") for _ in range(3)]
    other = stage.submitted("true", pool="dark")
    assert {job["state"] for job in (*waiting, other)} == {"PENDING"}
    set_pool(stage, "shrinking")
    for job in waiting:
        ended = stage.ended(job["id"])
        assert ended["state"] == "REJECTED"
        assert ended["reason"].startswith("the pool shrinking has no cluster: ")
    assert stage.job(other["id"])["state"] == "PENDING"
    assert stage.submitted("true", pool="shrinking")["state"] == "REJECTED"
    stage.post(f"/v1/jobs/{other['id']}/cancel", {})


def test_a_pool_that_grows_takes_what_waits(stage: Stage) -> None:
    set_pool(stage, "growing", dark=1)
    waiting = stage.submitted("true", pool="growing")
    assert waiting["state"] == "PENDING"
    set_pool(stage, "growing", dark=1, b=1)
    ended = stage.ended(waiting["id"])
    assert (ended["state"], ended["cluster"]) == ("SUCCEEDED", "b")


def test_a_deleted_clusters_jobs_go_where_another_is_allowed_else_are_rejected(stage: Stage) -> None:
    ScriptedAgent(stage, "short")  # it says hello and leases nothing
    set_pool(stage, "both", short=1, a=0)
    set_pool(stage, "alone", short=1)
    moving = [stage.submitted("true", pool="both") for _ in range(3)]
    stuck = [stage.submitted("true", pool="alone"), stage.submitted("true", cluster="short")]
    assert {(job["state"], job["cluster"]) for job in (*moving, *stuck)} == {("ASSIGNED", "short")}
    stage.yard("cluster", "rm", "short", "--force", check=True)
    for job in moving:
        ended = stage.ended(job["id"])
        assert (ended["state"], ended["cluster"]) == ("SUCCEEDED", "a")
    for job, why in zip(stuck, ("no cluster of pool alone is there: ", "the cluster it names is gone: "), strict=True):
        ended = stage.ended(job["id"])
        assert (ended["state"], ended["reason"][: len(why)]) == ("REJECTED", why)


# --- two servers


@pytest.fixture
def shared_url(postgres: Postgres) -> str:
    return migrated(postgres)


def test_a_change_at_one_server_holds_at_the_other(tmp_path: Path, shared_url: str) -> None:
    extra = ["--config", write(tmp_path, CONFIG)]
    with (
        start_server(tmp_path, database=shared_url, name="one", extra=extra) as one,
        start_server(tmp_path, database=shared_url, name="two", extra=extra) as two,
        Client(one.url) as here,
        Client(two.url) as there,
    ):
        here.put_pool("ab", {"c": 1}, etag=here.pool("ab").etag)
        until(lambda: there.pool("ab").source == "set", SOON_S, "the other server has it")
        assert there.pool("ab") == here.pool("ab")
        # Not even a server that has not heard of it yet says no by what it knew: it looks first.
        here.put_pool("brand-new", {"c": 1})
        assert there.submit(["true"], pool="brand-new").refresh().state == "PENDING"


def test_of_two_files_that_disagree_the_last_one_started_holds_everywhere(tmp_path: Path, shared_url: str) -> None:
    other = CONFIG.replace("c: [{id: c}]", "c: [{id: a, weight: 7}]")
    with start_server(tmp_path, database=shared_url, name="one", extra=["--config", write(tmp_path, CONFIG)]) as one:
        set_by_hand = call("PUT", f"{one.url}/v1/pools/ab", {"members": [{"id": "c"}]}, headers=ANY)
        assert set_by_hand.status == 200
        file = write(tmp_path, other, "other.yaml")
        with start_server(tmp_path, database=shared_url, name="two", extra=["--config", file]) as two:
            for server in (one, two):
                until(lambda url=server.url: pool_of(url, "c") == {"a": 7}, SOON_S, f"{server.name} has the new file")
                assert pool_of(server.url, "ab") == {"c": 1}, "what was set at run time stays"
            assert "the clusters section of the config file changed" in two.log
            one.wait_for(lambda: "another server's file" in one.log, SOON_S, "the first one says so")


def test_two_servers_draw_the_same_cluster_for_the_same_job(tmp_path: Path, shared_url: str) -> None:
    """Drawn by the first; taken back, and drawn anew by the second, once the first is gone."""
    extra = ["--config", write(tmp_path, "clusters: {clusterConfigs: [{name: dark}]}")]
    with start_server(tmp_path, database=shared_url, name="one", extra=extra) as one:
        stage = Stage(tmp_path, one, None)
        agents = [ScriptedAgent(stage, name) for name in ("x", "y", "z", "apart")]
        set_pool(stage, "p", x=2, y=3, z=4)
        jobs = [stage.submitted("true", pool="p") for _ in range(60)]
        assert {job["state"] for job in jobs} == {"ASSIGNED"}
        assert len({job["cluster"] for job in jobs}) == 3
        stage.yard("cluster", "cordon", "x", "y", "z", check=True)  # `apart` is up, so they are taken back
        for job in jobs:
            until(lambda key=job["id"]: stage.job(key)["state"] == "PENDING", SOON_S, "it is taken back")
    with start_server(tmp_path, database=shared_url, name="two", extra=extra) as two:
        stage = Stage(tmp_path, two, None)
        for agent in agents:
            agent.move_to(stage)
        set_pool(stage, "p", dark=1)  # so that all three come back in one step
        stage.yard("cluster", "uncordon", "x", "y", "z", check=True)
        set_pool(stage, "p", x=2, y=3, z=4)
        for job in jobs:
            found = stage.until_state(job["id"], State.ASSIGNED)
            assert found["cluster"] == job["cluster"]
