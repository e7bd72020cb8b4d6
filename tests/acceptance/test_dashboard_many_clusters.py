"""The dashboard of 10,000 clusters in a real browser: each page answers, is bounded, searched and live."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing

import msgspec
import pytest
import sqlalchemy as sa
from playwright.sync_api import Browser, Page, expect

from switchyard.model.cluster import POLLING_BACKEND, Load
from switchyard.model.graph.graph_compiler import compile_graph
from switchyard.store.clock import wall_us
from switchyard.store.database import Database, upgrade_schema
from switchyard.store.events import counter_take
from switchyard.store.schema import agents, clusters
from tests.acceptance.stage import Stage, staged
from tests.browser import Visitor
from tests.programs import call

CLUSTERS = 10_000
SILENT = 100  # clusters whose agents are gone
BYTES_MAX = 400_000  # of a page, not compressed
NODES_MAX = 6_000  # elements of a page
ANSWER_S = 5.0  # ten times what a quiet machine needs
DESKTOP = {"width": 1280, "height": 800}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("many")
    database = f"sqlite:///{folder}/many.db"
    fill(database)
    with staged(folder, extra=["--database", database]) as made:
        yield made


def fill(url: str) -> None:
    """Straight into the tables: joins of 10,000 agents are another test."""
    graph = compile_graph([{"nodes": 4, "each": {"core": 16, "memory": "64GiB"}}], where="test")
    body, load = (msgspec.json.encode(value).decode() for value in (graph, Load(free_cores=32, running=2)))
    at_us = wall_us()
    row = {"is_private": False, "is_cordoned": False, "reason": "", "backend": "", "graph": body, "state": "{}"}
    agent = {"journal": "j", "credential_hash": "-", "incarnation": "i", "session": 0, "version": "", "load": load}
    with closing(Database(url)) as database:
        upgrade_schema(database)
        with database.write() as tx:
            tx.execute(
                sa.insert(clusters),
                [
                    {
                        **row,
                        "id": f"{number:026}",
                        "name": f"cluster-{number:05}",
                        "groups": f'["rack-{number % 50}"]',
                        "labels": f'{{"site":"s{number % 7}"}}',
                        "created_us": at_us,
                    }
                    for number in range(CLUSTERS)
                ],
            )
            tx.execute(
                sa.insert(agents),
                [
                    {
                        **agent,
                        "id": f"A{number:025}",
                        "cluster_id": f"{number:026}",
                        "name": f"agent-{number:05}",
                        # A cluster without an agent of ours is always up; the others are silent.
                        "backend": "local" if number < SILENT else POLLING_BACKEND,
                        "created_us": at_us,
                        "seen_us": at_us - 3_600_000_000 if number < SILENT else at_us,
                    }
                    for number in range(CLUSTERS)
                ],
            )
            counter_take(tx, "clusters", 1)


@pytest.fixture
def visitor(stage: Stage, browser: Browser) -> Iterator[Visitor]:
    with Visitor(browser, stage.url, viewport=DESKTOP) as person:
        yield person
        assert person.faults == []


def opened(visitor: Visitor, path: str) -> Page:
    """A page that is bounded in time, bytes and elements."""
    began = time.monotonic()
    answer = call("GET", visitor.url + path, headers={"Accept": "text/html"}, timeout_s=60)
    took_s = time.monotonic() - began
    assert (answer.status, took_s < ANSWER_S, len(answer.body) < BYTES_MAX) == (200, True, True), (
        f"{path}: {answer.status}, {took_s:.2f} s, {len(answer.body)} bytes"
    )
    page = visitor.open(path)
    assert page.locator("*").count() < NODES_MAX, path
    return page


def test_pages_of_ten_thousand_clusters_are_bounded_and_searched(stage: Stage, visitor: Visitor) -> None:
    page = opened(visitor, "/clusters")
    expect(page.locator("#healths")).to_contain_text("9 900")
    expect(page.locator("[data-row]")).to_have_count(100)
    expect(page.locator("[data-row]").first).to_contain_text("cluster-00000")
    expect(page.locator("[data-row]").first).to_contain_text("down")
    expect(page.locator("#rows .pages")).to_contain_text("1 to 100 of 10 000")
    page.get_by_role("link", name="Next").click()
    expect(page.locator("[data-row]").first).to_contain_text("cluster-00100")
    page.get_by_label("name, group or label").fill("rack-7")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("#rows .pages")).to_contain_text("1 to 100 of 200")
    page.get_by_label("name, group or label").fill("CLUSTER-09999")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("[data-row]")).to_have_count(1)
    page.get_by_role("link", name="cluster-09999").click()
    expect(page.get_by_role("img", name="4 nodes with 16 cores")).to_be_visible()
    opened(visitor, "/clusters/cluster-09999")

    page = opened(visitor, "/plan?command=true&cores=2")
    expect(page.locator("#result")).to_contain_text("goes to cluster-")
    expect(page.locator("#result")).to_contain_text("and 9 800 more clusters")
    page.get_by_label("cores").fill("64")
    expect(page.locator("#result")).to_contain_text("no cluster could ever run it")
    page.get_by_role("textbox", name="cluster").fill("cluster-00042")
    page.get_by_label("cores").fill("2")
    expect(page.locator("#result")).to_contain_text("would wait")

    job = stage.submit("true", name="one-of-many", cluster="cluster-07777", hold=True)
    page = opened(visitor, "/jobs?group=cluster")
    expect(page.locator("[data-row]")).to_have_count(1)
    page = opened(visitor, "/jobs?cluster=cluster-00042")
    expect(page.locator("#rows")).to_contain_text("No job matches these filters")
    page = opened(visitor, f"/jobs/{job}")
    expect(page.locator("#verdicts")).to_contain_text("cluster-07777")
    opened(visitor, "/pools")


def test_the_overview_of_ten_thousand_clusters_stays_live(stage: Stage, visitor: Visitor) -> None:
    page = opened(visitor, "/")
    expect(page.get_by_role("link", name="clusters 10 000")).to_contain_text("9 900 up")
    expect(page.locator("#clusters article")).to_have_count(24)
    expect(page.get_by_role("link", name="9 976 more clusters")).to_be_visible()
    expect(page.locator("#queues")).to_contain_text("and 88 more")
    expect(page.locator("[data-live-state]")).to_have_text("live")
    before = len(stage.get("/v1/jobs?state=PENDING&limit=100")["items"])
    stage.submit("true", name="seen-at-once", hold=True)
    expect(page.get_by_role("link", name=re.compile(rf"pending {before + 1}$"))).to_be_visible()
    stage.yard("cluster", "cordon", "cluster-05000", check=True)
    expect(page.get_by_role("link", name="clusters 10 000")).to_contain_text("1 cordoned")
    stage.yard("cluster", "uncordon", "cluster-05000", check=True)
