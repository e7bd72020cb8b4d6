"""Ends that Flux reports, and what the claims say of them: a command that has not begun did not end by a code."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchyard.agent.backends import Status
from switchyard.agent.backends.shared.shared_files import SharedFiles
from switchyard.agent.backends.shared.work_folders import UNENTERED_TEXT
from switchyard.features.flux.agent.follow.checked_ends import SECOND_START_TEXT, checked_end
from switchyard.features.flux.agent.follow.job_ids import parse_job_id
from switchyard.features.flux.agent.submit.claims import StartClaims
from switchyard.features.flux.agent.submit.start_guard import REFUSED_CODE, UNENTERED_CODE, WITHDRAWN
from switchyard.features.flux.agent.submit.submissions import FluxSubmission
from switchyard.model.job.lifecycle import ObservedState
from switchyard.model.job.retry import Cause
from tests.agent.builders import a_lease

LEASE = a_lease("true")
RECORD = FluxSubmission(LEASE, key="k")
JOB, OTHER = "f2hQoKxb1", "f2hQoKxb2"
RETURNED, FAILED = ObservedState.RETURNED, ObservedState.FAILED


def failed(code: int | None = None, *, signal: int | None = None, cause: Cause = Cause.JOB, text: str = "") -> Status:
    reason = "time limit reached" if text == "timeout" else f"exit code {code}"
    return Status(seen=FAILED, text=text or "INACTIVE", reason=reason, exit_code=code, signal=signal, cause=cause)


@pytest.mark.parametrize(
    ("links", "status", "seen", "cause", "words"),
    [
        # No task began: the code or the signal is that of a shell or of the node.
        ({}, failed(2), RETURNED, Cause.CLUSTER, "exit code 2; nothing of it ran"),
        ({}, failed(127), RETURNED, Cause.CLUSTER, "nothing of it ran"),
        ({}, failed(signal=9), RETURNED, Cause.CLUSTER, "nothing of it ran"),
        ({}, failed(text="timeout"), RETURNED, Cause.CLUSTER, "nothing of it ran"),
        ({}, failed(cause=Cause.CLUSTER, text="exec"), RETURNED, Cause.CLUSTER, "nothing of it ran"),
        ({"": WITHDRAWN}, failed(REFUSED_CODE), RETURNED, Cause.CLUSTER, "nothing of it ran"),
        # Its node saw no folder, or could make no link in it.
        ({}, failed(REFUSED_CODE), FAILED, Cause.CLUSTER, "its node does not see the folder"),
        ({"": OTHER, ".0": OTHER}, failed(REFUSED_CODE), FAILED, Cause.CLUSTER, "its node does not see the folder"),
        ({"": JOB}, failed(REFUSED_CODE), FAILED, Cause.CLUSTER, "its node could not note its start"),
        ({"": JOB, ".0": JOB, ".again": ""}, failed(REFUSED_CODE), FAILED, Cause.CLUSTER, SECOND_START_TEXT),
        # The working directory that the job names.
        ({"": JOB, ".0": JOB, ".cwd": ""}, failed(UNENTERED_CODE), FAILED, Cause.JOB, UNENTERED_TEXT),
        # It began.
        ({"": JOB, ".0": JOB}, failed(2), FAILED, Cause.JOB, "exit code 2"),
        ({"": JOB, ".0": JOB}, failed(UNENTERED_CODE), FAILED, Cause.JOB, "exit code 1"),
        ({"": JOB, ".0": JOB}, failed(REFUSED_CODE), FAILED, Cause.JOB, f"exit code {REFUSED_CODE}"),
        # What the cluster refuses is not tried again.
        ({}, failed(cause=Cause.CLUSTER, text="validate"), FAILED, Cause.CLUSTER, "exit code None"),
    ],
)
def test_an_end_counts_only_of_a_command_that_began(
    tmp_path: Path, links: dict[str, str], status: Status, seen: ObservedState, cause: Cause, words: str
) -> None:
    files = SharedFiles(tmp_path)
    files.make(RECORD.folder, None, [])
    claims = StartClaims(files)
    claim = claims.path(RECORD, LEASE)
    for suffix, target in links.items():
        claim.with_name(claim.name + suffix).symlink_to(target or "x")
    found = checked_end(claims, parse_job_id(JOB), RECORD, LEASE, status)
    assert (found.seen, found.cause, words in found.reason) == (seen, cause, True), found
    is_own = found == status
    assert is_own or (found.exit_code, found.signal) == (None, None), "no code that is not the command's"
    if seen is RETURNED:
        assert claims.is_withdrawn(RECORD, LEASE), "a late start of it runs nothing"
