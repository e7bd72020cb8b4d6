"""What commands do while the server is away: how long they go on, what they say, and how they end."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest

from switchyard.errors import EXIT_OK, EXIT_UNAVAILABLE
from tests.cli.conftest import Done
from tests.processes import PATIENCE_S, free_port
from tests.sdk.peer import Asked, HangUp, Peer, Say, a_job

ID = "01JCQ0V7K3E8R5T9W1X2Y4Z6AB"
FAILURES = 6  # their pauses add up to more than the 2 seconds of a first contact
NOTICE = re.compile(r"Trying again until \d\d:\d\d:\d\d…")


@pytest.mark.parametrize("words", [["wait", ID], ["logs", "-f", ID], ["events", ID, "--follow"], ["fetch", ID]])
def test_a_server_that_never_answered_is_told_soon_with_a_code_of_its_own(
    yard: Callable[..., Done], peer: Peer, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setenv("YARD_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setattr("switchyard.cli.jobs.fetch.SUBMIT_RETRY_S", 2.0)
    begun = time.monotonic()
    done = yard(*words)
    assert time.monotonic() - begun < PATIENCE_S
    assert (done.code, "error: Cannot reach the server" in done.err) == (EXIT_UNAVAILABLE, True), done


def test_a_wait_goes_on_through_an_outage_and_says_so_once(yard: Callable[..., Done], peer: Peer) -> None:
    """Also where the outage meets the first question about the second job."""
    away = [HangUp()] * FAILURES

    def second(asked: Asked) -> Say | HangUp:
        return away.pop() if away else Say(a_job(id="second", state="SUCCEEDED", exit_code=0))

    peer.on("GET", "/v1/jobs/first", Say(a_job(id="first")))
    peer.on("GET", "/v1/jobs/first/wait", HangUp(), Say(a_job(id="first", state="SUCCEEDED", exit_code=0)))
    peer.on("GET", "/v1/jobs/second", second)
    done = yard("wait", "first", "second")
    assert done.code == EXIT_OK, done.err
    assert len(NOTICE.findall(done.err)) == 1, done.err


def test_a_follower_of_a_job_that_has_not_begun_goes_on_through_an_outage(
    yard: Callable[..., Done], peer: Peer
) -> None:
    """The server is killed while it holds a request for the first bytes."""
    away = {"output": FAILURES, "live": FAILURES}

    def output(asked: Asked) -> Say | HangUp:
        shown: dict[str, object] = {"job": ID, "stream": "stdout", "chunks": [], "size": 0, "next": 0}
        if float(asked.query["wait_s"][0]) <= 1:
            return Say(shown)
        away["output"] -= 1
        data = {"chunks": [{"offset": 0, "data": "b25lCg=="}], "size": 4, "next": 4, "is_over": True, "is_last": True}
        return HangUp() if away["output"] >= 0 else Say({**shown, **data})

    def live(asked: Asked) -> Say | HangUp:
        shown: dict[str, object] = {"job": ID, "attempt": 1, "fence": 1, "state": "pending"}
        if asked.body["wait_s"] <= 1:
            return Say(shown)
        away["live"] -= 1
        data = {"state": "seen", "data": "b25lCg==", "size": 4, "is_over": True}
        return HangUp() if away["live"] >= 0 else Say({**shown, **data})

    peer.on("GET", "/v1/jobs/*/output", output)
    peer.on("POST", "/v1/jobs/*/files/live", live)
    for words in ([], ["--file", "live.txt"]):
        done = yard("logs", "-f", ID, *words)
        assert (done.code, done.out) == (EXIT_OK, "one\n"), done
        assert len(NOTICE.findall(done.err)) == 1, done.err


def test_a_follower_of_output_gives_up_after_its_patience(yard: Callable[..., Done], peer: Peer) -> None:
    shown = {"job": ID, "stream": "stdout", "chunks": [{"offset": 0, "data": "b25lCg=="}], "size": 4, "next": 4}
    peer.on("GET", "/v1/jobs/*/output", Say(shown), HangUp())
    done = yard("logs", "-f", ID, "--patience", "1")
    assert (done.code, done.out) == (EXIT_UNAVAILABLE, "one\n"), done
    assert "error: The connection to" in done.err


def test_a_wait_gives_up_after_its_patience_and_the_job_goes_on(yard: Callable[..., Done], peer: Peer) -> None:
    created = {"id": ID, "state": "ASSIGNED", "cluster": "alpha"}
    peer.on("POST", "/v1/jobs", Say(created, 201))
    peer.on("GET", "/v1/jobs/*", Say(a_job()))
    peer.on("GET", "/v1/jobs/*/wait", HangUp())
    for words in (["wait", ID], ["submit", "--wait", "--", "true"]):
        done = yard(*words[:1], "--patience", "1", *words[1:])
        assert (done.code, done.out) == (EXIT_UNAVAILABLE, ""), done
        assert "error: The connection to" in done.err
    assert f"`yard wait {ID}` waits again" in done.err
