"""How an attempt ended: its job, its files, and what they mean together."""

from __future__ import annotations

import dataclasses
from typing import Any

from switchyard.features.flyte.service.executions.nodes.attempt_files import read_end
from switchyard.features.flyte.service.executions.nodes.container_outputs import with_container_outputs
from switchyard.features.flyte.store.executions.execution_nodes import LiveAttemptRow
from switchyard.features.flyte.store.executions.executions import ExecutionRow
from switchyard.features.flyte.workflow.engine.attempt_result import judge_attempt
from switchyard.features.flyte.workflow.engine.execution_state import AttemptEnd, NodeProgress
from switchyard.features.flyte.workflow.tasks.raw_container import is_raw_container
from switchyard.features.flyte.workflow.values.uploaded_files import with_addresses
from switchyard.service.core.context import Context


def end_of_attempt(
    context: Context, row: ExecutionRow, attempt: LiveAttemptRow, template: Any, node: NodeProgress | None
) -> AttemptEnd:
    """`template`: of the task; `node`: as it was before the end. Raises Unavailable if the store of files is away."""
    job_end = read_end(context, attempt)
    if is_raw_container(template):
        job_end = with_container_outputs(context, row, attempt, job_end, template)
    end = judge_attempt(
        attempt.node_id, attempt.attempt, job_end, has_outputs=bool(template.interface.outputs.variables)
    )
    if end.outputs is None or node is None or node.inputs is None:
        return end
    return dataclasses.replace(end, outputs=with_addresses(end.outputs, node.inputs))
