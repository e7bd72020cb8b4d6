"""Relaunch and recover: the same again under another name, with what has succeeded taken over."""

from __future__ import annotations

from typing import Any

import pytest
from flyteidl.admin import cluster_assignment_pb2, common_pb2, execution_pb2
from flyteidl.core import identifier_pb2
from msgspec import structs

from switchyard.errors import BadRequest, Conflict, Denied, NotFound
from switchyard.features.flyte.service.executions.calls import changes, relaunch
from switchyard.features.flyte.service.executions.nodes import recovered_nodes
from switchyard.features.flyte.service.executions.nodes.child_executions import child_name
from switchyard.features.flyte.store.executions.execution_recovery import RecoverableNode
from switchyard.model.job.site_needs import SiteOffer
from switchyard.model.rules.access import GrantTarget, Role
from switchyard.service.cluster import clusters
from switchyard.service.upkeep.retention import RetentionChore, RetentionTerms
from tests.builders import a_graph
from tests.service.entities.requests import DOMAIN, PROJECT
from tests.service.executions.bed import ExecutionBed
from tests.service.lines import pool
from tests.service.rig import ADMIN, Rig
from tests.workflow.builders import task_node

DAY_S = 86_400
Mode = execution_pb2.ExecutionMetadata


def identifier(name: str) -> Any:
    return identifier_pb2.WorkflowExecutionIdentifier(project=PROJECT, domain=DOMAIN, name=name)


def recover(rig: Rig, name: str, new: str, actor: Any = ADMIN) -> str:
    request = execution_pb2.ExecutionRecoverRequest(id=identifier(name), name=new)
    return relaunch.recover(rig.context, actor, request).name


def again(rig: Rig, name: str, new: str, mode: int = Mode.RECOVERED, **spec: Any) -> str:
    metadata = execution_pb2.ExecutionMetadata(mode=mode, reference_execution=identifier(name))
    request = execution_pb2.ExecutionCreateRequest(
        project=PROJECT, domain=DOMAIN, name=new, spec=execution_pb2.ExecutionSpec(metadata=metadata, **spec)
    )
    assert relaunch.is_again(request)
    return relaunch.create_again(rig.context, ADMIN, request).name


def in_pool(name: str) -> Any:
    return cluster_assignment_pb2.ClusterAssignment(cluster_pool_name=name)


def crash_next_task(bed: ExecutionBed) -> None:
    """Crash it until the execution `first` has failed."""
    for _ in range(4):  # a crash of the system is tried again three times
        bed.drive()
        (lease,) = bed.lease()
        bed.crash(lease)
    bed.drive()
    assert bed.phase("first") == "FAILED"


def a_failed_chain(bed: ExecutionBed) -> None:
    """n0 and n1 have succeeded, n2 has failed, n3 was never begun."""
    nodes = [task_node("n0", a=1, b=1), *(task_node(f"n{n}", a=f"@n{n - 1}.o0", b=1) for n in range(1, 4))]
    bed.flow("chain", nodes)
    bed.create("chain", "first", labels=common_pb2.Labels(values={"team": "blue"}))
    for value in (5, 6):
        bed.drive()
        (lease,) = bed.lease()
        bed.succeed(lease, value)
    crash_next_task(bed)


def test_a_recovered_execution_runs_what_had_not_succeeded(rig: Rig) -> None:
    bed = ExecutionBed(rig)
    a_failed_chain(bed)
    recover(rig, "first", "second")
    bed.drive()
    assert bed.nodes("second") == {"n0": "RECOVERED", "n1": "RECOVERED", "n2": "RUNNING"}
    assert bed.run_all() == 2
    assert bed.phase("second") == "SUCCEEDED"
    spec = execution_pb2.ExecutionSpec.FromString(bed.row("second").spec)
    assert (spec.metadata.mode, spec.metadata.reference_execution.name) == (Mode.RECOVERED, "first")
    assert dict(spec.labels.values) == {"team": "blue"}
    assert recover(rig, "first", "second") == "second", "the same request again is the same execution"
    with pytest.raises(Conflict, match="already, made by another request"):
        recover(rig, "second", "second")
    recover(rig, "second", "third")  # of a success: nothing is left to do
    bed.drive()
    assert (bed.phase("third"), set(bed.nodes("third").values())) == ("SUCCEEDED", {"RECOVERED"})


def test_a_relaunched_execution_runs_everything(rig: Rig) -> None:
    bed = ExecutionBed(rig)
    a_failed_chain(bed)
    request = execution_pb2.ExecutionRelaunchRequest(id=identifier("first"), name="second")
    relaunch.relaunch(rig.context, ADMIN, request)
    assert bed.run_all() == 4
    assert (bed.phase("second"), bed.row("second").mode) == ("SUCCEEDED", "RELAUNCH")


def test_a_recovered_execution_recovers_those_of_its_launch_plan_nodes(rig: Rig) -> None:
    """Two levels deep: only the task that failed runs again, and what comes after it."""
    bed = ExecutionBed(rig)
    bed.flow("low", [task_node("n0", a=1, b=1), task_node("n1", a="@n0.o0", b=1)])
    bed.launches("middle", ["low"])
    bed.launches("top", ["middle"])
    bed.create("top", "first")
    bed.drive()
    (lease,) = bed.lease()
    bed.succeed(lease)
    crash_next_task(bed)
    recover(rig, "first", "second")
    assert bed.run_all() == 1
    assert bed.phase("second") == "SUCCEEDED"
    assert bed.nodes(lowest(bed, "second")) == {"n0": "RECOVERED", "n1": "SUCCEEDED"}
    spec = execution_pb2.ExecutionSpec.FromString(bed.row(lowest(bed, "second")).spec)
    assert (spec.metadata.mode, spec.metadata.reference_execution.name) == (Mode.CHILD_WORKFLOW, lowest(bed, "first"))
    request = execution_pb2.ExecutionRelaunchRequest(id=identifier("second"), name="third")
    relaunch.relaunch(rig.context, ADMIN, request)
    assert bed.run_all() == 2, "a relaunch takes over nothing"


def lowest(bed: ExecutionBed, name: str) -> str:
    """The execution that the node of the node of an execution started."""
    for _ in range(2):
        name = child_name(bed.row(name).id, "n0")
    return name


def test_an_execution_of_a_launch_plan_node_with_other_inputs_is_not_recovered(rig: Rig) -> None:
    bed = ExecutionBed(rig)
    a_failed_chain(bed)
    first = bed.row("first")
    for other in ({"inputs": b"other"}, {"entity_version": "v2"}, {"entity_name": "x"}):
        child = structs.replace(first, **other)
        assert recovered_nodes.recover_child(rig.context, child, first, "first") == (child, "", [])
    _, source, node_ids = recovered_nodes.recover_child(rig.context, first, first, "first")
    assert (source, node_ids) == (first.id, ["n0", "n1"])


def test_create_execution_recovers_with_another_annotation(rig: Rig) -> None:
    bed = ExecutionBed(rig)
    a_failed_chain(bed)
    spread = common_pb2.Annotations(values={"switchyard/spread": "true"})
    again(rig, "first", "second", annotations=spread)
    bed.drive()
    assert (bed.row("second").cluster, bed.row("first").cluster) == ("", "c1")
    again(rig, "first", "third", mode=Mode.RELAUNCH, max_parallelism=1)
    assert bed.run_all() == 6
    assert {bed.phase(name) for name in ("second", "third")} == {"SUCCEEDED"}


def test_an_archived_execution_is_recovered_and_a_removed_one_is_not(rig: Rig) -> None:
    bed = ExecutionBed(rig)
    a_failed_chain(bed)
    changes.set_archived(rig.context, ADMIN, bed.row("first").key, 1)
    recover(rig, "first", "second")
    bed.run_all()
    assert bed.phase("second") == "SUCCEEDED"
    rig.clock.wait(2 * DAY_S)
    chore = RetentionChore(RetentionTerms(of_features={"executions": DAY_S * 1_000_000}))
    while chore.go(rig.context, rig.leader):
        pass
    with pytest.raises(NotFound, match="One that was removed cannot be relaunched or recovered"):
        recover(rig, "first", "fourth")


def test_what_cannot_be_recovered_is_refused_with_the_reason(rig: Rig) -> None:
    bed = ExecutionBed(rig)
    bed.wide("one", 1)
    bed.create("one", "live", envs=execution_pb2.ExecutionSpec().envs)
    with pytest.raises(Conflict, match="is not over: QUEUED"):
        recover(rig, "live", "second")
    with pytest.raises(NotFound, match="missing entity"):
        recover(rig, "nothing", "second")
    with pytest.raises(BadRequest, match="invalid name"):
        recover_done(bed, "Nein/x")


def recover_done(bed: ExecutionBed, name: str) -> None:
    bed.run_all()
    recover(bed.rig, "live", name)


def test_secrets_of_an_execution_are_not_taken_over_by_others(rig: Rig) -> None:
    bed = ExecutionBed(rig)
    bed.wide("one", 1)
    spec = execution_pb2.ExecutionSpec()
    spec.envs.values.add(key="PASSWORD", value="s3cret")
    bed.create("one", "first", envs=spec.envs)
    bed.run_all()
    ann = rig.user("ann", (Role.SUBMIT, GrantTarget.PROJECT, PROJECT), (Role.SUBMIT, GrantTarget.CLUSTER, "c1"))
    with pytest.raises(Denied, match="secrets of its owner"):
        recover(rig, "first", "mine", actor=ann)


@pytest.mark.parametrize(
    ("nodes", "taken"),
    [
        ("n0:SUCCEEDED n1:FAILED", ["n0"]),
        ("n0:FAILED n0-0-a:SUCCEEDED<n0", ["n0-0-a"]),  # inside a sub-workflow that failed
        ("n0:FAILED:2 n0-1-a:SUCCEEDED<n0", []),  # begun twice: the ids inside would be others
        ("n0:FAILED:jobs n0-0-a:SUCCEEDED<n0", []),  # a dynamic task runs again, and may make another workflow
        ("n0:SUCCEEDED:jobs n0-0-a:SUCCEEDED<n0", ["n0", "n0-0-a"]),
        ("n0:RECOVERED n1:SKIPPED n2:ABORTED", ["n0"]),
    ],
)
def test_which_nodes_are_taken_over(nodes: str, taken: list[str]) -> None:
    assert recovered_nodes.nodes_to_take_over([a_node(word) for word in nodes.split()]) == taken


def a_node(word: str) -> RecoverableNode:
    word, _, parent = word.partition("<")
    name, phase, *more = word.split(":")
    attempts = next((int(one) for one in more if one.isdigit()), 1)
    return RecoverableNode(name, parent, phase, attempts, "jobs" in more)


def test_a_recovered_execution_stays_on_the_cluster_that_has_its_data(rig: Rig) -> None:
    offer = SiteOffer(folder="/shared")
    bed = ExecutionBed(rig, cluster="")
    for name in ("c1", "c2"):
        bed.add_cluster(name, graph=structs.replace(a_graph(count=64), site=offer))
    pool(rig, "one", c1=1)
    pool(rig, "all", c1=1, c2=1)
    pool(rig, "other", c2=1)
    bed.flow("chain", [task_node("n0", a=1, b=1), task_node("n1", a="@n0.o0", b=1)])
    place = common_pb2.RawOutputDataConfig(output_location_prefix="/shared")
    bed.create("chain", "first", raw_output_data_config=place, cluster_assignment=in_pool("one"))
    bed.drive()
    bed.succeed(bed.lease()[0], 5)
    for _ in range(4):
        bed.drive()
        bed.crash(bed.lease()[0])
    bed.drive()
    assert (bed.phase("first"), bed.row("first").cluster) == ("FAILED", "c1")
    names = [f"again{number}" for number in range(8)]
    for name in names:
        again(rig, "first", name, cluster_assignment=in_pool("all"))
    assert {bed.row(name).cluster for name in names} == {"c1"}
    again(rig, "first", "relaunched", mode=Mode.RELAUNCH, cluster_assignment=in_pool("other"))
    assert bed.row("relaunched").cluster == "c2"
    with pytest.raises(BadRequest, match="c1"):
        again(rig, "first", "elsewhere", cluster_assignment=in_pool("other"))
    clusters.cluster_delete(rig.context, ADMIN, "c1", abandon=True)
    with pytest.raises(BadRequest, match="a folder of the cluster c1, which is gone"):
        recover(rig, "first", "late")
