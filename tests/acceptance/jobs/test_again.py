"""Again: retries by cause and code, once more elsewhere, dependencies, holds, priorities, expiry; returned leases."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.stage import waiting_for
from tests.processes import PATIENCE_S, until
from tests.programs import Answer, Server, call, start_agent, start_server

NODES = {"nodes": 1, "each": {"core": 4, "memory": "8GiB"}}
FINAL = ("SUCCEEDED", "FAILED", "CANCELLED", "REJECTED")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> object:
    folder = tmp_path_factory.mktemp("again")
    with (
        start_server(folder) as running,
        start_agent(folder, running.url, "alpha", graph=NODES),
        start_agent(folder, running.url, "beta", graph=NODES),
    ):
        yield running


def submit(server: Server, command: list[str], *, spec: dict[str, object] | None = None, **request: object) -> str:
    answer = call("POST", f"{server.url}/v1/jobs", {"spec": {"command": command, **(spec or {})}, **request})
    assert answer.status == 201, answer.body
    return str(answer.json["id"])


def job(server: Server, job_id: str) -> dict[str, object]:
    return dict(call("GET", f"{server.url}/v1/jobs/{job_id}").json)


def ended(server: Server, job_id: str) -> dict[str, object]:
    until(lambda: job(server, job_id)["state"] in FINAL, PATIENCE_S, f"{job_id} has its end")
    return job(server, job_id)


def now_us(server: Server) -> int:
    return int(call("GET", f"{server.url}/v1/version").json["now_us"])


def kinds(server: Server, job_id: str) -> list[str]:
    return [event["kind"] for event in call("GET", f"{server.url}/v1/jobs/{job_id}/events").json["items"]]


def test_a_job_is_tried_again_by_exit_code_until_its_budget_is_spent(server: Server, tmp_path: Path) -> None:
    ledger = tmp_path / "runs"
    retry = {"limit": 2, "backoff": 1, "exit_codes": "3,70-80"}
    never = submit(server, ["/bin/sh", "-c", f"echo x >> {ledger}; exit 75"], spec={"retry": retry})
    done = ended(server, never)
    assert (done["state"], done["exit_code"], done["tries"]) == ("FAILED", 75, 2)
    assert ledger.read_text().count("x") == 3
    assert kinds(server, never).count("retrying") == 2


def test_an_exit_code_that_is_not_named_ends_it(server: Server) -> None:
    other = submit(server, ["sh", "-c", "exit 4"], spec={"retry": {"limit": 5, "backoff": 1, "exit_codes": "3"}})
    done = ended(server, other)
    assert (done["state"], done.get("tries", 0)) == ("FAILED", 0)


def test_a_cause_that_is_not_named_ends_it(server: Server) -> None:
    other = submit(server, ["false"], spec={"retry": {"limit": 5, "backoff": 1, "causes": ["lost", "cluster"]}})
    assert ended(server, other)["state"] == "FAILED"


def test_once_more_is_a_new_job_and_elsewhere_avoids_the_first_cluster(server: Server) -> None:
    first = ended(server, submit(server, ["false"]))
    answer = call("POST", f"{server.url}/v1/jobs/{first['id']}/retry", {"elsewhere": True})
    assert answer.status == 201
    again = ended(server, answer.json["id"])
    assert again["retry_of"] == first["id"]
    assert again["cluster"] != first["cluster"]
    assert job(server, str(first["id"]))["state"] == "FAILED"  # what is over stays over


def test_a_running_job_cannot_be_tried_again(server: Server) -> None:
    running = submit(server, ["sleep", "600"])
    until(lambda: job(server, running)["state"] == "RUNNING", PATIENCE_S, "it runs")
    answer = call("POST", f"{server.url}/v1/jobs/{running}/retry", {})
    assert (answer.status, answer.json["code"]) == (409, "conflict")
    call("POST", f"{server.url}/v1/jobs/{running}/cancel", {})
    assert ended(server, running)["state"] == "CANCELLED"


@pytest.mark.parametrize(
    ("command", "condition", "state"),
    [
        ("true", "", "SUCCEEDED"),
        ("true", ":ok", "SUCCEEDED"),
        ("false", ":ok", "CANCELLED"),
        ("false", ":any", "SUCCEEDED"),
        ("false", ":notok", "SUCCEEDED"),
        ("true", ":notok", "CANCELLED"),
    ],
)
def test_a_job_begins_after_another(server: Server, tmp_path: Path, command: str, condition: str, state: str) -> None:
    gate = tmp_path / "gate"
    first = submit(server, ["sh", "-c", f"{waiting_for(gate)}; echo first >> {tmp_path}/order; {command}"])
    second = submit(server, ["sh", "-c", f"echo second >> {tmp_path}/order"], after=[f"{first}{condition}"])
    assert job(server, second)["state"] == "PENDING"
    gate.touch()
    assert ended(server, second)["state"] == state
    wanted = ["first", "second"] if state == "SUCCEEDED" else ["first"]
    assert (tmp_path / "order").read_text().split() == wanted


def test_a_chain_falls_like_dominoes(server: Server) -> None:
    first = submit(server, ["false"])
    second = submit(server, ["true"], after=[first])
    third = submit(server, ["true"], after=[second])
    last = submit(server, ["true"], after=[f"{third}:any"])
    assert [ended(server, each)["state"] for each in (second, third, last)] == ["CANCELLED", "CANCELLED", "SUCCEEDED"]


def test_it_waits_for_an_unknown_job_is_refused(server: Server) -> None:
    answer = call(
        "POST", f"{server.url}/v1/jobs", {"spec": {"command": ["true"]}, "after": ["01ARZ3NDEKTSV4RRFFQ69G5FAV"]}
    )
    assert (answer.status, answer.json["code"]) == (400, "unknown-name")


@pytest.mark.parametrize(
    ("after", "says"),
    [(["#0"], "itself"), (["#1"], "round"), (["#9"], "has 2 jobs")],
)
def test_a_dependency_on_oneself_or_in_a_ring_is_refused(server: Server, after: list[str], says: str) -> None:
    jobs = [{"spec": {"command": ["true"]}, "after": after}, {"spec": {"command": ["true"]}, "after": ["#0"]}]
    answer = call("POST", f"{server.url}/v1/jobs/bulk", {"jobs": jobs})
    assert answer.status == 400
    assert says in answer.json["detail"]


def test_hold_and_release(server: Server) -> None:
    held = submit(server, ["true"], hold=True)
    assert job(server, held)["is_held"]
    assert "held" in str(job(server, held)["reason"])
    change(server, held, hold=False)
    assert ended(server, held)["state"] == "SUCCEEDED"
    answer = call("PATCH", f"{server.url}/v1/jobs/{held}", {"hold": True})
    assert answer.status == 409


def test_a_higher_priority_goes_first(server: Server, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    blocker = submit(server, ["sh", "-c", waiting_for(gate)], cluster="alpha", spec={"resources": {"cores": 4}})
    until(lambda: job(server, blocker)["state"] == "RUNNING", PATIENCE_S, "alpha is full, so that the line forms")
    note = f"echo $SWITCHYARD_JOB_ID >> {tmp_path}/order"
    ids = [
        submit(server, ["sh", "-c", note], cluster="alpha", spec={"resources": {"cores": 4}}, priority=priority)
        for priority in (0, 5, 1)
    ]
    change(server, ids[0], priority=10)
    gate.touch()
    for each in ids:
        ended(server, each)
    assert (tmp_path / "order").read_text().split() == [ids[0], ids[1], ids[2]]


def test_a_job_that_does_not_begin_in_time_expires(server: Server, tmp_path: Path) -> None:
    late = submit(server, ["true"], hold=True, expires_after=1)
    done = ended(server, late)
    assert (done["state"], done["reason"]) == ("FAILED", "expired: it did not begin in time")
    for expires_after in (1, 5, 25):  # a busy machine may not begin it in a second
        gate = tmp_path / f"gate-{expires_after}"
        quick = submit(server, ["sh", "-c", waiting_for(gate)], expires_after=expires_after)
        until(lambda quick=quick: job(server, quick)["state"] in ("RUNNING", *FINAL), PATIENCE_S, "it runs")  # type: ignore[misc]
        if job(server, quick)["state"] == "RUNNING":
            break
    created_us = int(str(job(server, quick)["created_us"]))
    until(lambda: now_us(server) > created_us + (expires_after + 1) * 1_000_000, PATIENCE_S, "its time is over")
    gate.touch()
    assert ended(server, quick)["state"] == "SUCCEEDED"  # it began in time


def test_a_returned_job_runs_elsewhere_and_explain_says_why(tmp_path: Path) -> None:
    chooser = tmp_path / "picky.sh"
    chooser.write_text(
        "#!/usr/bin/env python3\n"
        "import json, sys\n"
        "asked = json.load(sys.stdin)['waiting']\n"
        "why = {'reason': 'no licence here'}\n"
        "print(json.dumps({'return': [{'job': l['job'], 'fence': l['fence'], **why} for l in asked]}))\n"
    )
    chooser.chmod(0o755)
    with (
        start_server(tmp_path) as server,
        start_agent(tmp_path, server.url, "picky", graph=NODES, extra=["--chooser", str(chooser)]),
    ):
        first = submit(server, ["true"])
        until(lambda: "returned" in kinds(server, first), PATIENCE_S, "the cluster gave it back")
        with start_agent(tmp_path, server.url, "easy", graph=NODES):
            done = ended(server, first)
            assert (done["state"], done["cluster"]) == ("SUCCEEDED", "easy")
            told = call("GET", f"{server.url}/v1/jobs/{first}/explain").json
            verdicts = {verdict["cluster"]: verdict for verdict in told["plan"]["verdicts"]}
            assert "comes last: returned: no licence here" in verdicts["picky"]["reason"]


@pytest.mark.parametrize(("on_lost", "state"), [("requeue", "SUCCEEDED"), ("fail", "FAILED")])
def test_what_becomes_of_a_job_whose_cluster_falls_silent(tmp_path: Path, on_lost: str, state: str) -> None:
    """A minute of silence is shortened to a second by `lost_after`; being down takes its own fifteen."""
    with start_server(tmp_path) as server, start_agent(tmp_path, server.url, "alpha", graph=NODES) as agent:
        command = ["sh", "-c", f"[ -e {tmp_path}/second ] || {{ touch {tmp_path}/second; sleep 600; }}"]
        first = submit(server, command, spec={"on_lost": on_lost, "lost_after": 1})
        until(lambda: job(server, first)["state"] == "RUNNING", PATIENCE_S, "it runs")
        agent.kill()
        with start_agent(tmp_path, server.url, "beta", graph=NODES):
            done = ended(server, first)
            assert done["state"] == state
            # The first cluster comes back and is told to stop what it still runs.
            agent.start()
            until(lambda: "event=stop" in agent.log, PATIENCE_S, "the old attempt is stopped")


@pytest.mark.parametrize("array", [None, "3"])
def test_fail_with_a_retry_after_lost_begins_again(tmp_path: Path, array: str | None) -> None:
    """The first attempt lives on while its agent is away. Its fence is too low: when it is heard of, it is stopped."""
    folder = tmp_path / "fences"
    folder.mkdir()
    # Each attempt leaves its fence; the first one never ends by itself.
    command = ["sh", "-c", f"touch {folder}/$SWITCHYARD_FENCE; [ $(ls {folder} | wc -l) -gt 1 ] || exec sleep 600"]
    spec = {"on_lost": "fail", "lost_after": 1, "retry": {"limit": 1, "causes": ["lost"], "backoff": 1}}
    requeued = "task-requeued" if array else "requeued"
    with start_server(tmp_path) as server, start_agent(tmp_path, server.url, "alpha", graph=NODES) as agent:
        first = submit(server, command, spec=spec, **({"array": array} if array else {}))
        until(lambda: len(list(folder.iterdir())) == 1, PATIENCE_S, "the first attempt runs")
        agent.kill()
        with start_agent(tmp_path, server.url, "beta", graph=NODES):
            until(lambda: requeued in kinds(server, first), 300, "the first attempt is lost, and tried again")
            agent.start()
            until(lambda: "event=stop" in agent.log, 300, "the first attempt is stopped")
            until(lambda: job(server, first)["state"] in FINAL, 300, "the second attempt ended")
            assert job(server, first)["state"] == "SUCCEEDED"
            assert kinds(server, first).count(requeued) == 1
            assert len(list(folder.iterdir())) == 2


def test_bulk_is_all_or_none_unless_each_is_asked_for(server: Server) -> None:
    jobs: list[dict[str, object]] = [{"spec": {"command": ["true"]}, "labels": {"bulk": "7"}} for _ in range(5000)]
    jobs[4321] = {"spec": {"command": []}}
    refused = call("POST", f"{server.url}/v1/jobs/bulk", {"jobs": jobs})
    assert refused.status == 400
    assert "jobs[4321]" in refused.json["detail"]
    assert count(server, "bulk=7") == 0
    jobs = [*jobs[:60], jobs[4321]]
    each = call("POST", f"{server.url}/v1/jobs/bulk", {"jobs": jobs, "each": True})
    assert (each.status, each.json["made"], each.json["refused"]) == (201, 60, 1)
    assert each.json["items"][60]["problem"]["code"] == "malformed"
    until(lambda: count(server, "bulk=7&state=SUCCEEDED") == 60, PATIENCE_S, "all of the bulk ran")


def test_a_bulk_with_a_key_is_made_once(server: Server) -> None:
    body = {"jobs": [{"spec": {"command": ["true"]}, "labels": {"key": "yes"}} for _ in range(10)]}
    first = keyed(server, body)
    again = keyed(server, body)
    assert (first.status, again.status) == (201, 200)
    assert [item["job"]["id"] for item in first.json["items"]] == [item["job"]["id"] for item in again.json["items"]]
    assert keyed(server, {"jobs": body["jobs"][:3]}).status == 409
    assert count(server, "key=yes") == 10


def keyed(server: Server, body: object) -> Answer:
    return call("POST", f"{server.url}/v1/jobs/bulk", body, headers={"Idempotency-Key": "bulk-1"})


def count(server: Server, label_and_more: str) -> int:
    return len(call("GET", f"{server.url}/v1/jobs?limit=500&label={label_and_more}").json["items"])


def change(server: Server, job_id: str, **wanted: object) -> None:
    answer = call("PATCH", f"{server.url}/v1/jobs/{job_id}", wanted)
    assert answer.status == 200, answer.body
