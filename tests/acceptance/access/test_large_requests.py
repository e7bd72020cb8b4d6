"""Large requests and answers: what is large by right works, in parts where it must; the rest is told its bound."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.acceptance.scripted import ScriptedAgent
from tests.acceptance.stage import Stage
from tests.programs import Answer

pytestmark = pytest.mark.xdist_group("large_requests")

MIB = 2**20
TRICKY = 'a ["b\\", {"c": 1}, \\'


def large(number: int, size: int) -> dict[str, Any]:
    """A spec of about that size, unlike any other."""
    return {"env": {f"K{at}": f"{number} {TRICKY}".ljust(100_000, "x") for at in range(size // 100_000)}}


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/v1/jobs", {"spec": {"command": ["x" * 100_000] * 100}}, "of a job is 8388608 bytes"),
        ("/v1/jobs", {"spec": {"command": ["x"] * 70_000}}, "of a job is 8388608 bytes with 65536 values"),
        ("/v1/plan", {"spec": {"command": ["x"] * 70_000}}, "of a job is"),
        ("/v1/users", {"name": "x", "groups": ["x" * 100] * 3_000}, "of a request is 262144 bytes"),
        ("/v1/jobs/bulk", {"jobs": [{"spec": {"command": ["x" * 100_000] * 100}}]}, "of a bulk request is 67108864"),
    ],
)
def test_what_is_too_large_is_told_which_bound(stage: Stage, path: str, body: Any, said: str) -> None:
    answer = stage.call("POST", path, body)
    assert (answer.status, answer.json["code"]) == (413, "too-large")
    assert said in answer.json["detail"]


def test_one_job_of_many_has_the_bounds_of_a_job(stage: Stage) -> None:
    good, bad = {"spec": {"command": ["true"]}}, {"spec": {"command": ["x"] * 70_000}}
    made = stage.post("/v1/jobs/bulk", {"jobs": [good, bad, good], "each": True})
    assert [list(item) for item in made["items"]] == [["job"], ["problem"], ["job"]]
    assert made["items"][1]["problem"]["code"] == "too-large"


def test_a_bulk_request_is_the_same_in_pieces(stage: Stage) -> None:
    jobs = [{"spec": {"command": ["true", TRICKY, str(at)]}, "name": f"n{at}"} for at in range(1_000)]
    jobs[7] = {"spec": {"command": []}}
    whole = json.dumps({"each": True, "jobs": jobs}, indent=1).encode()
    assert len(whole) > 64 * 1024
    answer = stage.call("POST", "/v1/jobs/bulk", whole)
    assert answer.status == 201
    items = answer.json["items"]
    assert [at for at, item in enumerate(items) if "problem" in item] == [7]
    seen = stage.job(items[999]["job"]["id"])
    assert (seen["name"], seen["spec"]["command"]) == ("n999", ["true", TRICKY, "999"])


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (b'],"each":true', "not valid JSON"),
        (b'],"each":true} x', "more after its end"),
        (b'],"each":1}', "each"),
        (b'],"other":1}', "other"),
        (b'],"jobs":[{}]}', "twice"),
        (b",]}", "comma"),
    ],
)
def test_a_large_bulk_request_that_is_not_well_formed_is_refused(stage: Stage, end: bytes, said: str) -> None:
    jobs = b",".join([b'{"spec":{"command":["true"]}}'] * 3_000)
    answer = stage.call("POST", "/v1/jobs/bulk", b'{"jobs":[' + jobs + end)
    assert (answer.status, answer.json["code"]) == (400, "malformed")
    assert said in answer.json["detail"]


def test_a_page_with_large_specs_ends_early(stage: Stage) -> None:
    ids = [stage.submit("true", spec=large(number, 3 * MIB), labels={"page": "large"}) for number in range(5)]
    page = stage.call("GET", "/v1/jobs?label=page%3Dlarge&spec=true&limit=500")
    assert 1 <= len(page.json["items"]) < 5
    assert len(page.body) < 10 * MIB
    found = stage.walk("/v1/jobs?label=page%3Dlarge&spec=true", limit=500)
    assert [job["id"] for job in found] == ids[::-1]
    assert found[0]["spec"]["env"] == large(4, 3 * MIB)["env"]


def test_large_specs_are_leased_in_several_answers(stage: Stage) -> None:
    agent = ScriptedAgent(stage, "large")
    ids = [stage.submit("true", spec=large(number, 7 * MIB), cluster="large") for number in range(5)]
    answers = [agent.lease(want=5) for _ in range(2)]
    assert 1 <= len(answers[0]) < 5
    assert [lease["job"] for answer in answers for lease in answer] == ids
    assert answers[0][0]["spec"]["env"] == large(0, 7 * MIB)["env"]


def polled(agent: ScriptedAgent, **fields: Any) -> Answer:
    return agent.poll(cancelling=[{"job": f"{at:026d}", "fence": at} for at in range(2_000)], **fields)


def test_a_poll_is_the_same_in_pieces(stage: Stage) -> None:
    agent = ScriptedAgent(stage, "pieces")
    job = stage.submit("true", cluster="pieces")
    (lease,) = agent.lease()
    reports = [{"job": job, "fence": lease["fence"], "seen": seen} for seen in ("RUNNING", "SUCCEEDED")]
    answer = polled(agent, reports=reports, load={"queued": 3})
    assert (answer.status, answer.json["answers"]) == (200, ["taken", "taken"]), answer.body
    assert stage.job(job)["state"] == "SUCCEEDED"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"reports": [{"job": "x", "fence": 1, "seen": "RUNNING"}]}, "reports"),
        ({"want": -1}, "want"),
        ({"nothing": 1}, "nothing"),
        ({"graph": {"shapes": []}}, "shapes"),
        ({"graph": {"shapes": [{"type": "core"}, {"type": "core"}]}}, "shapes"),
        ({"output": [{}]}, "output"),
    ],
)
def test_a_large_poll_that_is_wrong_is_told_where(stage: Stage, fields: dict[str, Any], said: str) -> None:
    answer = polled(ScriptedAgent(stage, "wrong"), **fields)
    assert (answer.status, answer.json["code"]) == (400, "malformed")
    assert said in answer.json["detail"]
