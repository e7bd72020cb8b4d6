"""The table of Slurm's states: what each means, whose fault a failure was, and that strange words stay strange."""

from __future__ import annotations

import pytest

from switchyard.features.slurm.agent.commands.states import RERUN_CODE, SEEN_BY_STATE, SlurmJobFacts, status_of
from switchyard.model.job.job import Usage
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause

NOW_S = 1000.0
# squeue(1), "JOB STATE CODES", of 22.05, 24.11 and 26.05 together.
WORDS = """
BOOT_FAIL CANCELLED COMPLETED COMPLETING CONFIGURING DEADLINE EXPEDITING FAILED LAUNCH_FAILED NODE_FAIL OUT_OF_MEMORY
PENDING POWER_UP_NODE PREEMPTED RECONFIG_FAIL REQUEUED REQUEUE_FED REQUEUE_HOLD RESIZING RESV_DEL_HOLD REVOKED RUNNING
SIGNALING SPECIAL_EXIT STAGE_OUT STOPPED SUSPENDED TIMEOUT
"""


def ended(state: str, **more: object) -> SlurmJobFacts:
    given = {"state": state, "started_s": 900, "ended_s": 990, "nodes": "n1", "reason": "None", **more}
    return SlurmJobFacts(**given)  # type: ignore[arg-type]


def test_the_table_has_every_word() -> None:
    assert set(SEEN_BY_STATE) == set(WORDS.split())


@pytest.mark.parametrize("word", ["GONE_FISHING", "", "CANCELLED?"])
def test_a_strange_state_is_unknown_with_its_text(word: str) -> None:
    found = status_of(SlurmJobFacts(state=word), now_s=NOW_S)
    assert (found.seen, found.text) == (ObservedState.UNKNOWN, word)


@pytest.mark.parametrize(
    ("facts", "code", "signal", "reason", "cause"),
    [
        (ended("FAILED", exit_code=7), 7, None, "exit code 7", Cause.JOB),
        (ended("FAILED", signal=9), None, 9, "killed by SIGKILL (signal 9)", Cause.JOB),
        (ended("FAILED", signal=60), None, 60, "killed by signal 60", Cause.JOB),
        (ended("FAILED", exit_code=129), 129, None, "exit code 129", Cause.JOB),
        (ended("FAILED", exit_code=137), 137, None, "exit code 137", Cause.JOB),
        (ended("FAILED", exit_code=192), 192, None, "exit code 192", Cause.JOB),
        (ended("FAILED", exit_code=250), 250, None, "exit code 250", Cause.JOB),
        (ended("TIMEOUT", signal=15), None, None, "time limit reached", Cause.JOB),
        (ended("OUT_OF_MEMORY", signal=125), None, None, "out of memory", Cause.JOB),
        (ended("NODE_FAIL", exit_code=1), None, None, "node failure", Cause.CLUSTER),
        (ended("PREEMPTED", signal=15), None, None, "preempted by another job", Cause.PREEMPTED),
        (ended("DEADLINE"), None, None, "its deadline passed before it ended", Cause.JOB),
        (ended("BOOT_FAIL"), None, None, "its node could not be booted", Cause.CLUSTER),
        (
            ended("FAILED", signal=53),
            None,
            None,
            "its node could not launch it; often its output folder cannot be written there",
            Cause.CLUSTER,
        ),
        (
            ended("FAILED", exit_code=1, nodes="", reason="BadConstraints"),
            None,
            None,
            "the cluster did not start it: BadConstraints",
            Cause.CLUSTER,
        ),
        (
            ended("FAILED", exit_code=RERUN_CODE, reason="rerun"),
            None,
            None,
            "the cluster started it a second time, which was refused: it may have run in part",
            Cause.CLUSTER,
        ),
        (
            ended("FAILED", signal=9, reason="forgotten"),
            None,
            9,
            "the cluster does not know it any more; it was killed by SIGKILL (signal 9)",
            Cause.CLUSTER,
        ),
        (
            ended("FAILED", exit_code=1, reason="cwd"),
            None,
            None,
            "its node could not enter its working directory: the command did not run",
            Cause.JOB,
        ),
        (
            ended("FAILED", exit_code=1, reason="folder"),
            None,
            None,
            "its node could not enter the folder that the agent made for it: the command did not run",
            Cause.CLUSTER,
        ),
        (ended("FAILED", exit_code=RERUN_CODE), RERUN_CODE, None, f"exit code {RERUN_CODE}", Cause.JOB),
        (
            ended("FAILED", reason="AssocMaxJobsLimit"),
            0,
            None,
            "the cluster says that it failed, not why: AssocMaxJobsLimit",
            Cause.CLUSTER,
        ),
    ],
)
def test_failures(facts: SlurmJobFacts, code: int | None, signal: int | None, reason: str, cause: Cause) -> None:
    found = status_of(facts, now_s=NOW_S)
    assert (found.seen, found.exit_code, found.signal) == (ObservedState.FAILED, code, signal)
    assert (found.reason, found.cause) == (reason, cause)


def test_success_with_what_it_used() -> None:
    found = status_of(ended("COMPLETED", memory_bytes_max=4096), now_s=NOW_S)
    assert (found.seen, found.exit_code, found.reason) == (ObservedState.SUCCEEDED, 0, "")
    assert (found.ago_us, found.began_ago_us) == (10_000_000, 100_000_000)
    assert found.usage == Usage(elapsed_s=90, memory_bytes_max=4096, nodes="n1")


def test_who_cancelled_it() -> None:
    assert status_of(ended("CANCELLED"), now_s=NOW_S).reason == "cancelled at the cluster"
    assert status_of(ended("CANCELLED", reason="by 501"), now_s=NOW_S).reason == "cancelled at the cluster by uid 501"
    assert status_of(ended("CANCELLED", reason="by 0"), now_s=NOW_S, is_cancel_asked=True).reason == "cancelled"


def test_one_that_was_cancelled_while_it_waited_never_began() -> None:
    found = status_of(SlurmJobFacts(state="CANCELLED", ended_s=999), now_s=NOW_S)
    assert (found.seen, found.began_ago_us, found.usage) == (ObservedState.CANCELLED, None, None)


def test_what_waits_says_why() -> None:
    found = status_of(SlurmJobFacts(state="PENDING", reason="JobHeldUser"), now_s=NOW_S)
    assert (found.seen, found.reason) == (ObservedState.SUBMITTED, "waits at the cluster: JobHeldUser")
    assert status_of(SlurmJobFacts(state="PENDING", reason="None"), now_s=NOW_S).reason == ""


def test_a_clock_that_is_ahead_makes_no_negative_ages() -> None:
    assert status_of(ended("COMPLETED", started_s=2000, ended_s=2001), now_s=NOW_S).ago_us == 0
    assert status_of(SlurmJobFacts(state="RUNNING", started_s=2000), now_s=NOW_S).ago_us == 0
