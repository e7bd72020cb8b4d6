"""Arrays: one job, many tasks, each with its state, exit code, output, retry and cancel; with a real agent."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from switchyard import Client, State
from tests.processes import PATIENCE_S
from tests.programs import Server, call, start_agent, start_server

NODES = {"nodes": 1, "each": {"core": 6, "memory": "8GiB"}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> object:
    folder = tmp_path_factory.mktemp("arrays")
    with start_server(folder) as running, start_agent(folder, running.url, "alpha", graph=NODES):
        yield running


def submit(server: Server, **request: object) -> str:
    answer = call("POST", f"{server.url}/v1/jobs", request)
    assert answer.status == 201, answer.body
    return str(answer.json["id"])


def ended(server: Server, job: str) -> dict[str, Any]:
    for _ in range(30):
        answer = call("GET", f"{server.url}/v1/jobs/{job}/wait?timeout_s=10")
        if answer.json["state"] in ("SUCCEEDED", "FAILED", "CANCELLED", "REJECTED"):
            return dict(answer.json)
    raise AssertionError(f"{job} did not end: {answer.json}")


def tasks(server: Server, job: str) -> dict[int, dict[str, object]]:
    found: dict[int, dict[str, object]] = {}
    cursor = ""
    while True:
        page = call("GET", f"{server.url}/v1/jobs/{job}/tasks?limit=7{cursor}").json
        found |= {task["index"]: task for task in page["items"]}
        if page["next"] is None:
            return found
        cursor = f"&cursor={page['next']}"


def test_each_task_runs_once_with_its_index(server: Server, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    job = submit(
        server, spec={"command": ["/bin/sh", "-c", f"echo $SWITCHYARD_ARRAY_INDEX >> {ledger}"]}, array="0-29,40,50-52"
    )
    done = ended(server, job)
    assert done["state"] == "SUCCEEDED"
    assert done["tasks"] == {"total": 34, "ok": 34}
    assert Counter(ledger.read_text().split()) == Counter(str(i) for i in [*range(30), 40, 50, 51, 52])


def test_each_task_has_its_state_exit_code_and_output(server: Server) -> None:
    script = 'echo "I am $SWITCHYARD_ARRAY_INDEX"; [ $SWITCHYARD_ARRAY_INDEX != 3 ] || exit 7'
    job = submit(server, spec={"command": ["/bin/sh", "-c", script]}, array="0-5")
    done = ended(server, job)
    assert (done["state"], done["reason"]) == ("FAILED", "of 6 tasks: 1 failed")
    found = tasks(server, job)
    assert {index: (task["state"], task["exit_code"]) for index, task in found.items()} == {
        index: ("FAILED", 7) if index == 3 else ("SUCCEEDED", 0) for index in range(6)
    }
    with Client(server.url) as client:
        chunks = call("GET", f"{server.url}/v1/jobs/{job}/output?task=4").json["chunks"]
        assert client.job(job).state is State.FAILED
    assert json.dumps(chunks).count("SSBhbSA0Cg==") == 1  # "I am 4\n"
    assert call("GET", f"{server.url}/v1/jobs/{job}/output").status == 400
    assert call("GET", f"{server.url}/v1/jobs/{job}/output?task=99").status == 404


def test_the_bound_after_the_percent_sign_holds(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "now"
    folder.mkdir()
    script = (
        f"touch {folder}/$SWITCHYARD_ARRAY_INDEX; ls {folder} | wc -l; sleep 0.2; rm {folder}/$SWITCHYARD_ARRAY_INDEX"
    )
    job = submit(server, spec={"command": ["/bin/sh", "-c", script]}, array="0-11%2")
    assert ended(server, job)["state"] == "SUCCEEDED"
    at_once = [_output(server, job, index) for index in range(12)]
    assert max(int(text) for text in at_once) <= 2


def test_a_failed_task_is_tried_again_and_only_that_one(server: Server, tmp_path: Path) -> None:
    script = (
        f"echo $SWITCHYARD_ARRAY_INDEX >> {tmp_path}/runs; [ $SWITCHYARD_ARRAY_INDEX != 2 ] || "
        f"[ $(grep -c '^2$' {tmp_path}/runs) -ge 3 ] || exit 75"
    )
    spec = {"command": ["/bin/sh", "-c", script], "retry": {"limit": 5, "backoff": 1, "exit_codes": "75"}}
    job = submit(server, spec=spec, array="0-4")
    assert ended(server, job)["state"] == "SUCCEEDED"
    assert Counter((tmp_path / "runs").read_text().split()) == {"0": 1, "1": 1, "2": 3, "3": 1, "4": 1}


def test_single_tasks_and_the_rest_are_cancelled(server: Server) -> None:
    job = submit(server, spec={"command": ["sleep", "600"]}, array="0-19%2")
    _until(lambda: call("GET", f"{server.url}/v1/jobs/{job}").json["tasks"].get("live") == 2)
    call("POST", f"{server.url}/v1/jobs/{job}/cancel", {"tasks": "0,10-12"})
    _until(lambda: tasks(server, job)[0]["state"] == "CANCELLED")
    found = tasks(server, job)
    assert [found[index]["state"] for index in (10, 11, 12)] == ["CANCELLED"] * 3
    assert call("GET", f"{server.url}/v1/jobs/{job}").json["state"] == "RUNNING"
    call("POST", f"{server.url}/v1/jobs/{job}/cancel", {})
    done = ended(server, job)
    assert (done["state"], done["tasks"]["cancelled"]) == ("CANCELLED", 20)
    assert {task["state"] for task in tasks(server, job).values()} == {"CANCELLED"}


def test_an_array_of_a_thousand_is_one_row_and_ends(server: Server) -> None:
    before = len(call("GET", f"{server.url}/v1/jobs?limit=500").json["items"])
    job = submit(server, spec={"command": ["true"]}, array="1-60")
    assert len(call("GET", f"{server.url}/v1/jobs?limit=500").json["items"]) == before + 1
    assert ended(server, job)["tasks"]["ok"] == 60


@pytest.mark.parametrize(
    ("array", "says"),
    [
        ("0-1000000000", "at most 1,000,000"),
        ("9-3", "backwards"),
        ("1,2,2", "twice"),
        ("0-9%0", "after %"),
        ("", "not an index"),
        ("a-b", "not an index"),
        ("0-9:0", "step"),
        ("99999999999", "not an index"),
    ],
)
def test_a_bad_array_is_refused_with_its_reason(server: Server, array: str, says: str) -> None:
    answer = call("POST", f"{server.url}/v1/jobs", {"spec": {"command": ["true"]}, "array": array})
    assert answer.status == 400
    assert says in answer.json["detail"]


def test_an_array_survives_the_death_of_server_and_agent(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    script = f"echo $SWITCHYARD_ARRAY_INDEX >> {ledger}; sleep 0.05"
    with start_server(tmp_path) as server, start_agent(tmp_path, server.url, "alpha", graph=NODES) as agent:
        job = submit(server, spec={"command": ["/bin/sh", "-c", script]}, array="0-99")
        for count in (10, 40):  # at each kill tasks are at every step
            _until(lambda count=count: ledger.exists() and len(ledger.read_text().split()) >= count)
            agent.kill()
            agent.start()
            _until(lambda count=count: len(ledger.read_text().split()) >= count + 15)
            server.kill()
            server.start().wait_ready()
        assert ended(server, job)["tasks"] == {"total": 100, "ok": 100}
    assert Counter(ledger.read_text().split()) == Counter(str(index) for index in range(100))


def _output(server: Server, job: str, index: int) -> str:
    import base64

    chunks = call("GET", f"{server.url}/v1/jobs/{job}/output?task={index}").json["chunks"]
    return b"".join(base64.b64decode(chunk["data"]) for chunk in chunks).decode()


def _until(predicate: object, timeout_s: float = PATIENCE_S) -> None:
    from tests.processes import until

    until(predicate, timeout_s, "the condition")  # type: ignore[arg-type]
