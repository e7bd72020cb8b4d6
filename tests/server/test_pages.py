"""Pages: every list walked by its cursor shows each item once, whatever the size of a page."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.server.http.endpoints import ENDPOINTS
from tests.server.town import Town

pytestmark = pytest.mark.xdist_group("pages")
COUNT = 7

# The list, what identifies an item, and whether the newest comes first.
LISTS = {
    "/v1/jobs": ("id", True),
    "/v1/jobs?spec=true&label=walk=yes": ("id", True),
    "/v1/jobs/{job}/events": ("seq", False),
    "/v1/jobs/{array}/tasks": ("index", False),
    "/v1/events": ("seq", False),
    "/v1/clusters": ("name", False),
    "/v1/clusters/{cluster}/invites": ("id", False),
    "/v1/cluster-groups/{group}/invites": ("id", False),
    "/v1/agents": ("id", False),
    "/v1/users": ("name", False),
    "/v1/tokens": ("id", False),
    "/v1/grants": ("id", False),
    "/v1/projects": ("name", False),
    "/v1/domains": ("id", False),
    "/v1/pools": ("name", False),
    "/v1/cluster-labels": ("name", False),
    "/v1/queues": ("name", False),
    "/v1/token-pools": ("namespace", False),
    "/v1/attribute-kinds": ("number", False),
    "/v1/attributes/{kind}/list?level=workflow": ("id", False),
    "/v1/attributes/{kind}/history?project=own": ("id", True),
    "/v1/audit": ("id", True),
}


def test_every_list_has_a_row() -> None:
    lists = {end.path for end in ENDPOINTS if any(query.name == "cursor" for query in end.query)}
    lists.remove("/v1/jobs/{job}/files")  # an object with a list in it: tests/service/files
    lists.remove("/v1/cluster-resources/status")  # its rows come from agents: test_cluster_resource_states.py
    lists.remove("/v1/job-actions")  # an object with a list in it: tests/service/job/test_bulk_actions.py
    # Executions need entities and a driver: tests/service/executions/test_views.py.
    lists -= {"/v1/executions", "/v1/executions/{project}/{domain}/{execution}/nodes"}
    assert lists == {path.split("?")[0].replace("{array}", "{job}") for path in LISTS}


@pytest.fixture(scope="module")
def filled(town: Town) -> dict[str, str]:
    """At least a few of everything; what stands for the names in a path."""
    for _ in range(COUNT):
        job = town.job("own", labels={"walk": "yes"})
        town.job("own")
        town.must("POST", "/v1/projects", {"name": town.name("page")})
        name, _ = town.user(("view", "project", "own"))
        town.token_of(name)
        cluster = town.cluster("paged")
        town.agent(cluster)
        town.invite("own")
        town.must("POST", "/v1/cluster-groups/paged/invites", {})
        town.rule(f"project=own&domain=development&workflow={town.name('flow')}")
        town.rule("project=own")
        town.cluster_set("pools")
        town.cluster_set("cluster-labels")
        town.queue()
        town.token_pool()
    town.must("POST", f"/v1/jobs/{job}/cancel", {})
    array = town.job("own", array="0-9,20")
    return {"job": job, "cluster": "own", "group": "paged", "array": array, "kind": "execution-queue-attribute"}


def walk(town: Town, path: str, limit: int) -> list[Any]:
    items: list[Any] = []
    cursor = ""
    for _ in range(500):
        page = town.must("GET", f"{path}{'&' if '?' in path else '?'}limit={limit}{cursor}")
        assert len(page["items"]) <= limit
        items += page["items"]
        if page["next"] is None:
            return items
        cursor = f"&cursor={page['next']}"
    raise AssertionError("the walk does not end")


@pytest.mark.parametrize("path", list(LISTS))
def test_a_walk_sees_each_item_once_and_in_order(town: Town, filled: dict[str, str], path: str) -> None:
    key, is_newest_first = LISTS[path]
    path = path.format(**filled)
    whole = [item[key] for item in walk(town, path, 500)]
    assert len(whole) >= (2 if "domains" in path or ("events" in path and "jobs" in path) else COUNT)
    assert whole == sorted(set(whole), reverse=is_newest_first)
    for limit in (1, 3, len(whole), len(whole) + 1) if len(whole) < 60 else (7, len(whole)):
        assert [item[key] for item in walk(town, path, min(limit, 500))] == whole


def test_what_comes_while_one_walks_moves_nothing(town: Town, filled: dict[str, str]) -> None:
    first = town.must("GET", "/v1/jobs?limit=3")
    town.job("own")
    second = town.must("GET", f"/v1/jobs?limit=3&cursor={first['next']}")
    ids = [item["id"] for item in [*first["items"], *second["items"]]]
    assert ids == sorted(set(ids), reverse=True)


def test_events_can_be_followed_from_a_number(town: Town, filled: dict[str, str]) -> None:
    last = max(event["seq"] for event in walk(town, "/v1/events", 500))
    job = town.job("own")
    (event,) = town.must("GET", f"/v1/events?after={last}")["items"]
    assert (event["job"], event["kind"], event["seq"]) == (job, "accepted", last + 1)


def test_a_list_without_specs_leaves_them_out(town: Town, filled: dict[str, str]) -> None:
    assert all("spec" not in job for job in town.must("GET", "/v1/jobs")["items"])
    assert all(job["spec"] == {"command": ["true"]} for job in town.must("GET", "/v1/jobs?spec=true")["items"])
