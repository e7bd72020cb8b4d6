"""The base of all client calls: encode, send, decode, walk pages. It knows no route."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from switchyard.decoder_warmup import warm_type
from switchyard.errors import BadRequest, YardError
from switchyard.model.wire.api import Page
from switchyard.sdk.transport.transport import Request, Transport

PAGE_SIZE = 200  # below the server's limit, and still a quick answer

T = TypeVar("T")
QueryParams = Mapping[str, Any]


class ApiCalls:
    """One method for each HTTP method and form of body."""

    _transport: Transport

    def _get(
        self,
        path: str,
        kind: type[T],
        *,
        query: QueryParams | None = None,
        timeout_s: float | None = None,
        retry_s: float | None = None,
    ) -> T:
        request = Request("GET", path + _query_string(query), repeatable=True)
        return self._answer(self._transport.send(request, timeout_s=timeout_s, retry_s=retry_s), kind)

    def _post(
        self,
        path: str,
        kind: type[T],
        *,
        query: QueryParams | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = False,
        retry_s: float | None = None,
    ) -> T:
        encoded = None if body is None else msgspec.json.encode(body)
        request = Request("POST", path + _query_string(query), body=encoded, headers=headers, repeatable=repeatable)
        return self._answer(self._transport.send(request, retry_s=retry_s), kind)

    def _patch(self, path: str, kind: type[T], *, body: object) -> T:
        # Repeatable: a change names the new values, so a second one has no further effect.
        request = Request("PATCH", path, msgspec.json.encode(body), repeatable=True)
        return self._answer(self._transport.send(request), kind)

    def _put(
        self, path: str, kind: type[T], *, query: QueryParams | None = None, body: object, headers: Mapping[str, str]
    ) -> T:
        # Not repeatable: after the first write the condition in the headers no longer holds.
        request = Request("PUT", path + _query_string(query), msgspec.json.encode(body), headers)
        return self._answer(self._transport.send(request), kind)

    def _put_bytes(
        self,
        path: str,
        kind: type[T],
        *,
        body: bytes,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        on_sent: Callable[[int], None] | None = None,
    ) -> T:
        request = Request("PUT", path, body, headers, repeatable=True, on_sent=on_sent)
        return self._answer(self._transport.send(request, timeout_s=timeout_s), kind)

    def _get_bytes(self, path: str, *, query: QueryParams | None = None, timeout_s: float | None = None) -> bytes:
        return self._transport.send(Request("GET", path + _query_string(query), repeatable=True), timeout_s=timeout_s)

    def _delete(
        self, path: str, *, query: QueryParams | None = None, headers: Mapping[str, str] | None = None
    ) -> bytes:
        return self._transport.send(Request("DELETE", path + _query_string(query), headers=headers))

    def _walk(
        self,
        path: str,
        kind: type[Page[T]],
        *,
        query: QueryParams | None = None,
        limit: int | None,
        retry_s: float | None = None,
        cursor_name: str = "cursor",
        page_size: int = PAGE_SIZE,
    ) -> Iterator[T]:
        """Yield the items of a list, page by page, at most `limit`."""
        left, cursor = limit, None
        while left is None or left > 0:
            size = page_size if left is None else min(left, page_size)
            page = self._get(path, kind, query={**(query or {}), "limit": size, cursor_name: cursor}, retry_s=retry_s)
            yield from page.items[:left]
            left = None if left is None else left - len(page.items)
            if page.next is None or page.next == cursor:
                return
            cursor = page.next

    def _patience_s(self, end: float | None = None) -> float:
        """How long a call of a wait retries, up to the moment `end` of the monotonic clock."""
        patience_s = self._transport.patience_s
        return patience_s if end is None else max(0.0, min(patience_s, end - time.monotonic()))

    def _answer(self, body: bytes, kind: type[T]) -> T:
        warm_type(kind)
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise YardError(
                f"{self._transport.url} answered, but not as this version expects: {exc}",
                next_step="Check the URL (--server, YARD_URL), and compare versions with `yard version`.",
            ) from exc


def api_path(*parts: str) -> str:
    """Return a path under /v1 with each part quoted. An empty part is refused: it would name another route."""
    for part in parts:
        if not isinstance(part, str):
            raise BadRequest(f"Expected a name or an id, not {type(part).__name__} {str(part)[:40]!r}.")
        if not part or part in (".", ".."):
            raise BadRequest(f"{part!r} is no name or id.")
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def _query_string(query: QueryParams | None) -> str:
    params = {name: _query_value(value) for name, value in (query or {}).items() if value not in (None, [], ())}
    return "?" + urlencode(params, doseq=True) if params else ""


def _query_value(value: Any) -> Any:
    return ("true" if value else "false") if isinstance(value, bool) else value
