"""Calls side by side, and which attempts are handed over together."""

from __future__ import annotations

import threading

import pytest
from msgspec.structs import replace

from switchyard.agent.journal.attempt import Attempt, submit_batches
from switchyard.agent.loop.parallel_calls import call_in_parallel
from switchyard.errors import Internal
from switchyard.model.cluster.poll import Lease
from tests.agent.builders import a_lease
from tests.processes import PATIENCE_S


def test_all_are_under_way_together_and_answer_in_order() -> None:
    meeting = threading.Barrier(3, timeout=PATIENCE_S)

    def call(number: int) -> int:
        meeting.wait()
        return number * 2

    assert call_in_parallel(call, [1, 2, 3]) == [2, 4, 6]


def test_one_alone_needs_no_thread() -> None:
    assert call_in_parallel(lambda _: threading.current_thread(), [0]) == [threading.current_thread()]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_defect_is_not_lost() -> None:
    with pytest.raises(Internal, match="defect"):
        call_in_parallel(lambda number: 1 // number, [1, 0])


def task(lease: Lease, index: int, fence: int) -> Attempt:
    return Attempt(replace(lease, lo=index, hi=index, fence=fence))


def test_neighbours_of_one_array_go_together() -> None:
    one, two = a_lease("a"), a_lease("b")
    attempts = [task(one, index, 10 + index) for index in range(5)]
    attempts += [task(one, 6, 16)]  # a gap
    attempts += [task(one, 7, 30)]  # given again, under another fence
    attempts += [task(two, 8, 31), Attempt(a_lease("c")), Attempt(a_lease("d"))]
    batches = [[each.key for each in batch] for batch in submit_batches(attempts, 3)]
    assert [len(batch) for batch in batches] == [3, 2, 1, 1, 1, 1, 1]
    assert [key for batch in batches for key in batch] == [each.key for each in attempts]


def test_a_backend_without_arrays_gets_one_at_a_time() -> None:
    attempts = [task(a_lease("a"), index, index) for index in range(3)]
    assert [len(batch) for batch in submit_batches(attempts, 1)] == [1, 1, 1]
