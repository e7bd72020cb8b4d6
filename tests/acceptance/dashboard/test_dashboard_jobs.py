"""The list of jobs and the page of one job, in a real browser: what they show, and how they stay true."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Position, expect

from switchyard.model.job.job import State
from tests.acceptance.stage import Stage, staged, waiting_for
from tests.browser import Visitor
from tests.processes import PATIENCE_S, until
from tests.programs import call
from tests.soak import SOAKED

HOSTILE_NAME = "<img src=x onerror=alert(1)> & 😀"
PHONE = {"width": 390, "height": 800}
DESKTOP = {"width": 1280, "height": 800}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with (
        staged(tmp_path_factory.mktemp("jobs")) as made,
        made.agent("alpha", cores=8),
        made.agent("beta", cores=2),
    ):
        yield made


@pytest.fixture
def visitor(stage: Stage, browser: Browser) -> Iterator[Visitor]:
    with Visitor(browser, stage.url, viewport=DESKTOP) as person:
        yield person
        assert person.faults == []


def test_a_new_job_appears_and_changes_in_an_open_list(stage: Stage, visitor: Visitor, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    page = visitor.open("/jobs")
    expect(page.locator("[data-live-state]")).to_have_text("live")
    stage.submit("sh", "-c", waiting_for(gate), name="appears")
    row = page.get_by_role("row").filter(has_text="appears")
    expect(row).to_contain_text("running")
    gate.touch()
    expect(row).to_contain_text("succeeded")


def test_a_hidden_page_leaves_its_connections_to_others(stage: Stage, visitor: Visitor, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    job = stage.submit("sh", "-c", f"echo before; {waiting_for(gate)}; echo after", name="unseen")
    page = visitor.open(f"/jobs/{job}")
    expect(page.locator("[data-text]")).to_contain_text("before")
    expect(page.locator("[data-live-state]")).to_have_text("live")
    show = """(isShown) => {
        Object.defineProperty(document, "hidden", { configurable: true, get: () => !isShown });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    ended: list[str] = []
    page.on("requestfailed", lambda request: ended.append(request.url))
    page.evaluate(show, False)
    expect(page.locator("[data-live-state]")).to_have_text("paused")
    gate.touch()
    stage.until_state(job, State.SUCCEEDED)
    assert [address for address in ended if "/output" in address], "the wait for output has ended"
    expect(page.locator("[data-text]")).not_to_contain_text("after")
    page.evaluate(show, True)
    expect(page.locator("[data-text]")).to_contain_text("after")
    expect(page.locator("[data-live-state]")).to_have_text("live")
    expect(page.locator("#heading")).to_contain_text("succeeded")


@pytest.mark.parametrize("tabs", [8, SOAKED(20)])
def test_many_tabs_of_one_browser_stay_true(stage: Stage, visitor: Visitor, tabs: int) -> None:
    """A browser opens six connections to a server. Pages that are all seen must not take them all."""
    name = f"in-{tabs}-tabs"
    pages = [visitor.page, *(visitor.new_page() for _ in range(tabs - 1))]
    for page in pages:
        page.goto(f"{stage.url}/jobs?text={name}")
        expect(page.locator("[data-live-state]")).to_have_text("live")
    stage.submit("true", name=name, hold=True)
    for page in pages:
        expect(page.locator("[data-row]")).to_have_count(1)
    places = "Object.keys(JSON.parse(localStorage.getItem('yard_places'))).length"
    assert pages[0].evaluate(places) == 4, "the others ask now and then"
    for page in pages[:-2]:
        page.close()
    for page in pages[-2:]:
        page.get_by_role("link", name=name).click()
        expect(page.locator("[data-output-state]")).to_be_visible()
    page = pages[-1]
    until(lambda: page.evaluate(places) >= 2, PATIENCE_S, "pages take the places of closed ones")


def test_a_page_that_was_frozen_catches_up(stage: Stage, visitor: Visitor) -> None:
    """As after a sleep of the computer: the server ended the stream meanwhile, and nobody told the page."""
    page = visitor.open("/jobs?text=while-asleep")
    expect(page.locator("[data-live-state]")).to_have_text("live")
    lifecycle = visitor.context.new_cdp_session(page)
    lifecycle.send("Page.setWebLifecycleState", {"state": "frozen"})
    stage.server.restart()
    stage.submit("true", name="while-asleep", hold=True)
    lifecycle.send("Page.setWebLifecycleState", {"state": "active"})
    expect(page.locator("[data-row]")).to_have_count(1)
    expect(page.locator("[data-live-state]")).to_have_text("live")
    expect(page.get_by_role("alert")).to_be_hidden()


def test_the_address_holds_the_view(stage: Stage, visitor: Visitor) -> None:
    wanted = stage.submit("true", name="Wanted One", labels={"run": "a b&c=d"})
    stage.ended(stage.submit("false", name="other"))
    stage.ended(wanted)
    page = visitor.open("/jobs")
    page.get_by_label("name", exact=True).fill("wanted")
    page.get_by_text("More filters").click()
    page.get_by_label("label", exact=True).fill("run=a b&c=d")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("[data-row]")).to_have_count(1)
    assert "owner=" not in page.url, "the address has only what was filled in"
    page.locator(".chip").filter(has_text="succeeded").click()
    page.wait_for_url(re.compile("state=SUCCEEDED"))
    address = page.url.removeprefix(stage.url)
    with Visitor(visitor.context.browser, stage.url) as colleague:  # type: ignore[arg-type]
        expect(colleague.open(address).locator("[data-row]")).to_have_count(1)
    page.get_by_label("count by").select_option("cluster")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("#chips")).to_contain_text(re.compile("alpha|beta"))
    page.go_back()
    expect(page.get_by_label("count by")).to_have_value("state")  # as in the address


def test_jobs_are_sorted_and_counted_by_label(stage: Stage, visitor: Visitor) -> None:
    jobs = [
        {"spec": {"command": ["true"]}, "name": f"sorted-{number:02}", "priority": number, "hold": True}
        for number in range(52)
    ]
    jobs[7]["labels"] = jobs[9]["labels"] = {"team": "blue"}
    stage.post("/v1/jobs/bulk", {"jobs": jobs})
    page = visitor.open("/jobs?text=sorted-")
    page.locator("[name=sort]").select_option("priority")
    page.get_by_label("count by").select_option("label")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("[data-row]").first).to_contain_text("sorted-51")
    expect(page.locator("[data-row]")).to_have_count(50)
    page.get_by_role("link", name="More").click()
    expect(page.locator("[data-row]").last).to_contain_text("sorted-00")
    page.get_by_role("link", name="team 2").click()
    page.get_by_role("link", name="blue 2").click()
    expect(page.locator("[data-row]")).to_have_count(2)
    assert visitor.accessibility_faults() == []


def test_a_long_list_has_pages(stage: Stage, visitor: Visitor) -> None:
    jobs = [{"spec": {"command": ["true"]}, "name": f"page-{number:02}", "hold": True} for number in range(60)]
    stage.post("/v1/jobs/bulk", {"jobs": jobs})
    page = visitor.open("/jobs?text=page-")
    expect(page.locator("[data-row]")).to_have_count(50)
    expect(page.locator("#chips")).to_contain_text("60")
    page.get_by_role("link", name="Older").click()
    expect(page.locator("[data-row]")).to_have_count(10)
    expect(page.locator("[data-row]").last).to_contain_text("page-00")
    page.get_by_role("link", name="Newest").click()
    expect(page.locator("[data-row]").first).to_contain_text("page-59")


@pytest.mark.parametrize(
    "query",
    ["state=NONSENSE", "cursor=x", "nonsense=1", "label=x", "since_s=-1", "text=%00", "group=name", "text=a&text=b"],
)
def test_nonsense_in_the_address_is_explained(stage: Stage, query: str) -> None:
    answer = call("GET", f"{stage.url}/jobs?{query}", headers={"Accept": "text/html"})
    assert answer.status == 400
    assert b"<h1>400" in answer.body
    assert b"All jobs" in answer.body


def test_names_and_reasons_are_shown_and_never_run(stage: Stage, visitor: Visitor) -> None:
    job = stage.submit("sh", "-c", "exit 3", name=HOSTILE_NAME, labels={"x": "<script>alert(1)</script>"})
    stage.ended(job)
    expect(visitor.open("/jobs").get_by_role("link", name=HOSTILE_NAME)).to_be_visible()
    page = visitor.open(f"/jobs/{job}")
    expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE_NAME)
    expect(page.locator("#heading")).to_contain_text("exit 3")
    expect(page.get_by_role("link", name="<script>alert(1)</script>")).to_be_visible()
    assert page.locator("#main img, #main script").count() == 0
    blank = stage.submit("true", name="   ", hold=True)
    page = visitor.open("/jobs")
    page.get_by_role("link", name=blank).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(blank)


def test_output_is_followed_with_colours_and_never_run(stage: Stage, visitor: Visitor, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    script = (
        r"printf '\033[1;31mred\033[0m \033]0;title\007<b>plain</b>\a\n'; echo '<script>alert(1)</script>'; "
        rf"printf '\304\260\304\260\304\260 y'; {waiting_for(gate)}; echo; "
        f"printf '10%%\\r100%%\\n'; head -c 1000000 /dev/zero | tr '\\0' x; echo; echo the end"
    )
    page = visitor.open(f"/jobs/{stage.submit('sh', '-c', script, name='writes')}")
    text = page.locator("[data-text]")
    expect(text).to_contain_text("red <b>plain</b>")
    expect(text).to_contain_text("<script>alert(1)</script>")
    expect(text.locator(".f1.a1, .a1.f1")).to_have_text("red")
    assert text.locator("b, script").count() == 0
    expect(text).to_contain_text("İİİ y")  # a line that has not ended
    page.get_by_label("Find in the output").fill("Y")  # the letters before it are longer in lower case
    expect(page.locator("[data-found]")).to_have_text("1 hit")
    gate.touch()
    expect(text).to_contain_text("the end")
    expect(page.locator("[data-output-state]")).to_contain_text("This is all")
    shown = text.inner_text()
    assert "100%" in shown
    assert "10%\n" not in shown
    assert "\x07" not in shown
    assert shown.count("x") >= 1_000_000
    page.get_by_label("Find in the output").fill("THE END")
    expect(page.locator("[data-found]")).to_have_text("1 hit")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    assert Path(download.value.path()).stat().st_size > 1_000_000


def test_escape_sequences_are_drawn_or_left_out(stage: Stage, visitor: Visitor) -> None:
    lines = (
        r"\033[7mreversed\033[27m \033[1;31;7mred\033[0m plain",
        r"\033[1mbold\033(B\033[m \0337\033[s\033=\033[38:5:200mpink\033[4:3mwave\033[0;2mfaint\033[0m \033P1q\033\\",
        r"\033[1;4mboth\033[24mbold\033[22mnone\033",
        r"\342\200\256txt.exe\342\201\246 \302\2332J \363\240\201\201",
    )
    job = stage.submit("printf", r"\n".join(lines), name="escapes")
    page = visitor.open(f"/jobs/{job}")
    expect(page.locator("[data-output-state]")).to_contain_text("This is all")
    text = page.locator("[data-text]")
    assert text.inner_text() == "reversed red plain\nbold pinkwavefaint \nbothboldnone\n�txt.exe� �2J �\n"
    looks = """(spans) => spans.map((span) => {
        const { color, backgroundColor } = getComputedStyle(span);
        return [span.textContent, color, backgroundColor];
    })"""
    light, dark, red = "rgb(220, 227, 234)", "rgb(11, 16, 22)", "rgb(255, 141, 133)"
    assert text.locator(".a7").evaluate_all(looks) == [["reversed", dark, light], ["red", dark, red]]
    expect(text.locator(".a4")).to_have_text(["wave", "both"])
    expect(text.locator(".a1")).to_have_text(["red", "bold", "both", "bold"])


def test_who_scrolls_up_in_the_output_stays_there(stage: Stage, visitor: Visitor, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    script = f"seq 1000; {waiting_for(gate)}; seq 1001 1100"
    page = visitor.open(f"/jobs/{stage.submit('sh', '-c', script, name='scrolls')}")
    text, follow = page.locator("[data-text]"), page.get_by_label("Follow")
    place = "(box) => [Math.round(box.scrollTop), box.scrollHeight - box.scrollTop - box.clientHeight < 5]"
    expect(text).to_contain_text("1000")
    assert text.evaluate(place)[1], "the end is followed"
    text.press("Home")  # a finger gives the same events of scrolling
    expect(follow).not_to_be_checked()
    until(lambda: text.evaluate(place) == [0, False], PATIENCE_S, "Home goes to the first line")
    page.get_by_label("Find in the output").fill("500")
    expect(page.locator("[data-found]")).to_have_text("1 hit")
    text.press("Home")
    until(lambda: text.evaluate(place) == [0, False], PATIENCE_S, "Home goes to the first line")
    gate.touch()
    expect(text).to_contain_text("1100")
    assert text.evaluate(place) == [0, False], "neither the end nor a hit takes the reader away"


def test_output_of_stderr_and_of_earlier_attempts_is_one_click_away(
    stage: Stage, visitor: Visitor, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    script = f'echo "try $SWITCHYARD_ATTEMPT" >&2; {waiting_for(gate)}; exit 3'
    job = stage.submit("sh", "-c", script, name="again", spec={"retry": {"limit": 1, "backoff": 1}})
    page = visitor.open(f"/jobs/{job}?stream=stderr")
    state, text = page.locator("[data-output-state]"), page.locator("[data-text]")
    expect(text).to_have_text("try 1\n")
    expect(page.locator("[data-attempts]")).to_be_hidden()
    gate.touch()
    stage.until_state(job, State.FAILED)
    expect(text).to_have_text("try 1\n— attempt 2 —\ntry 2\n")
    page.get_by_role("link", name="stdout").click()
    expect(state).to_contain_text("It wrote nothing here. stderr has 6 bytes.")
    state.get_by_role("link").click()
    expect(text).to_have_text("try 2\n")
    attempts = page.get_by_role("navigation", name="Attempts")
    expect(attempts.locator("[aria-current]")).to_have_text("2")
    attempts.get_by_role("link", name="attempt 1").click()
    expect(page.locator("#output-title")).to_have_text("Output, attempt 1")
    expect(text).to_have_text("try 1\n")
    expect(state).to_contain_text("This is all")
    expect(attempts.locator("[aria-current]")).to_have_text("1")
    page.get_by_role("link", name="stdout").click()
    expect(state).to_contain_text("It wrote nothing here. stderr has 6 bytes.")
    page.get_by_role("link", name="attempt 2").click()
    expect(page.locator("#output-title")).to_have_text("Output")
    assert visitor.accessibility_faults() == []


def test_a_job_page_says_why_and_what_would_help(stage: Stage, visitor: Visitor) -> None:
    job = stage.submit("true", name="too-big", spec={"resources": {"cores": 64}})
    page = visitor.open(f"/jobs/{job}")
    expect(page.locator("#heading")).to_contain_text("rejected")
    verdicts = page.get_by_role("table").filter(has_text="Verdict")
    expect(verdicts.get_by_role("row").filter(has_text="alpha")).to_contain_text("best node has 8")
    expect(page.locator("#verdicts")).to_contain_text("What would help")


def test_the_timeline_is_to_scale(stage: Stage, visitor: Visitor) -> None:
    job = stage.ended(stage.submit("sleep", "2", name="two-seconds"))
    page = visitor.open(f"/jobs/{job['id']}")
    bar = page.locator("#timeline rect.b-running")
    expect(bar).to_have_count(1)
    whole_us = job["ended_us"] - job["created_us"]
    drawn = float(bar.get_attribute("width") or 0) / 1000
    assert drawn == pytest.approx((job["ended_us"] - job["started_us"]) / whole_us, abs=0.02)
    expect(bar.locator("title")).to_contain_text("running on")


def test_failed_tasks_of_an_array_are_one_click_away(stage: Stage, visitor: Visitor) -> None:
    script = 'echo "task $SWITCHYARD_ARRAY_INDEX"; [ $SWITCHYARD_ARRAY_INDEX != 7 ]'
    job = stage.submit("sh", "-c", script, name="sweep", array="0-19")
    stage.until_state(job, State.FAILED)
    page = visitor.open(f"/jobs/{job}")
    expect(page.locator(".taskmap path.b-failed")).to_have_count(1)
    page.locator("#tasks").get_by_role("link", name="7", exact=True).click()
    expect(page.locator("[data-text]")).to_contain_text("task 7")
    page.go_back()
    page.locator(".taskmap").click(position=_square_of(page, 3, 20))
    expect(page.locator("[data-text]")).to_contain_text("task 3")


def test_a_click_counts_although_its_block_changes_meanwhile(stage: Stage, visitor: Visitor, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    script = f'echo "task $SWITCHYARD_ARRAY_INDEX"; [ $SWITCHYARD_ARRAY_INDEX != 0 ] || {waiting_for(gate)}'
    page = visitor.open(f"/jobs/{stage.submit('sh', '-c', script, name='pressed', array='0-9')}")
    expect(page.locator("#tasks .legend")).to_contain_text("succeeded 9")
    expect(page.locator("[data-live-state]")).to_have_text("live")
    page.locator(".taskmap").hover(position=_square_of(page, 3, 10))
    page.mouse.down()
    gate.touch()
    expect(page.locator("#heading")).to_contain_text("succeeded")
    expect(page.locator("#events")).to_contain_text("succeeded")  # the last block: all others came before it
    expect(page.locator("#tasks .legend")).to_contain_text("succeeded 9")
    page.mouse.up()
    expect(page.locator("[data-text]")).to_contain_text("task 3")


def _square_of(page: Page, task: int, count: int) -> Position:
    """Where in the map of tasks the square of a task is, of an array that has one row there."""
    # Found and measured at one moment: the first message of the stream replaces the map.
    script = "() => { const map = document.querySelector('.taskmap'); return [map.clientWidth, map.clientHeight]; }"
    width, height = page.evaluate(script)
    return {"x": width * (task + 0.5) / count, "y": height / 2}


def test_the_keyboard_is_enough(stage: Stage, visitor: Visitor) -> None:
    for number in range(3):
        stage.submit("true", name=f"keys-{number}", hold=True)
    page = visitor.open("/jobs?text=keys-")
    page.keyboard.press("j")
    page.keyboard.press("j")
    stage.submit("true", name="keys-3", hold=True)
    expect(page.locator("[data-row]")).to_have_count(4)
    page.keyboard.press("x")
    expect(page.locator("[data-selected-count]")).to_have_text("1")
    expect(page.get_by_label("Select keys-1")).to_be_checked()  # the mark is still on its job
    page.keyboard.press("k")
    page.keyboard.press("j")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("search jobs")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox", name="Search jobs by name")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("keys-0")


@pytest.mark.parametrize("scheme", ["light", SOAKED("dark")])  # its colours: test_dashboard_overview.py
def test_axe_finds_nothing_and_a_phone_scrolls_only_down(stage: Stage, browser: Browser, scheme: str) -> None:
    job = stage.ended(stage.submit("sh", "-c", "echo out; exit 1", name="x" * 200, labels={"a": "b"}))["id"]
    array = stage.submit("true", name="array", array="0-9")
    stage.ended(array)
    with Visitor(browser, stage.url, color_scheme=scheme) as person:
        for path in ("/jobs", f"/jobs/{job}", f"/jobs/{array}", "/jobs?text=no-such-name", "/jobs/no/such"):
            person.page.set_viewport_size(DESKTOP)  # type: ignore[arg-type]
            page = person.open(path)
            assert person.accessibility_faults() == [], path
            page.set_viewport_size(PHONE)  # type: ignore[arg-type]
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], path
        assert person.faults == []


def test_the_theme_is_the_readers_and_stays(stage: Stage, visitor: Visitor) -> None:
    page = visitor.open("/jobs")
    page.get_by_role("button", name="Switch between light and dark").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert 'data-theme="dark"' in page.request.get(f"{stage.url}/jobs").text()


def test_an_old_browser_without_streams_looks_again(stage: Stage, browser: Browser) -> None:
    with Visitor(browser, stage.url) as person:
        person.context.add_init_script("delete window.EventSource")
        page = person.open("/jobs?text=polled")
        expect(page.locator("[data-live-state]")).to_have_text("live")
        stage.submit("true", name="polled")
        expect(page.locator("[data-row]")).to_have_count(1)


def test_a_stream_that_is_not_heard_is_replaced_by_polling(stage: Stage, visitor: Visitor) -> None:
    """As behind a proxy that keeps streams back."""
    page = visitor.new_page()
    page.add_init_script("window.EventSource = class extends EventTarget { readyState = 0; close() {} };")
    page.clock.install()
    page.goto(f"{stage.url}/jobs?text=unheard")
    page.clock.run_for(20_000)
    stage.submit("true", name="unheard", hold=True)
    page.clock.run_for(6_000)
    expect(page.get_by_role("row").filter(has_text="unheard")).to_be_visible()


def test_a_page_is_small_on_the_wire(stage: Stage) -> None:
    page = call("GET", f"{stage.url}/jobs", headers={"Accept": "text/html", "Accept-Encoding": "gzip"})
    plain = call("GET", f"{stage.url}/jobs", headers={"Accept": "text/html"}).body.decode()
    parts = {
        path: call("GET", stage.url + path, headers={"Accept-Encoding": "gzip"})
        for path in re.findall(r'(?:href|src)="(/static/[^"]+)"', plain)
    }
    assert len(parts) == 6
    assert all("immutable" in part.headers["cache-control"] for part in parts.values())
    assert len(page.body) + sum(len(part.body) for part in parts.values()) < 60_000
