"""Nodes, and the requests of all pods, as watches last saw them. One watch for each kind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

T = TypeVar("T")


class _Identity(Struct, frozen=True):
    uid: str = ""


class _Identified(Struct, frozen=True):
    metadata: _Identity = _Identity()


_IDENTIFIED = msgspec.json.Decoder(_Identified)


class ObjectCache(Generic[T]):
    """The objects of one kind, each reduced by `read` to what is needed of it. Filled by a reflector's thread."""

    def __init__(self, read: Callable[[msgspec.Raw], T | None]) -> None:
        """`read` returns None for an object that does not count, such as one that cannot be read."""
        self._read = read
        self._lock = threading.Lock()
        self._objects: dict[str, T] = {}
        self._version = 0

    def replace(self, objects: Iterable[msgspec.Raw]) -> None:
        kept = {uid: value for raw in objects if (uid := _uid(raw)) and (value := self._read(raw)) is not None}
        with self._lock:
            self._version += 1
            self._objects = kept

    def change(self, kind: str, raw: msgspec.Raw) -> bool:
        uid = _uid(raw)
        value = None if kind == "DELETED" else self._read(raw)
        with self._lock:
            if self._objects.get(uid) == value:
                return False  # most changes of an object are about fields that are not read
            self._version += 1
            if value is None:
                del self._objects[uid]
            else:
                self._objects[uid] = value
            return True

    @property
    def version(self) -> int:
        """Grows with every change that matters."""
        return self._version

    def all(self) -> list[T]:
        with self._lock:
            return list(self._objects.values())


def _uid(raw: msgspec.Raw) -> str:
    try:
        return _IDENTIFIED.decode(raw).metadata.uid
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
