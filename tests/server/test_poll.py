"""The agent's call over HTTP: leases down, reports up, parked until there is something, and never longer than that."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.processes import PATIENCE_S, until
from tests.server.town import GRAPH, Town

pytestmark = pytest.mark.xdist_group("poll")
SPEC = {"command": ["true"]}
PARKED_S = 50  # much longer than what follows takes on a busy machine
LOOK_S = 5  # a parked call that missed its wake-up looks again after this long
TRIES = 5


class HttpAgent:
    """An agent of a cluster of its own, by hand."""

    def __init__(self, town: Town) -> None:
        self.town = town
        self.cluster = town.cluster("polled")
        self.id, self.credential = town.agent(self.cluster)
        self.session = 0
        self.sync(graph=GRAPH)
        until(lambda: town.must("GET", f"/v1/clusters/{self.cluster}")["health"] == "up", PATIENCE_S, "it is up")

    def poll(self, **fields: Any) -> Any:
        body = {"incarnation": "i1", "session": self.session, **fields}
        return self.town.ask("POST", "/v1/agents/poll", body, token=self.credential)

    def ok(self, **fields: Any) -> Any:
        answer = self.poll(**fields)
        assert answer.status == 200, answer
        return answer.json

    def sync(self, *held: dict[str, Any], **fields: Any) -> Any:
        answer = self.ok(inventory=list(held), **fields)
        self.session = answer["session"]
        return answer

    def submit(self, **fields: Any) -> str:
        return self.town.job("own", cluster=self.cluster, **fields)

    def report(self, job: str, seen: str, fence: int = 1, **fields: Any) -> Any:
        answer = self.ok(reports=[{"job": job, "fence": fence, "seen": seen, **fields}])
        return answer["answers"], [(stop["job"], stop["fence"]) for stop in answer.get("stops", [])]


@pytest.fixture
def agent(town: Town) -> HttpAgent:
    return HttpAgent(town)


def test_a_job_goes_down_and_its_end_comes_up(town: Town, agent: HttpAgent) -> None:
    job = agent.submit(labels={"a": "b"})
    (lease,) = agent.ok(want=5)["leases"]
    assert (lease["job"], lease["fence"], lease["attempt"], lease["labels"]) == (job, 1, 1, {"a": "b"})
    assert lease["spec"] == SPEC
    assert agent.report(job, "RUNNING", native_id="n1") == (["taken"], [])
    chunk = {"job": job, "fence": 1, "stream": "stdout", "offset": 0, "data": "aGVsbG8="}
    agent.ok(output=[chunk])
    assert agent.report(job, "SUCCEEDED", exit_code=0) == (["taken"], [])
    now = town.must("GET", f"/v1/jobs/{job}")
    assert (now["state"], now["exit_code"], now["native_id"], now["cluster"]) == ("SUCCEEDED", 0, "n1", agent.cluster)
    output = town.must("GET", f"/v1/jobs/{job}/output")
    assert (output["size"], output["chunks"][0]["data"]) == (5, "aGVsbG8=")


def test_a_low_fence_and_a_final_job_are_told_to_stop(town: Town, agent: HttpAgent) -> None:
    job = agent.submit()
    agent.ok(want=1)
    assert agent.report(job, "SUCCEEDED", fence=0) == (["stop"], [(job, 0)])
    assert agent.report("0" * 26, "RUNNING") == (["stop"], [("0" * 26, 1)])
    assert town.must("GET", f"/v1/jobs/{job}")["state"] == "ASSIGNED"
    assert agent.report(job, "FAILED", exit_code=2) == (["taken"], [])
    assert agent.report(job, "SUCCEEDED") == (["stale"], [])
    assert agent.report(job, "RUNNING") == (["stop"], [(job, 1)])
    assert town.must("GET", f"/v1/jobs/{job}")["state"] == "FAILED"


def test_an_old_session_is_told_to_say_what_it_holds(agent: HttpAgent) -> None:
    answer = agent.poll(want=1, session=agent.session - 1)
    assert (answer.status, answer.json["code"]) == (409, "resync")
    assert agent.ok(want=1)["session"] == agent.session


def test_a_process_without_the_place_forges_nothing(town: Town, agent: HttpAgent) -> None:
    """It has the agent's credential, and the agent lives: what it says is not believed, and it is shown."""
    job = agent.submit()
    agent.ok(want=1)
    agent.report(job, "RUNNING")
    end = {"job": job, "fence": 1, "seen": "SUCCEEDED", "exit_code": 0}
    chunk = {"job": job, "fence": 1, "stream": "stdout", "offset": 0, "data": "Zm9yZ2Vk"}
    for forged in ({"reports": [end]}, {"output": [chunk]}, {"reports": [end], "output": [chunk]}, {"want": 1}, {}):
        for session in (0, agent.session):
            answer = agent.poll(incarnation="thief", session=session, **forged)
            assert (answer.status, answer.json["code"]) == (409, "resync"), forged
    for body in (None, {}, {"incarnation": "thief"}):
        answer = town.ask("POST", "/v1/agents/rotate", body, token=agent.credential)
        assert (answer.status, answer.json["code"]) == (409, "resync")
    assert town.must("GET", f"/v1/jobs/{job}")["state"] == "RUNNING"
    assert town.must("GET", f"/v1/jobs/{job}/output").get("size", 0) == 0
    shown = town.must("GET", f"/v1/agents?cluster={agent.cluster}")["items"][0]
    assert (shown["rival"]["incarnation"], shown["is_live"]) == ("thief", True)
    assert "agent.refuse" in [row["action"] for row in town.must("GET", "/v1/audit?limit=5")["items"]]
    assert agent.report(job, "SUCCEEDED", exit_code=0) == (["taken"], []), "the agent goes on"


def test_a_sync_that_is_refused_brings_no_reports(town: Town, agent: HttpAgent) -> None:
    job = agent.submit()
    agent.ok(want=1)
    end = {"job": job, "fence": 1, "seen": "SUCCEEDED", "exit_code": 0}
    origin = {"journal": "another", "start": 99}
    answer = agent.poll(incarnation="thief", inventory=[], origin=origin, reports=[end])
    assert (answer.status, answer.json["code"]) == (409, "journal-refused")
    assert town.must("GET", f"/v1/jobs/{job}")["state"] == "ASSIGNED"
    held = {"job": job, "fence": 1}
    assert agent.sync(held, reports=[end])["answers"] == ["taken"], "one that is accepted does"


def test_an_agent_that_never_began_a_session_is_told_to(town: Town) -> None:
    cluster = town.cluster("polled")
    _, credential = town.agent(cluster)
    answer = town.ask("POST", "/v1/agents/poll", {"incarnation": "i1", "want": 1}, token=credential)
    assert (answer.status, answer.json["code"]) == (409, "resync")


BAD_POLLS: list[dict[str, Any]] = [
    {"want": 1001},
    {"want": -1},
    {"wait_s": 301},
    {"wait_s": -1},
    {"incarnation": "a b"},
    {"incarnation": ""},
    {"colour": "red"},
    {"inventory": [{"job": "short", "fence": 1}]},
    {"inventory": [{"job": "0" * 26, "fence": -1}]},
    {"reports": [{"job": "0" * 26, "fence": 1, "seen": "FLYING"}]},
    {"reports": [{"job": "0" * 25 + "\n", "fence": 1, "seen": "RUNNING"}]},
    {"reports": [{"job": "0" * 26, "fence": 2**63, "seen": "RUNNING"}]},
    {"reports": [{"job": "0" * 26, "fence": 1, "seen": "RUNNING", "ago_us": -1}]},
    {"reports": [{"job": "0" * 26, "fence": 1, "seen": "FAILED", "exit_code": 2**31}]},
    {"output": [{"job": "0" * 26, "fence": 1, "stream": "stdin", "offset": 0, "data": ""}]},
    {"output": [{"job": "0" * 26, "fence": 1, "stream": "stdout", "offset": -1, "data": ""}]},
    {"output": [{"job": "0" * 26, "fence": 1, "stream": "stdout", "offset": 0, "data": "?"}]},
    {"graph": {"groups": []}},
    {"graph": {"shapes": [{"type": "core"}, {"type": "node", "children": [[0, 10**12]]}]}},
    {"load": {"trouble": "a\nb"}},
]


def test_a_bad_poll_is_refused(town: Town, agent: HttpAgent) -> None:
    for fields in BAD_POLLS:
        answer = agent.poll(**fields)
        assert (answer.status, answer.json["code"]) == (400, "malformed"), fields
    assert town.is_healthy()


def test_strange_but_allowed_numbers_break_nothing(town: Town, agent: HttpAgent) -> None:
    big = 10**30
    agent.submit()
    assert agent.poll(want=1, session=big).status == 409
    answer = agent.ok(want=1, room={"cores": big, "gpus": big, "memory_bytes": big}, load={"running": big})
    assert len(answer["leases"]) == 1
    assert town.must("GET", f"/v1/clusters/{agent.cluster}")["load"]["running"] == big


def test_a_removed_agent_is_gone_and_a_deleted_cluster_too(town: Town, agent: HttpAgent) -> None:
    other = HttpAgent(town)
    town.must("DELETE", f"/v1/agents/{agent.id}")
    assert agent.poll().status == 410
    town.must("DELETE", f"/v1/clusters/{other.cluster}")
    answer = other.poll()
    assert (answer.status, answer.json["code"]) == (410, "gone")


# --- parked polls and waits


def in_background(work: Any) -> Any:
    """Start it; the returned call waits for its result and says how long it took."""
    results: list[Any] = []
    began = time.monotonic()
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()

    def wait() -> tuple[Any, float]:
        thread.join(PATIENCE_S)
        assert results, "it never came back"
        return results[0], time.monotonic() - began

    return wait


def parked(agent: HttpAgent, **fields: Any) -> Any:
    wait = in_background(lambda: agent.poll(want=1, wait_s=PARKED_S, **fields))
    time.sleep(0.2)  # it may park or be on its way: what follows must reach it either way
    return wait


def is_at_once(round_s: Callable[[], float]) -> bool:
    """Whether the best of some rounds took less than until the next look: a busy machine may delay one."""
    return any(round_s() < LOOK_S for _ in range(TRIES))


def test_a_parked_poll_gets_a_new_job_at_once(agent: HttpAgent) -> None:
    def round_s() -> float:
        wait = parked(agent)
        job = agent.submit()
        answer, took_s = wait()
        assert [lease["job"] for lease in answer.json["leases"]] == [job]
        return took_s

    assert is_at_once(round_s)


def test_a_parked_poll_is_told_of_a_cancel_at_once(town: Town) -> None:
    def round_s() -> float:
        agent = HttpAgent(town)
        job = agent.submit()
        agent.ok(want=1)
        wait = parked(agent)
        town.must("POST", f"/v1/jobs/{job}/cancel", {})
        answer, took_s = wait()
        assert [held["job"] for held in answer.json["cancels"]] == [job]
        return took_s

    assert is_at_once(round_s)


def test_a_parked_poll_of_a_cordoned_cluster_is_woken_when_it_is_opened(town: Town, agent: HttpAgent) -> None:
    job = agent.submit()
    town.must("PATCH", f"/v1/clusters/{agent.cluster}", {"is_cordoned": True})
    assert agent.ok(want=1).get("leases", []) == []
    wait = parked(agent)
    town.must("PATCH", f"/v1/clusters/{agent.cluster}", {"is_cordoned": False})
    answer, took_s = wait()
    assert [lease["job"] for lease in answer.json["leases"]] == [job]
    assert took_s < PARKED_S - LOOK_S


def test_a_parked_poll_comes_back_when_its_agent_is_removed(town: Town) -> None:
    def round_s() -> float:
        agent = HttpAgent(town)
        wait = parked(agent)
        town.must("DELETE", f"/v1/agents/{agent.id}")
        answer, took_s = wait()
        assert answer.status == 410
        return took_s

    assert is_at_once(round_s)


def test_a_poll_waits_no_longer_than_it_says(agent: HttpAgent) -> None:
    began = time.monotonic()
    assert agent.ok(want=1, wait_s=0.5).get("leases", []) == []
    assert 0.4 < time.monotonic() - began < PARKED_S


def test_a_wait_answers_when_the_job_ends_and_at_its_time(town: Town, agent: HttpAgent) -> None:
    job = agent.submit()
    agent.ok(want=1)
    began = time.monotonic()
    assert town.must("GET", f"/v1/jobs/{job}/wait?timeout_s=0.3")["state"] == "ASSIGNED"
    assert time.monotonic() - began < PARKED_S
    wait = in_background(lambda: town.must("GET", f"/v1/jobs/{job}/wait?timeout_s={PARKED_S}"))
    agent.report(job, "RUNNING")
    agent.report(job, "SUCCEEDED", exit_code=0)
    answer, took_s = wait()
    assert answer["state"] == "SUCCEEDED"
    assert took_s < PARKED_S - LOOK_S
    for bad in ("nan", "-1", "soon", "", "inf"):
        assert town.ask("GET", f"/v1/jobs/{job}/wait?timeout_s={bad}", token=town.root).status == 400


def test_many_waits_for_jobs_that_end_at_once_all_come_back_soon(town: Town, agent: HttpAgent) -> None:
    """An end that falls between the look and the wait must not cost the waiter seconds."""

    def round_s() -> float:
        jobs = [agent.submit() for _ in range(25)]
        agent.ok(want=50)
        waits = [in_background(lambda job=job: town.must("GET", f"/v1/jobs/{job}/wait?timeout_s=30")) for job in jobs]
        agent.ok(reports=[{"job": job, "fence": 1, "seen": "SUCCEEDED"} for job in jobs])
        ended = [wait() for wait in waits]
        assert {answer["state"] for answer, _ in ended} == {"SUCCEEDED"}
        return max(took_s for _, took_s in ended)

    assert is_at_once(round_s)


# --- idempotency, as a client sees it


def test_a_key_gives_the_same_job_over_http(town: Town, agent: HttpAgent) -> None:
    key = {"Idempotency-Key": town.name("key")}
    body = {"spec": SPEC, "project": "own", "cluster": agent.cluster}

    def submit(**fields: Any) -> Any:
        return town.ask("POST", "/v1/jobs", body | fields, token=town.root, headers=key)

    first, again = submit(), submit()
    assert (first.status, again.status) == (201, 200)
    assert first.json == again.json
    other = submit(priority=1)
    assert (other.status, other.json["code"]) == (409, "key-reused")
    town.must("DELETE", f"/v1/clusters/{agent.cluster}")
    late = submit()
    assert (late.status, late.json["id"]) == (200, first.json["id"]), "what was accepted stays accepted"
    assert submit(priority=2).status == 409
