"""What the dashboard reads from requests of browsers, and the forms of a job that its plan offers."""

from __future__ import annotations

import shlex

import pytest

from switchyard.errors import Denied, Malformed, Throttled
from switchyard.features.dashboard.server import session
from switchyard.features.dashboard.server.pages import plan
from switchyard.server.http.endpoint import check_query
from switchyard.service.core.rights import Actor, Rights

HOST = {"host": "yard.example:8080"}
PAGE = {**HOST, "x-yard-page": "1"}


def a_scope(**headers: str) -> dict[str, object]:
    named = ((name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items())
    return {"scheme": "http", "headers": list(named)}


@pytest.mark.parametrize(
    "cookies",
    [
        "yard_session=yard_1",
        "a=1; yard_session=yard_1; b=2",
        'prefs={"a": [1, 2]}; yard_session=yard_1',
        "odd name=1;; =; novalue; yard_session=yard_1",
        'quoted="a\\; yard_session=yard_1',
        "caf\xe9=\xfc; yard_session=yard_1",
    ],
)
def test_odd_cookies_of_other_programs_do_not_hide_the_session(cookies: str) -> None:
    assert session.session_token(a_scope(cookie=cookies)) == "yard_1"


@pytest.mark.parametrize("cookies", ["", "x_yard_session=1", "yard_session", "__Host-yard_session=1"])
def test_other_cookies_are_no_session(cookies: str) -> None:
    assert session.session_token(a_scope(cookie=cookies)) == ""


@pytest.mark.parametrize(
    "told",
    [{}, {"sec-fetch-site": "same-origin"}, {"origin": "http://yard.example:8080"}],
    ids=["plain HTTP by name, or an old browser", "Sec-Fetch-Site", "Origin"],
)
def test_a_script_of_our_pages_may_call_from_every_browser(told: dict[str, str]) -> None:
    session.need_page_header(a_scope(**PAGE, **told))
    with pytest.raises(Denied):
        session.need_page_header(a_scope(**HOST, **told))  # without the header of our pages


@pytest.mark.parametrize(
    "told",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://[evil"},
        {"sec-fetch-site": "cross-site", "origin": "http://yard.example:8080"},
    ],
)
def test_a_request_of_another_site_is_refused(told: dict[str, str]) -> None:
    for refuse in (session.need_page_header, session.refuse_other_sites):
        with pytest.raises(Denied):
            refuse(a_scope(**PAGE, **told))


def test_a_form_needs_a_browser_that_says_where_it_comes_from() -> None:
    with pytest.raises(Denied):
        session.refuse_other_sites(a_scope(**PAGE))


def test_sign_ins_of_one_user_are_bounded_and_others_sign_in() -> None:
    clock = [0.0]
    limiter = session.SignInLimiter(lambda: clock[0])
    ann, bob = Actor("ann", Rights()), Actor("bob", Rights())
    for second in range(session.SIGN_INS_MAX):
        clock[0] = float(second)
        limiter.count(ann)
    with pytest.raises(Throttled) as refused:
        limiter.count(ann)
    assert refused.value.retry_after_s == session.SIGN_INS_S - clock[0]
    limiter.count(bob)
    clock[0] = session.SIGN_INS_S
    limiter.count(ann)
    with pytest.raises(Throttled):
        limiter.count(ann)


@pytest.mark.parametrize("command", ["true; reboot", "echo $(id) `id` > x", "echo 'a b' \"c\"", "  ", "a\nb"])
def test_the_command_line_of_a_plan_runs_nothing_else_in_a_shell(command: str) -> None:
    fields = {"command": command, "name": "a; b"}
    expected = shlex.split(command) or ["true"]
    assert plan.read_request(fields).spec.command == expected
    line = plan.shell_form(fields)
    assert shlex.split(line) == ["yard", "submit", "--name", "a; b", "--", *expected]
    assert [*shlex.shlex(line, posix=True, punctuation_chars=True)].count(";") == 0
    assert f"yard.submit({expected!r}, name='a; b')" in plan.python_form(fields)


def test_a_command_of_a_thousand_characters_can_be_planned() -> None:
    check_query(plan.QUERY, [("command", "echo " + "--option=value " * 100)])
    with pytest.raises(Malformed, match="'command' is too long"):
        check_query(plan.QUERY, [("command", "x" * (plan.COMMAND_CHARS_MAX + 1))])
    with pytest.raises(Malformed, match="'name' is too long"):
        check_query(plan.QUERY, [("name", "x" * 513)])


def test_a_command_with_an_open_quote_is_refused() -> None:
    with pytest.raises(Malformed, match="cannot be read"):
        plan.read_request({"command": "echo 'a"})
