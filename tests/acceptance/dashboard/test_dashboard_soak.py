"""Pages that are left open: their memory stays, while jobs come and go. DASHBOARD_SOAK_S sets another time."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest
from playwright.sync_api import Browser, CDPSession, Page, expect

from tests.acceptance.stage import Stage, staged
from tests.browser import Visitor

SOAK_S = float(os.environ.get("DASHBOARD_SOAK_S", "1800"))
LOOKS = 30  # measurements in this time
GROWTH_MAX = 1.15  # from the first third to the last: jobs differ a little
SPARE = {"heap": 500_000, "nodes": 2000}  # bytes and nodes: charts of the last hour fill up
pytestmark = [pytest.mark.slow, pytest.mark.timeout(SOAK_S + 600), pytest.mark.xdist_group("dashboard-soak")]


class OpenPage:
    """A page, and what the browser says of its memory after it has collected garbage."""

    def __init__(self, visitor: Visitor, page: Page, path: str) -> None:
        page.goto(visitor.url + path)
        expect(page.locator("[data-live-state]")).to_have_text("live")
        self.page, self.path = page, path
        self.session: CDPSession = visitor.context.new_cdp_session(page)
        self.session.send("Performance.enable")
        self.heaps: list[float] = []
        self.nodes: list[float] = []

    def measure(self) -> None:
        self.session.send("HeapProfiler.collectGarbage")
        metrics = {one["name"]: one["value"] for one in self.session.send("Performance.getMetrics")["metrics"]}
        self.heaps.append(metrics["JSHeapUsedSize"])
        self.nodes.append(metrics["Nodes"])

    def check(self) -> None:
        third = max(1, len(self.heaps) // 3)
        for word, values in (("heap", self.heaps), ("nodes", self.nodes)):
            before, after = sorted(values[:third])[third // 2], sorted(values[-third:])[third // 2]
            assert after <= before * GROWTH_MAX + SPARE[word], f"{self.path}: {word} {values}"


def keep_submitting(stage: Stage, until: float) -> None:
    """About two jobs a second, of which each writes lines."""
    while time.monotonic() < until:
        stage.submit("sh", "-c", "for i in 1 2 3 4 5; do echo line $i; done", name="soak", labels={"run": "soak"})
        time.sleep(0.5)  # the rate is part of the load


def test_open_pages_do_not_grow(tmp_path: Path, browser: Browser) -> None:
    with staged(tmp_path) as stage, stage.agent("alpha", cores=8):
        writing = stage.submit("sh", "-c", "seq 6000; while :; do echo tick; sleep 0.2; done", name="writes")
        with Visitor(browser, stage.url, viewport={"width": 1280, "height": 800}) as person:
            paths = ("/", "/jobs", f"/jobs/{writing}", "/clusters/alpha")  # a browser has six connections to a server
            pages = [OpenPage(person, person.new_page(), path) for path in paths]
            end = time.monotonic() + SOAK_S
            work = threading.Thread(target=keep_submitting, args=(stage, end), daemon=True)
            work.start()
            while time.monotonic() < end:
                pages[0].page.wait_for_timeout(SOAK_S / LOOKS * 1000)
                for one in pages:
                    one.measure()
            work.join()
            for one in pages:
                sys.stderr.write(f"{one.path}: heap {one.heaps}, nodes {one.nodes}\n")
                expect(one.page.locator("[data-live-state]")).to_have_text("live")
                one.check()
            assert person.faults == []
