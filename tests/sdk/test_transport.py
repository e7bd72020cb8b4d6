"""What is tried again, what is not, for how long, and how a no becomes an exception."""

from __future__ import annotations

import sys
import threading
import time
from http.client import HTTPResponse

import pytest

from switchyard import errors
from switchyard.client import Client
from tests.pace import Limit
from tests.processes import free_port
from tests.sdk.peer import HangUp, Peer, Say, a_job, problem

CREATED = Say({"id": "01JCQ0V7K3E8R5T9W1X2Y4Z6AB", "state": "ASSIGNED", "cluster": "alpha"}, 201)


def test_a_broken_submit_is_repeated_with_the_same_key_and_body(peer: Peer) -> None:
    peer.on("POST", "/v1/jobs", HangUp(), Say({"id": "x"}, 201, cut=True), CREATED)
    job = Client(peer.url, retry_s=5).submit(["hostname"], cores=2)
    tries = peer.asked_for("POST", "/v1/jobs")
    assert len(tries) == 3
    assert len({request.headers["idempotency-key"] for request in tries}) == 1
    assert {str(request.body) for request in tries} == {
        str({"spec": {"command": ["hostname"], "resources": {"cores": 2}}})
    }
    assert (job.id, job.state, job.cluster) == ("01JCQ0V7K3E8R5T9W1X2Y4Z6AB", "ASSIGNED", "alpha")


def test_each_submit_has_a_key_of_its_own_unless_one_is_given(peer: Peer) -> None:
    peer.on("POST", "/v1/jobs", CREATED)
    yard = Client(peer.url)
    for key in (None, None, "mine"):
        yard.submit(["true"], key=key)
    keys = [request.headers["idempotency-key"] for request in peer.asked]
    assert len(set(keys)) == 3
    assert keys[2] == "mine"


def test_a_broken_read_is_repeated(peer: Peer) -> None:
    peer.on("GET", "/v1/jobs/*", HangUp(), Say(a_job()))
    assert Client(peer.url, retry_s=5).job("01JCQ0V7").state == "RUNNING"


def test_a_broken_change_that_is_not_repeatable_is_sent_once(peer: Peer) -> None:
    peer.on("POST", "/v1/users", HangUp())
    with pytest.raises(errors.Unavailable) as caught:
        Client(peer.url, retry_s=5).create_user("alice")
    assert len(peer.asked) == 1
    assert "may have been done" in caught.value.next_step


def test_what_was_never_sent_is_repeated_until_the_bound(peer: Peer) -> None:
    limit = Limit(10)
    with pytest.raises(errors.Unavailable, match="Cannot reach the server") as caught:
        Client(f"http://127.0.0.1:{free_port()}", retry_s=0.4).create_user("alice")
    assert not limit.is_over()
    assert "YARD_URL" in caught.value.next_step


def test_retry_after_is_honoured_even_for_what_is_not_repeatable(peer: Peer) -> None:
    peer.on("POST", "/v1/users", problem(429, "busy", "full", Retry_After="1"), Say({"id": "u", "name": "alice"}, 201))
    said: list[float] = []
    started = time.monotonic()
    Client(peer.url, retry_s=5, on_retry=lambda _, pause_s: said.append(pause_s)).create_user("alice")
    assert time.monotonic() - started >= 1
    assert said == [1.0]


def test_retry_after_beyond_the_bound_is_not_waited_for(peer: Peer) -> None:
    peer.on("GET", "/v1/whoami", problem(503, "unavailable", "closing", Retry_After="60"))
    limit = Limit(30)
    with pytest.raises(errors.Unavailable):
        Client(peer.url, retry_s=5).whoami()
    assert not limit.is_over()
    assert len(peer.asked) == 1


@pytest.mark.parametrize(
    ("said", "kind", "detail", "next_step"),
    [
        (problem(404, "no-such-job", "There is no job X.", "Look."), errors.NoSuchJob, "There is no job X.", "Look."),
        (problem(409, "key-reused", "Another body."), errors.KeyReused, "Another body.", errors.KeyReused.default_next),
        (problem(418, "new-code", "A teapot."), errors.BadRequest, "A teapot.", errors.BadRequest.default_next),
        (Say(text="<h1>Forbidden</h1> by proxy", status=403), errors.Denied, "Forbidden by proxy", "proxy"),
        (Say(text="", status=500), errors.Internal, "answered 500", "Switchyard server"),
        (Say(text="moved", status=301), errors.YardError, "answered 301", "YARD_URL"),
        (Say(text="<html>Welcome</html>"), errors.YardError, "not as this version expects", "yard version"),
        (Say({"name": 7}), errors.YardError, "not as this version expects", "yard version"),
    ],
)
def test_a_no_becomes_the_exception_it_stands_for(
    peer: Peer, said: Say, kind: type[errors.YardError], detail: str, next_step: str
) -> None:
    peer.on("GET", "/v1/whoami", said)
    with pytest.raises(errors.YardError) as caught:
        Client(peer.url, retry_s=0).whoami()
    assert type(caught.value) is kind
    assert detail in caught.value.detail
    assert next_step in caught.value.next_step


def test_a_gateway_without_its_server_is_waited_for(peer: Peer) -> None:
    peer.on("GET", "/v1/whoami", Say(text="Bad Gateway", status=502), Say({"name": "alice"}))
    assert Client(peer.url, retry_s=5).whoami().name == "alice"


def test_connections_are_kept_and_a_closed_one_is_noticed(peer: Peer) -> None:
    peer.on("GET", "/v1/whoami", Say({"name": "alice"}))
    peer.on("POST", "/v1/users", Say({"id": "u", "name": "bob"}, 201, close=True))
    yard = Client(peer.url, retry_s=0)
    yard.whoami()
    yard.whoami()
    yard.create_user("bob")
    yard.create_user("bob")  # not repeatable, so it must not be sent on the connection the server closed
    lines = [request.connection for request in peer.asked]
    assert lines[0] == lines[1] == lines[2] != lines[3]


def test_no_answer_is_left_to_a_finalizer_which_would_swallow_an_interrupt(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer.on("GET", "/v1/jobs/*", Say(a_job()))
    callers: list[str] = []
    real = HTTPResponse.close

    def close(answer: HTTPResponse) -> None:
        callers.append(sys._getframe(1).f_code.co_name)
        real(answer)

    monkeypatch.setattr(HTTPResponse, "close", close)
    with Client(peer.url) as client:
        for _ in range(3):
            client.job("01JCQ0V7")
    assert callers == ["_exchange"] * 3 + ["close"]  # the last one by the client, never by `putrequest`


def test_threads_share_a_client(peer: Peer) -> None:
    peer.on("GET", "/v1/jobs/*", lambda asked: Say(a_job(id=asked.path.rpartition("/")[2])))
    yard = Client(peer.url)
    wrong: list[str] = []

    def look(name: str) -> None:
        wrong.extend(f"{name}{n}" for n in range(20) if yard.job(f"{name}{n}").id != f"{name}{n}")

    threads = [threading.Thread(target=look, args=(name,)) for name in "abcdef"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(peer.asked) == 120


def test_a_silent_server_times_out(peer: Peer) -> None:
    hold = threading.Event()
    peer.on("GET", "/v1/whoami", lambda _: Say({"name": "late"}) if hold.wait(5) else HangUp())
    try:
        with pytest.raises(errors.Unavailable, match="did not answer in time"):
            Client(peer.url, timeout_s=0.2, retry_s=0).whoami()
    finally:
        hold.set()


def test_an_empty_id_is_refused_before_it_names_another_route(peer: Peer) -> None:
    for name in ("", ".", ".."):
        with pytest.raises(errors.BadRequest):
            Client(peer.url).job(name)
    assert peer.asked == []
