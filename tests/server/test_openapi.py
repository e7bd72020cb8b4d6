"""The OpenAPI document: complete, consistent, and true for what the server sends."""

from __future__ import annotations

import re
from typing import Any

import pytest

from switchyard.server.http.endpoints import ENDPOINTS
from switchyard.server.http.openapi import document

DOCUMENT = document()
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


def test_it_says_what_it_is() -> None:
    assert DOCUMENT["openapi"] == "3.1.0"
    assert DOCUMENT["info"]["title"] == "Switchyard"
    assert DOCUMENT["info"]["version"]
    assert set(DOCUMENT) == {"openapi", "info", "paths", "components", "security"}
    assert DOCUMENT["security"] == [{"bearer": []}]


def test_every_endpoint_is_there_and_nothing_else() -> None:
    described = {(method.upper(), path) for path, item in DOCUMENT["paths"].items() for method in item}
    served = {(end.method, end.path) for end in ENDPOINTS}
    assert described - served == {("GET", "/healthz"), ("GET", "/readyz")}
    assert served <= described


def test_every_reference_resolves() -> None:
    found = {inner["$ref"] for inner in walk(DOCUMENT) if "$ref" in inner}
    assert found
    for ref in found:
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
        if end.body is not None and not end.is_upload and end.body != dict[str, Any]:  # its fields are its kind's
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
    for response in responses.values():
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
    assert all(re.fullmatch(r"[a-z][a-z_]*", each) for each in ids)


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
