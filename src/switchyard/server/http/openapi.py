"""OpenAPI 3.1, generated from the table of endpoints and the very types that decode the requests."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import version
from typing import Any

from switchyard.errors import ERRORS_BY_CODE
from switchyard.model.api import Problem
from switchyard.model.names import KEY_PATTERN
from switchyard.model.schema import schemas_of
from switchyard.server.http.endpoint import AGENT, JOINER, OPEN, PATH_PATTERNS, USER_OR_AGENT, Endpoint
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
# Each job is read by itself, so the type of the whole request does not say it. With `each`, bad ones do no harm.
BULK_JOBS = {
    "if": {"required": ["each"], "properties": {"each": {"const": True}}},
    "else": {"properties": {"jobs": {"items": {"$ref": REF.format(name="JobRequest")}}}},
}
HEALTH_PATHS = (("/healthz", "The process lives"), ("/readyz", "The server can serve"))


@cache
def document(*, is_open: bool = False) -> dict[str, Any]:
    """The whole document; made when it is first asked for, not at the start. `is_open`: of a server without tokens."""
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
    """Addresses that stand in no table: they are no part of the API's versions."""
    found: dict[str, dict[str, Any]] = {}
    for path, about in HEALTH_PATHS:
        ok = {"description": about, "content": {"application/json": {"schema": {"type": "object"}}}}
        found[path] = {"get": {"summary": about, "responses": {"200": ok, "503": ok}, "security": []}}
    shown = {
        "description": "As Prometheus reads them",
        "content": {_media(METRICS_MEDIA): {"schema": {"type": "string"}}},
    }
    refusals = {str(status): _problem_ref(status) for status in (401, 403, 503)}
    found["/metrics"] = {"get": {"summary": "The server's figures", "responses": {"200": shown, **refusals}}}
    self = {"description": "This document", "content": {"application/json": {"schema": {"type": "object"}}}}
    found["/v1/openapi.json"] = {"get": {"summary": "This document", "responses": {"200": self}, "security": []}}
    return found


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
            "required": not endpoint.is_body_optional,
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
    found: dict[str, Any] = {str(endpoint.status): good}
    if endpoint.is_keyed:
        found["200"] = good | {"description": "The idempotency key was used for the same body: the same answer"}
    found |= {str(status): _problem_ref(status) for status in sorted(refusal_statuses(endpoint))}
    return found | {"default": _problem_ref(500)}


def refusal_statuses(endpoint: Endpoint) -> set[int]:
    """With which statuses it may say no. A defect (500) may be everywhere, and is the `default`."""
    found = {400, 413, 429, 503}
    if endpoint.who != OPEN:
        found |= {401, 403, 404}
    if endpoint.who in (AGENT, USER_OR_AGENT, JOINER):
        found.add(410)
    if endpoint.method != "GET":
        found.add(409)
    if endpoint.body is not None and not endpoint.is_upload:
        found.add(415)
    if endpoint.is_conditional:
        found |= {412, 428}
    if endpoint.is_ruled:
        found.add(422)
    return found


def _problem_ref(status: int) -> dict[str, Any]:
    return {"$ref": f"#/components/responses/{status}"}


def _problems(status: int) -> dict[str, Any]:
    codes = [code for code, error in ERRORS_BY_CODE.items() if error.status == status]
    return {
        "description": f"A problem with one of these codes: {', '.join(codes)}",
        "content": {"application/problem+json": {"schema": {"$ref": REF.format(name="Problem")}}},
    }


def _path_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "pattern": PATH_PATTERNS[name]}}
        for name in re.findall(r"{(\w+)}", endpoint.path)
    ]


def _query_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for query in endpoint.query:
        found.append({"name": query.name, "in": "query", "required": query.is_required, "schema": query.schema})
        if query.about:
            found[-1]["description"] = query.about
    return found


def _header_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if endpoint.is_conditional:
        schema = {"type": "string", "maxLength": 80, "pattern": KEY_PATTERN}
        found.append(_header("If-Match", "the ETag that was read: only while it is still that", schema))
    if endpoint.is_conditional and endpoint.method == "PUT":
        found.append(_header("If-None-Match", "*: only while there is none", {"type": "string", "enum": ["*"]}))
    if endpoint.is_keyed:
        schema = {"type": "string", "minLength": 1, "maxLength": 200, "pattern": KEY_PATTERN}
        found.append(_header("Idempotency-Key", "the same key and body make a job once", schema))
    if endpoint.media == "text/event-stream":
        schema = {"type": "integer", "minimum": 0, "maximum": SEQ_MAX}
        found.append(_header("Last-Event-ID", "go on after this number", schema))
    return found


def _header(name: str, about: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "schema": schema, "description": about}


def _operation_id(endpoint: Endpoint) -> str:
    words = [word for word in re.split(r"[/{}]+", endpoint.path) if word and word != "v1"]
    return "_".join([endpoint.method.lower(), *words]).replace("-", "_")


def _key(kind: Any) -> str:
    return str(kind)
