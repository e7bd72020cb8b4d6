"""OpenAPI 3.1, generated from the table of endpoints and the very types that decode the requests."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import version
from typing import Any

import msgspec

from switchyard.model.api import Problem
from switchyard.server.http.endpoint import OPEN, Endpoint
from switchyard.server.http.endpoints import ENDPOINTS

REF = "#/components/schemas/{name}"
CONDITIONAL = frozenset(  # a write says what it has seen
    {
        "/v1/attributes/{kind}",
        "/v1/pools/{name}",
        "/v1/cluster-labels/{name}",
        "/v1/layout/default-label",
        "/v1/layout/domain-pools/{domain}",
    }
)
KEYED = ("/v1/jobs", "/v1/jobs/bulk")  # these take an idempotency key


@cache
def document() -> dict[str, Any]:
    """The whole document; made when it is first asked for, not at the start."""
    types = [Problem, *(kind for end in ENDPOINTS for kind in (end.answer, end.body) if kind is not None)]
    schemas, components = msgspec.json.schema_components(types, ref_template=REF)
    by_type = dict(zip(map(_key, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, by_type)
    for path, about in (("/healthz", "The process lives"), ("/readyz", "The server can serve")):
        ok = {"description": about, "content": {"application/json": {"schema": {"type": "object"}}}}
        paths[path] = {"get": {"summary": about, "responses": {"200": ok, "503": ok}, "security": []}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Switchyard", "version": version("switchyard")},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"bearer": []}],
    }


def _operation(endpoint: Endpoint, by_type: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "operationId": _operation_id(endpoint),
        "parameters": [*_path_parameters(endpoint), *_query_parameters(endpoint)],
        "responses": _responses(endpoint, by_type),
    }
    if endpoint.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": by_type[_key(endpoint.body)]}},
        }
    if endpoint.who == OPEN:
        operation["security"] = []
    return operation


def _responses(endpoint: Endpoint, by_type: dict[str, Any]) -> dict[str, Any]:
    good: dict[str, Any] = {
        "description": endpoint.summary,
        "content": {endpoint.media: {"schema": by_type[_key(endpoint.answer)]}},
    }
    if endpoint.has_text:
        good["content"] = {**good["content"], "text/plain": {"schema": {"type": "string"}}}
    problem = {
        "description": "What happened, and what to do next",
        "content": {"application/problem+json": {"schema": {"$ref": REF.format(name="Problem")}}},
    }
    found = {str(endpoint.status): good, "default": problem}
    if endpoint.path in KEYED and endpoint.method == "POST":
        found["200"] = good | {"description": "The idempotency key was used for the same body: the same answer"}
    return found


def _path_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", endpoint.path)
    ]


def _query_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for query in endpoint.query:
        schema: dict[str, Any] = {"type": query.kind}
        if query.is_repeatable:
            schema = {"type": "array", "items": schema}
        found.append({"name": query.name, "in": "query", "required": False, "schema": schema})
        if query.about:
            found[-1]["description"] = query.about
    if endpoint.path in CONDITIONAL and endpoint.method in ("PUT", "DELETE"):
        found.append(_header("If-Match", "the ETag that was read: only while it is still that"))
    if endpoint.path in CONDITIONAL and endpoint.method == "PUT":
        found.append(_header("If-None-Match", "*: only while there is none"))
    if endpoint.path in KEYED and endpoint.method == "POST":
        found.append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": False,
                "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]+$"},
                "description": "the same key and body make a job once",
            }
        )
    return found


def _header(name: str, about: str) -> dict[str, Any]:
    schema = {"type": "string", "maxLength": 80, "pattern": "^[!-~]+$"}
    return {"name": name, "in": "header", "required": False, "schema": schema, "description": about}


def _operation_id(endpoint: Endpoint) -> str:
    words = [word for word in re.split(r"[/{}]+", endpoint.path) if word and word != "v1"]
    return "_".join([endpoint.method.lower(), *words]).replace("-", "_")


def _key(kind: Any) -> str:
    return str(kind)
