"""The script that Slurm runs, by the shells that a node may call `sh`: begins once, whatever the disk is like."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from switchyard.features.slurm.agent.commands.script import script_of
from switchyard.features.slurm.agent.commands.states import RERUN_CODE
from switchyard.model.job.job import Native
from tests.agent.builders import a_lease
from tests.processes import until

SHELLS = [each for each in (["dash"], ["bash", "--posix"], ["busybox", "sh"]) if shutil.which(each[0])]
NODE = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}
TASK = {**NODE, "SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}


class Node:
    """Runs one script as a node does, as often as it is told to."""

    def __init__(
        self, shell: list[str], folder: Path, text: str, *, is_task: bool = False, options: tuple[str, ...] = ()
    ) -> None:
        self.folder, self._shell = folder, shell
        lease = a_lease("sh", "-c", text, native=Native(options=[*options]))
        lease = replace(lease, lo=0, hi=9) if is_task else lease
        self.script = script_of(lease, "yard-x", str(folder), cluster="c", base=0)
        self.env = {"PATH": "/usr/bin:/bin", **(TASK if is_task else NODE)}

    def start(self, **env: str) -> subprocess.CompletedProcess[bytes]:
        words = ["env", "--default-signal=HUP", *self._shell]  # nohup has the tests ignore it, and all they start
        return subprocess.run(
            words, input=self.script, env={**self.env, **env}, capture_output=True, timeout=30, check=False
        )

    def note(self, name: str) -> str | None:
        file = self.folder / name
        return file.read_text() if file.exists() else None


def test_both_usual_shells_are_here() -> None:
    assert [each[0] for each in SHELLS[:2]] == ["dash", "bash"]


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
@pytest.mark.parametrize("is_task", [False, True])
def test_it_begins_once(tmp_path: Path, shell: list[str], is_task: bool) -> None:
    node = Node(shell, tmp_path, "echo ran; exit 5", is_task=is_task)
    native, task = ("7_3", ".3") if is_task else ("7", "")
    first = node.start()
    assert (first.returncode, first.stdout) == (5, b"ran\n"), first.stderr
    assert node.note(f"started{task}") == f"{native} 0 n1 noted\n"
    assert node.note(f"exit{task}") == "code 5\n"
    second = node.start(SLURM_RESTART_COUNT="1")
    assert (second.returncode, second.stdout) == (RERUN_CODE, b"")
    assert b"does not run twice" in second.stderr
    assert node.note(f"again{task}") == f"{native}\n"
    assert node.note(f"started{task}") == f"{native} 0 n1 noted\n", "the first one's word stays"


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
def test_a_disk_without_room_for_the_note_does_not_keep_it_from_running(tmp_path: Path, shell: list[str]) -> None:
    (tmp_path / "started").symlink_to("/dev/full")
    ended = Node(shell, tmp_path, "echo ran").start()
    assert (ended.returncode, ended.stdout) == (0, b"ran\n"), ended.stderr


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
def test_a_start_that_cannot_be_noted_does_not_run(tmp_path: Path, shell: list[str]) -> None:
    """The agent has dropped the job and its folder, and the node launches the job late."""
    folder = tmp_path / "gone"
    ended = Node(shell, folder, "echo ran").start()
    assert (ended.returncode, ended.stdout, folder.exists()) == (RERUN_CODE, b"", False)
    assert b"the start cannot be noted" in ended.stderr


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
def test_an_end_that_finds_no_room_is_told_by_the_file_made_before(tmp_path: Path, shell: list[str]) -> None:
    node = Node(shell, tmp_path, f"ln -s /dev/full {tmp_path}/exit; exit 5")
    assert node.start().returncode == 5
    assert (tmp_path / "exit").is_file()
    assert node.note("exit") == ""


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
def test_what_was_withdrawn_does_not_begin(tmp_path: Path, shell: list[str]) -> None:
    (tmp_path / "started").write_text("withdrawn\n")
    ended = Node(shell, tmp_path, "echo ran").start()
    assert (ended.returncode, ended.stdout) == (RERUN_CODE, b"")
    assert (tmp_path / "started").read_text() == "withdrawn\n"


OWN_NAMES = ("folder", "task", "native", "note", "noted", "start", "code", "end")  # of the script
SHELL_NAMES = (
    "UID",
    "PPID",
    "SHELLOPTS",
    "LC_ALL",
    "IFS",
    "PWD",
    "OLDPWD",
    "BASH_ENV",
    "BASHOPTS",
    "SECONDS",
    "OPTIND",
    "_",
)


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
@pytest.mark.parametrize("options", [(), ("--signal=B:USR1@60",)], ids=["noted", "signalled"])
def test_variables_reach_the_command_whole_and_are_no_words_of_a_program(
    tmp_path: Path, shell: list[str], options: tuple[str, ...]
) -> None:
    """All accounts of a node may read the words of its programs."""
    programs, words = tmp_path / "bin", tmp_path / "words"
    programs.mkdir()
    (programs / "env").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{words}\nexec /usr/bin/env "$@"\n')
    (programs / "env").chmod(0o700)
    given = {
        "SECRET": "it's\nmine $HOME",
        **{name: f"own {name}" for name in (*OWN_NAMES, *SHELL_NAMES, "A-B", "PATH")},
    }
    lease = a_lease("/usr/bin/env", "-0", env=given, native=Native(options=[*options]))
    node = Node(shell, tmp_path, "")
    node.script = script_of(lease, "yard-x", str(tmp_path), cluster="c", base=0)
    node.env["PATH"] = f"{programs}:/usr/bin:/bin"
    done = node.start()
    seen = dict(pair.split("=", 1) for pair in done.stdout.decode().split("\0") if pair)
    assert {name: seen.get(name) for name in given} == given, done.stderr
    assert (done.returncode, node.note("exit")) == (0, None if options else "code 0\n")
    assert "SECRET" not in words.read_text()
    assert "own folder" not in words.read_text()


SIGNALS = ("HUP", "INT", "QUIT", "ABRT", "KILL", "SEGV", "PIPE", "ALRM", "TERM", "USR1", "XCPU")
WORDLESS = ("INT", "PIPE")  # no shell says that a command was ended by these


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
def test_it_notes_a_signal_and_ends_by_it(tmp_path: Path, shell: list[str]) -> None:
    for name in SIGNALS:
        if (shell[0], name) == ("busybox", "QUIT"):
            continue  # busybox runs its own sh as the job's command, and that one ignores SIGQUIT
        number = signal.Signals[f"SIG{name}"].value
        folder = tmp_path / name
        folder.mkdir()
        node = Node(shell, folder, f"echo ran; echo said >&2; ulimit -c 0; kill -{name} $$")
        ended = node.start()
        # bash never ends by SIGQUIT itself: there the note alone tells of it.
        code = 128 + number if (shell[0], name) == ("bash", "QUIT") else -number
        assert (ended.returncode, ended.stdout, ended.stderr) == (code, b"ran\n", b"said\n"), name
        assert node.note("exit") == f"signal {number}\n"


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
def test_a_code_above_128_is_no_signal(tmp_path: Path, shell: list[str]) -> None:
    for name in sorted({*SIGNALS} - {*WORDLESS}):
        code = 128 + signal.Signals[f"SIG{name}"].value
        folder = tmp_path / name
        folder.mkdir()
        node = Node(shell, folder, f"exit {code}")
        assert (node.start().returncode, node.note("exit")) == (code, f"code {code}\n")


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
def test_a_command_that_ends_in_its_own_way_after_a_signal_to_all_is_waited_for(
    tmp_path: Path, shell: list[str]
) -> None:
    text = f"trap 'echo saved; exit 7' TERM; touch {tmp_path}/ready; while :; do sleep 0.05; done"
    node = Node(shell, tmp_path, text)
    with subprocess.Popen(
        [*shell], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=node.env, start_new_session=True
    ) as process:
        assert process.stdin is not None
        process.stdin.write(node.script)
        process.stdin.close()
        until(lambda: (tmp_path / "ready").exists(), 30, "the command runs")
        os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(30) == 7
        assert process.stdout is not None
        assert process.stdout.read() == b"saved\n"
    assert node.note("exit") == "code 7\n"


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
@pytest.mark.parametrize("options", [("--signal=B:USR1@60",), ("--signal", "RB:USR1")])
def test_the_script_becomes_the_command_for_a_signal_to_the_script_alone(
    tmp_path: Path, shell: list[str], options: tuple[str, ...]
) -> None:
    node = Node(shell, tmp_path, "kill -9 $$", options=options)
    assert (node.start().returncode, node.note("started"), node.note("exit")) == (-9, "7 0 n1\n", None)
