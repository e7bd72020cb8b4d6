"""Files of a job over HTTP: from the user to the agent, and the outputs back."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from switchyard.model.files.file_frames import BODY_BYTES_MAX, MEDIA, FrameKind, decode_frames
from switchyard.model.files.file_tree import CHUNK_BYTES, hash_of
from tests.acceptance.stage import Stage, staged
from tests.processes import PATIENCE_S, until
from tests.programs import Answer
from tests.server.town import GRAPH
from tests.service.files.trees import Link, a_tree, frames
from tests.soak import SOAKED

BIG = bytes(range(256)) * (CHUNK_BYTES // 256) + b"and a bit"  # two chunks
FOLDER = {"train.py": b"print(1)\n", "data": {"big.bin": BIG, "small": b"1\n"}, "latest": Link("data/small")}


@pytest.fixture(params=["sqlite", SOAKED("postgresql")])  # SQL on both: tests/service/files
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    is_sqlite = request.param == "sqlite"
    extra = () if is_sqlite else ("--database", request.getfixturevalue("postgres").create_database())
    with staged(tmp_path, auth=True, extra=extra) as stage:
        yield stage


def send(stage: Stage, path: str, body: bytes, token: str) -> Answer:
    return stage.call("POST", path, body, token=token, headers={"Content-Type": MEDIA})


def read(answer: Answer) -> dict[bytes, bytes]:
    assert answer.status == 200, answer.body
    return {frame.digest: frame.data for frame in decode_frames([answer.body]) if frame.kind is FrameKind.CONTENT}


def person(stage: Stage, name: str) -> str:
    stage.post("/v1/users", {"name": name})
    grant = {"role": "submit", "to": "user", "subject": name, "on": "project", "object": "default"}
    stage.post("/v1/grants", grant)
    return str(stage.post("/v1/tokens", {"user": name})["token"])


def agent(stage: Stage, cluster: str) -> tuple[str, int]:
    """The credential and the session of an agent that this test speaks for."""
    stage.post("/v1/clusters", {"name": cluster})
    token = stage.post(f"/v1/clusters/{cluster}/invites", {})["token"]
    asked = {"cluster": cluster, "name": "a", "journal": "j1", "backend": "fake"}
    credential = stage.post("/v1/agents/join", asked, token=token)["credential"]
    hello = {"incarnation": "i1", "graph": GRAPH, "inventory": [], "wait_s": 0}
    return credential, stage.post("/v1/agents/poll", hello, token=credential)["session"]


def problem(answer: Answer, status: int, code: str) -> dict[str, Any]:
    assert (answer.status, answer.json["code"]) == (status, code), answer.body
    return answer.json


def test_files_of_a_job_from_the_user_to_the_agent_and_back(stage: Stage) -> None:
    ann, eve = person(stage, "ann"), person(stage, "eve")
    credential, session = agent(stage, "c")
    tree = a_tree(FOLDER)
    names = [digest.hex() for digest in tree.objects]

    # The user sends what is missing, seals the tree, and submits.
    assert stage.post("/v1/files/trees", {"root": tree.name}, token=ann)["missing"] == [tree.name]
    assert stage.post("/v1/files/missing", {"objects": names}, token=ann)["missing"] == names
    stored = send(stage, "/v1/files/objects", tree.frames(), ann)
    assert stored.json == {"objects": len(names), "bytes": sum(map(len, tree.objects.values()))}
    sealed = stage.post("/v1/files/trees", {"root": tree.name}, token=ann)
    assert (sealed.get("missing"), sealed["files"], sealed["bytes"]) == (None, 3, tree.size)
    request = {"spec": {"command": ["true"], "files": {"tree": tree.name, "out": ["*"]}}, "cluster": "c"}
    problem(stage.call("POST", "/v1/jobs", request, token=eve), 400, "unknown-name")
    job = stage.post("/v1/jobs", request, token=ann)["id"]

    # The agent leases the job and reads its files.
    poll = {"incarnation": "i1", "session": session, "want": 1, "wait_s": 0}

    def leased() -> Any:
        return stage.post("/v1/agents/poll", poll, token=credential).get("leases")

    (lease,) = until(leased, PATIENCE_S, "the job is leased")
    assert lease["spec"]["files"]["tree"] == tree.name
    attempt = f"job={job}&fence={lease['fence']}"
    query = {"root": tree.name, "objects": names}
    assert read(stage.call("POST", f"/v1/agents/files/read?{attempt}", query, token=credential)) == tree.objects

    # Another agent, an old fence and another user get nothing, in the words for what does not exist.
    other, _ = agent(stage, "d")
    problem(stage.call("POST", f"/v1/agents/files/read?{attempt}", query, token=other), 404, "no-such-job")
    wrong = f"job={job}&fence={lease['fence'] + 1}"
    problem(stage.call("POST", f"/v1/agents/files/read?{wrong}", query, token=credential), 404, "no-such-job")
    stranger = {"root": tree.name, "objects": ["0" * 64]}
    problem(stage.call("POST", f"/v1/jobs/{job}/files/objects", stranger, token=ann), 404, "not-found")

    # The job ends; its outputs follow.
    end = {"job": job, "fence": lease["fence"], "seen": "SUCCEEDED", "exit_code": 0}
    stage.post("/v1/agents/poll", {**poll, "want": 0, "reports": [end]}, token=credential)
    left = a_tree({"result.csv": b"42\n"})
    outputs = {"job": job, "fence": lease["fence"]}
    stage.post("/v1/agents/outputs", {**outputs, "state": "uploading"}, token=credential)
    assert send(stage, f"/v1/agents/files/objects?{attempt}", left.frames(), credential).status == 200
    stage.post(f"/v1/agents/files/trees?{attempt}", {"root": left.name}, token=credential)
    stage.post("/v1/agents/outputs", {**outputs, "state": "ready", "root": left.name}, token=credential)
    files = stage.get(f"/v1/jobs/{job}/files", token=ann)
    assert [output["state"] for output in files["outputs"]] == ["ready"]
    query = {"root": left.name, "objects": [digest.hex() for digest in left.objects]}
    assert read(stage.call("POST", f"/v1/jobs/{job}/files/objects", query, token=ann)) == left.objects
    assert stage.get(f"/v1/jobs/{job}", token=ann)["outputs"]["ready"] == 1
    assert stage.get("/v1/files/usage?project=default", token=ann)["project"]["trees"] == 2

    _refuse_bad_bodies(stage, ann)
    _store_what_came_before_a_cut(stage, ann)
    _two_at_once(stage, ann, eve)
    _answer_503_while_the_store_is_away(stage, ann, job, left.name)


def _refuse_bad_bodies(stage: Stage, token: str) -> None:
    path = "/v1/files/objects"
    good = frames({hash_of(b"good"): b"good"})
    problem(stage.call("POST", path, {"objects": []}, token=token), 415, "wrong-media")
    problem(send(stage, path, good + frames({bytes(32): b"bad"}), token), 400, "malformed")
    assert stage.post("/v1/files/missing", {"objects": [hash_of(b"good").hex()]}, token=token)["missing"] == []
    problem(send(stage, path, good[:-1], token), 400, "malformed")
    with _opened(stage) as sock:
        sock.sendall(_head(path, token, length=BODY_BYTES_MAX + 1))
        assert sock.recv(100).startswith(b"HTTP/1.1 413 ")
    problem(send(stage, path, good, "yard_no_token"), 401, "unauthenticated")


def _store_what_came_before_a_cut(stage: Stage, token: str) -> None:
    first, second = b"arrives whole".ljust(CHUNK_BYTES, b"."), b"is cut off"
    body = frames({hash_of(first): first, hash_of(second): second})
    names = [hash_of(first).hex(), hash_of(second).hex()]
    with _opened(stage) as sock:
        sock.sendall(_head("/v1/files/objects", token, length=len(body)) + body[:-3])
        until(lambda: list(stage.folder.rglob(names[0][2:])), PATIENCE_S, "the whole object is in the store")
    until(
        lambda: stage.post("/v1/files/missing", {"objects": names}, token=token)["missing"] == names[1:],
        PATIENCE_S,
        "the whole object is the user's",
    )


def _two_at_once(stage: Stage, *tokens: str) -> None:
    """Two users send one object at the same time: it is stored once, and both hold it."""
    data = b"the same" * 100_000
    body, answers = frames({hash_of(data): data}), list[int]()
    threads = [
        threading.Thread(
            target=lambda token=token: answers.append(send(stage, "/v1/files/objects", body, token).status)
        )
        for token in tokens * 2
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert answers == [200] * 4
    for token in tokens:
        assert stage.post("/v1/files/missing", {"objects": [hash_of(data).hex()]}, token=token)["missing"] == []


def _answer_503_while_the_store_is_away(stage: Stage, token: str, job: str, root: str) -> None:
    folder = next(stage.folder.rglob("files/new")).parent
    away = folder.with_name("away")
    shutil.move(folder, away)
    folder.write_text("in the way")
    data = b"while the store is away"
    refusal = problem(send(stage, "/v1/files/objects", frames({hash_of(data): data}), token), 503, "unavailable")
    assert refusal["next_step"]
    folder.unlink()
    shutil.move(away, folder)
    assert send(stage, "/v1/files/objects", frames({hash_of(data): data}), token).status == 200
    assert read(stage.call("POST", f"/v1/jobs/{job}/files/objects", {"root": root, "objects": [root]}, token=token))


def _opened(stage: Stage) -> socket.socket:
    address = urlsplit(stage.url)
    return socket.create_connection((address.hostname or "", address.port or 0), timeout=PATIENCE_S)


def _head(path: str, token: str, *, length: int) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: yard", f"Authorization: Bearer {token}", f"Content-Type: {MEDIA}"]
    return ("\r\n".join([*lines, f"Content-Length: {length}"]) + "\r\n\r\n").encode()
