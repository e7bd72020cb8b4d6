"""Lists that a watch keeps up to date: where it goes on after a cut, and when the list is read again."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from switchyard.features.kubernetes.agent.api import reflector as reflector_module
from switchyard.features.kubernetes.agent.api.reflector import Reflector
from tests.agent.kubernetes.api_peer import Answer, ApiPeer, says, streams
from tests.processes import PATIENCE_S, until

PODS = "/api/v1/pods"


class Kept:
    """What a reflector told."""

    def __init__(self) -> None:
        self.rows: list[object] = []
        self.calls: list[int] = []  # of `on_change`, each with the number of rows at that time

    def note_call(self) -> None:
        self.calls.append(len(self.rows))

    def replace(self, objects: Iterable[msgspec.Raw]) -> None:
        self.rows.append([_name(raw) for raw in objects])

    def change(self, kind: str, raw: msgspec.Raw) -> bool:
        self.rows.append((kind, _name(raw)))
        return _name(raw) != "of-others"


def _name(raw: msgspec.Raw) -> str:
    return str(msgspec.json.decode(raw)["metadata"]["name"])


def a_pod(name: str, version: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": version}}


def event(kind: str, name: str, version: str) -> dict[str, Any]:
    return {"type": kind, "object": a_pod(name, version)}


def a_list(version: str, *names: str) -> Answer:
    return says(200, metadata={"resourceVersion": version}, items=[a_pod(name, version) for name in names])


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(reflector_module, "BACKOFF_S_MIN", 0.01)
    monkeypatch.setattr(reflector_module, "BACKOFF_S_MAX", 0.05)
    ends: list[Any] = []
    release = threading.Event()

    def start(*answers: Answer) -> tuple[ApiPeer, Kept, Reflector]:
        peer = ApiPeer(tmp_path, *answers, streams(then=lambda: release.wait(PATIENCE_S)))
        kept, api = Kept(), peer.api()
        reflector = Reflector(api, "pods", PODS, kept, query={"labelSelector": "a=b"}, on_change=kept.note_call)
        reflector.start()
        ends.extend([reflector.stop, api.close, peer.close])
        return peer, kept, reflector

    yield start
    release.set()
    for end in ends:
        end()


def versions(peer: ApiPeer) -> list[str | None]:
    """The version at which each watch began; None: a list."""
    asked = [parse_qs(urlsplit(request[1]).query) for request in peer.requests]
    return [query["resourceVersion"][0] if "watch" in query else None for query in asked]


def test_changes_follow_the_list(watch: Any) -> None:
    peer, kept, reflector = watch(a_list("5", "a"), streams(event("ADDED", "b", "6"), event("DELETED", "a", "7")))
    until(lambda: len(peer.requests) == 3, PATIENCE_S, "it watches again")
    assert kept.rows == [["a"], ("ADDED", "b"), ("DELETED", "a")]
    assert versions(peer) == [None, "5", "7"]
    assert (reflector.trouble, reflector.lists) == ("", 1)
    assert "labelSelector=a%3Db" in peer.requests[2][1]


def test_a_watch_that_was_cut_goes_on_at_its_last_bookmark(watch: Any) -> None:
    peer, kept, _ = watch(a_list("5", "a"), streams(event("BOOKMARK", "", "90"), is_cut=True))
    until(lambda: len(peer.requests) == 3, PATIENCE_S, "it watches again")
    assert (versions(peer), kept.rows) == ([None, "5", "90"], [["a"]])


def test_an_event_that_changes_nothing_wakes_nobody(watch: Any) -> None:
    rows = event("ADDED", "of-others", "6"), event("BOOKMARK", "", "7"), event("ADDED", "b", "8")
    peer, kept, _ = watch(a_list("5", "a"), streams(*rows))
    until(lambda: len(peer.requests) == 3, PATIENCE_S, "it watches again")
    assert kept.calls == [1, 3], "after the list and after b"
    assert versions(peer)[2] == "8"


def test_after_410_the_list_is_read_again(watch: Any) -> None:
    gone = {"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old", "metadata": {}}}
    peer, kept, reflector = watch(a_list("5", "a"), streams(gone), a_list("80", "b"))
    until(lambda: len(peer.requests) == 4, PATIENCE_S, "it watches again")
    assert (versions(peer), kept.rows) == ([None, "5", None, "80"], [["a"], ["b"]])
    assert (reflector.trouble, reflector.lists) == ("", 2)


def test_an_api_server_that_fails_is_asked_again_and_the_trouble_is_told(watch: Any) -> None:
    peer, kept, reflector = watch(says(503, message="starting"), says(401, message="no"), says(403, message="no"))
    until(lambda: reflector.trouble, PATIENCE_S, "the trouble is told")
    assert not reflector.listed.is_set()
    until(lambda: len(peer.requests) >= 3, PATIENCE_S, "it asks again")
    assert kept.rows == []
