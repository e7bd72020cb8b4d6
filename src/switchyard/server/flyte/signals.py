"""Flyte's calls about signals: what the gates of an execution wait for, and the values that people give."""

from __future__ import annotations

from typing import Any

from flyteidl.admin import common_pb2, signal_pb2
from flyteidl.core import literals_pb2, types_pb2

from switchyard.server.flyte.node_executions import refuse_filters
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.executions.calls import signals
from switchyard.service.executions.calls.reads import read_key
from switchyard.store.executions.execution_signals import SignalRow
from switchyard.workflow.lists.filters import read_page


def get_or_create(context: Context, actor: Actor, request: Any) -> Any:
    key = read_key(request.id.execution_id)
    row = signals.get_or_create(context, actor, key, request.id.signal_id, request.type)
    return _signal(request.id.execution_id, row)


def list_matching(context: Context, actor: Actor, request: Any) -> Any:
    limit, offset = read_page(request.limit, request.token)
    refuse_filters(request)
    is_descending = bool(request.sort_by.key) and request.sort_by.direction == common_pb2.Sort.DESCENDING
    key = read_key(request.workflow_execution_id)
    rows, token = signals.list_signals(context, actor, key, is_descending=is_descending, offset=offset, limit=limit)
    found = [_signal(request.workflow_execution_id, row) for row in rows]
    return signal_pb2.SignalList(signals=found, token=token)


def set_value(context: Context, actor: Actor, request: Any) -> Any:
    signals.set_signal(context, actor, read_key(request.id.execution_id), request.id.signal_id, request.value)
    return signal_pb2.SignalSetResponse()


def _signal(execution: Any, row: SignalRow) -> Any:
    answer = signal_pb2.Signal(type=types_pb2.LiteralType.FromString(row.type))
    answer.id.signal_id = row.signal_id
    answer.id.execution_id.CopyFrom(execution)
    if row.value is not None:
        answer.value.CopyFrom(literals_pb2.Literal.FromString(row.value))
    return answer
