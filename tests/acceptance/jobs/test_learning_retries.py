"""Retries that learn: by the kind of the failure, with more memory or time, elsewhere, within rules; what failed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from switchyard import Client
from tests.acceptance.stage import Stage, graph, staged
from tests.programs import start_agent

# As much memory as a limit of 128MiB refuses, and one of 256MiB allows.
HUNGRY = (sys.executable, "-S", "-c", "bytearray(150 << 20)")
SMALL = {"memory": "128MiB"}
DOUBLE = {"out-of-memory": {"limit": 2, "memory": "x2"}}


def retry(on: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"backoff": 1, "on": on, **fields}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("learning")
    with staged(folder) as stage, start_agent(folder, stage.url, "alpha", graph=graph(4, memory="1GiB")):
        with start_agent(folder, stage.url, "beta", graph=graph(4, memory="1GiB")):
            yield stage


def test_a_job_that_ran_out_of_memory_runs_again_with_more(stage: Stage) -> None:
    done = stage.ended(stage.submit(*HUNGRY, spec={"resources": SMALL, "retry": retry(DOUBLE)}))
    assert (done["state"], done["tries"], done["spec"]["resources"]["memory"]) == ("SUCCEEDED", 1, "256MiB")
    (first,) = done["attempts"]
    assert (first["ended"], first["failure"], first["asked"]) == ("failed", "out-of-memory", {"memory": "128MiB"})
    assert first["reason"].endswith("next attempt: memory 256MiB instead of 128MiB")
    shown = stage.yard("show", done["id"], check=True).stdout
    assert "out-of-memory, with memory 128MiB" in shown
    assert "256MiB memory" in shown
    page = stage.call("GET", f"/jobs/{done['id']}").body.decode()
    assert "Earlier attempts" in page
    assert "memory 128MiB" in page


def test_a_job_that_was_too_slow_gets_more_time(stage: Stage) -> None:
    on = {"time-limit": {"limit": 1, "time": "x10"}}
    done = stage.ended(stage.submit("sleep", "1.5", spec={"resources": {"time_limit": "1s"}, "retry": retry(on)}))
    assert (done["state"], done["spec"]["resources"]["time_limit"]) == ("SUCCEEDED", "10s")
    assert [(each["failure"], each["asked"]) for each in done["attempts"]] == [("time-limit", {"time_limit": "1s"})]


def test_a_failure_with_a_rule_to_go_elsewhere_does(stage: Stage) -> None:
    on = {"exit-code": {"limit": 1, "elsewhere": True}}
    done = stage.ended(stage.submit("false", spec={"retry": retry(on)}))
    assert (done["state"], done["failure"]) == ("FAILED", "exit-code")
    assert {done["attempts"][0]["cluster"], done["cluster"]} == {"alpha", "beta"}


def test_a_raise_for_which_no_cluster_is_large_enough_ends_the_job_with_words(stage: Stage) -> None:
    on = {"exit-code": {"limit": 1, "memory": "x10"}}
    done = stage.ended(stage.submit("false", spec={"resources": SMALL, "retry": retry(on)}))
    assert done["state"] == "FAILED"
    assert done["reason"].startswith("its next attempt cannot run: no cluster could ever run it: ")


def test_a_project_has_a_policy_for_jobs_that_say_nothing(stage: Stage) -> None:
    stage.post("/v1/projects", {"name": "learning"})
    value = {"backoff": 1, "on": {"out-of-memory": {"limit": 1, "memory": "x4", "memory_max": "256MiB"}}}
    scope = "/v1/attributes/retry-policy?project=learning"
    assert stage.call("PUT", scope, value, headers={"If-None-Match": "*"}).status == 200
    done = stage.ended(stage.submit(*HUNGRY, project="learning", spec={"resources": SMALL}))
    assert (done["state"], done["spec"]["resources"]["memory"]) == ("SUCCEEDED", "256MiB")
    assert {value["field"] for value in done["policy"]["values"] if value["kind"] == "retry-policy"} == {
        "backoff",
        "on.out-of-memory",
    }
    own = stage.ended(stage.submit(*HUNGRY, project="learning", spec={"resources": SMALL, "retry": {}}))
    assert (own["state"], own["failure"]) == ("FAILED", "out-of-memory")
    asks_for_no_memory = stage.submitted("true", project="learning")
    assert asks_for_no_memory["state"] == "ASSIGNED", "a raise that cannot be is left out"


def test_what_fails_where_is_counted_for_all_doors(stage: Stage) -> None:
    stage.post("/v1/projects", {"name": "counted"})
    for cluster in ("alpha", "alpha", "beta"):
        stage.ended(stage.submit("false", project="counted", cluster=cluster))
    by_http = stage.get("/v1/stats/failures?project=counted")
    assert [(row["name"], row["count"], row["kinds"]) for row in by_http["rows"]] == [
        ("alpha", 2, {"exit-code": 2}),
        ("beta", 1, {"exit-code": 1}),
    ]
    with Client(stage.url) as client:
        assert client.failure_stats(by="kind", project="counted").rows[0].count == 3
    shown = stage.yard("stats", "failures", "--by", "owner", "--project", "counted", check=True).stdout
    assert "3 attempts failed in the last 1d" in shown
    assert "100%" in shown
    assert "Attempts that failed" in stage.call("GET", "/").body.decode()
    unknown = stage.call("GET", "/v1/stats/failures?by=colour")
    assert (unknown.status, "cluster, kind, node, owner" in unknown.json["detail"]) == (400, True), unknown.body


def spec(on: Any = None, *, resources: Any = None, **fields: Any) -> dict[str, Any]:
    return {"command": ["true"], "resources": resources or {}, "retry": {"on": on}, **fields}


def raise_memory(factor: Any, **fields: Any) -> dict[str, Any]:
    return spec({"out-of-memory": {"memory": factor, **fields}}, resources=SMALL)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a factor below 1": (raise_memory("x0.5"), "the factor x0.5 is not above x1"),
    "a factor of 1": (raise_memory("x1"), "the factor x1 is not above x1"),
    "a factor of 0": (raise_memory("x0"), "the factor x0 is not above x1"),
    "no number": (raise_memory("xNaN"), "'xNaN' is not a factor"),
    "a huge factor": (raise_memory("x1e9"), "'x1e9' is not a factor"),
    "a factor above the most": (raise_memory("x11"), "at most x10"),
    "a negative factor": (raise_memory("x-2"), "'x-2' is not a factor"),
    "a factor without x": (raise_memory("2"), "'2' is not a factor"),
    "a factor that is a number": (raise_memory(2), "str"),
    "a maximum below the request": (raise_memory("x2", memory_max="64MiB"), "memory_max (64MiB) is below"),
    "a maximum without a unit": (raise_memory("x2", memory_max="256"), "memory_max (256) is below"),
    "a maximum that is no amount": (raise_memory("x2", memory_max="much"), "'much' is not an amount"),
    "a maximum of nothing": (spec({"lost": {"memory_max": "1GiB"}}, resources=SMALL), "there is none: give `memory`"),
    "an unknown kind": (spec({"oom": {}}), "did you mean out-of-memory?"),
    "fifty kinds": (spec({f"kind-{number}": {} for number in range(50)}), "length <= 12"),
    "a negative limit": (spec({"lost": {"limit": -1}}), ">= 0"),
    "a limit above the most": (spec({"lost": {"limit": 101}}), "<= 100"),
    "an unknown field": (spec({"lost": {"cores": "x2"}}), "cores"),
    "more time of none": (spec({"time-limit": {"time": "x2"}}), "give it a `time_limit`"),
    "more memory of none": (spec({"out-of-memory": {"memory": "x2"}}), "give it a `memory`"),
    "less time at most": (
        spec({"time-limit": {"time": "x2", "time_max": "1h"}}, resources={"time_limit": "2h"}),
        "time_max (1h) is below its time limit (2h)",
    ),
    "rules that are no object": (spec([]), "object"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_rule_that_cannot_be_is_refused_with_what_to_change(stage: Stage, name: str) -> None:
    body, words = WRONG[name]
    answer = stage.call("POST", "/v1/jobs", {"spec": body})
    assert answer.status == 400, answer.body
    assert words in answer.body.decode()
    assert answer.json["next_step"]


def test_other_ways_to_say_it_wrongly_are_refused_too(stage: Stage) -> None:
    array = stage.call("POST", "/v1/jobs", {"spec": raise_memory("x2"), "array": "0-3"})
    assert (array.status, "the tasks of an array" in array.body.decode()) == (400, True), array.body
    either = {**raise_memory("x2"), "alternatives": [{"memory": "64MiB"}]}
    refused = stage.call("POST", "/v1/jobs", {"spec": either})
    assert (refused.status, "a job with alternatives" in refused.body.decode()) == (400, True), refused.body
    twice = b'{"spec":{"command":["a"],"retry":{"on":{"lost":{},"lost":{"limit":3}}}}}'
    assert stage.call("POST", "/v1/jobs", twice).status == 400
    for options, words in (
        (["--retry-on", "image:1", "--retry-on", "image:2"], "two rules for the failure image"),
        (["--retry-on", "oom:2"], "did you mean out-of-memory?"),
        (["--retry-on", "out-of-memory:2,memory=2", "--memory", "1GiB"], "'2' is not a factor"),
    ):
        done = stage.yard("submit", *options, "--", "true")
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr
