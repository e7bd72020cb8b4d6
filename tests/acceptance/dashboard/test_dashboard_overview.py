"""The overview in a real browser: live, the same as the API says, and honest when the server is away."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from switchyard.model.job.job import State
from tests.acceptance.stage import Stage, staged, submitters, waiting_for
from tests.browser import Visitor

DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 800}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("overview"), auth=True) as made:
        yield made


@pytest.fixture
def visitor(stage: Stage, browser: Browser) -> Iterator[Visitor]:
    with Visitor(browser, stage.url, viewport=DESKTOP) as person:
        yield person
        assert person.faults == []


def test_an_open_overview_follows_clusters_and_jobs(stage: Stage, visitor: Visitor, tmp_path: Path) -> None:
    assert stage.token is not None
    page = visitor.sign_in(stage.token, "/")
    expect(page.locator("#clusters")).to_contain_text("There is no cluster yet")
    gate = tmp_path / "gate"
    with stage.agent("alpha", cores=4):
        card = page.get_by_role("article").filter(has_text="alpha")
        expect(card).to_contain_text("up")
        stage.submit("true", name="waits", hold=True)
        expect(page.locator("#now")).to_contain_text("held by a person")
        job = stage.submit("sh", "-c", waiting_for(gate), name="runs", spec={"resources": {"cores": 3}})
        expect(card.get_by_role("img", name="Cores: 3 of 4 in use")).to_be_visible()
        expect(page.get_by_role("link", name="running 1")).to_be_visible()
        expect(page.get_by_role("img", name="any cluster to alpha: 1")).to_be_visible()
        gate.touch()
        stage.until_state(job, State.SUCCEEDED)
        expect(page.get_by_role("img", name="Jobs by outcome")).to_have_attribute("aria-label", ENDED)
        expect(card.get_by_role("img", name="Cores: 0 of 4 in use")).to_be_visible()
    page.get_by_role("link", name="last day").click()
    expect(page.get_by_role("img", name="Jobs by outcome")).to_have_attribute("aria-label", ENDED)
    page.get_by_role("link", name="running 0").click()
    page.wait_for_url("**/jobs?state=RUNNING")


def test_a_user_of_one_project_counts_only_its_jobs(stage: Stage, visitor: Visitor) -> None:
    stage.yard("project", "create", "apart", check=True)
    add_pending(stage, "unseen", project="apart")
    add_pending(stage, "seen")
    users = submitters(stage, "una")
    seen = count_pending(stage, users["una"])
    assert 0 < seen < count_pending(stage)
    page = visitor.sign_in(users["una"], "/")
    expect(page.get_by_role("link", name=re.compile(rf"pending {seen}$"))).to_be_visible()
    expect(page.locator("body")).not_to_contain_text("apart")


def test_a_page_says_that_the_server_is_away_and_comes_back(stage: Stage, visitor: Visitor) -> None:
    assert stage.token is not None
    page = visitor.sign_in(stage.token, "/")
    expect(page.locator("[data-live-state]")).to_have_text("live")
    stage.server.pause()
    try:
        expect(page.get_by_role("alert")).to_contain_text("The server is silent")
        expect(page.get_by_role("alert")).to_contain_text("What you see is from")
    finally:
        stage.server.resume()
    expect(page.locator("[data-live-state]")).to_have_text("live")
    stage.server.restart()
    before = count_pending(stage)
    add_pending(stage, "after the restart")
    expect(page.get_by_role("link", name=re.compile(rf"pending {before + 1}$"))).to_be_visible()


def add_pending(stage: Stage, name: str, **fields: Any) -> None:
    """A job that waits for a cluster without an agent. Without any cluster it would be rejected."""
    stage.call("POST", "/v1/clusters", {"name": "later"})  # refused if it is there
    assert stage.submitted("true", name=name, hold=True, **fields)["state"] == State.PENDING


def count_pending(stage: Stage, token: str | None = None) -> int:
    """The pending jobs that a user sees; other tests may have left some."""
    return len(stage.get("/v1/jobs?state=PENDING&limit=100", token=token)["items"])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_the_overview(stage: Stage, browser: Browser, scheme: str) -> None:
    assert stage.token is not None
    with Visitor(browser, stage.url, color_scheme=scheme, viewport=DESKTOP) as person:
        assert person.open("/sign-in").title()
        assert person.accessibility_faults() == []
        page = person.sign_in(stage.token, "/")
        assert person.accessibility_faults() == []
        page.set_viewport_size(PHONE)  # type: ignore[arg-type]
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        assert person.faults == []


ENDED = "Jobs by outcome: succeeded 1, pending 1"
