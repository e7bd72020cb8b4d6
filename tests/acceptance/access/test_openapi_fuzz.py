"""Every operation of the OpenAPI document, called with what the document allows and with what it does not.

What conforms is never refused as malformed, what does not conform is refused, and no answer is a 5xx, undocumented or
of another form than the document promises. The cases are the same in each run of `make test`; `make soak` makes more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.parameters import ParameterLocation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
)

from switchyard.server.http.endpoint import Caller
from switchyard.server.http.endpoints import ENDPOINTS
from switchyard.server.http.openapi import document
from tests.acceptance.stage import Stage, graph, staged

pytestmark = pytest.mark.xdist_group("openapi")

EXAMPLES = 2  # of each operation, right and wrong: five hundred calls
MANY_EXAMPLES = 150  # in `make soak`
WAIT_S_MAX = 0.1  # a call that is meant to be held is not held long here
SMALLER = {"maxLength": 40, "maxItems": 3, "maxProperties": 3}
NO_NEWLINE = r"(?!\n)"
# Streams never end, so they have tests of their own.
ENDLESS = {"/v1/events/stream"}
# Bodies of frames have no schema, so they have tests of their own.
FRAMES = {"/v1/files/objects", "/v1/agents/files/objects"}
OPERATIONS = sorted(
    (path, method)
    for path, methods in document()["paths"].items()
    for method in methods
    if path not in ENDLESS | FRAMES and method in ("get", "post", "put", "patch", "delete")
)
CALLERS = {(endpoint.path, endpoint.method.lower()): endpoint.caller for endpoint in ENDPOINTS}
CHECKS = [
    not_a_server_error,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
RIGHT, WRONG = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
JOBSPEC = {
    "version": 1,
    "resources": [{"type": "slot", "count": 1, "label": "task", "with": [{"type": "core", "count": 1}]}],
    "tasks": [{"command": ["true"], "slot": "task", "count": {"per_slot": 1}}],
    "attributes": {"system": {"duration": 60}},
}
KIND = "execution-queue-attribute"
# Documents within a body that have formats of their own, which this schema does not repeat: here they are right.
DOCUMENTS: dict[str, Any] = {
    "demand": {name: JOBSPEC[name] for name in ("version", "resources")},
    "jobspec": JOBSPEC,
    "options": {},
    "graph": {"shapes": [{"type": "core"}, {"type": "node", "children": [[0, 2]]}]},
    "hosts": "",  # a hostlist, as Flux writes it
    "ranks": "",
}

BETA = [("POST", "/v1/clusters", {"name": "beta", "groups": ["lab"]}), ("PUT", "/v1/clusters/beta/graph", graph(2))]
# What a word of a path stands for is made by these calls.
MAKERS: dict[str, list[tuple[str, str, Mapping[str, Any]]]] = {
    "cluster": BETA,
    "group": BETA,
    "user": [("POST", "/v1/users", {"name": "someone"})],
    "project": [("POST", "/v1/projects", {"name": "own"})],
    "namespace": [("PUT", "/v1/token-pools/licences", {"quota": 5})],
    "name": [
        ("PUT", "/v1/pools/blue", {"members": []}),
        ("PUT", "/v1/cluster-labels/blue", {"members": []}),
        ("PUT", "/v1/queues/blue", {}),
    ],
}


@dataclass(frozen=True)
class World:
    """A server with something of each kind in it, and whom to be."""

    stage: Stage
    document: dict[str, Any]
    agent: str
    joiner: str
    job: str
    schemas: dict[GenerationMode, Any]  # what cases are made from

    def token(self, path: str, method: str) -> str:
        caller = CALLERS.get((path, method))
        if caller is Caller.AGENT:
            return self.agent
        return self.joiner if caller is Caller.JOINER else str(self.stage.token)

    def words(self, path: str) -> dict[str, str]:
        """What the words of a path may stand for, so that not every call ends with 404. All of it is there again."""
        for word, calls in MAKERS.items():
            for method, place, body in calls if f"{{{word}}}" in path else ():
                headers = {"If-None-Match": "*"} if word == "name" else {}
                self.stage.call(method, place, body, headers=headers)
        return {
            "job": self.job,
            "cluster": "alpha" if path == "/v1/clusters/{cluster}" else "beta",
            "group": "lab",
            "user": "someone",
            "project": "own",
            "namespace": "licences",
            "domain": "development",
            "name": "blue",
            "kind": KIND,
        }


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with staged(tmp_path_factory.mktemp("stage"), auth=True) as made, made.agent("alpha"):
        made.ended(made.submit("true"))
        job = made.submit("true", array="0-3")
        made.ended(job)
        joiner = made.invite("gamma", is_reusable=True)
        asked = {"cluster": "gamma", "name": "fuzzed", "journal": "j1", "backend": "fake"}
        joined = made.post("/v1/agents/join", asked, token=joiner)
        described = made.get("/v1/openapi.json")
        schemas = {mode: _schema(described, mode, made.url) for mode in (RIGHT, WRONG)}
        yield World(made, described, joined["credential"], joiner, job, schemas)
        assert made.call("GET", "/readyz").status == 200


def _schema(described: dict[str, Any], mode: GenerationMode, url: str) -> Any:
    """What cases are made from: without the credential, which each call has. Made once: that takes long."""
    made = _bounded(described, is_kept=mode == RIGHT)
    del made["security"], made["components"]["securitySchemes"]
    loaded = schemathesis.openapi.from_dict(made)
    loaded.config.update(base_url=url)
    return loaded


def _bounded(value: Any, *, is_kept: bool) -> Any:
    """The document with smaller bounds, within which cases are quickly made.

    What is right within smaller bounds is right within the larger ones. What is wrong may not be, so there a bound that
    would be smaller is left out: tests of single bounds have it.
    """
    if isinstance(value, list):
        return [_bounded(item, is_kept=is_kept) for item in value]
    if not isinstance(value, dict):
        return value
    # A graph is a sample of ours, and answers have real ones.
    found = {key: item if key == "Graph" else _bounded(item, is_kept=is_kept) for key, item in value.items()}
    for name, most in SMALLER.items():
        if isinstance(found.get(name), int) and found[name] > most:
            del found[name]
            if is_kept:
                found[name] = max(most, found.get(name.replace("max", "min"), 0))
    if isinstance(found.get("pattern"), str):
        # Every generated text is checked against it, and hardly any ends with a newline.
        found["pattern"] = found["pattern"].replace(NO_NEWLINE, "")
    return found


@pytest.mark.parametrize(("path", "method"), OPERATIONS, ids=lambda word: word)
def test_what_the_document_allows_is_not_refused_as_malformed(world: World, path: str, method: str) -> None:
    _call_right(world, path, method, EXAMPLES)


@pytest.mark.parametrize(("path", "method"), OPERATIONS, ids=lambda word: word)
def test_what_the_document_does_not_allow_is_refused(world: World, path: str, method: str) -> None:
    _call_wrong(world, path, method, EXAMPLES)


def test_join_tokens_of_what_is_no_name_of_a_group_are_not_listed(world: World) -> None:
    for group in ("a%20b", "%E7%82%BB8"):
        assert world.stage.call("GET", f"/v1/cluster-groups/{group}/invites").status == 400


@pytest.mark.slow
@pytest.mark.parametrize(("path", "method"), OPERATIONS, ids=lambda word: word)
def test_many_calls_of_both_kinds(world: World, path: str, method: str) -> None:
    _call_right(world, path, method, MANY_EXAMPLES)
    _call_wrong(world, path, method, MANY_EXAMPLES)


def _call_right(world: World, path: str, method: str, examples: int) -> None:
    operation = world.schemas[RIGHT][path][method.upper()]
    words = world.words(path)

    @_so_often(examples)
    @given(case=operation.as_strategy(generation_mode=RIGHT))
    def call(case: Any) -> None:
        _use_words(case, words)
        _do_not_wait(case)
        case.body = _with_documents(case, case.body)
        response = case.call_and_validate(checks=CHECKS, timeout=60, headers=_bearer(world, path, method))
        _expect_declared(world.document, path, method, response)
        if response.status_code >= 400:
            assert response.json()["code"] not in ("malformed", "wrong-media", "method-not-allowed"), response.text

    call()


def _call_wrong(world: World, path: str, method: str, examples: int) -> None:
    operation = world.schemas[WRONG][path][method.upper()]
    if not (operation.body or operation.query or operation.path_parameters or operation.headers):
        return  # what takes nothing cannot be called wrongly
    words = world.words(path)

    @_so_often(examples)
    @given(case=operation.as_strategy(generation_mode=WRONG))
    def call(case: Any) -> None:
        if not _is_wrong(case, ParameterLocation.PATH):
            _use_words(case, words)
        headers = _bearer(world, path, method)
        response = case.call_and_validate(checks=[*CHECKS, negative_data_rejection], timeout=60, headers=headers)
        _expect_declared(world.document, path, method, response)

    call()


def _so_often(examples: int) -> Any:
    return settings(
        max_examples=examples, phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None
    )


def _bearer(world: World, path: str, method: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {world.token(path, method)}"}


def _expect_declared(described: dict[str, Any], path: str, method: str, response: Any) -> None:
    """`default` is for defects alone. A method that is not there, and an address that is none, are no operation's."""
    declared = described["paths"][path][method]["responses"]
    assert str(response.status_code) in declared, f"{response.status_code} is not declared: {response.text}"


def _is_wrong(case: Any, place: ParameterLocation) -> bool:
    component = case.meta.components.get(place)
    return component is not None and component.mode == WRONG


def _use_words(case: Any, words: dict[str, str]) -> None:
    """Every second call is about something that is there."""
    if case.path_parameters and len(str(case.query) + str(case.body)) % 2:
        case.path_parameters = {name: words.get(name, value) for name, value in case.path_parameters.items()}


def _do_not_wait(case: Any) -> None:
    for name in ("timeout_s", "wait_s"):
        if name in {parameter.name for parameter in case.operation.query}:
            case.query = {**(case.query or {}), name: WAIT_S_MAX}
    if isinstance(case.body, dict) and isinstance(case.body.get("wait_s"), int | float):
        case.body["wait_s"] = WAIT_S_MAX


def _with_documents(case: Any, body: Any) -> Any:
    """The body with right documents where it has any."""
    path = case.operation.path
    if case.operation.method.upper() == "PUT" and path.endswith("/graph"):
        return dict(graph(2))
    if case.operation.method.upper() == "PUT" and path.endswith("/{subsystem}"):
        case.path_parameters = {**case.path_parameters, "cluster": "beta"}
        return {"attach": {"node0": [{"type": "licence"}]}}
    if path.startswith("/v1/attributes/") and isinstance(body, dict):
        case.path_parameters = {"kind": KIND}
        return {"tags": ["default"]}
    return _filled(body)


def _filled(value: Any) -> Any:
    if isinstance(value, list):
        return [_filled(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: DOCUMENTS[key] if key in DOCUMENTS and isinstance(item, type(DOCUMENTS[key])) else _filled(item)
        for key, item in value.items()
    }
