"""How every call of the client is made: encode, send, decode, walk pages. It knows no single route."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from switchyard.decoder_warmup import warm_type
from switchyard.errors import BadRequest, YardError
from switchyard.model.api import Page
from switchyard.sdk.transport import Request, Transport

PAGE_SIZE = 200  # per request while walking a list: under the server's bound, and a page is still quick to come

T = TypeVar("T")
QueryParams = Mapping[str, Any]


class ApiCalls:
    """The shared part of the client."""

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
    ) -> T:
        encoded = None if body is None else msgspec.json.encode(body)
        request = Request("POST", path + _query_string(query), encoded, headers, repeatable)
        return self._answer(self._transport.send(request), kind)

    def _patch(self, path: str, kind: type[T], *, body: object) -> T:
        # A change says how things shall be, so saying it twice is as good as once.
        request = Request("PATCH", path, msgspec.json.encode(body), repeatable=True)
        return self._answer(self._transport.send(request), kind)

    def _put(
        self, path: str, kind: type[T], *, query: QueryParams | None = None, body: object, headers: Mapping[str, str]
    ) -> T:
        # Not repeatable: the headers say what must be there before, and after the first time it is not.
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

    def _delete(self, path: str, *, query: QueryParams | None = None, headers: Mapping[str, str] | None = None) -> None:
        self._transport.send(Request("DELETE", path + _query_string(query), headers=headers))

    def _walk(
        self,
        path: str,
        kind: type[Page[T]],
        *,
        query: QueryParams | None = None,
        limit: int | None,
        retry_s: float | None = None,
    ) -> Iterator[T]:
        """All items of a list, page by page, at most `limit`."""
        left, cursor = limit, None
        while left is None or left > 0:
            size = PAGE_SIZE if left is None else min(left, PAGE_SIZE)
            page = self._get(path, kind, query={**(query or {}), "limit": size, "cursor": cursor}, retry_s=retry_s)
            yield from page.items[:left]
            left = None if left is None else left - len(page.items)
            if page.next is None or page.next == cursor:
                return
            cursor = page.next

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
    """A path under /v1 with each part quoted; an empty part would silently name another route."""
    for part in parts:
        if not part or part in (".", ".."):
            raise BadRequest(f"{part!r} is no name or id.")
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


def _query_string(query: QueryParams | None) -> str:
    given = {name: _query_value(value) for name, value in (query or {}).items() if value not in (None, [], ())}
    return "?" + urlencode(given, doseq=True) if given else ""


def _query_value(value: Any) -> Any:
    return ("true" if value else "false") if isinstance(value, bool) else value
