"""Whether there is room for files: looked at where they are kept, after the cache has made room."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from switchyard.agent.files.inputs.room import FilesRoom

TOO_MUCH = 2**62  # no disk has as much free


class EmptiedCache:
    """Stands for the cache; counts how often it was emptied."""

    def __init__(self, freed: int = 0) -> None:
        self.freed, self.times = freed, 0

    def __call__(self) -> int:
        self.times += 1
        return self.freed


def test_a_full_disk_is_told_once_it_is_full_and_until_it_is_not(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    cache = EmptiedCache()
    full = FilesRoom(tmp_path / "cache", [tmp_path / "work"], bytes_min=TOO_MUCH, empty_cache=cache)
    assert full.look()
    assert full.trouble.startswith("disk full for files: ")
    assert not full.look(), "it began before"
    assert cache.times == 2, "the cache makes room first"
    roomy = FilesRoom(tmp_path / "cache", [tmp_path / "work"], bytes_min=1, empty_cache=cache)
    assert not roomy.look()
    assert (roomy.trouble, cache.times) == ("", 2)


def test_the_cache_on_another_file_system_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    cache = EmptiedCache(freed=1)
    room = FilesRoom(tmp_path / "cache", [Path("/proc")], bytes_min=1, empty_cache=cache)
    assert room.look()
    assert room.trouble.startswith("disk full for files: "), "/proc has no room, ever"
    assert cache.times == 0


@pytest.mark.parametrize("code", [errno.EACCES, errno.ESTALE, errno.EIO])
def test_a_folder_that_cannot_be_looked_at_is_trouble_and_no_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    work = tmp_path / "work"
    room = FilesRoom(tmp_path / "cache", [work], bytes_min=1, empty_cache=EmptiedCache())
    real = Path.is_dir

    def is_dir(path: Path) -> bool:
        if path == work:
            raise OSError(code, os.strerror(code), str(path))
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "is_dir", is_dir)
        assert room.look()
        assert room.trouble == f"disk error for files: {os.strerror(code)}"
        assert not room.look(), "it began before"
    assert room.look(), "it ended"
    assert room.trouble == ""


def test_a_folder_that_is_not_there_yet_is_judged_by_the_one_above_it(tmp_path: Path) -> None:
    room = FilesRoom(tmp_path / "a" / "cache", [tmp_path / "b" / "work"], bytes_min=1, empty_cache=EmptiedCache())
    assert not room.look()
    assert not (tmp_path / "a").exists()
