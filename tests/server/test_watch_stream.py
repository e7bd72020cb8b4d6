"""The stream of events over real sockets: its form, its cursor, its heartbeat, and followers that do not read."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.rules.access import GrantTarget, Role, TokenRequest
from switchyard.server import app
from switchyard.server.grpc.limiter import OpenRequestSlots
from switchyard.server.http import event_stream
from switchyard.server.loops.runtime import make_runtime
from switchyard.service.access import user_tokens
from tests.builders import a_request
from tests.processes import free_port, until
from tests.service.rig import ADMIN, Rig, running
from tests.store.prepared import migrated_file

WAIT_S = 20.0


@dataclass(frozen=True)
class Served:
    """A rig with a door, in a thread."""

    rig: Rig
    port: int
    loop: asyncio.AbstractEventLoop

    @property
    def yard(self) -> Any:
        return self.rig.yard

    @property
    def streams(self) -> OpenRequestSlots:
        slots: OpenRequestSlots = self.yard.limiter.open["streams"]
        return slots


@contextmanager
def serving(rig: Rig) -> Iterator[Served]:
    port = free_port()
    settings = replace(rig.yard.settings, http=("127.0.0.1", port), is_open=True)
    rig.yard = make_runtime(replace(rig.yard.services, settings=settings))
    loop = asyncio.new_event_loop()
    server = app.http_server(rig.yard.settings, rig.yard)
    server.config.loop = "none"
    rig.yard.attach(loop)

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(server.serve())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    until(lambda: server.started, WAIT_S, "the door is open")
    try:
        yield Served(rig, port, loop)
    finally:
        loop.call_soon_threadsafe(rig.yard.wakeups.hub.close)
        server.should_exit = True
        thread.join(WAIT_S)
        assert not thread.is_alive(), "it ends although followers are connected"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    (tmp_path / "yard.db").write_bytes(migrated_file())
    with running(f"sqlite:///{tmp_path / 'yard.db'}", tmp_path) as rig, serving(rig) as served:
        yield served


class Follower:
    """A socket on the stream; reads only when told to."""

    def __init__(self, served: Served, query: str = "", *headers: str, buffer: int | None = None) -> None:
        self._socket = socket.socket()
        if buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self._socket.settimeout(WAIT_S)
        self._socket.connect(("127.0.0.1", served.port))
        lines = [f"GET /v1/events/stream{query} HTTP/1.1", "Host: 127.0.0.1", *headers]
        self._socket.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        self.text = ""

    def until(self, text: str) -> str:
        while text not in self.text:
            part = self._socket.recv(65536)
            assert part, f"it ended without {text!r}: {self.text[-500:]!r}"
            self.text += part.decode()
        return self.text

    def to_end(self) -> str:
        try:
            while part := self._socket.recv(65536):
                self.text += part.decode()
        except ConnectionResetError:
            pass
        return self.text

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line[6:]) for line in self.text.splitlines() if line.startswith("data: ")]

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def test_an_event_is_sent_as_it_happens(served: Served) -> None:
    agent = served.rig.cluster("alpha")
    with Follower(served) as follower:
        head = follower.until("id: 0\n\n")
        assert "200 OK" in head
        assert "content-type: text/event-stream" in head.lower()
        made = served.rig.submit()
        text = follower.until('"accepted"')
        assert "id: 1\nevent: accepted\ndata: {" in text
        held = agent.lease_one()
        agent.report(held, ObservedState.SUCCEEDED)
        follower.until("event: succeeded")
        assert [(event["seq"], event["kind"]) for event in follower.events] == [
            (1, "accepted"),
            (2, "leased"),
            (3, "succeeded"),
        ]
        assert {event["job"] for event in follower.events} == {made.id}


def test_it_begins_now_or_after_a_number_or_where_it_was(served: Served) -> None:
    for _ in range(3):
        served.rig.submit()
    with Follower(served) as now, Follower(served, "?after=1") as after:
        now.until("id: 3\n\n")
        after.until("id: 3\nevent")
        assert [event["seq"] for event in after.events] == [2, 3]
        served.rig.submit()
        now.until("id: 4\nevent")
        assert [event["seq"] for event in now.events] == [4]
    with Follower(served, "?after=0", "Last-Event-ID: 3") as again:
        again.until("id: 4\nevent")
        assert [event["seq"] for event in again.events] == [4]


def test_pages_follow_each_other_without_a_gap(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "EVENTS_PER_READ", 7)
    for _ in range(40):
        served.rig.submit()
    with Follower(served, "?after=0") as follower:
        follower.until("id: 40\nevent")
        assert [event["seq"] for event in follower.events] == list(range(1, 41))


def test_one_job_or_one_project(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "HEARTBEAT_S", 0.2)
    served.rig.project("web")
    first = served.rig.submit()
    with Follower(served, f"?after=0&job={first.id}") as one, Follower(served, "?after=0&project=web") as web:
        served.rig.submit()
        served.rig.submit(a_request(project="web"))
        web.until("id: 3\nevent")
        one.until("id: 3\n")
        assert [event["seq"] for event in one.events] == [1]
        assert [event["seq"] for event in web.events] == [3]


def test_silence_is_broken_by_a_beat_that_carries_the_cursor(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "HEARTBEAT_S", 0.2)
    served.rig.project("web")
    with Follower(served, "?project=web") as follower:
        served.rig.submit()
        follower.until(": here\nid: 1\n\n")
        follower.text = ""
        follower.until(": here\nid: 1\n\n")
        assert follower.events == []


def test_a_follower_sees_only_what_its_token_may_view_and_ends_with_it(served: Served) -> None:
    served.yard.authenticator._is_open = False
    for project in ("web", "secret"):
        served.rig.project(project)
    served.rig.user("bob", (Role.VIEW, GrantTarget.PROJECT, "web"))
    made = user_tokens.token_create(served.rig.context, ADMIN, TokenRequest("bob"))
    with Follower(served, "?after=0", f"Authorization: Bearer {made.token}") as follower:
        served.rig.submit(a_request(project="secret"))
        served.rig.submit(a_request(project="web"))
        follower.until("id: 2\nevent")
        assert [event["seq"] for event in follower.events] == [2]
        user_tokens.token_revoke(served.rig.context, ADMIN, made.info.id)
        served.rig.submit(a_request(project="web"))
        follower.until("0\r\n\r\n")
        assert [event["seq"] for event in follower.events] == [2]
    with Follower(served, "?after=0", f"Authorization: Bearer {made.token}") as refused:
        assert "401" in refused.until("\r\n\r\n")


@pytest.mark.parametrize(
    ("query", "header", "status"),
    [
        ("?after=-1", "", 400),
        ("?after=x", "", 400),
        ("?after=1&after=2", "", 400),
        (f"?after={2**63}", "", 400),
        ("?since=1", "", 400),
        ("?job=nosuchjob", "", 404),
        (f"?job={'0' * 26}", "", 404),
        ("", "Last-Event-ID: abc", 400),
        ("", "Last-Event-ID: -5", 400),
        ("", f"Last-Event-ID: {2**70}", 400),
    ],
)
def test_a_bad_question_is_refused_before_anything_is_sent(
    served: Served, query: str, header: str, status: int
) -> None:
    with Follower(served, query, *([header] if header else [])) as follower:
        text = follower.until("\r\n\r\n")
        assert text.startswith(f"HTTP/1.1 {status}")
        assert "application/problem+json" in text


@pytest.mark.long
def test_a_follower_that_never_reads_is_cut_off_and_costs_little(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "SEND_S", 1.0)
    for number in range(300):
        served.rig.submit(a_request(name=f"job {number} " + "x" * 50))
    tracked = list(range(8))
    followers = [Follower(served, "?after=0", buffer=2048) for _ in tracked]
    with Follower(served, "?after=0") as reader:
        reader.until("id: 300\nevent")
        # More than the sockets hold: the server's send buffer for loopback grows to megabytes.
        flood = "y" * 60
        until(lambda: served.streams.total == 9, WAIT_S, "all are connected")
        monkeypatch.setattr(
            event_stream, "_parts", lambda _events: (b": %b\n\n" % (flood.encode() * 2000) for _ in range(40))
        )
        served.rig.submit()
        until(lambda: served.streams.total <= 1, WAIT_S, "those that do not read are gone")
    for follower in followers:
        follower.to_end()
        follower.close()


def test_there_is_a_bound_on_followers(served: Served) -> None:
    served.yard.limiter.open["streams"] = OpenRequestSlots(2, 2, "streams of events")
    with Follower(served) as one, Follower(served) as two:
        one.until("id:")
        two.until("id:")
        with Follower(served) as three:
            text = three.until("\r\n\r\n")
            assert text.startswith("HTTP/1.1 429")
            assert "retry-after" in text.lower()
    until(lambda: served.streams.total == 0, WAIT_S, "followers that left are forgotten")
    with Follower(served) as four:
        four.until("200 OK")


def test_a_stopping_server_ends_its_streams_whole(served: Served) -> None:
    with Follower(served) as follower:
        follower.until("id:")
        served.loop.call_soon_threadsafe(served.yard.wakeups.hub.close)
        follower.until("0\r\n\r\n")


def test_only_a_request_that_waits_takes_a_slot(served: Served) -> None:
    served.yard.limiter.open["waits"] = OpenRequestSlots(0, 1, "waits")
    job = served.rig.submit()
    address = f"http://127.0.0.1:{served.port}/v1/jobs/{job.id}/output"
    with urllib.request.urlopen(address) as answer:
        assert answer.status == 200
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{address}?wait_s=1")
    assert refused.value.code == 429
