"""The client looks on: `follow` and `logs` against a peer that breaks off."""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import Any

import pytest

from switchyard import errors
from switchyard.client import Client
from switchyard.sdk.jobs import follow as follows
from tests.cutter import Cutter
from tests.sdk.peer import HangUp, Peer, Say, a_job, problem

STREAM = "/v1/events/stream"
ID = a_job()["id"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follows, "PAUSE_S_FIRST", 0.01)


def said(*numbers: int, begin: int = 0, more: str = "") -> Say:
    """A stream that tells these and ends."""
    text = f"retry: 1000\nid: {begin}\n\n"
    for number in numbers:
        event = {"seq": number, "at_us": 1, "job": ID, "kind": "leased", "state": "ASSIGNED"}
        text += f"id: {number}\nevent: leased\ndata: {json.dumps(event)}\n\n"
    return Say(text=text + more)


def take(count: int, **asked: Any) -> Any:
    def run(peer: Peer) -> list[int]:
        numbers = []
        for event in Client(peer.url, retry_s=0).follow(**asked):
            numbers.append(event.seq)
            if len(numbers) == count:
                break
        return numbers

    return run


def test_it_comes_back_with_the_last_number_and_gives_nothing_twice(peer: Peer) -> None:
    peer.on("GET", STREAM, said(5, 6, begin=4), HangUp(), said(6, 7, begin=6), said(8, begin=7))
    assert take(4)(peer) == [5, 6, 7, 8]
    assert [request.query.get("after") for request in peer.asked] == [None, ["6"], ["6"], ["7"]]


def answer(text: str, *, chunks: int = 0) -> bytes:
    """A stream as bytes, in so many chunks; none: it ends with the connection."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    body = text.encode()
    if not chunks:
        return head + b"\r\n" + body
    size = len(body) // chunks + 1
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    framed = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"


@pytest.mark.parametrize("chunks", [0, 1, 3])
def test_a_stream_that_is_cut_at_any_byte_tells_each_event_once(chunks: int) -> None:
    everything = [5, 6]

    def serve(request: bytes) -> bytes:
        match = re.search(rb"after=(\d+)", request)
        after = int(match[1]) if match else 4
        text = said(*(number for number in everything if number > after), begin=after).text
        assert text is not None
        return answer(text, chunks=chunks)

    for cut in range(len(serve(b""))):
        cuts: list[int | None] = [cut]
        with Cutter(serve, lambda cuts=cuts: cuts.pop() if cuts else None) as relay:
            followed = islice(Client(relay.url, retry_s=0).follow(after=4), 2)
            assert [event.seq for event in followed] == everything, f"cut after {cut} bytes"


def test_the_newest_number_is_never_nothing_because_the_stream_was_cut() -> None:
    whole = answer(said(begin=41).text or "")
    for cut in range(len(whole)):
        cuts: list[int | None] = [cut]
        with Cutter(lambda _: whole, lambda cuts=cuts: cuts.pop() if cuts else None) as relay:
            assert Client(relay.url, retry_s=60).newest_event() == 41, f"cut after {cut} bytes"


def test_a_number_without_an_event_moves_the_cursor(peer: Peer) -> None:
    peer.on("GET", STREAM, said(5, begin=4, more=": here\nid: 90\n\n"), said(91, begin=90))
    assert take(2, after=4)(peer) == [5, 91]
    assert peer.asked[1].query["after"] == ["90"]


def test_an_event_that_was_cut_short_is_told_whole_the_next_time(peer: Peer) -> None:
    peer.on("GET", STREAM, said(5, begin=4, more='id: 6\nevent: leased\ndata: {"seq": 6, "at_'), said(6, begin=5))
    assert take(2)(peer) == [5, 6]
    assert peer.asked[1].query["after"] == ["5"]


def test_what_is_asked_for_goes_along(peer: Peer) -> None:
    peer.on("GET", STREAM, said(1))
    take(1, after=0, job="a b", project="p")(peer)
    assert peer.asked[0].query == {"after": ["0"], "job": ["a b"], "project": ["p"]}


def test_a_no_is_not_tried_again(peer: Peer) -> None:
    peer.on("GET", STREAM, problem(403, "denied", "You may not."))
    with pytest.raises(errors.Denied):
        take(1)(peer)
    assert len(peer.asked) == 1


def test_busy_is_tried_again(peer: Peer) -> None:
    peer.on("GET", STREAM, problem(429, "busy", "Too many."), said(1))
    assert take(1)(peer) == [1]


def test_a_server_that_stays_away_is_an_error_in_the_end(peer: Peer) -> None:
    peer.on("GET", STREAM, HangUp())
    troubles: list[Any] = []
    with pytest.raises(errors.Unavailable):
        take(1, outage_s=0.1, on_trouble=troubles.append)(peer)
    assert troubles


def test_something_else_than_an_event_is_said(peer: Peer) -> None:
    peer.on("GET", STREAM, Say(text="id: 1\ndata: nonsense\n\n"))
    with pytest.raises(errors.YardError, match="does not understand"):
        take(1)(peer)


def test_the_newest_number_is_also_there_on_an_empty_server(peer: Peer) -> None:
    peer.on("GET", STREAM, said(begin=0), said(begin=41))
    client = Client(peer.url)
    assert [client.newest_event(), client.newest_event()] == [0, 41]


def test_output_is_put_together_from_bounded_answers(peer: Peer) -> None:
    def part(offset: int, data: str, **fields: Any) -> Say:
        end = offset + 3
        chunks = [{"offset": offset, "data": data}]
        return Say({"job": ID, "stream": "stdout", "chunks": chunks, "size": 6, "next": end, **fields})

    peer.on("GET", "/v1/jobs/*/output", part(0, "YWJj"), part(3, "ZGVm", is_over=True, is_last=True))
    output = Client(peer.url).output(ID, task=3, attempt=2)
    assert [(chunk.offset, chunk.data) for chunk in output.chunks] == [(0, b"abc"), (3, b"def")]
    assert (output.size, output.is_over) == (6, True)
    assert [request.query["task"] for request in peer.asked] == [["3"], ["3"]]
