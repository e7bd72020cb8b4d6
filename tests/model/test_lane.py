"""Lanes: what is stored, and the queue and project that it names."""

from __future__ import annotations

import pytest

from switchyard.model.rules.queue import Lane, Queue, QueueLimits, uncounted_lane


@pytest.mark.parametrize("backends", [(), ("slurm",), ("slurm", "local")])
def test_a_lane_reads_as_it_was_made(backends: tuple[str, ...]) -> None:
    lane = Lane.of("night", "physics", backends)
    assert (lane.queue, lane.project) == ("night", "physics")
    assert Lane.read(lane.text) == lane
    assert (lane.text == "night/physics") == (not backends)


def test_a_lane_that_counts_no_more_has_the_same_queue_and_project() -> None:
    lane = Lane.read(uncounted_lane("night/physics slurm"))
    assert (lane.text, lane.queue, lane.project) == ("-night/physics slurm", "night", "physics")


def test_a_lane_needs_a_place_if_its_queue_or_its_project_has_a_limit() -> None:
    queues = {"one": Queue(limits=QueueLimits(running=1)), "ours": Queue(limits=QueueLimits(projects={"physics": 2}))}
    assert Lane.of("one", "physics").needs_place(queues)
    assert Lane.of("ours", "physics").needs_place(queues)
    assert not Lane.of("ours", "biology").needs_place(queues)
    assert not Lane.of("gone", "physics").needs_place(queues)
