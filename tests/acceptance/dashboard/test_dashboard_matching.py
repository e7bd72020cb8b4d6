"""Actions on jobs in a real browser, also on all that match a view: each job is touched once, and no other job is."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from switchyard.model.job.job import State
from tests.acceptance.stage import Stage, staged, submitters
from tests.browser import Visitor
from tests.processes import until

DESKTOP = {"width": 1280, "height": 800}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("matching"), auth=True) as made, made.agent("alpha"):
        yield made


@pytest.fixture(scope="module")
def users(stage: Stage) -> dict[str, str]:
    return submitters(stage, "una", "ben")


@pytest.fixture
def visitor(stage: Stage, browser: Browser) -> Iterator[Visitor]:
    with Visitor(browser, stage.url, viewport=DESKTOP) as person:
        yield person
        assert person.faults == []


def submit_held(stage: Stage, name: str, count: int, token: str) -> list[str]:
    jobs = [{"spec": {"command": ["true"]}, "name": f"{name}-{number:02}", "hold": True} for number in range(count)]
    return [item["job"]["id"] for item in stage.post("/v1/jobs/bulk", {"jobs": jobs}, token=token)["items"]]


def states(stage: Stage, name: str) -> dict[str, str]:
    """The states of the jobs of a name, by id."""
    return {job["id"]: job["state"] for job in stage.walk("/v1/jobs", limit=500) if job["name"].startswith(name)}


def choose_all(page: Page, count: int) -> None:
    page.get_by_label("Select all jobs on this page").check()
    page.get_by_role("button", name=f"Select all {count} jobs that match").click()
    expect(page.locator("[data-all-words]")).to_have_text(f"All {count} jobs that match this view are selected.")


def test_all_jobs_of_a_view_are_cancelled_and_no_others(stage: Stage, visitor: Visitor, users: dict[str, str]) -> None:
    mine = submit_held(stage, "batch", 60, users["una"])
    others = submit_held(stage, "batch-of-ben", 3, users["ben"])
    page = visitor.sign_in(users["una"], "/jobs?text=batch")
    choose_all(page, 63)
    page.locator("[data-pick]").first.uncheck()
    expect(page.locator("[data-selected-count]")).to_have_text("49")
    page.get_by_role("button", name="Select none").click()
    expect(page.locator("[data-selection]")).to_be_hidden()
    choose_all(page, 63)
    page.get_by_role("button", name="Cancel…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("heading")).to_have_text("Cancel 60 jobs?")
    expect(dialog.locator("dl")).to_have_text(
        re.compile("by state.*pending 60.*by owner.*una 60.*by project.*default 60")
    )
    expect(dialog.get_by_role("listitem")).to_have_count(11)
    expect(dialog.get_by_role("listitem").first).to_have_text("batch-59 · pending · una")
    expect(dialog.get_by_role("listitem").last).to_have_text("and 50 more")
    expect(dialog).to_contain_text("3 jobs that match are left alone. This needs the role operate on project default")
    assert visitor.accessibility_faults() == []
    late = submit_held(stage, "batch-late", 2, users["una"])
    dialog.get_by_label("Reason").fill("wrong data")
    dialog.get_by_role("button", name="Cancel 60 jobs").click()
    expect(dialog).to_be_hidden()
    after = states(stage, "batch")
    assert {after[job] for job in mine} == {State.CANCELLED}
    assert {after[job] for job in (*others, *late)} == {State.PENDING}
    assert stage.job(mine[0])["reason"] == "cancelled by una: wrong data"
    expect(page.locator("[data-selection]")).to_be_hidden()


def test_two_tabs_retry_each_job_once(stage: Stage, visitor: Visitor, users: dict[str, str]) -> None:
    jobs = submit_held(stage, "twice", 55, users["una"])
    stage.post("/v1/job-actions", {"action": "cancel", "jobs": jobs}, token=users["una"])
    first = visitor.sign_in(users["una"], "/jobs?text=twice&state=CANCELLED")
    second = visitor.new_page()
    second.goto(first.url)
    for page in (first, second):
        choose_all(page, 55)
        page.get_by_role("button", name="Retry…").click()
        expect(page.get_by_role("dialog").get_by_role("heading")).to_have_text("Retry 55 jobs?")
    first.get_by_role("dialog").get_by_role("button", name="Retry 55 jobs").click()
    expect(first.get_by_role("dialog")).to_be_hidden()
    second.get_by_role("dialog").get_by_role("button", name="Retry 55 jobs").click()
    expect(second.get_by_role("dialog").get_by_role("heading")).to_have_text("Retried: 0 jobs")
    expect(second.get_by_role("dialog")).to_contain_text("55 jobs needed no change")
    assert len(states(stage, "twice")) == 110, "each was retried once"


def test_an_action_that_is_stopped_or_loses_its_answer_goes_on(
    stage: Stage, visitor: Visitor, users: dict[str, str]
) -> None:
    jobs = submit_held(stage, "long", 600, users["ben"])
    page = visitor.sign_in(users["ben"], "/jobs?text=long-")
    answers = iter(["lost", "held", "", ""])
    waiting: list[Route] = []

    def answer(route: Route) -> None:
        what = next(answers)
        if route.request.method == "GET" or not what:
            route.continue_()
        elif what == "lost":
            route.fetch()
            route.abort()
        else:
            waiting.append(route)

    choose_all(page, 600)
    page.get_by_role("button", name="Priority…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("New priority").fill("-9")
    page.route("**/session/v1/job-actions", answer)
    go = dialog.get_by_role("button", name="Change the priority of 600 jobs")
    go.click()
    expect(dialog.get_by_role("alert")).to_contain_text("The server does not answer")
    go.click()
    until(lambda: (page.wait_for_timeout(10), waiting)[1], 60, "the second request waits")
    dialog.get_by_role("button", name="Stop").click()
    waiting[0].continue_()
    expect(dialog.get_by_role("heading")).to_have_text("Changed: 0 jobs")
    expect(dialog).to_contain_text("500 jobs needed no change")
    expect(dialog).to_contain_text("You stopped before 100 jobs. They are as they were.")
    page.unroute("**/session/v1/job-actions")
    with_priority = [
        job for job in stage.walk("/v1/jobs", limit=500) if job["id"] in jobs and job.get("priority") == -9
    ]
    assert len(with_priority) == 500
    dialog.get_by_role("button", name="Leave it").click()
    choose_all(page, 600)
    page.get_by_role("button", name="Hold…").click()
    expect(dialog).to_contain_text("No job that matches can be held")


def test_a_second_click_after_a_lost_answer_retries_no_job_twice(stage: Stage, visitor: Visitor) -> None:
    assert stage.token is not None
    jobs = [stage.submit("true", name=f"once-{number}", hold=True) for number in range(3)]
    for job in jobs:
        stage.post(f"/v1/jobs/{job}/cancel", {})
    page = visitor.sign_in(stage.token, "/jobs?text=once-")
    page.get_by_label("Select all jobs on this page").check()
    page.get_by_role("button", name="Retry…").click()
    dialog = page.get_by_role("dialog")

    def lose_the_answer(route: Route) -> None:
        route.fetch()
        route.abort()

    page.route(f"**/jobs/{jobs[1]}/retry", lose_the_answer, times=1)
    dialog.get_by_role("button", name="Retry 3 jobs").click()
    expect(dialog).to_contain_text("Retried: 1 of 3 jobs. The server does not answer.")
    expect(dialog.get_by_role("listitem")).to_have_count(2)
    dialog.get_by_role("button", name="Retry 2 jobs").click()
    expect(dialog).to_be_hidden()
    made = stage.get("/v1/jobs?limit=200")["items"]
    assert sorted(job["retry_of"] for job in made if job.get("retry_of") in jobs) == sorted(jobs)
    visitor.faults.clear()  # the browser notes the answer that was lost


def test_two_pages_that_both_cancel_agree(stage: Stage, browser: Browser) -> None:
    assert stage.token is not None
    job = stage.submit("sleep", "600", name="twice")
    with Visitor(browser, stage.url) as one, Visitor(browser, stage.url) as two:
        pages = [person.sign_in(stage.token, f"/jobs/{job}") for person in (one, two)]
        for page in pages:
            page.get_by_role("button", name="Cancel…").click()
        for page in pages:
            page.get_by_role("dialog").get_by_role("button", name="Cancel the job").click()
            expect(page.locator("#heading")).to_contain_text("cancelled")
        assert one.faults + two.faults == []


def test_actions_show_what_they_touch_first(stage: Stage, visitor: Visitor) -> None:
    assert stage.token is not None
    jobs = [stage.submit("sleep", "600", name=f"act-{number}") for number in range(3)]
    stage.ended(stage.submit("true", name="act-over"))
    page = visitor.sign_in(stage.token, "/jobs?text=act-")
    page.get_by_label("Select all jobs on this page").check()
    expect(page.locator("[data-selected-count]")).to_have_text("4")
    page.get_by_label("Select all jobs on this page").uncheck()
    expect(page.locator("[data-selection]")).to_be_hidden()
    for name in ("act-0", "act-1", "act-over"):
        page.get_by_label(f"Select {name}").check()
    page.get_by_role("button", name="Cancel…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("listitem")).to_have_count(2)
    expect(dialog).to_contain_text("1 of the 3 selected is left alone")
    dialog.get_by_role("button", name="Leave it").click()
    assert stage.job(jobs[0])["state"] != "CANCELLED"
    page.get_by_role("button", name="Cancel…").click()
    dialog.get_by_role("button", name="Cancel 2 jobs").click()
    for job in jobs[:2]:
        stage.until_state(job, State.CANCELLED)
    expect(page.get_by_role("row").filter(has_text="act-1")).to_contain_text("cancelled")
    page = visitor.open(f"/jobs/{jobs[2]}")
    page.get_by_role("button", name="Cancel…").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the job").click()
    expect(page.locator("#heading")).to_contain_text("cancelled")
    page.get_by_role("button", name="Retry…").click()
    page.get_by_role("dialog").get_by_role("button", name="Retry the job").click()
    page.wait_for_url(lambda url: "/jobs/" in url and jobs[2] not in url)
    page.get_by_role("button", name="Cancel…").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the job").click()
    expect(page.locator("#heading")).to_contain_text("cancelled")
