"""`yard logs`: what reaches a terminal, what reaches a pipe, and how it goes on."""

from __future__ import annotations

import base64
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from switchyard.cli.jobs.log_view import TerminalFilter
from switchyard.errors import EXIT_USAGE
from tests.cli.conftest import Done, Terminal
from tests.sdk.peer import Asked, Peer, Say, a_job

ID = a_job()["id"]
OUTPUT = "/v1/jobs/*/output"


def part(*chunks: tuple[int, bytes], **fields: Any) -> Say:
    """An answer of the server's."""
    listed = [{"offset": offset, "data": base64.b64encode(data).decode()} for offset, data in chunks]
    reached = chunks[-1][0] + len(chunks[-1][1]) if chunks else 0
    return Say({"job": ID, "stream": "stdout", "chunks": listed, "size": reached, "next": reached, **fields})


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"plain\ttext\r\n", "plain\ttext\r\n"),
        ("größe 日本 ✔".encode(), "größe 日本 ✔"),
        (b"\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m\x1b[0m"),
        (b"\x1b[1;38;5;12mx", "\x1b[1;38;5;12mx\x1b[0m"),
        (b"\x1b[2J\x1b[H", "␛[2J␛[H"),
        (b"\x1b]0;title\x07", "␛]0;title␇"),
        (b"\x1bc\x1b(0\x1b[6n\x1b[?25l", "␛c␛(0␛[6n␛[?25l"),
        (b"\x00\x08\x0b\x0c\x7f", "␀␈␋␌␡"),
        ("\x9b2J\x9d0;x\x9c".encode(), "�2J�0;x�"),
        ("user\u202eexe.txt\u2066\u200b\ufeff\u2028\U000e0041".encode(), "user�exe.txt�����"),
        ("⠀⠐ ❤️ שלום".encode(), "⠀⠐ ❤️ שלום"),
        (b"\xff\xfe\x80", "���"),
        (b"end \x1b", "end ␛"),
        (b"\x1b[31", "␛[31"),
        (b"\x1b[" + b"1;" * 100 + b"m", "␛[" + "1;" * 100 + "m"),
    ],
)
def test_a_terminal_shows_what_it_must_not_obey(data: bytes, shown: str) -> None:
    whole = TerminalFilter()
    assert whole.feed(data) + whole.feed(b"", is_end=True) == shown
    bytewise = TerminalFilter()
    assert "".join(bytewise.feed(bytes([byte])) for byte in data) + bytewise.feed(b"", is_end=True) == shown


def test_on_a_terminal_output_is_harmless(peer: Peer, terminal: Callable[..., Terminal]) -> None:
    peer.on("GET", OUTPUT, part((0, b"a\x1b[2Jb\x1b[31mred\n\xff")))
    shown = terminal("logs", ID)
    assert shown.end() == 0
    assert shown.shown == "a␛[2Jb\x1b[31mred\n�\x1b[0m"


def test_into_a_pipe_every_byte_goes(peer: Peer, capfdbinary: Any) -> None:
    import sys

    from switchyard.main import main

    noise = bytes(range(256)) * 3
    peer.on("GET", OUTPUT, part((0, noise)))
    assert main(["logs", ID]) == 0
    sys.stdout.flush()
    assert capfdbinary.readouterr().out == noise


def test_one_task_of_an_array_is_named_in_brackets_or_by_an_option(peer: Peer, yard: Callable[..., Done]) -> None:
    peer.on("GET", OUTPUT, part((0, b"of task 17\n")))
    for words in ([f"{ID}[17]"], [ID, "--task", "17"]):
        assert yard("logs", *words).out == "of task 17\n"
        assert (peer.asked[-1].path, peer.asked[-1].query["task"]) == (f"/v1/jobs/{ID}/output", ["17"])
    for words, told in (
        ([f"{ID}[1-3]"], "names several tasks"),
        ([f"{ID}[17]", "--task", "17"], "names a task already"),
    ):
        done = yard("logs", *words)
        assert (done.code, told in done.err) == (EXIT_USAGE, True), done


def test_large_output_is_fetched_answer_by_answer(peer: Peer, yard: Callable[..., Done]) -> None:
    peer.on(
        "GET",
        OUTPUT,
        part((0, b"one\n"), size=8),
        part((4, b"two\n"), size=8),
    )
    assert yard("logs", ID).out == "one\ntwo\n"
    assert [request.query.get("offset") for request in peer.asked] == [None, ["4"]]


def test_what_was_left_out_is_said_beside_the_output(peer: Peer, yard: Callable[..., Done]) -> None:
    peer.on("GET", OUTPUT, part((0, b"head\n"), (1000, b"tail\n")))
    done = yard("logs", ID)
    assert done.out == "head\ntail\n"
    assert "995 bytes of stdout from offset 5 on were left out" in done.err


def test_following_asks_from_where_it_is_and_shows_nothing_twice(peer: Peer, yard: Callable[..., Done]) -> None:
    from tests.sdk.peer import HangUp

    peer.on(
        "GET",
        OUTPUT,
        part((0, b"one\n")),
        HangUp(),
        part((4, b"two\n")),
        part(next=8, size=8),
        part((8, b"three\n"), is_over=True, is_last=True),
    )
    done = yard("logs", "-f", ID)
    assert (done.code, done.out) == (0, "one\ntwo\nthree\n")
    assert [request.query.get("offset") for request in peer.asked] == [None, ["4"], ["4"], ["8"], ["8"]]
    assert all(request.query["wait_s"] for request in peer.asked)


@pytest.mark.parametrize("follow", [(), ("-f",)])
def test_both_streams_go_where_they_were_written(
    peer: Peer, yard: Callable[..., Done], follow: tuple[str, ...]
) -> None:
    peer.on("GET", OUTPUT, lambda asked: part((0, asked.query["stream"][0].encode()), is_over=True, is_last=True))
    done = yard("logs", *follow, ID, "--stream", "both")
    assert (done.code, done.out, done.err) == (0, "stdout", "stderr")
    assert yard("logs", *follow, ID, "--stderr").out == "stderr"


def test_a_server_that_says_the_same_again_ends_it(peer: Peer, yard: Callable[..., Done]) -> None:
    peer.on("GET", OUTPUT, part((0, b"one\n"), size=99, next=0))
    assert yard("logs", ID).out == "one\n"


def test_an_overlap_is_cut(peer: Peer, yard: Callable[..., Done]) -> None:
    peer.on("GET", OUTPUT, part((0, b"abc"), (2, b"cde"), (1, b"bcdef")))
    assert yard("logs", ID).out == "abcdef"


def test_following_goes_on_with_the_next_attempt(peer: Peer, yard: Callable[..., Done]) -> None:
    def answer(asked: Asked) -> Say:
        if asked.query.get("attempt") == ["2"]:
            return part((0, b"second\n"), attempt=2, is_over=True, is_last=True)
        return part((0, b"first\n"), attempt=1, is_over=True)

    peer.on("GET", OUTPUT, answer)
    done = yard("logs", "-f", ID)
    assert (done.out, "attempt 2" in done.err) == ("first\nsecond\n", True)
    assert yard("logs", "-f", ID, "--attempt", "1").out == "first\n"


def test_an_attempt_that_never_came_is_the_end(peer: Peer, yard: Callable[..., Done]) -> None:
    from tests.sdk.peer import problem

    peer.on("GET", OUTPUT, part((0, b"first\n"), is_over=True), problem(404, "not-found", "No attempt 2."))
    done = yard("logs", "-f", ID)
    assert (done.code, done.out) == (0, "first\n")


def test_interrupted_it_says_how_to_go_on(peer: Peer, terminal: Callable[..., Terminal]) -> None:
    asked_again = threading.Event()

    def hold(_: Asked) -> Say:
        asked_again.set()
        time.sleep(5)  # a server that holds a request
        return part(next=4, size=4)

    peer.on("GET", OUTPUT, part((0, b"one\n")), hold)
    following = terminal("logs", "-f", ID, columns=200)
    following.until("one\n")
    assert asked_again.wait(60)  # what was printed is behind it
    os.kill(following.process.pid, signal.SIGINT)
    assert following.end() == 130
    assert "--offset 4" in following.shown


@pytest.mark.parametrize(
    ("state", "args", "says"),
    [
        ("SUCCEEDED", (), "is SUCCEEDED and wrote nothing to stdout."),
        ("RUNNING", (), "is RUNNING and wrote nothing to stdout as yet."),
        ("FAILED", ("--stream", "both"), "is FAILED and wrote nothing."),
        ("PENDING", ("--stderr",), "is PENDING and wrote nothing to stderr as yet."),
    ],
)
def test_nothing_is_explained(
    peer: Peer, yard: Callable[..., Done], state: str, args: tuple[str, ...], says: str
) -> None:
    peer.on("GET", OUTPUT, part())
    peer.on("GET", "/v1/jobs/*", Say(a_job(state=state)))
    done = yard("logs", ID, *args)
    assert (done.code, done.out) == (0, "")
    assert says in done.err
