"""Executions of Flyte's workflows in a real browser: their nodes as a graph and over time, ended and run again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.acceptance.flyte.flyte_site import DEV, PROJECT, FlyteSite, flyte_site
from tests.acceptance.flyte.shell_flows import HERE, INT, an_error, bound, ended, good, start, task, task_node, workflow
from tests.browser import Visitor
from tests.processes import PATIENCE_S, until

pytestmark = pytest.mark.xdist_group("flyte-pages")
DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 800}
TRACEBACK = "\n".join(
    (
        "Traceback (most recent call last):",
        *('  File "/library.py", line 1, in call',) * 40,
        '  File "/flows.py", line 9, in broken',
        "    answer = divide(1, 0)",
        "             " + "^" * 120,
        "ZeroDivisionError: division by zero",
    )
)
ADDRESS = f"/executions/{PROJECT}/{DEV}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlyteSite]:
    """`flow`: two tasks, a gate behind the first, and a task behind the gate. `fails`: a task that fails."""
    with flyte_site(tmp_path_factory.mktemp("pages")) as made:
        task(made, "one", "give 5", inputs={"n": INT})
        task(made, "bad", "echo broken >&2; exit 3", inputs={"n": INT})
        gate = {"id": "n2", "metadata": {}, "upstream_node_ids": ["n0"], "inputs": [bound("n", "n0", "o0")]}
        nodes = [
            task_node("n0", "one", [bound("n", "", "n")]),
            task_node("n1", "one", [bound("n", "n0", "o0")]),
            {**gate, "gate_node": {"approve": {"signal_id": "review"}}},
            task_node("n3", "one", [bound("n", "n2", "n")]),
        ]
        good(workflow(made, "flow", nodes, inputs={"n": INT}, outputs={"o": (INT, "n3", "o0")}))
        task(made, "raises", an_error(TRACEBACK, is_recoverable=False), inputs={"n": INT})
        good(workflow(made, "raising", [task_node("n0", "raises", [bound("n", "", "n")])], inputs={"n": INT}))
        good(workflow(made, "fails", [task_node("n0", "bad", [bound("n", "", "n")])], inputs={"n": INT}))
        yield made


@pytest.fixture
def visitor(site: FlyteSite, browser: Browser) -> Iterator[Visitor]:
    with Visitor(browser, site.server.url, viewport=DESKTOP) as person:
        yield person
        assert person.faults == []


def test_an_execution_shows_its_nodes_as_they_run(site: FlyteSite, visitor: Visitor) -> None:
    page = visitor.open("/executions")
    expect(page.locator("[data-live-state]")).to_have_text("live")
    good(start(site, "first", "flow", {"n": 3}))
    page.get_by_role("link", name="first", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("first")
    expect(page.locator("#node-n1")).to_contain_text("succeeded")
    expect(page.locator("#node-n2")).to_contain_text("waits for the signal review")
    expect(page.locator("#node-n3")).to_contain_text("waits for n2")
    graph = page.get_by_role("group", name="4 nodes")
    expect(graph.get_by_role("link", name="n0 · one: succeeded")).to_be_visible()
    expect(graph.get_by_role("link", name="n3 · one: not begun")).to_be_visible()
    expect(page.locator("#placement")).to_contain_text("c1 is the only cluster")
    expect(page.locator("#facts")).to_contain_text("Input n")
    signal = {"id": {"signal_id": "review", "execution_id": {**HERE, "name": "first"}}}
    good(site.doors.by_grpc("SetSignal", {**signal, "value": {"scalar": {"primitive": {"boolean": True}}}}))
    expect(page.locator("#heading")).to_contain_text("succeeded")
    expect(page.locator("#facts")).to_contain_text("Output o")
    page.locator("#node-n0").get_by_role("link", name="its job").click()
    page.wait_for_url("**/jobs/*")
    page.get_by_role("link", name="first", exact=True).first.click()
    page.wait_for_url(f"**{ADDRESS}/first")
    page.get_by_role("button", name="Run again…").click()
    page.get_by_role("dialog").get_by_role("button", name="Run again").click()
    expect(page.locator("#facts")).to_contain_text("Runs again")
    page.get_by_role("button", name="Terminate…").click()
    page.get_by_role("dialog").get_by_label("Cause").fill("only a test")
    page.get_by_role("dialog").get_by_role("button", name="Terminate").click()
    expect(page.locator("#heading")).to_contain_text("aborted")
    expect(page.locator("#heading")).to_contain_text("only a test")


def test_a_failed_execution_says_why_and_is_found_by_its_phase(site: FlyteSite, visitor: Visitor) -> None:
    good(start(site, "broken", "fails", {"n": 1}))
    ended(site, "broken")
    page = visitor.open("/executions")
    page.get_by_label("phase").select_option("FAILED")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("[data-row]")).to_have_count(1)
    page.get_by_role("link", name="broken").click()
    expect(page.locator("#heading .problem")).to_contain_text("3")
    expect(page.locator("#node-n0")).to_contain_text("failed")
    expect(page.get_by_role("button", name="Recover…")).to_be_visible()
    expect(visitor.open(f"{ADDRESS}/nobody").get_by_role("heading", level=1)).to_contain_text("404")


def test_a_traceback_keeps_its_lines(site: FlyteSite, visitor: Visitor) -> None:
    good(start(site, "raised", "raising", {"n": 1}))
    ended(site, "raised")
    page = visitor.open(f"{ADDRESS}/raised")
    for place in (page.locator("#heading .problem"), page.locator("#node-n0 .problem")):
        expect(place).to_contain_text("ZeroDivisionError")
        assert "in broken\n    answer = divide(1, 0)\n" in place.inner_text()
    assert visitor.accessibility_faults() == []
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_executions(site: FlyteSite, browser: Browser, scheme: str) -> None:
    name = f"looked-at-{scheme}"
    good(start(site, name, "flow", {"n": 3}))
    path = f"{ADDRESS}/{name}"
    nodes = f"/v1{path}/nodes"
    until(lambda: "waits for the signal" in str(site.doors.v1("GET", nodes)), PATIENCE_S, "the gate waits")
    with Visitor(browser, site.server.url, color_scheme=scheme, viewport=DESKTOP) as person:
        for address in ("/executions", path):
            person.page.set_viewport_size(DESKTOP)  # type: ignore[arg-type]
            page = person.open(address)
            assert person.accessibility_faults() == [], address
            page.set_viewport_size(PHONE)  # type: ignore[arg-type]
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], address
        assert person.faults == []
