"""The script that Slurm runs, by the shells that a node may call `sh`: begins once, whatever the disk is like."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from switchyard.agent.backends.slurm.script import script_of
from switchyard.agent.backends.slurm.states import RERUN_CODE
from tests.agent.builders import a_lease

SHELLS = [each for each in (["dash"], ["bash", "--posix"], ["busybox", "sh"]) if shutil.which(each[0])]
NODE = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}
TASK = {**NODE, "SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}


class Node:
    """Runs one script as a node does, as often as it is told to."""

    def __init__(self, shell: list[str], folder: Path, text: str, *, is_noted: bool, is_task: bool = False) -> None:
        self.folder, self._shell = folder, shell
        lease = a_lease("sh", "-c", text)
        lease = replace(lease, lo=0, hi=9) if is_task else lease
        self._script = script_of(lease, "yard-x", str(folder), cluster="c", base=0, is_noted=is_noted)
        self._env = {"PATH": "/usr/bin:/bin", **(TASK if is_task else NODE)}

    def start(self, **env: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            self._shell, input=self._script, env={**self._env, **env}, capture_output=True, timeout=30, check=False
        )

    def note(self, name: str) -> str | None:
        file = self.folder / name
        return file.read_text() if file.exists() else None


def test_both_usual_shells_are_here() -> None:
    assert [each[0] for each in SHELLS[:2]] == ["dash", "bash"]


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
@pytest.mark.parametrize("is_task", [False, True])
@pytest.mark.parametrize("is_noted", [False, True])
def test_it_begins_once(tmp_path: Path, shell: list[str], is_noted: bool, is_task: bool) -> None:
    node = Node(shell, tmp_path, "echo ran; exit 5", is_noted=is_noted, is_task=is_task)
    native, task = ("7_3", ".3") if is_task else ("7", "")
    first = node.start()
    assert (first.returncode, first.stdout) == (5, b"ran\n"), first.stderr
    assert node.note(f"started{task}") == f"{native} 0 n1{' noted' if is_noted else ''}\n"
    assert node.note(f"exit{task}") == ("5\n" if is_noted else None)
    second = node.start(SLURM_RESTART_COUNT="1")
    assert (second.returncode, second.stdout) == (RERUN_CODE, b"")
    assert b"does not run twice" in second.stderr
    assert node.note(f"again{task}") == f"{native}\n"
    assert node.note(f"started{task}") == f"{native} 0 n1{' noted' if is_noted else ''}\n", "the first one's word stays"


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
@pytest.mark.parametrize("is_noted", [False, True])
def test_a_disk_without_room_for_the_note_does_not_keep_it_from_running(
    tmp_path: Path, shell: list[str], is_noted: bool
) -> None:
    (tmp_path / "started").symlink_to("/dev/full")
    ended = Node(shell, tmp_path, "echo ran", is_noted=is_noted).start()
    assert (ended.returncode, ended.stdout) == (0, b"ran\n"), ended.stderr


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
def test_an_end_that_finds_no_room_is_told_by_the_file_made_before(tmp_path: Path, shell: list[str]) -> None:
    node = Node(shell, tmp_path, f"ln -s /dev/full {tmp_path}/exit; exit 5", is_noted=True)
    assert node.start().returncode == 5
    assert (tmp_path / "exit").is_file()
    assert node.note("exit") == ""


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
def test_what_was_withdrawn_does_not_begin(tmp_path: Path, shell: list[str]) -> None:
    (tmp_path / "started").write_text("withdrawn\n")
    ended = Node(shell, tmp_path, "echo ran", is_noted=False).start()
    assert (ended.returncode, ended.stdout) == (RERUN_CODE, b"")
    assert (tmp_path / "started").read_text() == "withdrawn\n"
