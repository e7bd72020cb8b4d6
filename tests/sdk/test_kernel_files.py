"""Files of /proc and /sys: their sizes say nothing about their content, so they are refused by name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from switchyard.errors import BadRequest
from switchyard.sdk.files.file_names import list_sources
from switchyard.sdk.uploads.hash_cache import HashCache
from switchyard.sdk.uploads.scan import ScannedTree, scan_sources


def scan(sources: dict[str, str]) -> ScannedTree:
    return scan_sources(list_sources(sources), cache=HashCache(None))


@pytest.mark.parametrize("path", ["/proc/self/status", "/proc/meminfo", "/sys/kernel/mm/transparent_hugepage/enabled"])
def test_a_file_of_the_kernel_is_refused_with_the_reason(path: str) -> None:
    if not Path(path).exists():
        pytest.skip(f"this machine has no {path}")
    with pytest.raises(BadRequest, match=f"{Path(path).name}.* has another content than its size") as caught:
        scan({"status": path})
    assert "send the copy" in caught.value.next_step


def test_a_folder_of_the_kernel_is_refused_with_all_names() -> None:
    with pytest.raises(BadRequest, match="has another content than its size of 0 bytes"):
        scan({"net": "/proc/sys/kernel/random"})


def test_empty_and_sparse_files_travel(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with (tmp_path / "sparse").open("wb") as file:
        os.truncate(file.fileno(), 5000)
    assert scan({"x": str(tmp_path)}).size == 5000
