"""Clusters, the plan and the audit in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from switchyard.model.job.job import State
from tests.acceptance.stage import Stage, staged, submitters
from tests.browser import Visitor
from tests.programs import call
from tests.soak import SOAKED

DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 800}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("clusters"), auth=True) as made, made.agent("alpha", cores=4, nodes=3):
        yield made


@pytest.fixture
def admin(stage: Stage, browser: Browser) -> Iterator[Visitor]:
    assert stage.token is not None
    with Visitor(browser, stage.url, viewport=DESKTOP) as person:
        person.sign_in(stage.token, "/clusters")
        yield person
        assert person.faults == []


def test_a_cluster_shows_its_nodes_and_is_cordoned(stage: Stage, admin: Visitor) -> None:
    admin.page.get_by_role("link", name="alpha").click()
    page = admin.page
    expect(page.get_by_role("heading", level=1)).to_have_text("alpha")
    expect(page.locator("#agents")).to_contain_text("up")
    expect(page.locator(".tree")).to_contain_text("3 \u00d7 node")
    expect(page.get_by_role("img", name="3 nodes with 4 cores")).to_be_visible()
    expect(page.locator("#history")).to_contain_text(re.compile(r"Up for \d+ % of the time"))
    page.get_by_role("button", name="Cordon…").focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("No new job goes to alpha")
    expect(dialog.get_by_label("Reason")).to_be_focused()
    page.keyboard.type("new disks")
    page.keyboard.press("Enter")
    expect(page.locator("#heading")).to_contain_text("new disks")
    expect(page.locator("#heading")).to_contain_text("It is drained")
    uncordon = page.get_by_role("button", name="Uncordon…")
    expect(uncordon).to_be_focused()  # it has taken the place of Cordon
    page.keyboard.press("Enter")
    stage.yard("cluster", "cordon", "alpha", "--reason", "newer disks", check=True)
    expect(page.locator("#heading")).to_contain_text("newer disks")  # the button is replaced behind the dialog
    page.keyboard.press("Escape")
    expect(uncordon).to_be_focused()
    expect(page.locator("#history").get_by_role("img")).to_have_attribute("aria-label", re.compile("ordoned for"))
    page.get_by_role("link", name="last week").click()
    expect(page.locator("#history .axis")).to_contain_text("one week ago")
    expect(page.locator("#history")).to_contain_text("Cores in use: 0 %")
    assert stage.health("alpha") == "cordoned"
    page.get_by_role("button", name="Uncordon…").click()
    dialog.get_by_role("button", name="Uncordon", exact=True).click()
    expect(page.locator("#heading")).to_contain_text("up")
    admin.open("/audit")
    expect(page.get_by_role("row").filter(has_text="cluster.change").first).to_contain_text("alpha")


def test_an_invite_gives_the_command_to_paste(stage: Stage, admin: Visitor) -> None:
    page = admin.page
    page.get_by_role("button", name="Add a cluster…").click()
    page.get_by_role("dialog").get_by_label("Name of the cluster").fill("beta")
    page.get_by_role("button", name="Make the token").click()
    expect(page.get_by_role("dialog")).to_contain_text(f"yard agent --server {stage.url} --cluster beta")
    expect(page.get_by_role("dialog")).to_contain_text("--token join_")


def test_a_user_without_rights_gets_no_button_and_no_audit(stage: Stage, browser: Browser) -> None:
    users = submitters(stage, "uma")
    with Visitor(browser, stage.url) as uma:
        page = uma.sign_in(users["uma"], "/clusters/alpha")
        expect(page.get_by_role("heading", level=1)).to_have_text("alpha")
        expect(page.get_by_role("button", name="Cordon…")).to_have_count(0)
        expect(page.get_by_role("link", name="Audit")).to_have_count(0)
        expect(uma.open("/audit").get_by_role("heading", level=1)).to_have_text("403 · denied")
        expect(uma.open("/clusters/vault").get_by_role("heading", level=1)).to_contain_text("404")
        cookie = f"yard_session={uma.context.cookies()[0]['value']}"
    headers = {"Cookie": cookie, "Origin": stage.url, "X-Yard-Page": "1"}
    answer = call("PATCH", f"{stage.url}/session/v1/clusters/alpha", {"is_cordoned": True}, headers=headers)
    assert answer.status == 403


def test_a_plan_follows_the_form_and_is_submitted(stage: Stage, admin: Visitor) -> None:
    page = admin.open("/plan")
    page.get_by_role("textbox", name="Command").fill("echo planned")
    page.get_by_label("cluster").fill("alpha")
    page.get_by_label("cores").fill("64")
    expect(page.locator("#result")).to_contain_text("no cluster could ever run it")
    expect(page.locator("#result")).to_contain_text("What would help")
    page.get_by_label("cores").fill("x")
    expect(page.locator("#result .problem")).to_be_visible()
    page.get_by_label("cores").fill("2")
    expect(page.locator("#result")).to_contain_text("goes to alpha")
    expect(page.get_by_label("Command line")).to_have_text("yard submit --cores 2 --cluster alpha -- echo planned")
    assert "cores=2" in page.url, "the address holds the plan"
    submit = page.get_by_role("button", name="Submit this job…")
    page.route("**/plan?**", lambda route: route.abort())  # the plan of the next form does not come
    page.get_by_label("cores").fill("1")
    expect(submit).to_be_disabled()
    page.get_by_role("textbox", name="Command").fill("echo planned" + " --more" * 2000)
    expect(page.locator("#result")).to_contain_text("up to 8000 characters")
    page.unroute("**/plan?**")
    page.get_by_role("textbox", name="Command").fill("echo planned" + " --more" * 200)
    expect(page.get_by_label("Command line")).to_contain_text("--more --more")
    page.get_by_label("cores").fill("2")
    page.get_by_role("textbox", name="Command").fill("echo planned")
    expect(page.get_by_label("Command line")).to_have_text("yard submit --cores 2 --cluster alpha -- echo planned")
    submit.click()
    expect(page.get_by_role("dialog")).to_contain_text("cores 2 · cluster alpha")
    with page.expect_request("**/session/v1/jobs") as sent:
        page.get_by_role("dialog").get_by_role("button", name="Submit", exact=True).click()
    assert len(sent.value.headers["idempotency-key"]) == 32, "a second click would find the same job"
    page.wait_for_url("**/jobs/*")
    expect(page.locator("[data-text]")).to_contain_text("planned")
    stage.until_state(page.url.rsplit("/", 1)[1], State.SUCCEEDED)


def test_rules_show_where_each_value_is_set(stage: Stage, admin: Visitor, browser: Browser) -> None:
    stage.yard("project", "create", "ruled", check=True)
    path = "/v1/attributes/workflow-execution-config?project=ruled&domain=development"
    answer = stage.call("PUT", path, {"max_parallelism": 7}, headers={"If-None-Match": "*"})
    assert answer.status == 200, answer.body
    page = admin.open("/rules")
    page.get_by_role("link", name="ruled").click()
    page.get_by_role("link", name="ruled / development").click()
    row = page.get_by_role("row").filter(has_text="max_parallelism")
    expect(row).to_contain_text("7")
    expect(row).to_contain_text("project+domain")
    users = submitters(stage, "rob")
    with Visitor(browser, stage.url) as rob:
        page = rob.sign_in(users["rob"], "/rules")
        expect(page.get_by_role("navigation", name="Scopes")).not_to_contain_text("ruled")
        expect(rob.open("/rules?project=ruled").get_by_role("heading", level=1)).to_contain_text("40")


def test_the_longest_names_wrap(stage: Stage, admin: Visitor) -> None:
    name = "x" * 128
    stage.post("/v1/clusters", {"name": name})
    stage.yard("project", "create", name, check=True)
    members = {"members": [{"id": name, "weight": 1}]}
    for path, body in (("queues", {}), ("pools", members), ("token-pools", {"quota": 5})):
        assert stage.call("PUT", f"/v1/{path}/{name}", body, headers={"If-None-Match": "*"}).status == 200
    job = stage.submit("true", project=name, cluster=name)
    plan = f"/plan?command=true&cluster={name}"
    rules = f"/rules?project={name}"
    for path in (
        "/",
        "/jobs",
        f"/jobs/{job}",
        "/clusters",
        f"/clusters/{name}",
        plan,
        "/plan?cores=99",
        rules,
        "/pools",
    ):
        page = admin.open(path)
        for size in (DESKTOP, PHONE):
            page.set_viewport_size(size)  # type: ignore[arg-type]
            assert page.evaluate("document.documentElement.scrollWidth") <= size["width"], (path, size)
            over = (
                "(cards) => cards.filter((card) => card.scrollWidth > card.clientWidth).map((card) => card.innerText)"
            )
            assert page.locator(".card").evaluate_all(over) == [], (path, size)


@pytest.mark.parametrize("scheme", ["light", SOAKED("dark")])  # its colours: test_dashboard_overview.py
def test_axe_finds_nothing_on_clusters_plan_and_audit(stage: Stage, browser: Browser, scheme: str) -> None:
    assert stage.token is not None
    with Visitor(browser, stage.url, color_scheme=scheme, viewport=DESKTOP) as person:
        person.sign_in(stage.token, "/clusters")
        for path in (
            "/clusters",
            "/clusters/alpha",
            "/plan?command=true&cores=2",
            "/plan?cores=99",
            "/rules",
            "/audit",
        ):
            person.page.set_viewport_size(DESKTOP)  # type: ignore[arg-type]
            page = person.open(path)
            assert person.accessibility_faults() == [], path
            page.set_viewport_size(PHONE)  # type: ignore[arg-type]
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], path
        page = person.open("/clusters")
        head = "(cells) => cells.map((cell) => getComputedStyle(cell, '::before').content)"
        cells = page.locator("[data-row]").first.locator("td").evaluate_all(head)
        assert [text for text in cells if text != "none"] == [
            f'"{name} "' for name in ("cores", "GPUs", "memory", "running", "queued", "seen")
        ]
        assert person.faults == []
