"""OpenAPI 3.1, generated from the table of endpoints and the types that decode the requests."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import version
from typing import Any

from switchyard.errors import ERRORS_BY_CODE
from switchyard.model.files.file_frames import MEDIA as OBJECTS_MEDIA
from switchyard.model.rules.names import KEY_PATTERN
from switchyard.model.wire.api import Problem
from switchyard.model.wire.schema import schemas_of
from switchyard.server.http.endpoint import PATH_PATTERNS, BodyForm, Caller, Endpoint
from switchyard.server.http.endpoints import ENDPOINTS
from switchyard.server.http.query_parameters import SEQ_MAX
from switchyard.server.metrics import MEDIA as METRICS_MEDIA

REF = "#/components/schemas/{name}"
ABOUT = """\
Every answer that is not a success is a problem (RFC 9457) with a stable `code`; `yard explain CODE` tells its meaning.

- A body is JSON and required, unless the operation says otherwise. With another Content-Type it is refused (415).
- Unknown fields, unknown parameters and parameters given twice are refused (400, `malformed`).
- `bad-value` (400) is said of a request that is as this document says, but whose values contradict each other.
- HEAD is answered wherever GET is. Any other method that an address does not have is refused (405, with Allow)."""
# Each job is decoded by itself, so the type of the request lacks their schema. With `each`, invalid jobs are allowed.
BULK_JOBS = {
    "if": {"required": ["each"], "properties": {"each": {"const": True}}},
    "else": {"properties": {"jobs": {"items": {"$ref": REF.format(name="JobRequest")}}}},
}
HEALTH_PATHS = (("/healthz", "The process lives"), ("/readyz", "The server can serve"))


@cache
def document(*, is_open: bool = False) -> dict[str, Any]:
    """Make the document, at the first request. `is_open`: the server needs no tokens."""
    types = [Problem, *(kind for end in ENDPOINTS for kind in (end.answer, end.body) if kind is not None)]
    schemas, components = schemas_of(types, ref_template=REF)
    components["BulkRequest"] |= BULK_JOBS
    by_type = dict(zip(map(_key, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, by_type)
    bearer: list[dict[str, list[str]]] = [{"bearer": []}]
    return {
        "openapi": "3.1.0",
        "info": {"title": "Switchyard", "version": version("switchyard"), "description": ABOUT},
        "paths": paths | _plain_paths(),
        "components": {
            "schemas": components,
            "responses": {
                str(status): _problems(status) for status in sorted({e.status for e in ERRORS_BY_CODE.values()})
            },
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [*bearer, {}] if is_open else bearer,
    }


def _plain_paths() -> dict[str, dict[str, Any]]:
    """Addresses outside the table: they are not part of the versioned API."""
    paths: dict[str, dict[str, Any]] = {}
    for path, about in HEALTH_PATHS:
        ok = {"description": about, "content": {"application/json": {"schema": {"type": "object"}}}}
        paths[path] = {"get": {"summary": about, "responses": {"200": ok, "503": ok}, "security": []}}
    metrics = {
        "description": "As Prometheus reads them",
        "content": {_media(METRICS_MEDIA): {"schema": {"type": "string"}}},
    }
    refusals = {str(status): _problem_ref(status) for status in (401, 403, 503)}
    paths["/metrics"] = {"get": {"summary": "The server's figures", "responses": {"200": metrics, **refusals}}}
    self = {"description": "This document", "content": {"application/json": {"schema": {"type": "object"}}}}
    paths["/v1/openapi.json"] = {"get": {"summary": "This document", "responses": {"200": self}, "security": []}}
    return paths


def _media(header: tuple[bytes, bytes]) -> str:
    return header[1].decode().partition(";")[0]


def _operation(endpoint: Endpoint, by_type: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "operationId": _operation_id(endpoint),
        "parameters": [*_path_parameters(endpoint), *_query_parameters(endpoint), *_header_parameters(endpoint)],
        "responses": _responses(endpoint, by_type),
    }
    if endpoint.body is not None:
        operation["requestBody"] = {
            "required": endpoint.body_form is not BodyForm.OPTIONAL_JSON,
            "content": {_body_media(endpoint): {"schema": by_type[_key(endpoint.body)]}},
        }
    if endpoint.caller is Caller.ANYBODY:
        operation["security"] = []
    return operation


def _body_media(endpoint: Endpoint) -> str:
    return OBJECTS_MEDIA if endpoint.body_form is BodyForm.FRAMES else "application/json"


def _responses(endpoint: Endpoint, by_type: dict[str, Any]) -> dict[str, Any]:
    good: dict[str, Any] = {
        "description": endpoint.summary,
        "content": {endpoint.media: {"schema": by_type[_key(endpoint.answer)]}},
    }
    if endpoint.has_text:
        good["content"] = {**good["content"], "text/plain": {"schema": {"type": "string"}}}
    responses: dict[str, Any] = {str(endpoint.status): good}
    if endpoint.has_idempotency_key and endpoint.serve is not None:  # a handler answers with one status
        responses["200"] = good | {"description": "The idempotency key was used for the same body: the same answer"}
    responses |= {str(status): _problem_ref(status) for status in sorted(refusal_statuses(endpoint))}
    return responses | {"default": _problem_ref(500)}


def refusal_statuses(endpoint: Endpoint) -> set[int]:
    """The statuses of its refusals. A defect (500) is possible everywhere, and is the `default`."""
    statuses = {400, 413, 429, 503}
    if endpoint.caller is not Caller.ANYBODY:
        statuses |= {401, 403, 404}
    if endpoint.caller in (Caller.AGENT, Caller.USER_OR_AGENT, Caller.JOINER):
        statuses.add(410)
    if endpoint.method != "GET" or endpoint.caller is Caller.AGENT:  # an agent that is not in its session
        statuses.add(409)
    if endpoint.body is not None and endpoint.body_form is not BodyForm.UPLOAD:
        statuses.add(415)
    if endpoint.is_conditional:
        statuses |= {412, 428}
    if endpoint.is_ruled:
        statuses.add(422)
    return statuses


def _problem_ref(status: int) -> dict[str, Any]:
    return {"$ref": f"#/components/responses/{status}"}


def _problems(status: int) -> dict[str, Any]:
    codes = [code for code, error in ERRORS_BY_CODE.items() if error.status == status]
    return {
        "description": f"A problem with one of these codes: {', '.join(codes)}",
        "content": {"application/problem+json": {"schema": {"$ref": REF.format(name="Problem")}}},
    }


def _path_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    patterns = {**PATH_PATTERNS, **endpoint.patterns}
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "pattern": patterns[name]}}
        for name in re.findall(r"{(\w+)}", endpoint.path)
    ]


def _query_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    parameters: list[dict[str, Any]] = []
    for query in endpoint.query:
        parameters.append({"name": query.name, "in": "query", "required": query.is_required, "schema": query.schema})
        if query.about:
            parameters[-1]["description"] = query.about
    return parameters


def _header_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    parameters: list[dict[str, Any]] = []
    if endpoint.is_conditional:
        schema = {"type": "string", "maxLength": 80, "pattern": KEY_PATTERN}
        parameters.append(_header("If-Match", "the ETag that was read: only while it is still that", schema))
    if endpoint.is_conditional and endpoint.method == "PUT":
        parameters.append(_header("If-None-Match", "*: only while there is none", {"type": "string", "enum": ["*"]}))
    if endpoint.has_idempotency_key:
        schema = {"type": "string", "minLength": 1, "maxLength": 200, "pattern": KEY_PATTERN}
        parameters.append(_header("Idempotency-Key", "the same key and body make a job once", schema))
    if endpoint.media == "text/event-stream":
        schema = {"type": "integer", "minimum": 0, "maximum": SEQ_MAX}
        parameters.append(_header("Last-Event-ID", "go on after this number", schema))
    return parameters


def _header(name: str, about: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "schema": schema, "description": about}


def _operation_id(endpoint: Endpoint) -> str:
    words = [word for word in re.split(r"[/{}]+", endpoint.path) if word and word != "v1"]
    return "_".join([endpoint.method.lower(), *words]).replace("-", "_")


def _key(kind: Any) -> str:
    return str(kind)
