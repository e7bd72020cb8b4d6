"""Lists of executions and of nodes by Flyte's filters: tags, labels, errors, phases."""

from __future__ import annotations

from typing import Any

import pytest
from flyteidl.admin import common_pb2
from flyteidl.core import errors_pb2

from switchyard.errors import BadRequest
from switchyard.features.flyte.service.executions.calls import reads
from switchyard.features.flyte.service.executions.calls.reads import ExecutionQuery
from switchyard.features.flyte.store.executions.executions import ExecutionKey
from switchyard.features.flyte.workflow.lists.filters import EXECUTION_COLUMNS, NODE_COLUMNS, read_filters, read_order
from tests.service.entities.requests import DOMAIN, PROJECT
from tests.service.executions.bed import ExecutionBed
from tests.service.rig import ADMIN, Rig
from tests.workflow.builders import task_node


def labels(**values: str) -> Any:
    return common_pb2.Labels(values=values)


def listed(rig: Rig, filters: str) -> list[str]:
    read = read_filters(filters, EXECUTION_COLUMNS, "execution")
    views, _ = reads.list_executions(rig.context, ADMIN, ExecutionQuery(PROJECT, DOMAIN, filters=read))
    return sorted(view.row.name for view in views)


def nodes(rig: Rig, name: str, filters: str) -> list[str]:
    read = read_filters(filters, NODE_COLUMNS, "node_execution")
    where: Any = {"parent_id": "", "is_descending": False, "offset": 0, "limit": 9}
    views, _ = reads.list_nodes(rig.context, ADMIN, ExecutionKey(PROJECT, DOMAIN, name), filters=read, **where)
    return [view.row.node_id for view in views]


def test_executions_are_found_by_tags_labels_and_errors(rig: Rig) -> None:
    bed = ExecutionBed(rig)
    bed.wide("one", 1)
    bed.create("one", "red", tags=["red", "night", "red"], labels=labels(team="a", stage="b"))
    bed.create("one", "blue", tags=["blue", "night"], labels=labels(team="b"))
    bed.create("one", "plain")
    assert listed(rig, "eq(admin_tag.name,night)") == ["blue", "red"]
    assert listed(rig, "eq(admin_tag.name,night)+eq(admin_tag.name,red)") == ["red"]
    assert listed(rig, "value_in(admin_tag.name,red;blue)+contains(name,l)") == ["blue"]
    assert listed(rig, "eq(execution_tag.key,team)") == ["blue", "red"]
    assert listed(rig, "eq(execution_tag.key,team)+eq(execution_tag.value,b)") == ["blue"], "of one label"
    bed.drive()
    (lease, *others) = bed.lease()
    bed.leave(lease, {"error.pb": a_user_error("USER:Broken", "no")})
    for other in others:
        bed.succeed(other)
    bed.drive()
    (failed,) = listed(rig, "eq(phase,FAILED)")
    assert listed(rig, "eq(error_kind,USER)") == listed(rig, "eq(execution.error_code,USER:Broken)") == [failed]
    assert listed(rig, "eq(error_kind,SYSTEM)") == []


def a_user_error(code: str, message: str) -> bytes:
    error = errors_pb2.ContainerError(code=code, message=message, kind=errors_pb2.ContainerError.NON_RECOVERABLE)
    return bytes(errors_pb2.ErrorDocument(error=error).SerializeToString())


def test_nodes_are_found_by_phase_and_id(rig: Rig) -> None:
    bed = ExecutionBed(rig)
    bed.flow("chain", [task_node("n0", a=1, b=1), task_node("n1", a="@n0.o0", b=1)])
    bed.create("chain", "e")
    bed.drive()
    (lease,) = bed.lease()
    rig.clock.wait(20)
    bed.succeed(lease)
    bed.drive()
    assert nodes(rig, "e", "eq(phase,SUCCEEDED)") == ["n0"]
    assert nodes(rig, "e", "value_in(node_execution.phase,SUCCEEDED;RUNNING)") == ["n0", "n1"]
    assert nodes(rig, "e", "eq(node_id,n1)+gt(duration,1)") == []
    assert nodes(rig, "e", "gte(duration,10s)") == ["n0"]
    assert nodes(rig, "e", "gt(created_at,2020-01-01T00:00:00Z)+eq(phase,RUNNING)") == ["n1"]


@pytest.mark.parametrize(
    ("filters", "words"),
    [
        ("ne(admin_tag.name,red)", "ne is not served for 'admin_tag.name'"),
        ("value_not_in(execution_tag.key,a;b)", "is not served for 'execution_tag.key'"),
        ("eq(tag,red)", "is invalid filter; known: "),
    ],
)
def test_filters_that_cannot_be_answered_are_refused(filters: str, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        read_filters(filters, EXECUTION_COLUMNS, "execution")


def test_nothing_is_sorted_by_tags_and_nodes_have_no_kind_of_error() -> None:
    with pytest.raises(BadRequest, match=r"invalid sort key 'admin_tag.name'"):
        read_order("admin_tag.name", EXECUTION_COLUMNS, "execution", is_descending=True)
    with pytest.raises(BadRequest, match="'error_kind' is invalid filter; known: node_id, phase"):
        read_filters("eq(error_kind,USER)", NODE_COLUMNS, "node_execution")


@pytest.mark.parametrize("tags", [["x" * 257], ["a\0b"], [f"t{number}" for number in range(65)]])
def test_tags_that_cannot_be_stored_are_refused(lite: Rig, tags: list[str]) -> None:
    bed = ExecutionBed(lite)
    bed.wide("one", 1)
    with pytest.raises(BadRequest, match="tags: an execution has at most 64, of 256 characters"):
        bed.create("one", "e", tags=tags)
