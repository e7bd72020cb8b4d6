"""Serialized cached tasks that are dynamic: nodes inside of a node that holds a key never wait for a key."""

from __future__ import annotations

from typing import Any

from flyteidl.core import dynamic_job_pb2, tasks_pb2

from tests.service.entities.requests import placed
from tests.service.executions.bed import ExecutionBed
from tests.service.rig import Rig
from tests.workflow.builders import bindings, task_node

SERIAL = tasks_pb2.TaskMetadata(discoverable=True, discovery_version="1", cache_serializable=True)


def futures(task: str, **inputs: Any) -> dict[str, bytes]:
    """A workflow of one node, as a dynamic task leaves it."""
    node = placed(task_node("dn0", task, **inputs))
    spec = dynamic_job_pb2.DynamicJobSpec(nodes=[node], outputs=bindings({"o0": "@dn0.o0"}))
    return {"futures.pb": spec.SerializeToString()}


def test_a_node_does_not_wait_for_the_dynamic_node_around_it(rig: Rig) -> None:
    bed = ExecutionBed(rig)
    bed.task("again", metadata=SERIAL)
    bed.flow("self", [task_node("n0", "again", a=1, b=1)])
    bed.create("self", "e")
    bed.drive()
    (outer,) = bed.lease()
    bed.leave(outer, futures("again", a=1, b=1))
    bed.drive()
    (inner,) = bed.lease()
    bed.succeed(inner, 5)
    bed.drive()
    assert bed.phase("e") == "SUCCEEDED"
    bed.create("self", "cached")
    assert (bed.run_all(), bed.phase("cached")) == (0, "SUCCEEDED")


def test_two_dynamic_nodes_do_not_wait_for_each_other(rig: Rig) -> None:
    """Each holds the key that a node inside of the other one has, too."""
    bed = ExecutionBed(rig)
    bed.task("left", metadata=SERIAL)
    bed.task("right", metadata=SERIAL)
    for name in ("left", "right"):
        bed.flow(name, [task_node("n0", name, a=1, b=1)])
        bed.create(name, name)
    bed.drive()
    for lease in bed.lease():
        bed.leave(lease, futures("right" if lease.name.startswith("left/") else "left", a=1, b=1))
    bed.drive()
    assert bed.run_all() == 2
    assert (bed.phase("left"), bed.phase("right")) == ("SUCCEEDED", "SUCCEEDED")


def test_other_nodes_wait_for_the_dynamic_node_that_holds_the_key(rig: Rig) -> None:
    bed = ExecutionBed(rig)
    bed.task("again", metadata=SERIAL)
    bed.flow("self", [task_node("n0", "again", a=1, b=1)])
    bed.create("self", "e")
    bed.drive()
    (outer,) = bed.lease()
    bed.create("self", "second")
    bed.leave(outer, futures("add", a=1, b=1))
    bed.drive()
    (inner,) = bed.lease()
    assert bed.nodes("second") == {}
    bed.succeed(inner, 5)
    assert bed.run_all() == 0
    assert (bed.phase("e"), bed.phase("second")) == ("SUCCEEDED", "SUCCEEDED")
