"""Folders of jobs that other jobs change while they are removed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from switchyard.agent.backends.shared.shared_files import SharedFiles
from switchyard.agent.files.folder_removal import TRIES_MAX, remove_folder
from switchyard.agent.site.site import LocalSite, Site
from switchyard.features.local.agent.backend import LocalBackend
from tests.agent.builders import a_setting

CHANGE = """
import os, sys
folder = sys.argv[1]
print("begun", flush=True)
while True:
    for old, new in (("a", "b"), ("b", "a"), ("a/f1", "a/g1"), ("a/g1", "a/f1")):
        try:
            os.rename(f"{folder}/{old}", f"{folder}/{new}")
        except OSError:
            if not os.path.exists(folder):
                sys.exit(0)
"""


def a_folder(place: Path) -> Path:
    for name in ("a", "c"):
        (place / name).mkdir(parents=True)
        for number in range(200):
            (place / name / f"f{number}").touch()
    return place


def failing(times: int) -> Any:
    """Removal that meets an entry which another job moved away, the first times."""
    calls = iter(range(10_000))

    def remove(folder: Path, *args: Any, **words: Any) -> None:
        if next(calls) < times:
            raise FileNotFoundError(2, "No such file or directory", "f1")
        real_rmtree(folder, *args, **words)

    real_rmtree = shutil.rmtree
    return remove


def test_a_folder_that_another_process_changes_is_removed_or_said_to_be_left(tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "job")
    with subprocess.Popen([sys.executable, "-c", CHANGE, str(folder)], stdout=subprocess.PIPE) as changer:
        assert changer.stdout is not None
        assert changer.stdout.readline() == b"begun\n"
        is_removed = remove_folder(folder)
        assert is_removed == (not folder.exists())
        changer.kill()
    assert remove_folder(folder), "nobody changes it any more"
    assert not folder.exists()
    assert remove_folder(folder), "it is gone already"


def test_an_entry_that_vanishes_is_no_removed_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = a_folder(tmp_path / "job")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "rmtree", failing(TRIES_MAX - 1))
    assert remove_folder(folder)
    assert not os.path.lexists(folder)
    assert caplog.text == ""
    a_folder(folder)
    monkeypatch.setattr(shutil, "rmtree", failing(TRIES_MAX))
    assert not remove_folder(folder)
    assert caplog.text.count("folder-not-removed") == 1
    assert str(folder) in caplog.text


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_folder_of_any_depth_is_removed(tmp_path: Path, is_closed: bool, caplog: pytest.LogCaptureFixture) -> None:
    folder, outside = tmp_path / "job", tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    place = make_deep(folder, outside)
    if is_closed:
        os.chmod("..", 0o500, dir_fd=place)
        os.chmod(".", 0o000, dir_fd=place)
    os.close(place)
    assert remove_folder(folder), caplog.text
    assert not folder.exists()
    assert (outside / "kept").exists(), "a link out of the folder is not followed"


def make_deep(folder: Path, outside: Path) -> int:
    """A folder with more folders in folders than a recursion allows. Returns the descriptor of the last one."""
    folder.mkdir()
    place = os.open(folder, os.O_RDONLY)
    for _ in range(3 * sys.getrecursionlimit() // 2):
        os.mkdir("d", dir_fd=place)
        os.symlink(outside, "link", dir_fd=place)
        inner = os.open("d", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=place))
    return place


@pytest.mark.parametrize("kind", ["local", "slurm"])
def test_backends_remove_folders_of_any_depth(tmp_path: Path, kind: str) -> None:
    files = SharedFiles(tmp_path / "jobs")
    backend = LocalBackend(a_setting(tmp_path, site=Site(local=LocalSite())))
    os.close(make_deep(tmp_path / "jobs" / "job", tmp_path))
    if kind == "slurm":
        files.remove("job")
    else:
        backend.forget("job")
    backend.close()
    assert not (tmp_path / "jobs" / "job").exists()
