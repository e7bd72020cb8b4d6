"""The ends of attempts of executions: when a job is over, and what is known of the files that it left."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.features.flyte.service.executions.nodes.attempt_files import SILENCE_US, UPLOAD_US, is_over, read_end
from switchyard.features.flyte.store.executions.execution_nodes import LiveAttemptRow
from switchyard.features.flyte.workflow.engine.attempt_result import judge_attempt
from switchyard.model.files.files import OutputState

FIELDS = dict.fromkeys(LiveAttemptRow.__struct_fields__)
ENDED_US = 1_000_000
NO_CONTEXT: Any = None  # no store is asked for files that never came


def a_row(state: str, **fields: Any) -> LiveAttemptRow:
    return LiveAttemptRow(**{**FIELDS, "node_id": "n0", "attempt": 0, "state": state, "ended_us": ENDED_US, **fields})


@pytest.mark.parametrize(
    ("row", "after_us"),
    [
        (a_row("SUCCEEDED", started_us=1, output_state=OutputState.READY), 0),
        (a_row("SUCCEEDED", started_us=1, output_state=OutputState.UPLOADING), UPLOAD_US),
        (a_row("SUCCEEDED", started_us=1), SILENCE_US),
        (a_row("SUCCEEDED", started_us=None), SILENCE_US),
        (a_row("FAILED", started_us=None), 0),
        (a_row("CANCELLED", started_us=1), 0),
    ],
)
def test_a_job_is_over_when_its_files_are_here_or_were_waited_for(row: LiveAttemptRow, after_us: int) -> None:
    assert is_over(row, ENDED_US + after_us + 1)
    assert not after_us or not is_over(row, ENDED_US + after_us)


@pytest.mark.parametrize("output_state", [None, OutputState.UPLOADING, OutputState.FAILED])
def test_a_success_whose_files_never_came_is_a_failure(output_state: str | None) -> None:
    end = read_end(NO_CONTEXT, a_row("SUCCEEDED", started_us=1, output_state=output_state))
    for has_outputs in (True, False):
        failure = judge_attempt("n0", 0, end, has_outputs=has_outputs).failure
        assert failure is not None
        assert (failure.code, failure.message) == ("OutputsNotFound", "no output files came from the cluster")
