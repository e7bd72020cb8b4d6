"""Small files of an upload that stay in memory after they were hashed."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchyard import Client
from switchyard.sdk.files.file_names import list_sources
from switchyard.sdk.uploads import hashing, upload
from switchyard.sdk.uploads.chunks import ChunkSource, read_chunk
from switchyard.sdk.uploads.job_uploads import upload_sources
from tests.sdk.file_peer import FilePeer


def test_all_folders_of_one_upload_share_the_bound_of_files_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs in bulk with a folder each: what does not stay in memory is read a second time, when it is sent."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("YARD_CONFIG", str(tmp_path / "yard.yaml"))
    monkeypatch.setattr(hashing, "MEMORY_BYTES_MAX", 250)
    read_again: list[ChunkSource] = []

    def read(source: ChunkSource) -> bytes:
        read_again.append(source)
        return read_chunk(source)

    monkeypatch.setattr(upload, "read_chunk", read)
    folders = [tmp_path / str(number) for number in range(6)]
    for number, folder in enumerate(folders):
        folder.mkdir()
        (folder / "file").write_bytes(b"%d" % number * 100)
    groups = [list_sources((), workdir=folder) for folder in folders]
    with FilePeer() as peer, Client(peer.url, retry_s=30.0) as client:
        roots = upload_sources(client._transport, groups)
    assert {bytes.fromhex(root) for root in roots} == peer.sealed
    assert len(peer.sealed) == 6
    assert len(read_again) == 4, "two of six files are within the bound"
