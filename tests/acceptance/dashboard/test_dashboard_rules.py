"""Rules, pools, labels and queues in a real browser: shown with what they hide, and changed after a look at a diff."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.acceptance.stage import Stage, staged, submitters
from tests.browser import Visitor
from tests.soak import SOAKED

DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 800}
PARALLEL = "/v1/attributes/workflow-execution-config"
AT = "?project=ruled&domain=development"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("rules"), auth=True) as made, made.agent("alpha"):
        made.yard("project", "create", "ruled", check=True)
        first = {"If-None-Match": "*"}
        for scope, number in (("?domain=development", 5), ("?project=ruled", 6), (AT, 7)):
            assert made.call("PUT", PARALLEL + scope, {"max_parallelism": number}, headers=first).status == 200
        flow = f"{PARALLEL}{AT}&workflow=etl.daily"
        assert made.call("PUT", flow, {"max_parallelism": 2}, headers=first).status == 200
        yield made


@pytest.fixture
def admin(stage: Stage, browser: Browser) -> Iterator[Visitor]:
    assert stage.token is not None
    with Visitor(browser, stage.url, viewport=DESKTOP) as person:
        person.sign_in(stage.token, "/rules")
        yield person
        assert person.faults == []


def test_a_rule_names_its_level_and_what_it_hides(stage: Stage, admin: Visitor) -> None:
    page = admin.page
    page.get_by_role("link", name="ruled", exact=True).click()
    page.get_by_role("link", name="ruled / development").click()
    row = page.get_by_role("row").filter(has_text="max_parallelism")
    expect(row).to_contain_text("7")
    expect(row).to_contain_text("6 of project ruled")
    expect(row).to_contain_text("5 of domain development")
    expect(page.locator("#effective")).to_contain_text("Set here")
    page.get_by_role("link", name="workflow etl.daily").click()
    row = page.get_by_role("row").filter(has_text="max_parallelism")
    expect(row).to_contain_text("here")
    expect(row).to_contain_text("7 of project ruled, domain development")


def test_a_rule_is_changed_after_its_diff_and_only_if_nobody_else_changed_it(stage: Stage, admin: Visitor) -> None:
    page = admin.open(f"/rules{AT}")
    card = page.locator("section").filter(has=page.locator("#kind-workflow-execution-config"))
    card.get_by_role("button", name="Edit…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("The value, as JSON").fill('{"max_parallelism": "many"}')
    dialog.get_by_role("button", name="Show the changes").click()
    expect(dialog.get_by_role("alert")).to_contain_text("max_parallelism")
    dialog.get_by_label("The value, as JSON").fill("{")
    dialog.get_by_role("button", name="Show the changes").click()
    expect(dialog.get_by_role("alert")).to_contain_text("This is not JSON")
    dialog.get_by_label("The value, as JSON").fill('{"max_parallelism": 8}')
    dialog.get_by_role("button", name="Show the changes").click()
    expect(dialog.locator("del")).to_contain_text('"max_parallelism": 7')
    expect(dialog.locator("ins")).to_contain_text('"max_parallelism": 8')
    assert stage.get(PARALLEL + AT)["value"] == {"max_parallelism": 7}, "a diff saves nothing"
    tag = stage.get(PARALLEL + AT)["etag"]
    assert stage.call("PUT", PARALLEL + AT, {"max_parallelism": 9}, headers={"If-Match": tag}).status == 200
    dialog.get_by_role("button", name="Save these changes").click()
    expect(dialog.get_by_role("alert")).to_contain_text("is no longer what you read")
    expect(dialog.get_by_role("alert")).to_contain_text("Nothing was saved.")
    dialog.get_by_role("button", name="Leave it").click()
    expect(page.get_by_role("row").filter(has_text="max_parallelism").get_by_role("cell").nth(1)).to_have_text("9")
    card.get_by_role("button", name="Edit…").click()
    dialog.get_by_label("The value, as JSON").fill('{"max_parallelism": 8}')
    dialog.get_by_role("button", name="Show the changes").click()
    dialog.get_by_role("button", name="Save these changes").click()
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("row").filter(has_text="max_parallelism")).to_contain_text("8")
    card.get_by_role("button", name="History…").click()
    expect(dialog.locator(".diff").first).to_contain_text('"max_parallelism": 8')
    dialog.get_by_role("button", name="Leave it").click()
    card.get_by_role("button", name="Remove…").click()
    expect(dialog).to_contain_text("What less specific levels set holds again.")
    dialog.get_by_role("button", name="Remove it").click()
    expect(page.get_by_role("row").filter(has_text="max_parallelism").get_by_role("cell").nth(1)).to_have_text("6")


def test_a_pool_is_added_and_changed(stage: Stage, admin: Visitor) -> None:
    page = admin.open("/pools")
    page.locator("[data-add='/pools']").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("near")
    dialog.get_by_role("button", name="Next").click()
    dialog.get_by_label("The value, as JSON").fill('{"members": [{"id": "nowhere", "weight": 1}]}')
    dialog.get_by_role("button", name="Show the changes").click()
    dialog.get_by_role("button", name="Save these changes").click()
    expect(dialog.get_by_role("alert")).to_contain_text("nowhere")
    dialog.get_by_label("The value, as JSON").fill('{"members": [{"id": "alpha", "weight": 2}]}')
    dialog.get_by_role("button", name="Show the changes").click()
    first = {"If-None-Match": "*"}
    assert stage.call("PUT", "/v1/pools/near", {"members": []}, headers=first).status == 200
    dialog.get_by_role("button", name="Save these changes").click()
    expect(dialog.get_by_role("alert")).to_contain_text("There is a pool near already, changed by admin.")
    expect(dialog.get_by_role("alert")).not_to_contain_text("If-Match")
    tag = stage.get("/v1/pools/near")["etag"]
    assert stage.call("DELETE", "/v1/pools/near", headers={"If-Match": tag}).status == 200
    dialog.get_by_role("button", name="Save these changes").click()
    card = page.get_by_role("article").filter(has_text="near")
    expect(card).to_contain_text("alpha")
    stage.ended(stage.submit("true", pool="near"))
    page.reload()
    expect(card).to_contain_text("1 job in a day")
    card.get_by_role("button", name="Edit…").click()
    expect(dialog.get_by_label("The value, as JSON")).to_have_value(
        '{\n  "members": [\n    {\n      "id": "alpha",\n      "weight": 2\n    }\n  ],\n  "sticky": false\n}'
    )
    dialog.get_by_role("button", name="Leave it").click()
    card.get_by_role("button", name="Remove…").click()
    expect(dialog).to_contain_text("Jobs that wait for this pool, or name it from now on, are rejected.")
    dialog.get_by_role("button", name="Remove it").click()
    expect(page.get_by_role("article").filter(has_text="near")).to_have_count(0)


def test_those_who_may_only_look_get_no_button(stage: Stage, browser: Browser) -> None:
    token = submitters(stage, "rob")["rob"]
    with Visitor(browser, stage.url) as rob:
        for path in ("/pools", "/rules?project=default"):
            page = rob.sign_in(token, path) if path == "/pools" else rob.open(path)
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            expect(page.locator("[data-edit], [data-add], [data-remove]")).to_have_count(0)
        assert rob.faults == []


@pytest.mark.parametrize("scheme", ["light", SOAKED("dark")])  # its colours: test_dashboard_overview.py
def test_axe_finds_nothing_on_rules_and_pools(stage: Stage, browser: Browser, scheme: str) -> None:
    assert stage.token is not None
    members = {"members": [{"id": "alpha", "weight": 2}]}
    stage.call("PUT", "/v1/pools/near", members, headers={"If-None-Match": "*"})
    with Visitor(browser, stage.url, color_scheme=scheme, viewport=DESKTOP) as person:
        person.sign_in(stage.token, "/pools")
        for path in ("/pools", f"/rules{AT}", "/rules"):
            person.page.set_viewport_size(DESKTOP)  # type: ignore[arg-type]
            page = person.open(path)
            assert person.accessibility_faults() == [], path
            page.set_viewport_size(PHONE)  # type: ignore[arg-type]
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], path
        page = person.open(f"/rules{AT}")
        page.get_by_role("button", name="Set here…").first.click()
        page.get_by_role("button", name="Show the changes").click()
        expect(page.locator(".diff ins").first).to_be_visible()
        assert person.accessibility_faults() == []
        assert person.faults == []
