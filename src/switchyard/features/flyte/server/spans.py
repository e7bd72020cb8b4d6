"""Where the time of an execution went, as Flyte's spans: what ran, what waited, and for how long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flyteidl.core import identifier_pb2, metrics_pb2

from switchyard.features.flyte.service.executions.driving.execution_times import ExecutionTimes
from switchyard.features.flyte.store.executions.execution_nodes import NodeAttemptRow
from switchyard.features.flyte.store.executions.execution_pages import NodeStateRow
from switchyard.features.flyte.workflow.compile.entity_id import EntityId, EntityKind, to_message

DEPTH_ALL = -1


def execution_span(times: ExecutionTimes, depth: int) -> Any:
    """`depth`: how many levels below the execution; DEPTH_ALL: all. A span without an end goes on."""
    row = times.row
    span = _span(row.created_us, row.ended_us)
    span.workflow_id.CopyFrom(_execution_id(times))
    if depth:
        span.spans.extend(_execution_parts(times, depth))
    return span


def _execution_parts(times: ExecutionTimes, depth: int) -> Iterator[Any]:
    row, nodes = times.row, times.nodes.get("", [])
    first_us = min((node.created_us for node in nodes), default=row.ended_us)
    yield _operation("WORKFLOW_SETUP", row.created_us, first_us)
    yield from (_node_span(times, node, depth - 1) for node in nodes)
    if nodes and row.ended_us is not None:
        yield _operation("WORKFLOW_TEARDOWN", max(node.ended_us or node.created_us for node in nodes), row.ended_us)


def _node_span(times: ExecutionTimes, node: NodeStateRow, depth: int) -> Any:
    span = _span(node.created_us, node.ended_us)
    span.node_id.CopyFrom(_node_id(times, node.node_id))
    if depth:
        span.spans.extend(_node_parts(times, node, depth))
    return span


def _node_parts(times: ExecutionTimes, node: NodeStateRow, depth: int) -> Iterator[Any]:
    attempts, inner = times.attempts.get(node.node_id, []), times.nodes.get(node.node_id, [])
    begun = [attempt.created_us for attempt in attempts] + [one.created_us for one in inner]
    if not begun:
        return
    yield _operation("NODE_SETUP", node.created_us, min(begun))
    yield from (_task_span(times, attempt, depth - 1) for attempt in attempts)
    yield from (_node_span(times, one, depth - 1) for one in inner)
    ended = [attempt.ended_us for attempt in attempts] + [one.ended_us for one in inner]
    if node.ended_us is not None:
        yield _operation("NODE_TEARDOWN", max((end for end in ended if end is not None), default=None), node.ended_us)


def _task_span(times: ExecutionTimes, attempt: NodeAttemptRow, depth: int) -> Any:
    """TASK_SETUP is the time in queues and until the program began."""
    span = _span(attempt.created_us, attempt.ended_us)
    task = EntityId(EntityKind.TASK, attempt.task_project, attempt.task_domain, attempt.task_name, attempt.task_version)
    span.task_id.task_id.CopyFrom(to_message(task))
    span.task_id.node_execution_id.CopyFrom(_node_id(times, attempt.node_id))
    span.task_id.retry_attempt = attempt.attempt
    if depth:
        span.spans.append(_operation("TASK_SETUP", attempt.created_us, attempt.started_us or attempt.ended_us))
        if attempt.started_us is not None:
            span.spans.append(_operation("TASK_RUNTIME", attempt.started_us, attempt.ended_us))
    return span


def _operation(name: str, begin_us: int | None, end_us: int | None) -> Any:
    span = _span(end_us if begin_us is None else begin_us, end_us)
    span.operation_id = name
    return span


def _span(begin_us: int | None, end_us: int | None) -> Any:
    """Clocks of agents may differ from the server's; no span ends before it begins."""
    span = metrics_pb2.Span()
    if begin_us is not None:
        span.start_time.FromMicroseconds(begin_us)
    if end_us is not None:
        span.end_time.FromMicroseconds(max(end_us, begin_us or end_us))
    return span


def _execution_id(times: ExecutionTimes) -> Any:
    key = times.row.key
    return identifier_pb2.WorkflowExecutionIdentifier(project=key.project, domain=key.domain, name=key.name)


def _node_id(times: ExecutionTimes, node_id: str) -> Any:
    return identifier_pb2.NodeExecutionIdentifier(node_id=node_id, execution_id=_execution_id(times))
