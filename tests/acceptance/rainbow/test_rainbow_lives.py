"""Clusters that only poll, from outside: in the hands of operators, over restarts, and beside an agent of ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import PATIENCE_S, until
from tests.programs import Server, call, isolated_env, start_agent, start_server, yard
from tests.server.rainbow_clusters import newest, own, registered, submitted
from tests.server.rainbow_door import JOB, Door, rainbow

LEASE_S = 5  # long enough to accept what was received, on a busy machine


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Door]]:
    with rainbow(tmp_path_factory.mktemp("lives"), receive_lease=LEASE_S) as both:
        yield both


def change(server: Server, cluster: str, **change: object) -> None:
    assert call("PATCH", f"{server.url}/v1/clusters/{cluster}", change).status == 200


def test_jobs_of_a_cordoned_cluster_stay_with_the_cluster_named_in_the_answer(opened: tuple[Server, Door]) -> None:
    server, door = opened
    mine, other = registered(door, "shut"), registered(door, "open")
    number = submitted(door, mine).jobid
    change(server, "shut", is_cordoned=True, reason="new disks")
    both = [{"name": each["cluster"], "token": each["token"]} for each in (mine, other)]
    assert door("SubmitJob", name="j", jobspec=JOB, clusters=both).cluster == "open"
    assert submitted(door, mine).code == "FAILED_PRECONDITION"
    assert door("ReceiveJobs", **own(mine)).status == "REQUEST_JOBS_NORESULTS"
    assert list(door("ReceiveJobs", **own(other)).jobs) != [number]
    change(server, "shut", is_cordoned=False)
    assert until(lambda: list(door("ReceiveJobs", **own(mine)).jobs), PATIENCE_S, "it is given out again") == [number]


def test_a_cancel_reaches_what_waits_what_was_received_and_what_was_accepted(opened: tuple[Server, Door]) -> None:
    server, door = opened
    mine = registered(door, "cancels")

    def cancelled(job: str) -> str:
        assert call("POST", f"{server.url}/v1/jobs/{job}/cancel", {}).status == 200
        return str(call("GET", f"{server.url}/v1/jobs/{job}").json["state"])

    submitted(door, mine)
    waits = newest(server, "cancels")["id"]
    assert cancelled(waits) == "CANCELLED"
    assert door("ReceiveJobs", **own(mine)).status == "REQUEST_JOBS_NORESULTS"
    submitted(door, mine)
    received = newest(server, "cancels")["id"]
    (number,) = door("ReceiveJobs", **own(mine)).jobs
    assert cancelled(received) == "ASSIGNED"
    gone = f"{server.url}/v1/jobs/{received}"
    until(lambda: call("GET", gone).json["state"] == "CANCELLED", PATIENCE_S, "its lease is over")
    assert door("AcceptJobs", **own(mine), jobids=[number]).status == "RESULT_TYPE_PARTIAL"
    assert door("ReceiveJobs", **own(mine)).status == "REQUEST_JOBS_NORESULTS"


def test_an_end_by_a_signal_or_without_a_code_is_told_as_it_is(opened: tuple[Server, Door]) -> None:
    server, door = opened
    mine = registered(door, "codes")
    said = []
    for code in (0, -9, 3):
        submitted(door, mine)
        (number,) = door("ReceiveJobs", **own(mine)).jobs
        door("AcceptJobs", **own(mine), jobids=[number])
        for _ in range(2):
            report = {"jobid": number, "seen": "SEEN_FAILED", "exit_code": code}
            assert list(door("ReportJobs", **own(mine), reports=[report]).taken) == [number]
        found = newest(server, "codes")
        said.append((found["state"], found.get("exit_code"), found.get("signal")))
    assert said == [("FAILED", None, None), ("FAILED", None, 9), ("FAILED", 3, None)]


def test_a_cancel_of_what_was_handed_over_is_no_end_until_it_is_told(opened: tuple[Server, Door]) -> None:
    server, door = opened
    mine = registered(door, "silent")
    submitted(door, mine)
    (number,) = door("ReceiveJobs", **own(mine)).jobs
    door("AcceptJobs", **own(mine), jobids=[number])
    job = newest(server, "silent")["id"]
    user = isolated_env(server.folder, url=server.url)
    assert "only polls and sends no output" in yard("logs", job, env=user).stderr
    assert call("POST", f"{server.url}/v1/jobs/{job}/cancel", {}).status == 200
    waiting = [{"jobid": number, "seen": "SEEN_WAITING"}]
    for _ in range(2):
        said = door("ReportJobs", **own(mine), reports=waiting)
        assert (list(said.taken), list(said.cancelled)) == ([number], [number])
        found = newest(server, "silent")
        asked = "handed over, end not reported; cancel asked for by "
        assert (found["state"], found["reason"].startswith(asked)) == ("SUBMITTED", True)
    assert door("Delete", name="silent", secret=mine["secret"]).status == "DELETE_SUCCESS"
    ended = until(
        lambda: (found := call("GET", f"{server.url}/v1/jobs/{job}").json).get("ended_us") and found, 30, "over"
    )
    assert (ended["state"], ended["reason"]) == ("FAILED", "lost while being cancelled: its agent was removed")


def test_a_cluster_that_is_deleted_while_it_holds_jobs_accepts_nothing_more(opened: tuple[Server, Door]) -> None:
    server, door = opened
    mine = registered(door, "leaves")
    submitted(door, mine)
    submitted(door, mine)
    ids = [each["id"] for each in call("GET", f"{server.url}/v1/jobs?cluster=leaves").json["items"]]
    (number,) = door("ReceiveJobs", **own(mine), maxJobs=1).jobs
    assert door("Delete", name="leaves", secret=mine["secret"]).status == "DELETE_SUCCESS"
    assert door("AcceptJobs", **own(mine), jobids=[number]).code == "PERMISSION_DENIED"
    again = registered(door, "leaves")
    assert door("AcceptJobs", **own(again), jobids=[number]).status == "RESULT_TYPE_PARTIAL"
    assert door("ReceiveJobs", **own(again)).status == "REQUEST_JOBS_NORESULTS"

    def ended() -> bool:
        found = [call("GET", f"{server.url}/v1/jobs/{each}").json for each in ids]
        return all(each["state"] in ("FAILED", "REJECTED", "PENDING") and each["reason"] for each in found)

    until(ended, PATIENCE_S, "nobody waits in silence")


def test_a_cluster_may_have_an_agent_of_ours_too(opened: tuple[Server, Door]) -> None:
    server, door = opened
    mine = registered(door, "both")
    submitted(door, mine)
    with start_agent(server.folder, server.url, "both", graph={"nodes": 1, "each": {"core": 2}}):
        until(lambda: newest(server, "both")["state"] in ("SUCCEEDED", "FAILED"), PATIENCE_S, "the agent ran it")
        body = {"spec": {"command": ["true"]}, "cluster": "both", "array": "0-3"}
        array = call("POST", f"{server.url}/v1/jobs", body).json["id"]
        assert door("ReceiveJobs", **own(mine)).status == "REQUEST_JOBS_NORESULTS"
        until(
            lambda: call("GET", f"{server.url}/v1/jobs/{array}").json["state"] == "SUCCEEDED",
            PATIENCE_S,
            "all tasks ran",
        )


def test_the_section_goes_and_comes_back(tmp_path: Path) -> None:
    with rainbow(tmp_path) as (server, door):
        mine = registered(door, "k")
        number = submitted(door, mine).jobid
        server.kill()
    with start_server(tmp_path) as closed:
        assert call("GET", f"{closed.url}/v1/clusters/k").json["health"] == "up"
        closed.kill()
    with rainbow(tmp_path) as (server, door):
        assert list(door("ReceiveJobs", **own(mine)).jobs) == [number]
        server.kill()
        server.start().wait_ready()
        assert door("AcceptJobs", **own(mine), jobids=[number]).status == "RESULT_TYPE_SUCCESS"
        assert newest(server, "k")["state"] == "SUBMITTED"
