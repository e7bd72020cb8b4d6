"""Files of an array that all tasks get, and files of each task."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard import Client
from switchyard.errors import BadRequest
from switchyard.sdk.files.file_names import FileSource
from switchyard.sdk.files.file_request import FileRequest, FileTemplate
from switchyard.sdk.uploads.job_uploads import upload_requests
from tests.sdk.file_peer import FilePeer


@pytest.fixture
def peer() -> Iterator[FilePeer]:
    with FilePeer() as running:
        yield running


@pytest.fixture
def client(peer: FilePeer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("YARD_CONFIG", str(tmp_path / "yard.yaml"))
    with Client(peer.url) as opened:
        yield opened


@pytest.mark.parametrize(
    ("shared", "by_task", "conflict"),
    [
        ({"x": b"1"}, {"x": b"2"}, "x"),
        ({"x": b"1"}, {"x/y": b"1"}, "x"),
        ({"x/y": b"1"}, {"x": b"1"}, "x"),
        ({"x/y/z": b"1"}, {"x/y/z": b"2"}, "x/y/z"),
        ({"x": b"1", "a/b": b"1"}, {"x": b"1", "a/c": b"2", "d": b"3"}, None),
    ],
)
def test_a_file_of_all_tasks_and_one_of_a_task_have_different_names(
    client: Client,
    peer: FilePeer,
    tmp_path: Path,
    shared: dict[str, bytes],
    by_task: dict[str, bytes],
    conflict: str | None,
) -> None:
    for index in (0, 7):
        for number, content in enumerate(by_task.values()):
            (tmp_path / f"{number}-{index}").write_bytes(content)
    templates = tuple(FileTemplate(f"{tmp_path}/{number}-{{index}}", name) for number, name in enumerate(by_task))
    sources = tuple(FileSource(tuple(name.encode().split(b"/")), b"", content) for name, content in shared.items())
    request = FileRequest(sources, templates)
    if conflict is None:
        assert upload_requests(client._transport, [(request, "0,7")]) != [None]
        return
    with pytest.raises(BadRequest, match=f"two different files would be {conflict} in the folder of task 0"):
        upload_requests(client._transport, [(request, "0,7")])
    assert not peer.objects, "refused before anything is sent"
