"""Whose end it is that Slurm tells: every combination of its word and of what the script left, and how it is told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from switchyard.agent.backends.shared.shared_files import ScriptFiles, SharedFiles
from switchyard.errors import Unavailable
from switchyard.features.slurm.agent.commands.command_runner import CommandRunner
from switchyard.features.slurm.agent.commands.parse import handle_of
from switchyard.features.slurm.agent.commands.script_notes import Withdrawal, read_evidence, withdraw_jobs
from switchyard.features.slurm.agent.commands.states import (
    FORGOTTEN_REASON,
    LAUNCH_FAILURE_SIGNAL,
    RERUN_CODE,
    RERUN_REASON,
    SEEN_BY_STATE,
    SlurmJobFacts,
    status_of,
)
from switchyard.features.slurm.agent.jobs.evidence import (
    EndVerdict,
    ScriptEvidence,
    ScriptStart,
    facts_from_notes,
    judge_end,
    judge_other_start,
    needs_evidence,
)
from switchyard.features.slurm.agent.jobs.remote_files import NOTES_MAX, RemoteFiles
from switchyard.features.slurm.agent.slurm_site import SlurmSite
from switchyard.model.job.lifecycle import ObservedState

NATIVE = "24_0"
S, N, A, R = EndVerdict.SLURM, EndVerdict.NOTED, EndVerdict.ANOTHER, EndVerdict.RERUN
UNBEGUN, UNENDED = EndVerdict.UNBEGUN, EndVerdict.UNENDED


def said(state: str, code: int = 0, signal: int = 0, **more: Any) -> SlurmJobFacts:
    given = {"started_s": 100, "ended_s": 200, "nodes": "n1", **more}
    return SlurmJobFacts(state=state, exit_code=code, signal=signal, **given)


def left(ended: str | None = None, *, native: str = NATIVE, at_s: int = 100, **more: Any) -> ScriptEvidence:
    """By a script that notes its end; `is_noted=False`: by one that does not."""
    start = ScriptStart(native, more.pop("restarts", 0), "n1", more.pop("is_noted", True), at_s)
    return ScriptEvidence(start=start, ended=ended, ended_s=150 if ended is not None else None, **more)


NOTHING, OUTPUT = ScriptEvidence(), ScriptEvidence(has_output=True)
ALONE = left(is_noted=False)
DONE, FAILED_5, KILLED = said("COMPLETED"), said("FAILED", 5), said("FAILED", 0, 9)
AT_ONCE = said("CANCELLED", started_s=100, ended_s=100)
AGAIN = said("FAILED", RERUN_CODE)
ROWS: list[tuple[SlurmJobFacts, ScriptEvidence, EndVerdict]] = [
    # An end of the command, and nothing of it.
    (DONE, NOTHING, UNBEGUN),
    (said("COMPLETED", nodes=""), NOTHING, UNBEGUN),
    (FAILED_5, NOTHING, UNBEGUN),
    (KILLED, NOTHING, UNBEGUN),
    (AGAIN, NOTHING, UNBEGUN),
    (said("FAILED", 1, restarts=1), NOTHING, UNBEGUN),
    (said("TIMEOUT", 0, 15), NOTHING, UNBEGUN),
    (said("OUT_OF_MEMORY", 0, 125), NOTHING, UNBEGUN),
    (said("DEADLINE"), NOTHING, UNBEGUN),
    (AT_ONCE, NOTHING, UNBEGUN),
    # Its controller died while it launched it, and says so only later.
    (said("NODE_FAIL"), NOTHING, UNBEGUN),
    (said("NODE_FAIL"), ALONE, S),
    # Its node opened its output and ran no line of its script: the code is not the command's. 2: the script was gone.
    *((said("FAILED", code), OUTPUT, UNBEGUN) for code in (1, 2, 26)),
    *((facts, OUTPUT, UNBEGUN) for facts in (DONE, KILLED, AGAIN, AT_ONCE)),
    *((said(word), OUTPUT, UNBEGUN) for word in ("NODE_FAIL", "TIMEOUT", "DEADLINE")),
    (said("OUT_OF_MEMORY", 0, 125), OUTPUT, S),
    (said("FAILED", 0, LAUNCH_FAILURE_SIGNAL), OUTPUT, S),
    (said("PREEMPTED"), OUTPUT, S),
    # What is true of a job that never began.
    (said("FAILED", 1, nodes=""), NOTHING, S),
    (said("FAILED", 0, LAUNCH_FAILURE_SIGNAL), NOTHING, S),
    (said("FAILED", 1, reason=RERUN_REASON), NOTHING, S),
    (said("DEADLINE", nodes=""), NOTHING, S),
    (said("CANCELLED", nodes=""), NOTHING, S),
    (said("NODE_FAIL", nodes=""), NOTHING, S),
    *((said(word), NOTHING, S) for word in ("PREEMPTED", "BOOT_FAIL", "LAUNCH_FAILED", "REVOKED")),
    *((said(word), NOTHING, S) for word in ("PENDING", "RUNNING", "COMPLETING", "GONE_FISHING")),
    # With accounts: it began, and Slurm alone can tell how it ended.
    (DONE, ALONE, S),
    (FAILED_5, ALONE, S),
    (KILLED, ALONE, S),
    (said("FAILED", 137), ALONE, S),
    (said("FAILED", RERUN_CODE), ALONE, S),
    (said("TIMEOUT"), ALONE, S),
    # Its notes could not be written: what is left of them is a sign, too.
    (DONE, ScriptEvidence(start=ScriptStart("")), S),
    (DONE, left(""), S),
    (DONE, ScriptEvidence(ended="0"), S),
    # Without accounts: its own word.
    (DONE, left("0"), S),
    (FAILED_5, left("5"), S),
    (DONE, left("code 0"), S),
    (FAILED_5, left("code 5"), S),
    (said("FAILED", 137), left("code 137"), S),
    (said("FAILED", 137), left("signal 9"), N),
    (KILLED, left("signal 9"), S),
    (KILLED, left("code 137"), N),
    (DONE, left("code 5"), N),
    (said("FAILED", 137), left("137"), N),  # the shell's word for a signal, by an older script
    (KILLED, left("137"), S),
    (said("FAILED", 193), left("193"), S),
    (DONE, left("5"), N),
    (DONE, left("137"), N),
    (FAILED_5, left("0"), N),
    (FAILED_5, left("7"), N),
    (KILLED, left("0"), N),
    (said("FAILED", reason="JobLaunchFailure"), left("0"), S),
    (said("FAILED", reason="JobLaunchFailure"), left(), S),
    *((said("FAILED", 1), left(text, is_noted=False), N) for text in ("cwd", "folder")),
    *(
        (DONE, left(text), S) for text in ("²", "9" * 40, "-1", "cwd?", "word 5", "code x", "code  5 ")
    ),  # not our script's words
    # It began, and still has to write down its end: was that told of it, it would be there.
    (DONE, left(), UNENDED),
    (FAILED_5, left(), UNENDED),
    (KILLED, left(), S),
    # Words of the cluster's about what it did itself: a command that is told to end may well end by 0.
    *((said(word), left("0"), S) for word in ("TIMEOUT", "OUT_OF_MEMORY", "PREEMPTED", "CANCELLED")),
    # A controller that was killed before it saved the end takes the job for one that its node lost.
    (said("NODE_FAIL"), left("code 0"), N),
    (said("NODE_FAIL"), left("code 5"), N),
    (said("NODE_FAIL"), left("signal 9"), S),
    (said("NODE_FAIL"), left(), S),
    # Two jobs of one name, and the other was first.
    (AGAIN, left(native="31_0"), A),
    (AGAIN, left("0", native="31_0"), A),
    (DONE, left("0", native="31_0"), A),
    (FAILED_5, left(native="31_0", is_noted=False), A),
    # Started twice under its own number: Slurm requeued it, or forgot that it had begun.
    (said("FAILED", RERUN_CODE, restarts=1), left(refused=NATIVE), R),
    (said("FAILED", RERUN_CODE, restarts=1), left("0", refused=NATIVE), R),
    (said("FAILED", 1, restarts=1), ALONE, R),
    (said("FAILED", 5, restarts=1), left("5", restarts=1), S),
    (said("COMPLETED", restarts=1), left("0", restarts=1), S),
    (AGAIN, left(is_noted=False, refused=NATIVE), R),
    (AGAIN, left("0", refused=NATIVE), N),
    (AGAIN, left("5", refused=NATIVE), N),
    (AGAIN, left("143", refused=NATIVE), R),
    (AGAIN, left(str(RERUN_CODE)), S),
    # Cancelled as soon as it had a node: by somebody, or by a controller that forgot a start and made another.
    (said("CANCELLED", started_s=100, ended_s=130), NOTHING, UNBEGUN),  # a prolog that failed after a while
    (said("CANCELLED", started_s=100, ended_s=130), OUTPUT, UNBEGUN),
    (said("CANCELLED"), NOTHING, UNBEGUN),  # a node that reached its controller late
    (said("CANCELLED", started_s=100, ended_s=110), left(at_s=90), S),
    (AT_ONCE, left("0"), S),
    (AT_ONCE, left("0", at_s=99), S),
    (AT_ONCE, left("0", at_s=90), N),
    (AT_ONCE, left("5", at_s=90), N),
    (AT_ONCE, left("143", at_s=90), S),
    (AT_ONCE, left("", at_s=90), S),
    (AT_ONCE, left(at_s=90), UNENDED),
    (AT_ONCE, left(at_s=90, is_noted=False), UNENDED),
    (said("CANCELLED", ended_s=100, restarts=1), left(at_s=90), S),
    (AT_ONCE, ALONE, S),
]


@pytest.mark.parametrize(("facts", "signs", "verdict"), ROWS)
def test_whose_end_it_is(facts: SlurmJobFacts, signs: ScriptEvidence, verdict: EndVerdict) -> None:
    assert judge_end(NATIVE, facts, signs, is_settled=True) is verdict
    waits = verdict in (UNBEGUN, UNENDED)  # what a node has written may be seen late
    assert judge_end(NATIVE, facts, signs, is_settled=False) is (EndVerdict.WAIT if waits else verdict)
    assert verdict is S or needs_evidence(facts)


@pytest.mark.parametrize("state", sorted(SEEN_BY_STATE))
def test_no_success_without_a_sign(state: str) -> None:
    facts = said(state)
    if judge_end(NATIVE, facts, NOTHING, is_settled=True) is S:
        assert status_of(facts, now_s=300).seen is not ObservedState.SUCCEEDED


@pytest.mark.parametrize(
    ("facts", "other", "signs", "verdict"),
    [
        (AGAIN, said("RUNNING"), left(native="31_0"), S),
        (AGAIN, DONE, left("0", native="31_0"), S),
        (AGAIN, DONE, left("5", native="31_0"), N),
        (AGAIN, FAILED_5, left(native="31_0", is_noted=False), S),
        (AGAIN, None, left("0", native="31_0"), N),
        (AGAIN, None, left(native="31_0"), R),
        (DONE, None, left(native="31_0"), UNENDED),
    ],
)
def test_what_became_of_the_other(
    facts: SlurmJobFacts, other: SlurmJobFacts | None, signs: ScriptEvidence, verdict: EndVerdict
) -> None:
    assert judge_other_start(facts, other, signs, is_settled=True) is verdict


def test_what_we_cancelled_ourselves_before_it_began_is_cancelled_at_once() -> None:
    assert judge_end("24_0", AT_ONCE, NOTHING, is_settled=False) is EndVerdict.WAIT
    assert judge_end("24_0", AT_ONCE, NOTHING, is_settled=False, is_cancel_asked=True) is S


def test_the_accounts_may_be_late_to_know_the_other() -> None:
    assert judge_other_start(AGAIN, None, left(native="31_0"), is_settled=False) is EndVerdict.WAIT


def test_an_end_in_the_scripts_own_words() -> None:
    own = facts_from_notes(said("COMPLETED", memory_bytes_max=7), left("137", at_s=90))
    assert own == SlurmJobFacts(state="FAILED", signal=9, started_s=90, ended_s=150, nodes="n1", memory_bytes_max=7), (
        "the rest is Slurm's"
    )
    assert facts_from_notes(said("FAILED", 5, reason=FORGOTTEN_REASON), left("0")) == said(
        "COMPLETED", ended_s=150, reason=FORGOTTEN_REASON
    )
    assert facts_from_notes(DONE, left("")) is None
    assert facts_from_notes(DONE, NOTHING) is None


@pytest.fixture(params=["shared", "ssh"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> ScriptFiles:
    """Of `tmp_path`, directly and through an ssh that gives its words to a shell, as the real one does."""
    if request.param == "shared":
        return SharedFiles(tmp_path)
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nshift\nexec sh -c "$*"\n')
    ssh.chmod(0o755)
    site = SlurmSite(prefix=f"{ssh} login1", folder=str(tmp_path))
    return RemoteFiles(str(tmp_path), CommandRunner(site, {"PATH": os.environ["PATH"]}))


def test_signs_in_a_folder(files: ScriptFiles, tmp_path: Path) -> None:
    files.make("yard-a", None)
    for file, text in {
        "started.0": "24_0 1 n1 noted\n",
        "exit.0": "5\n",
        "again.0": "24_0\n",
        "started.1": "24_1 0 n2\n",
        "stdout.2": "hello\n",
        "exit.3": "",
    }.items():
        (tmp_path / "yard-a" / file).write_text(text)
        os.utime(tmp_path / "yard-a" / file, (90, 90))
    handles = [handle_of(f"24_{task}", "yard-a") for task in range(5)]
    found = list(read_evidence(files, handles, restarted=handles[:1]).values())
    assert found[0] == ScriptEvidence(start=ScriptStart("24_0", 1), ended="5", ended_s=90, refused="24_0")
    assert found[0].start is not None
    assert (found[0].start.node, found[0].start.is_noted, found[0].start.at_s) == ("n1", True, 90)
    assert found[1] == ScriptEvidence(start=ScriptStart("24_1"))
    assert found[2:4] == [OUTPUT, ScriptEvidence(ended="", ended_s=90)]
    assert found[4] == NOTHING


def test_what_is_told_as_lost_does_not_begin_after_all(files: ScriptFiles, tmp_path: Path) -> None:
    first, second = (handle_of(f"24_{task}", "yard-a") for task in range(2))
    nowhere = handle_of("25", "yard-b")
    files.make("yard-a", None)
    (tmp_path / "yard-a" / "started.0").write_text("24_0 0 n1\n")
    assert withdraw_jobs(files, [first, second, nowhere]) == Withdrawal({second}, {nowhere})
    found = read_evidence(files, [first, second])
    assert (found[first].is_withdrawn, found[second]) == (False, ScriptEvidence(is_withdrawn=True))
    assert judge_end("24_1", DONE, found[second], is_settled=True) is UNBEGUN


def test_what_a_job_put_into_the_place_of_a_note_is_a_sign_of_it(tmp_path: Path) -> None:
    files = SharedFiles(tmp_path)
    files.make("yard-a", None)
    (tmp_path / "yard-a" / "started").symlink_to("/etc/passwd")
    handle = handle_of("24", "yard-a")
    assert read_evidence(files, [handle])[handle] == ScriptEvidence(start=ScriptStart(""))
    assert withdraw_jobs(files, [handle]) == Withdrawal()


def test_more_files_than_one_line_of_ssh_can_name(files: ScriptFiles, tmp_path: Path) -> None:
    files.make("yard-a", None)
    handles = [handle_of(f"24_{task}", "yard-a") for task in range(NOTES_MAX + 10)]
    assert withdraw_jobs(files, handles) == Withdrawal(set(handles))
    assert all(signs.is_withdrawn for signs in read_evidence(files, handles).values())


def test_a_file_system_that_does_not_answer_proves_nothing(tmp_path: Path) -> None:
    name = "x" * 300  # no file system of ours can look for it
    with pytest.raises(Unavailable, match="cannot be read"):
        read_evidence(SharedFiles(tmp_path), [handle_of("24", name)])
