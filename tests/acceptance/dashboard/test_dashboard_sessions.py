"""Sign-in, sign-out and rights of the dashboard, in a real browser and past it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from switchyard.features.dashboard.server.session import SIGN_INS_MAX, SIGN_INS_S
from tests.acceptance.stage import SOON_S, Secret, Stage, staged, submitters
from tests.browser import Visitor
from tests.processes import until
from tests.programs import Answer, call

PAGES = (
    "/",
    "/jobs",
    "/jobs/{job}",
    "/clusters",
    "/clusters/alpha",
    "/plan",
    "/rules",
    "/pools",
    "/executions",
    "/audit",
)
SIGNED_OUT = 303


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("sessions"), auth=True) as made:
        yield made


@pytest.fixture
def visitor(stage: Stage, browser: Browser) -> Iterator[Visitor]:
    with Visitor(browser, stage.url) as person:
        yield person
        assert person.faults == []


@pytest.fixture(scope="module")
def users(stage: Stage) -> dict[str, str]:
    """Users who may submit to the default project, and one who may do nothing."""
    tokens = submitters(stage, "ada", "ben")
    stage.yard("user", "add", "eve", check=True)
    return {**tokens, "eve": Secret(stage.yard("token", "create", "--user", "eve", check=True).stdout.split()[-1])}


@pytest.fixture(scope="module")
def job(stage: Stage, users: dict[str, str]) -> str:
    """A job of ada's, in a project that only ada may see."""
    stage.yard("project", "create", "secret", check=True)
    stage.yard("grant", "add", "submit", "--to", "user:ada", "--on", "project:secret", check=True)
    return stage.submit("true", token=users["ada"], name="adas-job", project="secret")


def cookie_of(visitor: Visitor) -> dict[str, object]:
    (cookie,) = visitor.context.cookies()
    return dict(cookie)


def get(stage: Stage, path: str, *, cookie: str = "", accept: str = "text/html", **headers: str) -> Answer:
    sent = {"Accept": accept, **({"Cookie": f"yard_session={cookie}"} if cookie else {}), **headers}
    return call("GET", stage.url + path, headers=sent)


def test_a_wrong_token_at_the_sign_in_is_logged(stage: Stage) -> None:
    """The first test here: of later refusals of the same address, the log has only a count."""
    body = b"token=yard_0000000000_wrong"
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Origin": stage.url}
    assert call("POST", f"{stage.url}/sign-in", body, headers=headers).status == 401
    until(lambda: "path=/sign-in" in stage.server.log, SOON_S, "a line in the log of the server")


def test_a_visitor_signs_in_with_a_token_and_lands_where_they_wanted(
    stage: Stage, visitor: Visitor, users: dict[str, str], job: str
) -> None:
    page = visitor.open(f"/jobs/{job}")
    expect(page).to_have_title("Sign in · Switchyard")
    page.get_by_label("Your token").fill("yard_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("does not hold")
    page.get_by_label("Your token").fill(users["ada"])
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("adas-job")
    cookie = cookie_of(visitor)
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["secure"]) == (True, "Lax", False)
    assert cookie["value"] != users["ada"], "the cookie is not the token itself"


def test_a_session_ends_at_sign_out_for_every_copy_of_its_cookie(
    stage: Stage, visitor: Visitor, users: dict[str, str]
) -> None:
    page = visitor.sign_in(users["ada"])
    copy = str(cookie_of(visitor)["value"])
    assert get(stage, "/jobs", cookie=copy).status == 200
    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_title("Sign in · Switchyard")
    assert get(stage, "/jobs", cookie=copy).status == SIGNED_OUT
    assert visitor.context.cookies() == []


def test_an_open_page_of_a_revoked_token_goes_to_the_sign_in(
    stage: Stage, visitor: Visitor, users: dict[str, str]
) -> None:
    made = stage.post("/v1/tokens", {"user": "ben"})
    page = visitor.sign_in(made["token"])
    expect(page.locator("[data-live-state]")).to_have_text("live")
    stage.yard("token", "revoke", made["info"]["id"], check=True)
    expect(page).to_have_title("Sign in · Switchyard")


def test_a_stream_of_a_page_that_may_not_be_shown_is_refused_with_its_status(
    stage: Stage, users: dict[str, str]
) -> None:
    cookie = session_of(stage, users["ada"])
    for path, status in (("/audit", 403), (f"/jobs/{'0' * 26}", 404), ("/clusters/nosuch", 404)):
        answer = get(stage, path, cookie=cookie, accept="text/event-stream")
        assert (path, answer.status) == (path, status)


def test_a_session_survives_a_restart_of_the_server(stage: Stage, visitor: Visitor, users: dict[str, str]) -> None:
    page = visitor.sign_in(users["ada"])
    expect(page.locator("[data-live-state]")).to_have_text("live")
    stage.server.kill()
    expect(page.get_by_role("alert")).to_contain_text("The server does not answer")
    stage.server.restart()
    expect(page.locator("[data-live-state]")).to_have_text("live")
    expect(page.get_by_role("alert")).to_have_count(0)
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")


def test_other_sites_can_neither_sign_in_nor_use_a_session(stage: Stage, users: dict[str, str]) -> None:
    session = session_of(stage, users["ada"])
    form = {"Content-Type": "application/x-www-form-urlencoded", "Origin": "https://evil.example"}
    body = f"token={users['ada']}".encode()
    assert call("POST", f"{stage.url}/sign-in", body, headers=form).status == 403
    assert call("POST", f"{stage.url}/sign-out", b"", headers=form).status == 403
    crossed = {**form, "Origin": stage.url, "Sec-Fetch-Site": "cross-site"}
    assert call("POST", f"{stage.url}/sign-in", body, headers=crossed).status == 403
    job = {"spec": {"command": ["true"]}}
    cookie = {"Cookie": f"yard_session={session}", "Origin": stage.url}
    assert call("POST", f"{stage.url}/session/v1/jobs", job, headers=cookie).status == 403, "no header of our pages"
    assert call("POST", f"{stage.url}/session/v1/jobs", job, headers={**cookie, "X-Yard-Page": "1"}).status == 201
    assert call("POST", f"{stage.url}/v1/jobs", job, headers={**cookie, "X-Yard-Page": "1"}).status == 401


def test_a_link_cannot_lead_to_another_site_after_the_sign_in(stage: Stage, users: dict[str, str]) -> None:
    for target in ("https://evil.example/", "//evil.example", "/\\evil.example", "/%0d%0aSet-Cookie:x=y"):
        form = {"Content-Type": "application/x-www-form-urlencoded", "Origin": stage.url}
        answer = call("POST", f"{stage.url}/sign-in", f"token={users['ada']}&next={target}".encode(), headers=form)
        assert (answer.status, answer.headers["location"]) == (303, "/")


def test_the_cookie_is_secure_where_the_browser_came_over_tls(stage: Stage, users: dict[str, str]) -> None:
    headers = {
        "Content-Type": "application/x-www-form-urlencoded",
        "Origin": stage.url,
        "X-Forwarded-Proto": "https",
    }
    answer = call("POST", f"{stage.url}/sign-in", f"token={users['ada']}".encode(), headers=headers)
    assert answer.headers["set-cookie"].startswith("__Host-yard_session=yard_")
    assert "; Secure" in answer.headers["set-cookie"]


def test_every_page_has_a_strict_policy_and_needs_a_session(stage: Stage, job: str) -> None:
    for path in (*PAGES, "/sign-in", "/static/x/live.js", "/jobs/x/y"):
        answer = get(stage, path.format(job=job))
        policy = answer.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert policy.startswith("default-src 'none'")
    for path in PAGES:
        answer = get(stage, path.format(job=job))
        assert (answer.status, answer.headers["location"].partition("?")[0]) == (SIGNED_OUT, "/sign-in")
        for accept in ("text/event-stream", "application/json"):
            assert get(stage, path.format(job=job), accept=accept).status == 401


def test_a_user_sees_and_does_no_more_than_by_the_api(
    stage: Stage, browser: Browser, users: dict[str, str], job: str
) -> None:
    with Visitor(browser, stage.url) as eve:
        page = eve.sign_in(users["eve"])
        expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
        expect(page.locator("body")).not_to_contain_text("adas-job")
        for path, status in ((f"/jobs/{job}", "404"), ("/jobs?project=secret", "403")):
            page = eve.open(path)
            expect(page.get_by_role("heading", level=1)).to_contain_text(status)
            expect(page.locator("body")).not_to_contain_text("adas-job")
        session = str(cookie_of(eve)["value"])
    for accept in ("text/event-stream", "application/json"):
        answer = get(stage, f"/jobs/{job}", cookie=session, accept=accept)
        assert b"adas-job" not in answer.body
    own = {"Cookie": f"yard_session={session}", "Origin": stage.url, "X-Yard-Page": "1"}
    assert call("POST", f"{stage.url}/session/v1/jobs/{job}/cancel", {}, headers=own).status == 404


def test_a_user_signs_in_so_often_and_no_more(stage: Stage) -> None:
    token = submitters(stage, "max")["max"]
    for _ in range(SIGN_INS_MAX):
        session_of(stage, token)
    form = {"Content-Type": "application/x-www-form-urlencoded", "Origin": stage.url}
    answer = call("POST", f"{stage.url}/sign-in", f"token={token}".encode(), headers=form)
    assert (answer.status, "set-cookie" in answer.headers) == (429, False)
    assert 1 <= int(answer.headers["retry-after"]) <= SIGN_INS_S


def session_of(stage: Stage, token: str) -> str:
    form = {"Content-Type": "application/x-www-form-urlencoded", "Origin": stage.url}
    answer = call("POST", f"{stage.url}/sign-in", f"token={token}".encode(), headers=form)
    assert answer.status == 303
    return answer.headers["set-cookie"].partition(";")[0].partition("=")[2]
