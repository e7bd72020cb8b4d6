"""One cluster for all nodes of an execution, drawn on its name; `spread` has each node routed by itself."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from flyteidl.admin import cluster_assignment_pb2, common_pb2

from switchyard.errors import BadRequest, YardError
from switchyard.features.flyte.service.executions.calls import explanations
from switchyard.features.flyte.store.tables.executions_tables import executions
from switchyard.model.rules.access import GrantTarget, Role
from switchyard.service.job import explanation
from switchyard.store.tables import clusters_tables, schema
from tests.builders import a_graph
from tests.service.entities.requests import PROJECT
from tests.service.executions.bed import ExecutionBed, cordon
from tests.service.lines import pool
from tests.service.rig import ADMIN, Rig
from tests.workflow.builders import task_node

SPREAD = common_pb2.Annotations(values={"switchyard/spread": "true"})


def jobs_by_execution(rig: Rig) -> dict[str, set[str]]:
    """The clusters of the jobs of each execution."""
    query = sa.select(schema.jobs.c.name, clusters_tables.clusters.c.name).select_from(
        schema.jobs.outerjoin(clusters_tables.clusters, clusters_tables.clusters.c.id == schema.jobs.c.cluster_id)
    )
    found: dict[str, set[str]] = {}
    with rig.context.database.read() as tx:
        for name, cluster in tx.execute(query):
            found.setdefault(name.split("/")[0], set()).add(cluster)
    return found


def two_sizes(bed: ExecutionBed) -> None:
    """A small cluster c1 and a large one c2, and a workflow with a small task and a large one."""
    bed.task("large", CPU="8")
    bed.flow("mixed", [task_node("n0", a=1, b=1), task_node("n1", "large", a=1, b=1)])


def test_all_nodes_of_an_execution_stay_together_and_names_decide_where(rig: Rig) -> None:
    bed = ExecutionBed(rig)
    bed.add_cluster("c2")
    bed.wide("wide", 6)
    names = [f"e{number}" for number in range(12)]
    for name in names:
        bed.create("wide", name)
    bed.drive()
    where = jobs_by_execution(rig)
    assert {len(clusters) for clusters in where.values()} == {1}
    assert {name for clusters in where.values() for name in clusters} == {"c1", "c2"}
    assert {name: {bed.row(name).cluster} for name in names} == where


def test_a_spread_execution_has_each_node_routed_by_itself(rig: Rig) -> None:
    bed = ExecutionBed(rig)
    bed.add_cluster("c2")
    bed.wide("wide", 12)
    bed.create("wide", "e", annotations=SPREAD)
    bed.drive()
    assert jobs_by_execution(rig) == {"e": {"c1", "c2"}}
    assert bed.row("e").cluster == ""


def test_the_cluster_is_one_where_every_task_fits(rig: Rig) -> None:
    bed = ExecutionBed(rig, cluster="")
    bed.add_cluster("small", graph=a_graph(count=1, cores=2))
    bed.add_cluster("large", graph=a_graph(count=1, cores=16))
    two_sizes(bed)
    for number in range(8):
        bed.create("mixed", f"e{number}")
    assert {bed.row(f"e{number}").cluster for number in range(8)} == {"large"}


def test_tasks_that_fit_no_common_cluster_are_told_with_what_each_fits(rig: Rig) -> None:
    bed = ExecutionBed(rig, cluster="")
    bed.add_cluster("cpu", graph=a_graph(count=1, cores=16))
    bed.add_cluster("gpu", graph=a_graph(count=1, cores=2, gpus=2))
    bed.task("large", CPU="8")
    bed.task("render", GPU="1")
    bed.flow("mixed", [task_node("n0", "large", a=1, b=1), task_node("n1", "render", a=1, b=1)])
    with pytest.raises(BadRequest, match="No one cluster fits all tasks: large fits cpu; render fits gpu"):
        bed.create("mixed", "e")
    bed.create("mixed", "e", annotations=SPREAD)
    bed.drive()
    assert jobs_by_execution(rig) == {"e": {"cpu", "gpu"}}


def test_an_execution_waits_for_a_drained_cluster_and_says_so(rig: Rig) -> None:
    bed = ExecutionBed(rig)
    bed.add_cluster("c2")
    bed.wide("wide", 2)
    for name in ("c1", "c2"):
        cordon(rig, name, True)
    bed.create("wide", "e")
    bed.drive()
    (attempt, *_) = bed.attempts("e")
    assert (bed.row("e").cluster, attempt.phase) == ("", "WAITING_FOR_RESOURCES")
    assert "waits for a cluster that takes all tasks: c1:" in attempt.reason
    cordon(rig, "c1", False)
    rig.clock.wait(5)
    bed.agents["c1"].seen()
    assert bed.run_all() == 2
    assert (bed.phase("e"), bed.row("e").cluster) == ("SUCCEEDED", "c1")


def test_nodes_stay_on_a_cluster_that_is_drained_in_the_middle(rig: Rig) -> None:
    bed = ExecutionBed(rig)
    bed.add_cluster("c2")
    bed.flow("chain", [task_node("n0", a=1, b=1), task_node("n1", a="@n0.o0", b=1)])
    bed.create("chain", "e")
    bed.drive()
    home = bed.row("e").cluster
    (lease,) = bed.lease(home)
    bed.succeed(lease, cluster=home)
    cordon(rig, home, True)
    bed.drive()
    (second,) = bed.attempts("e", "n1")
    assert (second.phase, home in second.reason) == ("WAITING_FOR_RESOURCES", True)
    told = explanation.job_explain(rig.context, ADMIN, second.row.job_id)
    assert "its execution runs on another one" in str(told)
    cordon(rig, home, False)


def test_a_user_who_may_not_submit_to_the_pool_is_refused_with_the_reason(rig: Rig) -> None:
    bed = ExecutionBed(rig, cluster="")
    rig.cluster("vault", is_private=True)
    bed.wide("one", 1)
    ann = rig.user("ann", (Role.SUBMIT, GrantTarget.PROJECT, PROJECT))
    with pytest.raises(YardError, match="fits no cluster"):
        bed.create("one", "e", actor=ann)
    bed.add_cluster("open")
    pool(rig, "safe", vault=1)
    rig.context.snapshots.refresh(force=True)
    asked = cluster_assignment_pb2.ClusterAssignment(cluster_pool_name="safe")
    with pytest.raises(YardError, match="fits no cluster"):
        bed.create("one", "e", actor=ann, cluster_assignment=asked)


def test_executions_of_launch_plan_nodes_stay_together(rig: Rig) -> None:
    """The parents have no tasks of their own. All tasks inside fit the clusters `large-1` and `large-2` alone."""
    bed = ExecutionBed(rig, cluster="")
    bed.add_cluster("small", graph=a_graph(count=8, cores=2))
    for name in ("large-1", "large-2"):
        bed.add_cluster(name, graph=a_graph(count=8, cores=16))
    bed.task("large", CPU="8")
    bed.wide("light", 1)
    bed.flow("heavy", [task_node("n0", "large", a=1, b=1)])
    bed.launches("pair", ["light", "heavy"])
    bed.launches("outer", ["light", "pair"])
    names = [f"e{number}" for number in range(8)]
    for name in names:
        bed.create("outer", name)
    homes = {name: bed.row(name).cluster for name in names}
    assert set(homes.values()) == {"large-1", "large-2"}
    bed.drive()
    with rig.context.database.read() as tx:
        rows = tx.execute(sa.select(executions.c.name, executions.c.root_id, executions.c.cluster)).all()
    roots = {bed.row(name).id: home for name, home in homes.items()}
    children = [row for row in rows if row.root_id is not None]
    assert len(children) == 4 * len(names)
    assert [row.cluster for row in children] == [roots[row.root_id] for row in children]
    told = explanations.explain_execution(rig.context, ADMIN, bed.row("e0").key)
    assert (told.drawn, f"{homes['e0']} was drawn" in told.how) == (homes["e0"], True)


def test_children_that_fit_no_common_cluster_choose_for_themselves(rig: Rig) -> None:
    bed = ExecutionBed(rig, cluster="")
    bed.add_cluster("cpu", graph=a_graph(count=1, cores=16))
    bed.add_cluster("gpu", graph=a_graph(count=1, cores=2, gpus=2))
    bed.task("large", CPU="8")
    bed.task("render", GPU="1")
    for task in ("large", "render"):
        bed.flow(f"{task}-flow", [task_node("n0", task, a=1, b=1)])
    bed.launches("outer", ["large-flow", "render-flow"])
    bed.create("outer", "e")
    bed.drive()
    assert bed.row("e").cluster == ""
    assert sorted(jobs_by_execution(rig).values(), key=str) == [{"cpu"}, {"gpu"}]


@pytest.mark.parametrize(("value", "is_right"), [("requeue", True), ("fail", True), ("perhaps", False)])
def test_on_lost_of_an_execution_is_that_of_its_jobs(lite: Rig, value: str, is_right: bool) -> None:
    bed = ExecutionBed(lite)
    bed.wide("one", 1)
    given: Any = common_pb2.Annotations(values={"switchyard/on-lost": value, "switchyard/lost-after": "5m"})
    if not is_right:
        with pytest.raises(YardError, match="on_lost"):
            bed.create("one", "e", annotations=given)
        return
    bed.create("one", "e", annotations=given)
    bed.drive()
    (attempt,) = bed.attempts("e")
    stored: Any = lite.job(attempt.row.job_id).spec
    spec = msgspec.json.decode(stored)
    assert (spec["on_lost"], spec["lost_after"]) == (value, "5m")
