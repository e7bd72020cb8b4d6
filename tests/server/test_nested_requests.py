"""Deeply nested requests at every door of a real server: refused, and the server and its other users are as before."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from switchyard.model.wire.decode import NESTING_MAX
from switchyard.server.http.connections.asgi_messages import answer_errors
from tests.programs import Answer, Server, call, isolated_env, yard
from tests.server.rainbow_clusters import registered, submitted
from tests.server.rainbow_door import JOB, Door, rainbow

DEPTHS = [NESTING_MAX, 600, 972, 973, 974, 975, 976, 977, 978, 30_000]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Door]]:
    with rainbow(tmp_path_factory.mktemp("nested")) as both:
        yield both
        assert "level=error" not in both[0].log


def nested(depth: int) -> str:
    """A job with a value of that many levels in a field that takes any value."""
    inner = "[" * depth + "]" * depth
    slot = '{"type":"slot","count":1,"label":"t","with":[{"type":"core","count":1}]}'
    task = '{"command":["true"],"slot":"t","count":{"per_slot":1}}'
    attributes = f'{{"system":{{"duration":60}},"user":{{"a":{inner}}}}}'
    demand = f'{{"version":1,"resources":[{slot}],"tasks":[{task}],"attributes":{attributes}}}'
    return f'{{"hold":true,"spec":{{"command":["true"],"demand":{demand}}}}}'


def refused(answer: Answer) -> bool:
    return (answer.status, answer.json["code"]) == (400, "malformed") and "nested too deeply" in answer.json["detail"]


@pytest.mark.parametrize("text", ["[", "{a: ", "- ", JOB + "attributes: {user: {a: ["])
def test_a_jobspec_without_end_does_not_end_the_server(opened: tuple[Server, Door], text: str) -> None:
    server, door = opened
    cluster = registered(door, f"deep-{len(text)}")
    said = submitted(door, cluster, jobspec=text + text[-1] * 200_000 if text.endswith("[") else text * 200_000)
    assert said.code == "INVALID_ARGUMENT"
    assert "nested deeper than 64" in said.words
    assert call("GET", f"{server.url}/healthz").status == 200
    assert submitted(door, cluster).status == "SUBMIT_SUCCESS"


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/plan", "/v1/quotes"])
@pytest.mark.parametrize("depth", DEPTHS)
def test_a_deep_job_is_refused(opened: tuple[Server, Door], path: str, depth: int) -> None:
    assert refused(call("POST", opened[0].url + path, nested(depth).encode()))


def test_a_deep_job_of_a_bulk_request_is_refused_alone(opened: tuple[Server, Door]) -> None:
    body = f'{{"each":true,"jobs":[{{"hold":true,"spec":{{"command":["true"]}}}},{nested(100)}]}}'.encode()
    answer = call("POST", f"{opened[0].url}/v1/jobs/bulk", body).json
    assert (answer["made"], answer["refused"]) == (1, 1)
    assert "nested too deeply" in answer["items"][1]["problem"]["detail"]


@pytest.mark.parametrize("depth", DEPTHS)
def test_deep_bodies_of_other_calls_are_refused(opened: tuple[Server, Door], depth: int) -> None:
    url, inner = opened[0].url, "[" * depth + "]" * depth
    rule = f'{{"security_context":{{"secrets":[{{"a":{inner}}}]}}}}'.encode()
    path = f"{url}/v1/attributes/workflow-execution-config?domain=development"
    assert refused(call("PUT", path, rule, headers={"If-None-Match": "*"}))
    select = json.dumps({"spec": {"command": ["a"]}, "select": {"name": "constraint", "options": {"priorities": []}}})
    assert refused(call("POST", f"{url}/v1/plan", select.replace("[]", inner).encode()))
    flyte = f'{{"attributes":{{"project":"default","matching_attributes":{inner}}}}}'.encode()
    assert call("PUT", f"{url}/api/v1/project_attributes/default", flyte).status == 400


def test_the_deepest_job_is_taken_and_every_command_shows_it(opened: tuple[Server, Door], tmp_path: Path) -> None:
    server, _ = opened
    around = 5  # the levels of `nested` around its value, with that of the body
    made = call("POST", f"{server.url}/v1/jobs", nested(NESTING_MAX - around).encode())
    assert made.status == 201, made.body
    assert refused(call("POST", f"{server.url}/v1/jobs", nested(NESTING_MAX - around + 1).encode()))
    env = isolated_env(tmp_path, url=server.url)
    for words in (["ls"], ["show", made.json["id"]], ["explain", made.json["id"]]):
        for form in ("json", "yaml"):
            assert "[" in yard(*words, "-o", form, env=env, check=True).stdout


def test_recursion_without_end_is_a_refusal_and_no_defect() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def work() -> None:
        raise RecursionError

    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/x", "headers": [], "client": None}
    asyncio.run(answer_errors(scope, send, work))
    assert sent[0]["status"] == 400
    assert b"nested too deeply" in sent[1]["body"]
