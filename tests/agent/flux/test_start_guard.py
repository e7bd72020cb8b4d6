"""The command around a job's command: who starts it, and what the job shell may not replace."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from switchyard.features.flux.agent.submit.start_guard import (
    AGAIN_SUFFIX,
    REFUSED_CODE,
    UNENTERED_CODE,
    UNENTERED_SUFFIX,
    WITHDRAWN,
    CommandBody,
    guarded_command,
    plain_body,
)

ONE, TWO = "f2hQoKxb1", "f2hQoKxb2"


def start(claim: Path, job_id: str, rank: int, body: CommandBody) -> subprocess.CompletedProcess[str]:
    """As Flux starts one task of a job."""
    argv = guarded_command(str(claim), body)
    assert not any("{{" in word for word in argv), "the job shell would replace a part of it"
    env = {"PATH": os.environ["PATH"], "FLUX_JOB_ID": job_id, "FLUX_TASK_RANK": str(rank)}
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False)


def test_tasks_of_the_first_job_run_and_those_of_a_second_one_do_not(tmp_path: Path) -> None:
    claim, body = tmp_path / "it's a claim", plain_body(["echo", "ran"], cwd=None, variables={})
    starts = [(ONE, 0), (ONE, 1), (TWO, 2), (ONE, 11)]
    assert [start(claim, *started, body).stdout for started in starts] == ["ran\n", "ran\n", "", "ran\n"]
    assert start(claim, TWO, 3, body).returncode == REFUSED_CODE
    assert not claim.with_name(claim.name + AGAIN_SUFFIX).exists()


def test_a_task_that_has_run_does_not_run_again(tmp_path: Path) -> None:
    """After a crash Flux may start the same job a second time."""
    claim, body = tmp_path / "started", plain_body(["echo", "ran"], cwd=None, variables={})
    assert start(claim, ONE, 1, body).stdout == "ran\n"
    again = start(claim, ONE, 1, body)
    assert (again.returncode, again.stdout) == (REFUSED_CODE, "")
    assert claim.with_name(claim.name + AGAIN_SUFFIX).exists()


def test_a_task_that_cannot_make_its_link_does_not_run(tmp_path: Path) -> None:
    """As on a full disk. Here the name of the claim is as long as a name may be."""
    claim = tmp_path / ("x" * 254)
    done = start(claim, ONE, 0, plain_body(["echo", "ran"], cwd=None, variables={}))
    assert (done.returncode, done.stdout) == (REFUSED_CODE, "")
    assert list(tmp_path.iterdir()) == [claim]


def test_a_working_directory_that_cannot_be_entered_is_noted(tmp_path: Path) -> None:
    claim, name = tmp_path / "started", str(tmp_path / "no {{folder}}")
    for rank, variables in enumerate(({}, {"A": "{{id}}"})):
        done = start(claim, ONE, rank, plain_body(["echo", "ran"], cwd=name, variables=variables))
        assert (done.returncode, done.stdout) == (UNENTERED_CODE, "")
        claim.with_name(claim.name + UNENTERED_SUFFIX).unlink()


@pytest.mark.parametrize("what", ["withdrawn", "no folder"])
def test_nothing_runs_that_was_withdrawn(tmp_path: Path, what: str) -> None:
    claim = tmp_path / "started"
    if what == "withdrawn":
        claim.symlink_to(WITHDRAWN)
    else:
        claim = tmp_path / "gone" / "started"
    done = start(claim, ONE, 0, plain_body(["echo", "ran"], cwd=None, variables={}))
    assert (done.returncode, done.stdout) == (REFUSED_CODE, "")


@pytest.mark.parametrize(
    "words",
    [
        ["a b", "it's", "$HOME", "", "-n"],
        ["{{id}}", "{{{name}}}", "it's {{tmpdir}}", "a{b}{c", "{{"],
        ["x" * 131_000],
    ],
)
@pytest.mark.parametrize("cwd", [None, "in {{it}}"])
def test_words_arrive_as_they_are(tmp_path: Path, words: list[str], cwd: str | None) -> None:
    if cwd is not None and len(words) == 1:
        cwd = "plain"  # one text for the shell is as long as one word may be
    if cwd is not None:
        (tmp_path / cwd).mkdir()
    script = 'for word in "$PWD" "$@"; do printf "%s\\n" "$word"; done'
    body = plain_body(
        ["sh", "-c", script, "=x", *words], cwd=None if cwd is None else str(tmp_path / cwd), variables={}
    )
    done = start(tmp_path / "started", ONE, 0, body)
    assert done.stdout.splitlines()[1:] == words
    assert cwd is None or done.stdout.startswith(f"{tmp_path / cwd}\n")


def test_variables_with_templates_and_a_command_that_looks_like_one(tmp_path: Path) -> None:
    program = tmp_path / "a=b"
    program.write_text('#!/bin/sh\nprintf %s "$A"\n')
    program.chmod(0o755)
    body = plain_body([str(program)], cwd=None, variables={"A": "{{id}} it's"})
    assert start(tmp_path / "started", ONE, 0, body).stdout == "{{id}} it's"
