"""On a real terminal: colours, widths, questions, the spinner."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
from collections.abc import Callable

import pytest
import yaml

from tests.cli.conftest import Terminal
from tests.sdk.peer import Peer, Say, a_job

JOBS = {
    "items": [a_job(state="FAILED", exit_code=1, name="n" * 100, reason="because of something long " * 5)] * 2,
    "next": None,
}
ANSI = re.compile(r"\x1b\[[0-9;]*[mK]")


def test_states_are_coloured_and_rows_fit_the_width(peer: Peer, terminal: Callable[..., Terminal]) -> None:
    peer.on("GET", "/v1/jobs", Say(JOBS))
    for columns in (80, 120):
        shown = terminal("ls", columns=columns)
        assert shown.end() == 0
        assert "\x1b[31mFAILED\x1b[0m" in shown.shown
        lines = ANSI.sub("", shown.shown).splitlines()
        assert len(lines) == 3
        assert max(map(len, lines)) <= columns
        assert all(a_job()["id"] in line and "…" in line for line in lines[1:])


def test_no_color_is_respected(peer: Peer, terminal: Callable[..., Terminal]) -> None:
    peer.on("GET", "/v1/jobs", Say(JOBS))
    shown = terminal("ls", env={"NO_COLOR": "1"})
    assert shown.end() == 0
    assert "\x1b" not in shown.shown


def test_forms_for_programs_have_no_colour_even_on_a_terminal(peer: Peer, terminal: Callable[..., Terminal]) -> None:
    peer.on("GET", "/v1/jobs", Say(JOBS))
    shown = terminal("ls", "-o", "json")
    assert shown.end() == 0
    assert len(json.loads(shown.shown)) == 2


def test_no_command_hands_the_terminal_to_foreign_text(peer: Peer, terminal: Callable[..., Terminal]) -> None:
    evil = "\u202eab\u2066\x9b2J\x1b[2J\x1b[1;1H\x1b[K\x1b]52;c;aGk=\x07\U000e0041"
    peer.on("GET", "/v1/jobs/*", Say({"title": "No", "status": 404, "detail": f"No {evil}.", "next_step": evil}, 404))
    peer.on("GET", "/v1/jobs", Say({"items": [a_job(name=evil)], "next": None}))
    peer.on(
        "GET", "/v1/version", Say({"version": evil, "now_us": 1})
    )  # printed as it is: only the guard of the stream is left
    for words, end in (
        (["show", "j-1"], 3),
        (["version"], 0),
        (["ls", "-o", "json"], 0),
        (["ls", "-o", "yaml"], 0),
        (["ls"], 0),
    ):
        shown = terminal(*words, columns=400)
        assert shown.end() == end, shown.shown
        assert not set(shown.shown) & set("\u202e\u2066\x9b\x07\U000e0041"), words
        assert not re.search(r"\x1b[^\[]|\x1b\[[0-9;]*[^0-9;m]", shown.shown), words
        if "json" in words:
            assert json.loads(shown.shown)[0]["name"] == evil, "an escape means the same character"
        if "yaml" in words:
            assert yaml.safe_load(shown.shown)[0]["name"] == evil


def test_live_views_draw_in_place(peer: Peer, terminal: Callable[..., Terminal]) -> None:
    job = a_job(state="SUCCEEDED", exit_code=0)
    peer.on("GET", "/v1/jobs", Say({"items": [job], "next": None}))
    peer.on("GET", "/v1/jobs/*", Say(job))
    for words, drawn in (
        (["watch", job["id"], "--after", "1"], "\x1b[?25l"),
        (["show", job["id"], "--watch"], "\x1b[H"),
    ):
        shown = terminal(*words, columns=200)
        assert shown.end() == 0, shown.shown
        assert drawn in shown.shown
        assert "␛" not in shown.shown


def test_removing_asks_first(peer: Peer, terminal: Callable[..., Terminal]) -> None:
    peer.on("DELETE", "/v1/users/bob", Say({"deleted": "bob"}))
    for answer, code, calls in (("\n", 1, 0), ("no\n", 1, 0), ("y\n", 0, 1)):
        asking = terminal("user", "rm", "bob")
        asking.until("Remove user bob?")
        asking.press(answer)
        assert asking.end() == code
        assert len(peer.asked) == calls


def test_login_asks_without_showing(peer: Peer, terminal: Callable[..., Terminal]) -> None:
    peer.on("GET", "/v1/whoami", Say({"name": "alice"}))
    asking = terminal("login")
    asking.until("Token for ")
    asking.press("yard_01_secret\n")
    assert asking.end() == 0
    assert "yard_01_secret" not in asking.shown
    assert peer.asked[0].headers["authorization"] == "Bearer yard_01_secret"


def test_waiting_shows_that_it_goes_on_and_what_ctrl_c_means(peer: Peer, terminal: Callable[..., Terminal]) -> None:
    job = a_job()
    peer.on("POST", "/v1/jobs", Say({"id": job["id"], "state": "ASSIGNED", "cluster": "alpha"}, 201))
    peer.on("GET", "/v1/jobs/*", Say(job))
    peer.on("GET", "/v1/jobs/*/wait", Say(job))
    waiting = terminal("submit", "--wait", "x", columns=200)
    waiting.until("⠙")
    os.kill(waiting.process.pid, signal.SIGINT)  # what a terminal makes of Ctrl-C
    assert waiting.end() == 130
    assert f"yard cancel {job['id']}" in waiting.shown


def test_waiting_shows_the_output_of_the_job_without_obeying_it(peer: Peer, terminal: Callable[..., Terminal]) -> None:
    job = a_job(state="SUCCEEDED", exit_code=0)
    data = base64.b64encode(b"a\x1b[2Jb\x1b]0;title\x07\n").decode()
    output = {"job": job["id"], "stream": "stdout", "chunks": [{"offset": 0, "data": data}], "size": 100}
    peer.on("POST", "/v1/jobs", Say({"id": job["id"], "state": "ASSIGNED", "cluster": "alpha"}, 201))
    peer.on("GET", "/v1/jobs/*", Say(job))
    peer.on("GET", "/v1/jobs/*/wait", Say(job))
    peer.on("GET", "/v1/jobs/*/output", Say(output))
    waiting = terminal("submit", "--wait", "x", columns=200)
    assert waiting.end() == 0
    assert waiting.shown.count("a␛[2Jb␛]0;title␇\n") == 2, "stdout and stderr"
    assert "bytes of stdout from offset 17 on were left out" in waiting.shown


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (("cluster", "graph", "alpha", "--source"), "/v1/clusters/alpha/graph"),
        (("cluster", "subsystem", "show", "alpha", "io"), "/v1/clusters/alpha/subsystems/io"),
    ],
)
def test_the_source_of_a_graph_is_shown_without_obeying_it(
    peer: Peer, terminal: Callable[..., Terminal], words: tuple[str, ...], path: str
) -> None:
    peer.on("GET", path, Say(text="nodes: 1 # \x1b[2J\n"))
    shown = terminal(*words)
    assert shown.end() == 0
    assert "nodes: 1 # ␛[2J\n" in shown.shown
