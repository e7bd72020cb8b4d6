"""A list of objects that a watch keeps up to date, for as long as the agent runs. One thread each.

The list is a consistent read; the watch goes on from its version. Bookmarks move that version on, so that a watch
which was cut goes on where it was. After 410 Gone the list is read again.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

import msgspec
from msgspec import Struct

from switchyard.agent.log import line
from switchyard.decoder_warmup import warm_loaded_types
from switchyard.errors import YardError
from switchyard.features.kubernetes.agent.api.api import KubernetesApi, Query
from switchyard.features.kubernetes.agent.api.api_errors import ApiRefusal

API_WATCH_S = 240  # the server ends a watch after about this time; it begins again at once
WATCH_SILENCE_S = 90.0  # a watch without even a bookmark for this time is cut; bookmarks come about once a minute
BACKOFF_S_MIN = 0.2
BACKOFF_S_MAX = 10.0

log = logging.getLogger(__name__)


class _Versioned(Struct, frozen=True, rename="camel"):
    resource_version: str = ""


class _Object(Struct, frozen=True):
    metadata: _Versioned = _Versioned()


class Receiver(Protocol):
    """What a reflector tells. Called by its thread only."""

    def replace(self, objects: Iterable[msgspec.Raw]) -> None:
        """The whole list."""

    def change(self, kind: str, raw: msgspec.Raw) -> bool:
        """One event: ADDED, MODIFIED or DELETED. Returns whether it changed anything that counts."""


class Reflector:
    def __init__(
        self,
        api: KubernetesApi,
        name: str,
        path: str,
        receiver: Receiver,
        *,
        query: Mapping[str, str] | None = None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_change` is called after each list, and after events that changed something."""
        self._api = api
        self._name, self._path, self._receiver = name, path, receiver
        self._query: Query = dict(query or {})
        self._on_change = on_change
        self._stop = threading.Event()
        self._version = ""  # empty: a list is needed
        self._backoff_s = BACKOFF_S_MIN
        self._thread = threading.Thread(target=self._run, name=f"watch-{name}", daemon=True)
        self.listed = threading.Event()  # the first list is complete
        self.trouble = ""  # why the objects may be out of date; empty: they are not
        self.lists = 0  # how often the whole list was read

    def start(self) -> None:
        warm_loaded_types()  # else threads may build the decoder of one type at the same time, which breaks it
        self._thread.start()

    def stop(self) -> None:
        """The API's `close` ends a watch that waits."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                if not self._version:
                    self._list()
                self._watch()
            except YardError as exc:
                self._fail(exc)
            except Exception:
                log.exception(line("defect", thread=self._thread.name))
                self._version = ""
                self._stop.wait(BACKOFF_S_MAX)

    def _list(self) -> None:
        version = ""

        def objects() -> Iterator[msgspec.Raw]:
            nonlocal version
            for page in self._api.list_pages(self._path, self._query):
                version = page.metadata.resource_version
                yield from page.items or ()

        self._receiver.replace(objects())
        self._version = version
        self.lists += 1
        self.listed.set()
        self._well()
        self._on_change()

    def _watch(self) -> None:
        # A little random, so that the watches of an agent do not all begin again at one time.
        seconds = API_WATCH_S + random.randrange(30)  # noqa: S311 - jitter, not a secret
        events = self._api.watch(
            self._path, resource_version=self._version, query=self._query, timeout_s=seconds, silence_s=WATCH_SILENCE_S
        )
        for event in events:
            has_changed = event.type != "BOOKMARK" and self._receiver.change(event.type, event.object)
            self._version = msgspec.json.decode(event.object, type=_Object).metadata.resource_version or self._version
            self._well()
            if has_changed:
                self._on_change()
            if self._stop.is_set():
                return
        self._well()

    def _well(self) -> None:
        self._backoff_s = BACKOFF_S_MIN
        if self.trouble:
            log.info(line("kubernetes-watch-well-again", watch=self._name))
            self.trouble = ""

    def _fail(self, exc: YardError) -> None:
        if self._stop.is_set():
            return
        if isinstance(exc, ApiRefusal) and (exc.is_expired or not self._version):
            log.info(line("kubernetes-watch-expired", watch=self._name, error=exc.detail))
        if isinstance(exc, ApiRefusal):
            self._version = ""  # 410: too old. Any other refusal: begin from nothing as well
        if not (isinstance(exc, ApiRefusal) and exc.is_expired):
            if not self.trouble:
                log.warning(line("kubernetes-watch-cut", watch=self._name, error=exc.detail))
            self.trouble = exc.detail
        self._stop.wait(random.uniform(self._backoff_s / 2, self._backoff_s))  # noqa: S311 - jitter
        self._backoff_s = min(self._backoff_s * 2, BACKOFF_S_MAX)
