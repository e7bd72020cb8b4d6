"""The client of the Kubernetes API: what each answer means, and that nothing waits for ever."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from switchyard.features.kubernetes.agent.api.api import KubernetesApi
from switchyard.features.kubernetes.agent.api.api_errors import ApiRefusal, ApiUnavailable
from switchyard.features.kubernetes.agent.api.connection import AccessSettings, ClusterConnection
from tests.agent.kubernetes.api_peer import Answer, ApiPeer, says, streams
from tests.processes import PATIENCE_S

Start = Callable[..., ApiPeer]
JOBS = "/apis/batch/v1/namespaces/physics/jobs"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    peers: list[ApiPeer] = []

    def make(*answers: Answer) -> ApiPeer:
        peers.append(ApiPeer(tmp_path, *answers))
        return peers[-1]

    yield make
    for peer in peers:
        peer.close()


def event(kind: str, version: str) -> dict[str, object]:
    return {"type": kind, "object": {"metadata": {"resourceVersion": version}}}


@pytest.mark.parametrize(
    ("status", "reason", "flags"),
    [
        (400, "BadRequest", ()),
        (403, "Forbidden", ()),
        (404, "NotFound", ("is_absent",)),
        (409, "AlreadyExists", ("is_conflict",)),
        (410, "Expired", ("is_expired",)),
        (413, "RequestEntityTooLarge", ()),
        (422, "Invalid", ()),
    ],
)
def test_a_refusal_has_the_words_of_kubernetes(start: Start, status: int, reason: str, flags: tuple[str, ...]) -> None:
    peer = start(says(status, kind="Status", reason=reason, message="words"))
    with pytest.raises(ApiRefusal) as caught:
        peer.api().create(JOBS, {})
    exc = caught.value
    assert (exc.http_status, exc.reason, exc.message, exc.transient) == (status, reason, "words", False)
    assert f"create {JOBS}" in exc.detail
    assert {name for name in ("is_absent", "is_conflict", "is_expired") if getattr(exc, name)} == set(flags)


@pytest.mark.parametrize("status", [408, 429, 500, 503, 504])
def test_a_server_that_cannot_serve_now_is_asked_again_later(start: Start, status: int) -> None:
    peer = start(says(status, message="later"))
    with pytest.raises(ApiUnavailable) as caught:
        peer.api().get(JOBS)
    assert (caught.value.http_status, caught.value.is_unsent, caught.value.transient) == (status, False, True)


def test_a_missing_right_is_told_from_other_refusals(start: Start) -> None:
    missing = 'jobs.batch is forbidden: User "agent" cannot create resource "jobs" in API group "batch"'
    quota = 'jobs.batch "x" is forbidden: exceeded quota: jobs'
    peer = start(says(403, message=missing), says(403, message=quota))
    api = peer.api()
    for is_missing in (True, False):
        with pytest.raises(ApiRefusal) as caught:
            api.create(JOBS, {})
        assert caught.value.is_right_missing is is_missing


def test_an_answer_that_is_not_kubernetes(start: Start) -> None:
    peer = start(lambda handler: handler.reply(200, b"<html>"), lambda handler: handler.reply(404, b"<html>\xff"))
    api = peer.api()
    with pytest.raises(ApiUnavailable, match="not what the Kubernetes API sends"):
        api.get(JOBS)
    with pytest.raises(ApiRefusal, match="<html>"):
        api.get(JOBS)


def test_an_expired_token_is_read_again_and_then_works(start: Start) -> None:
    peer = start(says(401, message="Unauthorized"), says(200, kind="List"))
    api = peer.api()
    with pytest.raises(ApiUnavailable, match=str(peer.token)) as caught:
        api.get(JOBS)
    assert (caught.value.http_status, caught.value.is_unsent) == (401, True)
    peer.token.write_text("second")
    api.get(JOBS)
    assert [request[2]["Authorization"] for request in peer.requests] == ["Bearer first", "Bearer second"]


def test_a_server_that_is_not_there_was_surely_not_asked() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        settings = AccessSettings(endpoint=f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(ApiUnavailable, match="connection refused") as caught:
            KubernetesApi(ClusterConnection(settings)).create(JOBS, {})
    assert caught.value.is_unsent


def test_a_cut_or_late_answer_leaves_a_doubt(start: Start) -> None:
    release = threading.Event()
    peer = start(
        lambda handler: handler.cut(),
        lambda handler: (handler.begin_chunks(), handler.chunk(b'{"kind":'), handler.cut()),
        lambda handler: (release.wait(PATIENCE_S), handler.cut()),
    )
    api = peer.api(timeout_s=0.3)
    for _ in range(3):
        with pytest.raises(ApiUnavailable) as caught:
            api.create(JOBS, {})
        assert (caught.value.http_status, caught.value.is_unsent) == (0, False)
    release.set()


def test_a_connection_is_used_again_and_not_after_the_server_closed_it(start: Start) -> None:
    peer = start(says(200), says(200), lambda handler: (handler.reply(200, b"{}"), handler.cut()), says(200))
    api = peer.api()
    for _ in range(4):
        api.get(JOBS)
    assert len(peer.requests) == 4


def test_queries_are_written_as_kubernetes_reads_them(start: Start) -> None:
    peer = start(says(200))
    api = peer.api()
    api.apply(f"{JOBS}/x", {"a": 1}, manager="us", force=True)
    api.delete(f"{JOBS}/x", uid="17")
    api.get(JOBS, {"labelSelector": "a=b,c"})
    apply, delete, get = peer.requests
    assert apply[:2] == ("PATCH", f"{JOBS}/x?fieldManager=us&force=true")
    assert apply[2]["Content-Type"] == "application/apply-patch+yaml"
    assert b'"propagationPolicy":"Foreground"' in delete[3]
    assert b'"preconditions":{"uid":"17"}' in delete[3]
    assert get[1] == f"{JOBS}?labelSelector=a%3Db%2Cc"


def test_a_list_is_read_page_by_page(start: Start) -> None:
    peer = start(
        says(200, metadata={"resourceVersion": "5", "continue": "more"}, items=[{"a": 1}]),
        says(200, metadata={"resourceVersion": "5"}, items=[{"a": 2}]),
    )
    found = peer.api().list_all(JOBS)
    assert ([bytes(item) for item in found.items], found.resource_version) == ([b'{"a": 1}', b'{"a": 2}'], "5")
    assert "continue=more" in peer.requests[1][1]


def test_a_watch_yields_events_and_bookmarks(start: Start) -> None:
    peer = start(streams(event("ADDED", "6"), event("BOOKMARK", "9")))
    found = [row.type for row in peer.api().watch(JOBS, resource_version="5", timeout_s=60)]
    assert found == ["ADDED", "BOOKMARK"]
    assert "resourceVersion=5" in peer.requests[0][1]
    assert "allowWatchBookmarks=true" in peer.requests[0][1]


def test_events_may_be_cut_anywhere_into_pieces(start: Start) -> None:
    row = b'{"type":"ADDED","object":{"a":"b"}}\n'
    peer = start(streams(row[:7], row[7:] + row[:3], row[3:]))
    assert len(list(peer.api().watch(JOBS, resource_version="5"))) == 2


def test_a_watch_that_is_too_old_says_so(start: Start) -> None:
    gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}
    peer = start(streams(gone), says(410, reason="Expired", message="too old"))
    for _ in range(2):  # within the stream, and as the answer itself
        with pytest.raises(ApiRefusal) as caught:
            list(peer.api().watch(JOBS, resource_version="5"))
        assert caught.value.is_expired


@pytest.mark.parametrize("rest", [b"", b'{"type":"ADD'])
def test_a_watch_that_is_cut_is_no_end(start: Start, rest: bytes) -> None:
    rows = [event("ADDED", "6"), *([rest] if rest else [])]
    peer = start(streams(*rows, is_cut=True))
    watch = peer.api().watch(JOBS, resource_version="5")
    assert next(watch).type == "ADDED"
    with pytest.raises(ApiUnavailable):
        next(watch)


def test_a_silent_watch_is_noticed(start: Start) -> None:
    release = threading.Event()
    peer = start(streams(event("ADDED", "6"), then=lambda: release.wait(PATIENCE_S)))
    watch = peer.api().watch(JOBS, resource_version="5", silence_s=0.3)
    assert next(watch).type == "ADDED"
    with pytest.raises(ApiUnavailable, match="no answer in time"):
        next(watch)
    release.set()


def test_close_ends_a_stream_that_waits(start: Start) -> None:
    release = threading.Event()
    peer = start(streams(b"first\n", then=lambda: release.wait(PATIENCE_S)))
    api = peer.api()
    stream = iter(api.open_stream(JOBS, silence_s=PATIENCE_S))
    assert next(stream) == b"first\n"
    threading.Timer(0.1, api.close).start()
    begun = time.monotonic()
    with pytest.raises(ApiUnavailable):
        next(stream)
    assert time.monotonic() - begun < PATIENCE_S / 2
    release.set()
    with pytest.raises(ApiUnavailable, match="closed"):
        list(api.open_stream(JOBS, silence_s=1.0))


def test_the_clock_of_the_server_is_followed_when_it_is_far_off(start: Start) -> None:
    peer = start(says(200))
    api = peer.api()
    api.get(JOBS)
    assert abs(api.server_time() - time.time()) < 3
