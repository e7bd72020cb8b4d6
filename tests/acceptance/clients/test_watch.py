"""`yard watch` and the SDK's `follow` against real servers: nothing missed, nothing twice, whatever restarts."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from switchyard import Client
from switchyard.errors import NotFound, YardError
from switchyard.model.job.job import State
from switchyard.model.wire.api import Event
from tests.acceptance.stage import Stage, staged
from tests.cli.conftest import Terminal
from tests.cli.conftest import terminal as terminal  # noqa: PLC0414 - a fixture of theirs
from tests.processes import PATIENCE_S, until
from tests.programs import YARD, call, start_server
from tests.store.prepared import migrated

pytestmark = pytest.mark.acceptance

END_S = PATIENCE_S
ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("watch")) as stage, stage.agent("alpha", cores=8):
        yield stage


class Watch:
    """A command in a process of its own; its lines so far."""

    def __init__(self, stage: Stage, *args: str) -> None:
        self.process = subprocess.Popen(
            [*YARD, *args], env=stage.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    def until(self, text: str, timeout_s: float = PATIENCE_S) -> None:
        until(lambda: any(text in line for line in self.lines), timeout_s, f"{text!r} is shown: {self.lines}")

    def end(self, timeout_s: float = END_S) -> int:
        code = self.process.wait(timeout_s)
        self._thread.join(PATIENCE_S)
        return code


@pytest.fixture
def watch() -> Iterator[Callable[..., Watch]]:
    started: list[Watch] = []

    def start(stage: Stage, *args: str) -> Watch:
        started.append(Watch(stage, *args))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()


def all_events(stage: Stage, after: int = 0) -> list[int]:
    with Client(stage.url, stage.token) as client:
        return [event.seq for event in client.events(after=after)]


def test_jobs_named_are_watched_until_they_have_ended(watched: Stage, tmp_path: Path, watch: Any) -> None:
    go = tmp_path / "go"
    first = watched.submit("/bin/sh", "-c", f"while [ ! -e {go} ]; do sleep 0.05; done")
    second = watched.submit("/bin/sh", "-c", "exit 3")
    shown = watch(watched, "watch", first, second[:20])
    shown.until("FAILED")
    shown.until(first)
    assert shown.process.poll() is None
    go.touch()
    assert shown.end() == 0
    ends = [line for line in shown.lines if first in line and "SUCCEEDED" in line]
    assert len(ends) == 1
    assert all(first in line or second in line for line in shown.lines)


def test_a_job_that_is_over_is_shown_once(watched: Stage, watch: Any) -> None:
    job = watched.submit("true")
    watched.ended(job)
    shown = watch(watched, "watch", job)
    assert shown.end() == 0
    assert len(shown.lines) == 1
    assert "SUCCEEDED" in shown.lines[0]


def test_a_label_and_a_project_narrow_it(watched: Stage, watch: Any) -> None:
    watched.post("/v1/projects", {"name": "physics"})
    after = [0, *all_events(watched)][-1]  # of a server where nothing has happened yet: from the start
    jobs = {
        "both": watched.submit("true", labels={"run": "7"}, project="physics"),
        "label": watched.submit("true", labels={"run": "7"}),
        "project": watched.submit("true", labels={"run": "8"}, project="physics"),
    }
    for job in jobs.values():
        watched.ended(job)
    shown = watch(watched, "watch", "--after", str(after), "--label", "run=7", "--project", "physics", "-o", "json")
    shown.until("succeeded")
    shown.process.send_signal(signal.SIGINT)
    assert shown.end() == 130
    events = [json.loads(line) for line in shown.lines]
    assert {event["job"] for event in events} == {jobs["both"]}
    assert [event["seq"] for event in events] == sorted(event["seq"] for event in events)


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("0NOSUCHJOB",), 3, "no"),
        (("--after", "x"), 2, "not the number of an event"),
        (("--label", "run"), 2, "KEY=VALUE"),
        (tuple(f"{n:026d}" for n in range(91)), 2, "At most 90"),
    ],
)
def test_what_cannot_be_watched_is_said(watched: Stage, args: tuple[str, ...], code: int, says: str) -> None:
    done = watched.yard("watch", *args)
    assert done.returncode == code
    assert says in done.stderr
    assert "next:" in done.stderr


def test_on_a_terminal_it_is_a_live_table(watched: Stage, tmp_path: Path, terminal: Callable[..., Terminal]) -> None:
    go = tmp_path / "go"
    job = watched.submit("/bin/sh", "-c", f"while [ ! -e {go} ]; do sleep 0.05; done", name="live-one")
    watched.until_state(job, State.RUNNING)
    shown = terminal("watch", job, columns=120, env=watched.env | {"TERM": "xterm"})
    shown.until("live-one")
    shown.until("RUNNING")
    go.touch()
    shown.until("SUCCEEDED")
    assert shown.end() == 0
    lines = ANSI.sub("", shown.shown).splitlines()
    assert any(line.startswith("ID ") for line in lines)
    assert max(map(len, lines)) <= 120


def test_follow_gives_every_event_once_and_in_order_across_a_kill_and_a_stop(tmp_path: Path) -> None:
    with staged(tmp_path) as stage, stage.agent("alpha", cores=8), Client(stage.url) as client:
        seen: list[Event] = []
        troubles: list[object] = []

        def follow() -> None:
            with contextlib.suppress(YardError), Client(stage.url) as mine:  # at the end its server goes first
                for event in mine.follow(after=0, on_trouble=troubles.append):
                    seen.append(event)
                    if event.reason == "stop" or len(seen) > 5000:
                        return

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        jobs = [client.submit("true").id for _ in range(8)]
        until(lambda: len(seen) >= 20, PATIENCE_S, "events come")
        stage.server.kill()
        stage.server.restart()
        jobs += [client.submit("true").id for _ in range(8)]
        begun = time.monotonic()
        stage.server.terminate()
        assert time.monotonic() - begun < 30, "a follower does not hold up the stop"
        stage.server.restart()
        jobs += [client.submit("true").id for _ in range(8)]
        for job in jobs:
            client.wait(job, timeout_s=END_S)
        newest = client.newest_event()
        until(lambda: bool(seen) and seen[-1].seq >= newest, PATIENCE_S, "the follower has all")
        numbers = [event.seq for event in seen]
        assert numbers == [number for number in all_events(stage) if number <= numbers[-1]]
        assert troubles, "it was told of the breaks"
        assert troubles[-1] is None, "and that they were over"


def test_watch_misses_nothing_across_a_restart(tmp_path: Path, watch: Any) -> None:
    with staged(tmp_path) as stage, stage.agent("alpha", cores=8):
        shown = watch(stage, "watch", "--after", "0", "-o", "json")
        first = [stage.submit("true") for _ in range(5)]
        for job in first:
            stage.ended(job)
        stage.server.kill()
        stage.server.restart()
        for job in [stage.submit("true") for _ in range(5)]:
            stage.ended(job)
        newest = all_events(stage)[-1]
        shown.until(f'"seq":{newest},')
        shown.process.send_signal(signal.SIGINT)
        assert shown.end() == 130
        assert [json.loads(line)["seq"] for line in shown.lines] == all_events(stage)


def test_two_servers_tell_of_each_others_events(tmp_path: Path, postgres: Any) -> None:
    url = migrated(postgres)
    with (
        start_server(tmp_path, database=url, name="one") as one,
        start_server(tmp_path, database=url, name="two") as two,
    ):
        seen: list[Event] = []

        def follow() -> None:
            with contextlib.suppress(YardError), Client(two.url) as mine:  # at the end its server goes first
                for event in mine.follow(after=0):
                    seen.append(event)

        threading.Thread(target=follow, daemon=True).start()
        first, second = Stage(tmp_path, one, None), Stage(tmp_path, two, None)
        with first.agent("alpha"):
            threads = [
                threading.Thread(target=lambda stage=stage: [stage.submit("true") for _ in range(8)])
                for stage in (first, second)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            until(lambda: not first.get("/v1/jobs?state=ASSIGNED&state=RUNNING")["items"], END_S, "all have ended")
            newest = all_events(first)[-1]
            until(lambda: bool(seen) and seen[-1].seq >= newest, PATIENCE_S, "the follower has all")
        assert [event.seq for event in seen] == [number for number in all_events(first) if number <= seen[-1].seq]


def test_an_unknown_job_is_not_followed(watched: Stage) -> None:
    with Client(watched.url) as client, pytest.raises(NotFound):
        next(client.follow(job="0" * 26))


def test_followers_that_never_read_do_not_grow_the_server(watched: Stage) -> None:
    """They take what their sockets hold, and no more; everybody else is served as before."""
    watched.post("/v1/clusters", {"name": "absent"})
    jobs = [{"spec": {"command": ["true"]}, "name": f"job {n} " + "x" * 90, "cluster": "absent"} for n in range(2000)]
    lines = [socket.create_connection(("127.0.0.1", int(watched.url.rsplit(":", 1)[1]))) for _ in range(30)]
    try:
        for line in lines:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.sendall(b"GET /v1/events/stream?after=0 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        before_kib = memory_kib(watched)
        watched.post("/v1/jobs/bulk", {"jobs": jobs})
        until(lambda: watched.get("/v1/events?after=0&limit=1")["items"], PATIENCE_S, "the API answers")
        slowest_s = max(timed(lambda: watched.get("/v1/version")) for _ in range(20))
        assert slowest_s < 20
        assert memory_kib(watched) - before_kib < 100 * 1024
    finally:
        for line in lines:
            line.close()


def memory_kib(stage: Stage) -> int:
    status = Path(f"/proc/{stage.server.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))


def timed(work: Callable[[], object]) -> float:
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def test_a_browser_comes_back_with_the_number_it_saw_last(watched: Stage) -> None:
    job = watched.submit("true")
    watched.ended(job)
    newest = all_events(watched)[-1]
    line = http.client.HTTPConnection("127.0.0.1", int(watched.url.rsplit(":", 1)[1]), timeout=PATIENCE_S)
    line.request("GET", "/v1/events/stream", headers={"Last-Event-ID": str(newest - 1), "Accept": "text/event-stream"})
    answer = line.getresponse()
    assert answer.getheader("Content-Type") == "text/event-stream"
    text = b""
    while b"data: " not in text:
        text += answer.readline()
    assert f"id: {newest}\n".encode() in text
    line.close()
    assert call("GET", f"{watched.url}/v1/events/stream?after=x").status == 400
