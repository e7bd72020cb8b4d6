"""The OpenAPI document: complete, consistent, and true for what the server sends."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from switchyard.errors import ERRORS_BY_CODE, Malformed
from switchyard.model.executions.execution import QualityOfService
from switchyard.model.job.image_compatibility import Compatibility
from switchyard.model.job.job import JobRequest, Resources
from switchyard.server.http.endpoint import BodyForm
from switchyard.server.http.endpoints import ENDPOINTS
from switchyard.server.http.openapi import document
from switchyard.server.http.query_parameters import QueryParameter

DOCUMENT = document()
PROBLEM = "application/problem+json"
METHODS = {"get", "post", "put", "patch", "delete"}


def walk(value: Any) -> Any:
    """Every object within."""
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from walk(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from walk(inner)


def resolved(value: dict[str, Any]) -> dict[str, Any]:
    """The response itself, where a reference stands for it."""
    ref = value.get("$ref")
    return DOCUMENT["components"]["responses"][ref.rpartition("/")[2]] if ref else value


def test_it_says_what_it_is() -> None:
    assert DOCUMENT["openapi"] == "3.1.0"
    assert DOCUMENT["info"]["title"] == "Switchyard"
    assert DOCUMENT["info"]["version"]
    assert set(DOCUMENT) == {"openapi", "info", "paths", "components", "security"}
    assert DOCUMENT["security"] == [{"bearer": []}]


def test_every_endpoint_is_there_and_nothing_else() -> None:
    described = {(method.upper(), path) for path, item in DOCUMENT["paths"].items() for method in item}
    served = {(end.method, end.path) for end in ENDPOINTS}
    plain = {("GET", path) for path in ("/healthz", "/readyz", "/metrics", "/v1/openapi.json")}
    assert described - served == plain
    assert served <= described


def test_every_reference_resolves() -> None:
    references = {inner["$ref"] for inner in walk(DOCUMENT) if "$ref" in inner}
    assert references
    for ref in references:
        value = DOCUMENT
        for word in ref.removeprefix("#/").split("/"):
            assert word in value, ref
            value = value[word]


def test_every_schema_is_used_and_bodies_take_no_unknown_fields() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    text = repr({"paths": DOCUMENT["paths"], "schemas": schemas})
    for name in schemas:
        assert f"#/components/schemas/{name}'" in text, f"{name} is used nowhere"
    for end in ENDPOINTS:
        if (
            end.body is not None
            and end.body_form not in (BodyForm.UPLOAD, BodyForm.FRAMES)
            and end.body != dict[str, Any]
        ):  # its fields are its kind's
            assert schemas[end.body.__name__]["additionalProperties"] is False


OPERATIONS = [
    (path, method, operation) for path, item in DOCUMENT["paths"].items() for method, operation in item.items()
]


@pytest.mark.parametrize(
    ("path", "method", "operation"), OPERATIONS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_an_operation_is_well_formed(path: str, method: str, operation: dict[str, Any]) -> None:
    assert method in METHODS
    assert operation["summary"]
    responses = operation["responses"]
    assert any(status.startswith("2") for status in responses)
    assert all(re.fullmatch(r"[1-5]\d\d|default", status) for status in responses)
    for response in map(resolved, responses.values()):
        assert response["description"]
        for media in response["content"].values():
            assert media["schema"]
    named = set(re.findall(r"{(\w+)}", path))
    parameters = operation.get("parameters", [])
    assert {p["name"] for p in parameters if p["in"] == "path"} == named
    assert all(p["required"] for p in parameters if p["in"] == "path")
    keys = [(p["in"], p["name"]) for p in parameters]
    assert len(keys) == len(set(keys))
    assert ("requestBody" in operation) <= (method in ("post", "put", "patch"))


def test_operation_ids_are_unique_names() -> None:
    ids = [operation["operationId"] for _, _, operation in OPERATIONS if "operationId" in operation]
    assert len(ids) == len(set(ids)) == len(ENDPOINTS)
    assert all(re.fullmatch(r"[a-z][a-z_]*", operation_id) for operation_id in ids)


def test_patterns_are_valid_and_end_where_they_say() -> None:
    patterns = {inner["pattern"] for inner in walk(DOCUMENT) if isinstance(inner.get("pattern"), str)}
    assert patterns
    for pattern in patterns:
        assert re.compile(pattern)
        assert pattern.startswith("^")
        assert pattern.endswith("$")


def test_a_problem_always_has_its_required_fields() -> None:
    problem = DOCUMENT["components"]["schemas"]["Problem"]
    assert {"type", "title", "status", "code", "detail"} <= set(problem["required"])


def test_every_operation_declares_how_it_refuses() -> None:
    for path, method, operation in OPERATIONS:
        if "operationId" not in operation:
            continue
        refusals = {
            status for status, answer in operation["responses"].items() if PROBLEM in resolved(answer)["content"]
        }
        assert {"400", "429", "503", "default"} <= refusals, (method, path)
        assert operation.get("security") == [] or {"401", "403", "404"} <= refusals, (method, path)
        assert ("415" in refusals) <= ("requestBody" in operation), (method, path)
        headers = {p["name"] for p in operation["parameters"] if p["in"] == "header"}
        assert ("If-Match" in headers) == ({"412", "428"} <= refusals) == ("If-Match" in operation["summary"]), path
    for status, answer in DOCUMENT["components"]["responses"].items():
        codes = answer["description"].partition(": ")[2].split(", ")
        assert {ERRORS_BY_CODE[code].status for code in codes} == {int(status)}


def test_a_body_is_required_unless_it_says_otherwise() -> None:
    optional = {
        path for path, _, operation in OPERATIONS if not operation.get("requestBody", {"required": True})["required"]
    }
    assert optional == {"/v1/agents/rotate", "/v1/jobs/{job}/cancel", "/v1/jobs/{job}/retry"}


def test_parameters_have_the_bounds_that_are_enforced() -> None:
    """Each number has its bounds, each text its pattern, and a value is refused just where the schema refuses it."""
    samples = ["", "0", "1", "-1", "500", "501", "1.5", "true", "RUNNING", "a=b", "a b", "0" * 26, "\u0085", "\u00b2"]
    for endpoint in ENDPOINTS:
        for query in endpoint.query:
            schema = query.schema["items"] if query.is_repeatable else query.schema
            assert query.kind == "boolean" or {"enum", "pattern", "maximum"} & set(schema), (endpoint.path, query.name)
            checker = jsonschema_rs.Draft202012Validator(schema)
            for text in [*samples, str(2**63), "9" * 400]:
                assert is_taken(query, text) == checker.is_valid(as_value(query, text)), (endpoint.path, query, text)


def is_taken(query: QueryParameter, text: str) -> bool:
    try:
        query.check(text)
    except Malformed:
        return False
    return True


def as_value(query: QueryParameter, text: str) -> Any:
    """What a client means by the text, as far as the kind of the parameter lets it mean anything."""
    if query.kind == "string":
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if not isinstance(value, bool) or query.kind == "boolean" else None


def test_rules_between_fields_are_in_the_schema_too() -> None:
    """What the types refuse by a rule between fields of one message, the document refuses."""
    rows: list[tuple[str, Any, dict[str, Any], bool]] = [
        ("QualityOfService", QualityOfService, {"tier": "HIGH", "queueing_budget": 5}, False),
        ("QualityOfService", QualityOfService, {"tier": "HIGH", "queueing_budget": None}, True),
        ("Compatibility", Compatibility, {"field": "a"}, False),
        ("Compatibility", Compatibility, {"field": "a", "equals": 1, "min": 1}, False),
        ("Compatibility", Compatibility, {"field": "a", "equals": None, "min": 1, "max": 2}, True),
        ("JobRequest", JobRequest, {"spec": {"command": ["a"]}, "launch_plan": "l"}, False),
        ("JobRequest", JobRequest, {"spec": {"command": ["a"]}, "launch_plan": "l", "workflow": "w"}, True),
        ("JobRequest", JobRequest, {"spec": {"command": ["a"]}, "launch_plan": None}, True),
        ("JobRequest", JobRequest, {"spec": {"command": [""]}}, False),
        *(("JobRequest", JobRequest, {"spec": {"command": ["a"]}, "array": text}, fits) for text, fits in ARRAYS),
        *(("JobRequest", JobRequest, {"spec": {"command": ["a"]}, "expires_after": t}, fits) for t, fits in TIMES),
        *(("JobRequest", JobRequest, {"spec": {"command": ["a"]}, "spill": [text]}, fits) for text, fits in SPILLS),
        *(("Resources", Resources, {"memory": text}, fits) for text, fits in [*AMOUNTS, ("", False)]),
        *(("Resources", Resources, {"cores": text}, fits) for text, fits in [*AMOUNTS[2:], *NO_CORES]),
    ]
    for name, kind, value, fits in rows:
        whole = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
        assert jsonschema_rs.Draft202012Validator(whole).is_valid(value) is fits, value
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError:
            assert not fits, value
        else:
            assert fits, value


ARRAYS = [("0-9", True), ("0-9%3", True), (" 1, 3 ,5-9:2 % 2\n", True), ("", False), ("a", False), ("1,", False)]
TIMES = [
    ("90", True),
    ("1h30m", True),
    ("1-12:00:00", True),
    ("0", False),
    ("0:00:00", False),
    ("", False),
    ("1w", False),
]
SPILLS = [("after 10m try pool a", True), ("reject after 24h", True), ("after 0m try pool a1", False), ("x", False)]
AMOUNTS = [
    (0, True),
    ("0", True),
    ("16GiB", True),
    (".5", True),
    ("1e3", True),
    (1.5e17, True),
    ("1Q", False),
    ("", False),
]
NO_CORES = [(0, False), ("0m", False), ("0.000", False), (0.25, True), ("0.5m", True)]
