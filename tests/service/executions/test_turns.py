"""The driver's turns and bounds: nobody's executions hold up those of others, and no limit loses a node."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Barrier
from typing import Any

import pytest
import sqlalchemy as sa
from flyteidl.admin import common_pb2, launch_plan_pb2
from flyteidl.core import literals_pb2

from switchyard.errors import Conflict, LimitReached
from switchyard.features.flyte.server.workflows_section import WorkflowsSection
from switchyard.features.flyte.service.entities import registration
from switchyard.features.flyte.service.executions.calls import changes, creation
from switchyard.features.flyte.service.executions.driving import driver, loading, step_plan
from switchyard.features.flyte.service.executions.driving.driver import OwnerTurns
from switchyard.features.flyte.service.executions.nodes import child_executions
from switchyard.features.flyte.service.executions.nodes.child_executions import CHILDREN_MAX, child_name
from switchyard.features.flyte.store.executions import execution_nodes
from switchyard.features.flyte.store.executions import executions as store
from switchyard.features.flyte.store.executions.execution_due import DueExecution
from switchyard.features.flyte.workflow.engine.engine import step
from switchyard.model.rules.access import GrantTarget, Role
from tests.processes import until
from tests.service.entities.requests import PROJECT, placed, plan_request, workflow_request
from tests.service.executions.bed import SUBMIT, ExecutionBed, a_user, limited, wait_for_room
from tests.service.rig import ADMIN, Rig, running
from tests.soak import SOAKED
from tests.workflow.builders import INT, TEXT, a_template, sub_node, task_node

PATIENCE_S = 30.0
CREATORS = 8  # threads that create executions at the same time


def a_due(owner: str, number: int) -> DueExecution:
    return DueExecution(f"{owner}{number}", PROJECT, "development", f"{owner}{number}", owner, 0)


def test_an_owner_with_many_executions_takes_turns_with_the_others() -> None:
    turns, order = OwnerTurns(), []
    due = [*(a_due("ann", number) for number in range(1000)), a_due("bob", 0), a_due("eve", 0)]
    for row in turns.order(due):
        order.append(row.owner_id)
        turns.spend(row.owner_id, 1.0 if row.owner_id == "ann" else 0.1)
    assert set(order[:3]) == {"ann", "bob", "eve"}


def test_an_owner_whose_steps_take_long_waits_for_the_others() -> None:
    turns, order = OwnerTurns(), []
    due = [*(a_due("ann", number) for number in range(9)), *(a_due("bob", number) for number in range(9))]
    for row in turns.order(due):
        order.append(row.owner_id)
        turns.spend(row.owner_id, 5.0 if row.owner_id == "ann" else 1.0)
    assert order[:7] == ["ann", "bob", "bob", "bob", "bob", "bob", "ann"]


def test_a_large_execution_does_not_hold_up_a_small_one(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """One round is as short as can be here: one step, then the clock of the round has run out."""
    monkeypatch.setattr(driver, "ROUND_S", -1.0)
    monkeypatch.setattr(step_plan, "STARTS_MAX", 5)
    bed = ExecutionBed(rig)
    ann, bob = (rig.user(name, SUBMIT, (Role.SUBMIT, GrantTarget.CLUSTER, "c1")) for name in ("ann", "bob"))
    bed.wide("large", 60)
    bed.wide("small", 1)
    bed.create("large", "large", actor=ann)
    bed.driver.go(rig.context, rig.leader)
    bed.create("small", "small", actor=bob)
    for _ in range(2):
        bed.driver.go(rig.context, rig.leader)
    assert bed.nodes("small") == {"n0": "RUNNING"}
    assert 5 <= len(bed.nodes("large")) <= 10
    bed.drive()
    assert len(bed.nodes("large")) == 60


def test_a_step_that_asks_its_engine_again_and_again_lets_others_in_between(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn is as short as can be here: the engine is asked once."""
    monkeypatch.setattr(driver, "ROUND_S", -1.0)
    monkeypatch.setattr(driver, "TURN_S_MAX", -1.0)
    asked: list[str] = []

    def count_and_step(graph: Any, *args: Any, **more: Any) -> Any:
        asked.append(graph.primary.template.id.name)
        return step(graph, *args, **more)

    monkeypatch.setattr(driver, "step", count_and_step)
    bed = ExecutionBed(rig)
    a_limited_plan(bed, "single", 1)
    bed.launches("parent", ["single"] * 2)
    bed.create("parent", "first")
    bed.create("single", "full")
    bed.create("one", "small", actor=a_user(rig))
    for _ in range(4):
        asked.clear()
        bed.driver.go(rig.context, rig.leader)
        assert len(asked) <= 1
    assert bed.nodes("small") == {"n0": "RUNNING"}
    for _ in range(3):
        bed.run_all()
        rig.clock.wait(5)
    assert bed.phase("first") == "SUCCEEDED"


def test_the_ends_of_a_step_are_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "ATTEMPT_ENDS_MAX", 3)
    bed = ExecutionBed(rig)
    bed.wide("wide", 10)
    bed.create("wide", "e")
    bed.drive()
    for lease in bed.lease():
        bed.succeed(lease)
    assert bed.drive() >= 4
    assert bed.phase("e") == "SUCCEEDED"


def test_a_new_leader_sees_what_ended_before_its_term(rig: Rig) -> None:
    bed = ExecutionBed(rig)
    bed.wide("wide", 2)
    bed.create("wide", "e")
    bed.drive()
    for lease in bed.lease():
        bed.succeed(lease)
    bed.driver = driver.ExecutionDriver(rig.submits)
    bed.drive()
    assert bed.phase("e") == "SUCCEEDED"


def test_live_executions_of_a_user_and_a_project_are_limited(store_url: str, tmp_path: Any) -> None:
    with limited(store_url, tmp_path, WorkflowsSection(project_executions=3), executions=2) as rig:
        bed = ExecutionBed(rig)
        ann, bob = a_user(rig), a_user(rig, "bob")
        bed.wide("one", 1)
        for name in ("a1", "a2"):
            bed.create("one", name, actor=ann)
        with pytest.raises(LimitReached, match="limit `executions` is reached: you have 2, and one user may have 2"):
            bed.create("one", "a3", actor=ann)
        assert bed.create("one", "a1", actor=ann).name == "a1"  # the same request again is no other execution
        bed.create("one", "b1", actor=bob)
        with pytest.raises(LimitReached, match=r"`workflows.project_executions` is reached: project default has 3"):
            bed.create("one", "b2", actor=bob)
        bed.run_all()
        bed.create("one", "a3", actor=ann)


def a_limited_plan(bed: ExecutionBed, name: str, most: int) -> None:
    """A launch plan of one node, of which `most` executions may be live."""
    bed.wide("one", 1)
    policy = launch_plan_pb2.ConcurrencyPolicy(max=most, behavior=launch_plan_pb2.CONCURRENCY_LIMIT_BEHAVIOR_SKIP)
    request = plan_request(name, workflow="one", concurrency_policy=policy)
    registration.create_launch_plan(bed.rig.context, ADMIN, request)


def test_the_same_request_of_another_user_is_a_conflict(rig: Rig) -> None:
    """Else its answer would say whether a guess of the environment is right."""
    bed = ExecutionBed(rig)
    bed.wide("one", 1)
    ann = rig.user("ann", SUBMIT)
    envs = common_pb2.Envs(values=[literals_pb2.KeyValuePair(key="WORD", value="sesame")])
    for _ in range(2):
        assert bed.create("one", "hers", actor=ann, envs=envs).name == "hers"
    for word in ("sesame", "another"):
        envs.values[0].value = word
        with pytest.raises(Conflict, match="made by another request"):
            bed.create("one", "hers", envs=envs)


def test_live_executions_of_a_launch_plan_are_limited_by_its_concurrency_policy(rig: Rig) -> None:
    bed = ExecutionBed(rig)
    a_limited_plan(bed, "single", 1)
    bed.create("single", "a")
    with pytest.raises(LimitReached, match="has 1 live executions, and its concurrency policy allows 1"):
        bed.create("single", "b")
    assert bed.create("single", "a").name == "a", "the same request again is no other execution"
    bed.create("one", "other")
    bed.run_all()
    bed.create("single", "b")


def test_executions_created_at_once_keep_to_the_concurrency_policy(store_url: str, tmp_path: Any) -> None:
    """Of two servers on PostgreSQL; SQLite has one server, with many requests."""
    with ExitStack() as stack:
        rig = stack.enter_context(running(store_url, tmp_path / "one"))
        bed = ExecutionBed(rig)
        a_limited_plan(bed, "pair", 2)
        beds = [bed]
        if not store_url.startswith("sqlite"):
            other = stack.enter_context(running(store_url, tmp_path / "two", clock=rig.clock))
            beds.append(ExecutionBed(other, cluster="", tasks=()))
        start = Barrier(CREATORS)

        def create(number: int) -> bool:
            start.wait()
            try:
                beds[number % len(beds)].create("pair", f"e{number}")
            except LimitReached:
                return False
            return True

        with ThreadPoolExecutor(CREATORS) as threads:
            made = list(threads.map(create, range(CREATORS)))
        assert (made.count(True), len(bed.live_executions())) == (2, 2)


def test_a_server_waits_for_the_creation_of_another_one(
    postgres_url: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first server has inserted its execution and not committed yet. The second one must not miss it."""
    with (
        running(postgres_url, tmp_path / "one") as rig,
        running(postgres_url, tmp_path / "two", clock=rig.clock) as other,
        ThreadPoolExecutor(1) as thread,
    ):
        bed, second = ExecutionBed(rig), ExecutionBed(other, cluster="", tasks=())
        a_limited_plan(bed, "single", 1)
        count_phase, creations = creation.count_phase, list[Any]()

        def count_and_wait(*arguments: Any) -> None:
            count_phase(*arguments)
            if not creations:
                creations.append(thread.submit(second.create, "single", "b"))
                until(lambda: creations[0].done() or waits_for_lock(rig), PATIENCE_S, "the second creation waits")

        monkeypatch.setattr(creation, "count_phase", count_and_wait)
        bed.create("single", "a")
        with pytest.raises(LimitReached):
            creations[0].result(PATIENCE_S)
        assert bed.live_executions() == ["a"]


def waits_for_lock(rig: Rig) -> bool:
    query = sa.text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    with rig.context.database.read() as tx:
        return int(tx.execute(query).scalar_one()) > 0


def test_children_keep_to_the_concurrency_policy_of_their_launch_plan(rig: Rig) -> None:
    bed = ExecutionBed(rig)
    a_limited_plan(bed, "single", 1)
    bed.launches("parent", ["single"] * 3)
    bed.create("parent", "e")
    for _ in range(3):
        bed.drive()
        assert len(bed.live_executions()) == 2, "the parent and one child"
        (lease,) = bed.lease()
        bed.succeed(lease)
        bed.drive()
        rig.clock.wait(5)
    bed.drive()
    assert bed.phase("e") == "SUCCEEDED"


@pytest.mark.parametrize("most", [4, SOAKED(CHILDREN_MAX)])
@pytest.mark.parametrize("parallel", [0, 2])
def test_nodes_of_a_full_launch_plan_hold_back_no_others(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, parallel: int, most: int
) -> None:
    """More of them than one step begins (`most`), and, with max_parallelism, than may run at once."""
    for module in (child_executions, step_plan):
        monkeypatch.setattr(module, "CHILDREN_MAX", most)
    bed = ExecutionBed(rig)
    a_limited_plan(bed, "single", 1)
    limited_ones = most + 5
    bed.launches("parent", [*["single"] * limited_ones, *["one"] * 2])
    bed.create("parent", "e", max_parallelism=parallel)
    others = {child_name(bed.row("e").id, f"n{limited_ones + number}") for number in range(1 if parallel else 2)}
    bed.drive()
    rig.clock.wait(5)
    bed.drive()
    live = set(bed.live_executions())
    assert others < live, "they have begun beside the one that the launch plan allows"
    assert len(live - others - {"e"}) == 1
    for _ in range(limited_ones + 5):
        bed.run_all()
        rig.clock.wait(5)
    assert bed.phase("e") == "SUCCEEDED"


def test_a_node_waits_at_the_limit_of_jobs_and_says_so(store_url: str, tmp_path: Any) -> None:
    with limited(store_url, tmp_path, jobs=2) as rig:
        bed = ExecutionBed(rig)
        ann = a_user(rig)
        bed.wide("wide", 3)
        bed.create("wide", "e", actor=ann)
        bed.drive()
        assert sorted(bed.nodes("e").values()) == ["QUEUED", "RUNNING", "RUNNING"]
        (waiting,) = [node for node, phase in bed.nodes("e").items() if phase == "QUEUED"]
        (attempt,) = bed.attempts("e", waiting)
        assert attempt.phase == "WAITING_FOR_RESOURCES"
        assert "limit `jobs` is reached" in attempt.reason
        steps = bed.row("e").steps
        rig.clock.wait(5)
        bed.drive()
        assert bed.row("e").steps == steps, "that it still waits is not stored again"
        for lease in bed.lease():
            bed.succeed(lease)
        wait_for_room(rig)
        bed.drive()
        assert bed.nodes("e")[waiting] == "RUNNING"
        assert [view.phase for view in bed.attempts("e", waiting)] == ["QUEUED"]
        bed.run_all()
        assert bed.phase("e") == "SUCCEEDED"


def test_a_retry_at_the_limit_of_jobs_is_not_lost(store_url: str, tmp_path: Any) -> None:
    with limited(store_url, tmp_path, jobs=1) as rig:
        bed = ExecutionBed(rig)
        ann = a_user(rig)
        bed.wide("one", 1)
        bed.create("one", "first", actor=ann)
        bed.drive()
        (lease,) = bed.lease()
        bed.crash(lease)  # a failure of the system is tried again
        other = bed.create("one", "second", actor=ann)
        with rig.context.database.read() as tx:
            assert store.execution_get(tx, other) is not None
        rig.submit(actor=ann, request=None)  # takes the one place
        wait_for_room(rig)
        bed.drive()
        assert bed.phase("first") == "RUNNING"
        ended, waiting = bed.attempts("first")
        assert (waiting.phase, ended.row.attempt, waiting.row.attempt) == ("WAITING_FOR_RESOURCES", 0, 1)
        for _ in range(4):
            for lease in bed.lease():
                bed.succeed(lease)
            wait_for_room(rig)
            bed.drive()
        assert (bed.phase("first"), bed.phase("second")) == ("SUCCEEDED", "SUCCEEDED")
        assert [view.phase for view in bed.attempts("first")] == ["RETRYABLE_FAILED", "SUCCEEDED"]


def test_an_execution_that_waits_can_be_stopped(store_url: str, tmp_path: Any) -> None:
    with limited(store_url, tmp_path, jobs=1) as rig:
        bed = ExecutionBed(rig)
        ann = a_user(rig)
        bed.wide("wide", 2)
        key = bed.create("wide", "e", actor=ann)
        bed.drive()
        changes.terminate(rig.context, ann, key, "enough")
        bed.drive()
        assert bed.phase("e") == "ABORTED"
        assert set(bed.nodes("e").values()) == {"ABORTED"}


def test_an_execution_with_too_many_rows_fails_with_the_reason(store_url: str, tmp_path: Any) -> None:
    with limited(store_url, tmp_path, WorkflowsSection(execution_rows=6)) as rig:
        bed = ExecutionBed(rig)
        bed.flow(
            "chain", [task_node("n0", a=1, b=1), *(task_node(f"n{n}", a=f"@n{n - 1}.o0", b=1) for n in range(1, 9))]
        )
        bed.create("chain", "e")
        bed.run_all()
        row = bed.row("e")
        assert (row.phase, b"workflows.execution_rows" in (row.error or b"")) == ("FAILED", True)


def test_outputs_beyond_the_bytes_of_an_execution_fail_it(store_url: str, tmp_path: Any) -> None:
    """All its jobs run before the first of them has left anything. Each step reads all that is stored."""
    with limited(store_url, tmp_path, WorkflowsSection(execution_bytes="8Ki")) as rig:
        bed = ExecutionBed(rig)
        bed.wide("wide", 3)
        bed.create("wide", "e")
        bed.drive()
        outputs = literals_pb2.LiteralMap()
        outputs.literals["o0"].scalar.primitive.string_value = "x" * 3000
        for lease in bed.lease():
            bed.leave(lease, {"outputs.pb": outputs.SerializeToString()})
        bed.drive()
        assert sorted(bed.nodes("e").values()) == ["FAILED", "SUCCEEDED", "SUCCEEDED"]
        assert bed.phase("e") == "FAILED"
        assert bed.row("e").error_code == "ExecutionTooLarge"


def test_inputs_beyond_the_bytes_of_an_execution_fail_it_before_they_are_stored(store_url: str, tmp_path: Any) -> None:
    """Nodes around sub-workflows begin in the server, so no job of theirs is refused. Each copies the constant."""
    with limited(store_url, tmp_path, WorkflowsSection(execution_bytes="64Ki")) as rig:
        bed = ExecutionBed(rig)
        inner = a_template(placed(task_node("i0", a=1, b=1)), name="inner", gives={"o0": (INT, "@i0.o0")}, x=TEXT)
        nodes = [sub_node(f"n{number}", "inner", x="x" * 8000) for number in range(50)]
        request = workflow_request("many", nodes=nodes)
        request.spec.sub_workflows.add().CopyFrom(inner)
        registration.create_workflow(rig.context, ADMIN, request)
        registration.create_launch_plan(rig.context, ADMIN, plan_request("many", workflow="many"))
        bed.create("many", "e")
        bed.run_all()
        row = bed.row("e")
        assert (row.phase, row.error_code) == ("FAILED", "ExecutionTooLarge")
        with rig.context.database.read() as tx:
            stored = sum(len(node.inputs or b"") for node in execution_nodes.node_list(tx, row.id))
        assert stored < 2**16
