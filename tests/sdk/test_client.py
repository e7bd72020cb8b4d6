"""The client's calls: pages, waiting, events, output, and the names `switchyard` gives to programs."""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path

import pytest

import switchyard
from switchyard import errors
from switchyard.client import Client
from switchyard.sdk.transport.config import SavedSubmitToken, UserFile, save_user_file
from tests.sdk.peer import Asked, HangUp, Peer, Say, a_job

ID = a_job()["id"]


def test_jobs_walks_pages_until_the_last_or_the_limit(peer: Peer) -> None:
    def page(asked: Asked) -> Say:
        start = int(asked.query.get("cursor", ["0"])[0])
        end = min(start + int(asked.query["limit"][0]), 450)
        # The server may give a short page, even an empty one, with a cursor: it stops at a budget of rows.
        items = [a_job(id=f"{n:026d}") for n in range(start, end)] if start != 200 else []
        return Say({"items": items, "next": str(end) if end < 450 else None})

    peer.on("GET", "/v1/jobs", page)
    yard = Client(peer.url)
    assert [int(job.id) for job in yard.jobs()] == [*range(200), *range(400, 450)]
    assert [int(job.id) for job in yard.jobs(limit=3)] == [0, 1, 2]
    assert peer.asked[-1].query["limit"] == ["3"]


def test_filters_go_out_as_the_api_names_them(peer: Peer) -> None:
    peer.on("GET", "/v1/jobs", Say({"items": [], "next": None}))
    list(Client(peer.url).jobs(state=["FAILED", "RUNNING"], owner="a b", labels={"k": "v=w", "x": "y"}, spec=True))
    query = peer.asked[0].query
    assert query["state"] == ["FAILED", "RUNNING"]
    assert query["label"] == ["k=v=w", "x=y"]
    assert (query["owner"], query["spec"]) == (["a b"], ["true"])
    assert "cluster" not in query


def test_inputs_of_an_execution_that_json_lacks_go_out_as_texts(peer: Peer) -> None:
    peer.on("POST", "/v1/executions", Say({"project": "default", "domain": "development", "name": "run"}))
    inputs = {"a": float("nan"), "b": [1.5, float("inf")], "c": {"d": (float("-inf"), None)}}
    Client(peer.url).create_execution(launch_plan="plan", inputs=inputs, name="run")
    assert peer.asked[0].body["inputs"] == {"a": "nan", "b": [1.5, "inf"], "c": {"d": ["-inf", None]}}


def test_wait_outlasts_a_server_that_breaks_off(peer: Peer) -> None:
    peer.on("GET", "/v1/jobs/*", Say(a_job()))
    peer.on("GET", "/v1/jobs/*/wait", Say(a_job()), HangUp(), Say(a_job(state="SUCCEEDED", exit_code=0)))
    assert Client(peer.url, retry_s=0).wait(ID).state == "SUCCEEDED"


def test_wait_gives_up_in_time(peer: Peer) -> None:
    peer.on("GET", "/v1/jobs/*", Say(a_job()))
    peer.on("GET", "/v1/jobs/*/wait", Say(a_job()))
    with pytest.raises(errors.TimedOut, match="still RUNNING"):
        Client(peer.url).wait(ID, timeout_s=0.3)


def test_watch_tells_each_change_once(peer: Peer) -> None:
    states = ["ASSIGNED", "RUNNING", "RUNNING", "SUCCEEDED"]
    peer.on("GET", "/v1/jobs/*", Say(a_job(state="PENDING")))
    peer.on("GET", "/v1/jobs/*/wait", *(Say(a_job(state=state)) for state in states))
    seen = [job.state.value for job in Client(peer.url).watch(ID)]
    assert seen == ["PENDING", "ASSIGNED", "RUNNING", "SUCCEEDED"]


def test_events_page_by_number(peer: Peer) -> None:
    def page(asked: Asked) -> Say:
        after = int(asked.query.get("cursor", ["0"])[0])
        seqs = range(after + 1, min(after + 1 + int(asked.query["limit"][0]), 451))
        items = [{"seq": n, "at_us": 1, "job": ID, "kind": "running", "state": "RUNNING"} for n in seqs]
        return Say({"items": items, "next": str(items[-1]["seq"]) if seqs.stop < 451 else None})

    peer.on("GET", "/v1/events", page)
    assert [event.seq for event in Client(peer.url).events(after=10)] == list(range(11, 451))
    assert [event.seq for event in Client(peer.url).events(limit=2)] == [1, 2]


def test_a_handle_follows_its_job(peer: Peer) -> None:
    peer.on("POST", "/v1/jobs", Say({"id": ID, "state": "PENDING", "reason": "no cluster is up"}, 201))
    peer.on("GET", "/v1/jobs/*", Say(a_job(state="SUCCEEDED", exit_code=0)))
    chunks = [{"offset": 0, "data": base64.b64encode(b"caf\xc3\xa9\xff").decode()}]
    peer.on("GET", "/v1/jobs/*/output", Say({"job": ID, "stream": "stdout", "chunks": chunks, "size": 6}))
    peer.on("POST", "/v1/jobs/*/cancel", Say(a_job(state="SUCCEEDED")))
    job = Client(peer.url).submit("echo 'a b'", name="x")
    assert (job.state, job.reason, job.exit_code, job.is_final) == ("PENDING", "no cluster is up", None, False)
    assert job.wait().exit_code == job.exit_code == 0
    assert job.is_final
    assert (job.output(), job.text()) == (b"caf\xc3\xa9\xff", "café�")
    assert job.cancel("enough").state == "SUCCEEDED"
    assert peer.asked[0].body == {"spec": {"command": ["echo", "a b"]}, "name": "x"}


def test_submit_tokens_go_only_to_the_server_they_belong_to(
    peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer.on("POST", "/v1/jobs", Say({"id": ID, "state": "PENDING"}, 201))
    monkeypatch.setenv("YARD_CONFIG", str(tmp_path / "yard.yaml"))
    mine = UserFile(url=peer.url, tokens={peer.url: "yard_x"}, clusters=(SavedSubmitToken("alpha", "submit_y"),))
    save_user_file(tmp_path / "yard.yaml", mine)
    Client().submit(["true"])
    assert peer.asked[0].body["submit_tokens"] == [{"name": "alpha", "token": "submit_y"}]
    assert peer.asked[0].headers["authorization"] == "Bearer yard_x"
    Client(peer.url.replace("127.0.0.1", "localhost")).submit(["true"])
    assert "submit_tokens" not in peer.asked[1].body
    assert "authorization" not in peer.asked[1].headers


def test_the_public_names_are_all_there_and_no_others() -> None:
    for name in switchyard.__all__:
        assert getattr(switchyard, name).__name__ == name
    assert list(switchyard.__all__) == sorted(switchyard.__all__)
    with pytest.raises(AttributeError):
        switchyard.NoSuchName  # type: ignore[attr-defined]  # noqa: B018
    assert set(switchyard.__all__) <= set(dir(switchyard))
    assert switchyard.__version__


def test_a_bare_import_loads_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import switchyard; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['__future__', 'switchyard']"
