"""The starts of a step: what is refused or waits is learned in one pass, however many attempts there are."""

from __future__ import annotations

from typing import Any

import pytest

from switchyard.errors import LimitReached
from switchyard.features.flyte.server.workflows_section import WorkflowsSection
from switchyard.features.flyte.service.executions.driving import driver
from switchyard.features.flyte.service.executions.nodes.job_starts import JobStarter, trees_over
from switchyard.server.config.config import Config, FilesSection
from tests.service.executions.bed import ExecutionBed, a_user, limited
from tests.service.rig import running

COUNT = 30


class Calls:
    """Counts the calls of a function, and passes them on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.count = 0
        before = getattr(owner, name)

        def counted(*args: Any, **fields: Any) -> Any:
            self.count += 1
            return before(*args, **fields)

        monkeypatch.setattr(owner, name, counted)


def test_jobs_whose_files_do_not_fit_cost_one_more_pass(
    store_url: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config(files=FilesSection(user_bytes="1Ki"))
    with running(store_url, tmp_path, config=config) as rig:
        bed = ExecutionBed(rig)
        ann = a_user(rig)
        bed.wide("wide", COUNT)
        bed.create("wide", "e", actor=ann)
        steps, plans = Calls(monkeypatch, driver, "step"), Calls(monkeypatch, JobStarter, "plan")
        bed.driver.go(rig.context, rig.leader)
        phases = sorted(set(bed.nodes("e").values()))
        assert phases == ["QUEUED", "RUNNING"], "some fit, and the others wait"
        waiting = next(node for node, phase in bed.nodes("e").items() if phase == "QUEUED")
        assert "files.user_bytes" in bed.attempts("e", waiting)[0].reason
        assert steps.count <= 3
        assert plans.count == COUNT, "a job that was planned is not planned again"


def test_jobs_over_the_limit_of_the_user_are_counted_once(
    store_url: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with limited(store_url, tmp_path, jobs=3) as rig:
        bed = ExecutionBed(rig)
        ann = a_user(rig)
        bed.wide("wide", COUNT)
        bed.create("wide", "e", actor=ann)
        looks, plans = Calls(monkeypatch, rig.context.usage, "refuse_over"), Calls(monkeypatch, JobStarter, "plan")
        bed.driver.go(rig.context, rig.leader)
        assert sorted(bed.nodes("e").values()).count("RUNNING") == 3
        assert (looks.count, plans.count) == (1, 3)


def test_refused_children_are_learned_in_one_pass(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bed = ExecutionBed(rig)
    bed.wide("inner", 1)
    bed.launches("outer", ["inner"] * 10)
    bed.create("outer", "e")
    bed.take_names("e", [f"n{number}" for number in range(10)])
    steps = Calls(monkeypatch, driver, "step")
    bed.drive()
    row = bed.row("e")
    assert (row.phase, b"There is an execution" in (row.error or b"")) == ("FAILED", True)
    assert steps.count <= 10 + 3, "the ten others take one each"


def test_children_count_against_the_limit_of_their_owner_and_still_go_on(store_url: str, tmp_path: Any) -> None:
    with limited(store_url, tmp_path, executions=3) as rig:
        bed = ExecutionBed(rig)
        ann = a_user(rig)
        bed.wide("inner", 1)
        bed.launches("outer", ["inner"] * 4)
        bed.create("outer", "e", actor=ann)
        bed.drive()
        assert len(bed.live_executions()) == 3
        with pytest.raises(LimitReached, match="limit `executions` is reached: you have 3"):
            bed.create("inner", "one-more", actor=ann)
        bed.run_all()
        assert (bed.phase("e"), bed.row("e").descendants) == ("SUCCEEDED", 4)


def test_an_execution_at_the_limit_has_one_child_at_a_time(store_url: str, tmp_path: Any) -> None:
    with limited(store_url, tmp_path, executions=1) as rig:
        bed = ExecutionBed(rig)
        ann = a_user(rig)
        bed.wide("leaf", 1)
        bed.launches("inner", ["leaf", "leaf"])
        bed.launches("outer", ["inner", "inner"])
        bed.create("outer", "e", actor=ann)
        bed.drive()
        assert len(bed.live_executions()) == 3, "one on each level"
        bed.run_all()
        assert (bed.phase("e"), bed.row("e").descendants) == ("SUCCEEDED", 6)


def test_the_executions_that_begin_with_one_are_bounded_in_all(store_url: str, tmp_path: Any) -> None:
    with limited(store_url, tmp_path, WorkflowsSection(execution_descendants=20)) as rig:
        bed = ExecutionBed(rig)
        bed.nested("tree", width=3, depth=5)
        bed.create("tree", "e")
        bed.drive()
        row = bed.row("e")
        assert row.phase == "FAILED"
        assert 10 < row.descendants <= 20
        assert b"`workflows.execution_descendants`" in (row.error or b"")
        assert bed.live_executions() == []


@pytest.mark.parametrize(
    ("trees", "held", "room", "over"),
    [
        ([{b"a": 5}], [], None, []),
        ([{b"a": 5}], [], 5, []),
        ([{b"a": 5}], [], 4, [(0, 5)]),
        ([{b"a": 5}], [b"a"], 0, []),
        ([{b"a": 5}, {b"a": 5, b"b": 1}], [], 6, []),  # an object counts once
        ([{b"a": 5}, {b"b": 9}, {b"c": 1}], [], 6, [(1, 9)]),  # a small one still fits
        ([{b"a": 5}], [], -3, [(0, 5)]),  # the limit was lowered
        ([{b"a": 5}], [b"a"], -3, []),
    ],
)
def test_files_that_do_not_fit_are_known_before_they_are_stored(
    trees: list[dict[bytes, int]], held: list[bytes], room: int | None, over: list[tuple[int, int]]
) -> None:
    assert trees_over(trees, held, room=room) == over
