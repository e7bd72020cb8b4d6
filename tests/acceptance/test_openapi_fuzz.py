"""Every operation of the OpenAPI document, called with what the document allows and with what it does not.

No answer is a 5xx, none is undocumented, and each has the form that the document promises.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from switchyard.server.http.openapi import document
from tests.acceptance.stage import Stage, staged

pytestmark = pytest.mark.xdist_group("openapi")

EXAMPLES = 8  # of each operation, right and wrong: a thousand calls; `make soak` makes many more
WAIT_S_MAX = 0.2  # a call that is meant to be held is not held long here
SMALLER = {"maxLength": 40, "maxItems": 3, "maxProperties": 3}
NO_NEWLINE = r"(?!\n)"
# Streams never end, so they have tests of their own.
ENDLESS = {"/v1/events/stream"}
OPERATIONS = sorted(
    (path, method)
    for path, methods in document()["paths"].items()
    for method in methods
    if path not in ENDLESS and method in ("get", "post", "put", "patch", "delete")
)
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("stage")) as made, made.agent("alpha"):
        made.ended(made.submit("true"))
        made.ended(made.submit("true", array="0-3"))
        yield made


@pytest.fixture(scope="module")
def schema(stage: Stage) -> Any:
    """The server's document, with smaller bounds: what is within them is within the larger ones, and quick to make."""
    loaded = schemathesis.openapi.from_dict(_smaller(stage.get("/v1/openapi.json")))
    loaded.config.update(base_url=stage.url)
    return loaded


def _smaller(value: Any) -> Any:
    if isinstance(value, list):
        return [_smaller(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: _smaller(item) for key, item in value.items()}
    for name, most in SMALLER.items():
        if isinstance(found.get(name), int):
            found[name] = min(found[name], most)
    if isinstance(found.get("pattern"), str):
        # Every generated text is checked against it, and hardly any ends with a newline.
        found["pattern"] = found["pattern"].replace(NO_NEWLINE, "")
    return found


@pytest.mark.parametrize(("path", "method"), OPERATIONS, ids=lambda word: word)
def test_no_answer_is_a_server_error_or_undocumented(stage: Stage, schema: Any, path: str, method: str) -> None:
    operation = schema[path][method.upper()]
    known = _known(stage)
    often = max(EXAMPLES, settings.default.max_examples // 100) if settings.default else EXAMPLES
    # What takes nothing cannot be called wrongly.
    takes_something = operation.body or operation.query or operation.path_parameters
    modes = [GenerationMode.POSITIVE, *([GenerationMode.NEGATIVE] if takes_something else [])]
    for mode in modes:

        @settings(max_examples=often, phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None)
        @given(case=operation.as_strategy(generation_mode=mode))
        def call(case: Any) -> None:
            _make_useful(case, known)
            case.call_and_validate(checks=CHECKS, timeout=20)

        call()
    assert stage.call("GET", "/readyz").status == 200


def _known(stage: Stage) -> dict[str, str]:
    """What the paths' words may stand for, so that not every call ends with 404."""
    jobs = stage.get("/v1/jobs?limit=2")["items"]
    return {"job": jobs[0]["id"], "cluster": "alpha", "user": "local-admin"}


def _make_useful(case: Any, known: dict[str, str]) -> None:
    """Every second call is about something that is there; nothing is waited for."""
    if case.path_parameters and len(str(case.query) + str(case.body)) % 2:
        case.path_parameters = {name: known.get(name, value) for name, value in case.path_parameters.items()}
    for name in ("timeout_s", "wait_s"):
        if name in {parameter.name for parameter in case.operation.query}:
            case.query = {**(case.query or {}), name: WAIT_S_MAX}
    if isinstance(case.body, dict) and isinstance(case.body.get("wait_s"), int | float):
        case.body["wait_s"] = WAIT_S_MAX
