"""Maps and the limits of their owners, and what elements leave."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from flyteidl.core import execution_pb2, literals_pb2, tasks_pb2, workflow_pb2
from msgspec import structs

from switchyard.features.flyte.service.executions.maps.map_driver import read_inputs
from switchyard.features.flyte.service.executions.maps.map_progress import judge_element, new_map
from switchyard.features.flyte.service.executions.maps.map_results import open_elements
from switchyard.features.flyte.store.executions import execution_maps
from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind
from switchyard.features.flyte.workflow.engine.attempt_result import JobEnd
from switchyard.features.flyte.workflow.engine.execution_state import TaskStart
from switchyard.features.flyte.workflow.engine.map_elements import PART_SIZE, ElementState, MapShape
from switchyard.features.flyte.workflow.values.uploaded_files import SCHEME
from switchyard.model.cluster.poll import AttemptRef
from switchyard.model.job.event_kind import EventKind
from switchyard.model.job.lifecycle import ObservedState
from switchyard.service.core.writes.batch import Batch
from switchyard.store.files import file_outputs
from tests.service.executions.bed import ExecutionBed, a_user, limited, outputs_file, wait_for_room
from tests.service.files.trees import a_tree
from tests.service.rig import Rig

TASK = EntityId(EntityKind.TASK, "p", "d", "t", "v1")


def values_of(bed: ExecutionBed, name: str) -> list[int]:
    outputs: Any = literals_pb2.LiteralMap.FromString(bed.row(name).outputs or b"")
    return [one.scalar.primitive.integer for one in outputs.literals["o0"].collection.literals]


def test_a_map_larger_than_the_limit_of_tasks_runs_in_ranges(store_url: str, tmp_path: Any) -> None:
    with limited(store_url, tmp_path, tasks=4) as rig:
        bed = ExecutionBed(rig)
        ann = a_user(rig)
        bed.maps("map", list(range(10)))
        bed.create("map", "e", actor=ann)
        ranges = []
        for _ in range(3):
            bed.drive()
            for lease in bed.lease():
                ranges.append((lease.lo, lease.hi))
                bed.end_elements(lease, outputs_file)
            wait_for_room(rig)
        bed.drive()
        assert ranges == [(0, 3), (4, 7), (8, 9)]
        assert (bed.phase("e"), values_of(bed, "e")) == ("SUCCEEDED", list(range(10)))


def test_a_map_without_room_says_what_it_waits_for(store_url: str, tmp_path: Any) -> None:
    with limited(store_url, tmp_path, tasks=4) as rig:
        bed = ExecutionBed(rig)
        ann = a_user(rig)
        bed.maps("map", [1, 2, 3])
        bed.create("map", "first", actor=ann)
        bed.drive()
        bed.create("map", "second", actor=ann)
        bed.drive()
        (waiting,) = bed.attempts("second")
        assert waiting.phase == "WAITING_FOR_RESOURCES"
        assert "limit `tasks` is reached: you have 3" in waiting.reason
        for lease in bed.lease():
            bed.end_elements(lease, outputs_file)
        wait_for_room(rig)
        bed.run_elements()
        assert (bed.phase("first"), bed.phase("second")) == ("SUCCEEDED", "SUCCEEDED")
        assert [one.phase for one in bed.attempts("second")] == ["SUCCEEDED"]


@pytest.mark.parametrize(
    ("indexes", "ended", "wanted"),
    [
        ("0-9", [], list(range(10))),
        ("0-9", range(10), []),
        ("0-9", [0, 1, 4, 9], [2, 3, 5, 6, 7, 8]),
        ("3-5,8", [4], [3, 5, 8]),  # other elements are in no array yet
        ("0-8:2", [2], [0, 4, 6, 8]),
        (f"0-{2 * PART_SIZE}", range(2 * PART_SIZE - 1), [2 * PART_SIZE - 1, 2 * PART_SIZE]),
        (f"{PART_SIZE - 1}-{PART_SIZE}", [], [PART_SIZE - 1, PART_SIZE]),
        (f"{PART_SIZE - 1}-{PART_SIZE}", [PART_SIZE - 1], [PART_SIZE]),
    ],
)
def test_the_elements_of_an_array_that_have_not_ended(indexes: str, ended: Iterable[int], wanted: list[int]) -> None:
    size = 2 * PART_SIZE + 1
    start = TaskStart("n0", 0, TASK, workflow_pb2.Node(), None, tasks_pb2.TaskTemplate(), MapShape(size, size))
    row, parts = new_map("e", start, 0, is_cached=False, overwrites=False)
    states = {part.part: bytearray(part.states) for part in parts}
    for index in ended:
        states[index // PART_SIZE][index % PART_SIZE] = ElementState.SUCCEEDED
    stored = {number: bytes(body) for number, body in states.items()}
    assert list(open_elements(structs.replace(row, indexes=indexes), stored)) == wanted


def test_an_element_that_leaves_a_workflow_fails_and_says_so(rig: Rig) -> None:
    bed = ExecutionBed(rig)
    bed.maps("map", [1, 2])
    bed.create("map", "e")
    bed.run_elements(files=lambda index: {"futures.pb": b"\x00"} if index else outputs_file(index))
    assert (bed.phase("e"), error_of(bed, "e").code) == ("FAILED", "DynamicMapElement")
    assert "Element 1: the task left a workflow" in error_of(bed, "e").message


def test_an_element_that_crashes_is_told_with_its_exit_code(rig: Rig) -> None:
    bed = ExecutionBed(rig)
    bed.maps("map", [1])
    bed.create("map", "e")
    bed.drive()
    (lease,) = bed.lease()
    agent, held = bed.agents["c1"], AttemptRef(lease.job, lease.fence)
    agent.report(held, ObservedState.RUNNING)
    agent.report(held, ObservedState.FAILED, exit_code=3, reason="exit code 3")
    tree = a_tree({})
    rig.context.files.store.put_many(tree.objects.items())
    row = {
        **{"job_id": lease.job, "fence": lease.fence, "task": 0, "cluster_id": agent.cluster_id},
        **{"state": "ready", "root": tree.root, "files": 0, "size": 0, "missing": "[]", "skipped": "[]"},
        **{"error": "", "at_us": rig.clock()},
    }

    def outputs(batch: Batch) -> None:
        file_outputs.output_put(batch.tx, row)
        batch.event(
            lease.job,
            EventKind.OUTPUTS_READY,
            state="FAILED",
            attempt=lease.attempt,
            fence=lease.fence,
            cluster_id=agent.cluster_id,
            reason="task 0: 0 files, 0 bytes",
            is_of_task=True,
        )

    rig.committer.call(outputs)
    bed.drive()
    assert (bed.phase("e"), error_of(bed, "e").code) == ("FAILED", "Crashed")
    assert error_of(bed, "e").message.endswith("Element 0: exit code 3")


def test_elements_of_a_cached_task_are_looked_up_and_stored_one_by_one(rig: Rig) -> None:
    bed = ExecutionBed(rig)
    cached: dict[str, Any] = {"discoverable": True, "discovery_version": "1"}
    bed.maps("map", [10, 11, 12], **cached)
    bed.create("map", "first")
    assert bed.run_elements(files=lambda index: outputs_file(100 + index)) == [0, 1, 2]
    assert values_of(bed, "first") == [100, 101, 102]
    bed.create("map", "again")
    assert bed.run_elements() == []
    assert (bed.phase("again"), values_of(bed, "again")) == ("SUCCEEDED", [100, 101, 102])
    bed.create("map", "anew", overwrite_cache=True)
    assert bed.run_elements(files=lambda index: outputs_file(200 + index)) == [0, 1, 2]
    bed.create("map", "after")
    assert (bed.run_elements(), values_of(bed, "after")) == ([], [200, 201, 202])


def test_a_failed_element_of_a_cached_task_alone_runs_again(rig: Rig) -> None:
    bed = ExecutionBed(rig)
    bed.maps("map", [10, 11, 12], discoverable=True, discovery_version="1")
    bed.create("map", "first")
    bed.run_elements(files=lambda index: {"outputs.pb": b"\xff"} if index == 1 else outputs_file(index))
    assert bed.phase("first") == "FAILED"
    bed.create("map", "again")
    assert bed.run_elements(files=lambda index: outputs_file(50 + index)) == [1]
    assert values_of(bed, "again") == [0, 51, 2]
    (attempt,) = bed.attempts("again")
    assert [one.is_cached for one in attempt.elements] == [True, False, True]


def test_a_map_of_one_part_and_one_element_more_is_looked_up_in_two_steps(rig: Rig) -> None:
    bed = ExecutionBed(rig)
    cached: dict[str, Any] = {"discoverable": True, "discovery_version": "1"}
    bed.maps("map", [7] * (PART_SIZE + 1), **cached)
    bed.create("map", "e")
    bed.drive()
    with rig.context.database.read() as tx:
        row = execution_maps.map_get(tx, bed.row("e").id, "n0")
    assert row is not None
    assert (row.phase, row.size, row.succeeded) == ("RUNNING", PART_SIZE + 1, 0)


def error_of(bed: ExecutionBed, name: str) -> Any:
    return execution_pb2.ExecutionError.FromString(bed.row(name).error or b"")


def test_files_that_elements_hand_on_have_their_addresses_again() -> None:
    """Elements know uploaded files by paths in the folder of their job, which goes with the job."""
    address = f"{SCHEME}data/p/d/x/photo.png"
    inputs = literals_pb2.LiteralMap()
    inputs.literals["a"].collection.literals.add().scalar.blob.uri = address
    start = TaskStart("n0", 0, TASK, workflow_pb2.Node(), inputs, tasks_pb2.TaskTemplate(), MapShape(1, 1))
    row, _ = new_map("e", start, 0, is_cached=False, overwrites=False)
    known = read_inputs(inputs.SerializeToString(), row)
    (path,) = known.addresses
    left = literals_pb2.LiteralMap()
    left.literals["o0"].scalar.blob.uri = path
    end = JobEnd("SUCCEEDED", files={"outputs.pb": left.SerializeToString()})
    judged = judge_element(row, 0, end, frozenset({"o0"}), known.addresses)
    assert judged.outputs.literals["o0"].scalar.blob.uri == address
    assert judge_element(row, 0, end, frozenset({"o0"}), {}).outputs.literals["o0"].scalar.blob.uri == path
