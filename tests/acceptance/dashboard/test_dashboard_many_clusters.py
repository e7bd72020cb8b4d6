"""The dashboard of thousands of clusters in a real browser: each page answers, is bounded, searched and live."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing

import msgspec
import pytest
import sqlalchemy as sa
from playwright.sync_api import Browser, Page, expect

from switchyard.model.cluster.cluster import POLLING_BACKEND, Load
from switchyard.model.graph.graph_compiler import compile_graph
from switchyard.store.engine.clock import wall_us
from switchyard.store.engine.database import Database, upgrade_schema
from switchyard.store.jobs.events import counter_take
from switchyard.store.tables.clusters_tables import agents, clusters
from tests.acceptance.stage import Stage, staged
from tests.browser import Visitor
from tests.pace import slowness
from tests.programs import call
from tests.soak import SOAKED

SILENT = 100  # clusters whose agents are gone
RACKS = 15
BYTES_MAX = 400_000  # of a page, not compressed
NODES_MAX = 6_000  # elements of a page
ANSWER_S = 5.0  # of a quiet machine: ten times what it needs
DESKTOP = {"width": 1280, "height": 800}


@pytest.fixture(scope="module", params=[3_000, SOAKED(10_000)])
def count(request: pytest.FixtureRequest) -> int:
    """Of clusters. Without bounds, pages would be too large with the smaller number, too."""
    return int(request.param)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, count: int) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("many")
    database = f"sqlite:///{folder}/many.db"
    fill(database, count)
    with staged(folder, extra=["--database", database]) as made:
        yield made


def fill(url: str, count: int) -> None:
    """Straight into the tables: joins of thousands of agents are another test."""
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
                        "groups": f'["rack-{number % RACKS}"]',
                        "labels": f'{{"site":"s{number % 7}"}}',
                        "created_us": at_us,
                    }
                    for number in range(count)
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
                    for number in range(count)
                ],
            )
            counter_take(tx, "clusters", 1)


@pytest.fixture
def visitor(stage: Stage, browser: Browser) -> Iterator[Visitor]:
    with Visitor(browser, stage.url, viewport=DESKTOP) as person:
        yield person
        assert person.faults == []


def spaced(number: int) -> str:
    return f"{number:,}".replace(",", " ")


def opened(visitor: Visitor, path: str) -> Page:
    """A page that is bounded in time, bytes and elements."""
    began = time.monotonic()
    answer = call("GET", visitor.url + path, headers={"Accept": "text/html"}, timeout_s=60)
    took_s = (time.monotonic() - began) / slowness()
    assert (answer.status, took_s < ANSWER_S, len(answer.body) < BYTES_MAX) == (200, True, True), (
        f"{path}: {answer.status}, {took_s:.2f} s, {len(answer.body)} bytes"
    )
    page = visitor.open(path)
    assert page.locator("*").count() < NODES_MAX, path
    return page


def test_pages_of_thousands_of_clusters_are_bounded_and_searched(stage: Stage, visitor: Visitor, count: int) -> None:
    page = opened(visitor, "/clusters")
    expect(page.locator("#healths")).to_contain_text(spaced(count - SILENT))
    expect(page.locator("[data-row]")).to_have_count(100)
    expect(page.locator("[data-row]").first).to_contain_text("cluster-00000")
    expect(page.locator("[data-row]").first).to_contain_text("down")
    expect(page.locator("#rows .pages")).to_contain_text(f"1 to 100 of {spaced(count)}")
    page.get_by_role("link", name="Next").click()
    expect(page.locator("[data-row]").first).to_contain_text("cluster-00100")
    page.get_by_label("name, group or label").fill("rack-7")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("#rows .pages")).to_contain_text(f"1 to 100 of {len(range(7, count, RACKS))}")
    page.get_by_label("name, group or label").fill(f"CLUSTER-{count - 1:05}")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("[data-row]")).to_have_count(1)
    page.get_by_role("link", name=f"cluster-{count - 1:05}").click()
    expect(page.get_by_role("img", name="4 nodes with 16 cores")).to_be_visible()
    opened(visitor, f"/clusters/cluster-{count - 1:05}")

    page = opened(visitor, "/plan?command=true&cores=2")
    expect(page.locator("#result")).to_contain_text("goes to cluster-")
    expect(page.locator("#result")).to_contain_text(f"and {spaced(count - 2 * SILENT)} more clusters")
    page.get_by_label("cores").fill("64")
    expect(page.locator("#result")).to_contain_text("no cluster could ever run it")
    page.get_by_role("textbox", name="cluster").fill("cluster-00042")
    page.get_by_label("cores").fill("2")
    expect(page.locator("#result")).to_contain_text("would wait")

    job = stage.submit("true", name="one-of-many", cluster="cluster-02777", hold=True)
    page = opened(visitor, "/jobs?group=cluster")
    expect(page.locator("[data-row]")).to_have_count(1)
    page = opened(visitor, "/jobs?cluster=cluster-00042")
    expect(page.locator("#rows")).to_contain_text("No job matches these filters")
    page = opened(visitor, f"/jobs/{job}")
    expect(page.locator("#verdicts")).to_contain_text("cluster-02777")
    opened(visitor, "/pools")


def test_the_overview_of_thousands_of_clusters_stays_live(stage: Stage, visitor: Visitor, count: int) -> None:
    page = opened(visitor, "/")
    link = page.get_by_role("link", name=f"clusters {spaced(count)}")
    expect(link).to_contain_text(f"{spaced(count - SILENT)} up")
    expect(page.locator("#clusters article")).to_have_count(24)
    expect(page.get_by_role("link", name=f"{spaced(count - 24)} more clusters")).to_be_visible()
    expect(page.locator("#queues")).to_contain_text("and 88 more")
    expect(page.locator("[data-live-state]")).to_have_text("live")
    before = len(stage.get("/v1/jobs?state=PENDING&limit=100")["items"])
    stage.submit("true", name="seen-at-once", hold=True)
    expect(page.get_by_role("link", name=re.compile(rf"pending {before + 1}$"))).to_be_visible()
    stage.yard("cluster", "cordon", "cluster-02500", check=True)
    expect(link).to_contain_text("1 cordoned")
    stage.yard("cluster", "uncordon", "cluster-02500", check=True)
