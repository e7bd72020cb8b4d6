"""Executions as our own API shows them: pages of the newest ones, and one in full."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flyteidl.core import execution_pb2, literals_pb2

from switchyard.errors import Denied
from switchyard.features.flyte.model.workflow_execution import ExecutionDetails, ExecutionFailure, WorkflowExecution
from switchyard.features.flyte.service.executions.calls.reads import get_execution
from switchyard.features.flyte.service.executions.nodes.node_jobs import read_spec
from switchyard.features.flyte.service.executions.nodes.placement import is_spread
from switchyard.features.flyte.store.executions import execution_nodes, execution_pages
from switchyard.features.flyte.store.executions.execution_pages import ExecutionFilter, ExecutionListRow
from switchyard.features.flyte.store.executions.executions import ExecutionKey, ExecutionRow
from switchyard.features.flyte.workflow.values.plain_values import plain_values
from switchyard.model.rules.access import Role
from switchyard.model.wire.api import Page
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.lifecycle.visibility import Visibility


def execution_page(
    context: Context, actor: Actor, wanted: ExecutionFilter, *, before: str | None, limit: int
) -> Page[WorkflowExecution]:
    """The newest executions that the reader may see and that match. `before`: the `next` of the page before."""
    visibility = Visibility(context, actor)
    with context.database.read() as tx:
        rows, more = execution_pages.execution_page(
            tx,
            _visible_filter(visibility, actor, wanted),
            before=before,
            limit=limit,
            budget=context.list_budget,
        )
        spread = {row.id: execution_nodes.cluster_names(tx, row.id) for row in rows if not row.cluster}
    return Page([listed(visibility, row, [row.cluster] if row.cluster else spread[row.id]) for row in rows], more)


def _visible_filter(visibility: Visibility, actor: Actor, wanted: ExecutionFilter) -> ExecutionFilter:
    """As with jobs: for a hidden cluster only the reader's own executions match."""
    if wanted.project is not None and not actor.may_project(Role.VIEW, wanted.project):
        raise Denied(f"You may not view the executions of project {wanted.project}.")
    if wanted.owner is not None and wanted.owner == actor.name:
        wanted = replace(wanted, owner=None, owner_id=actor.id)  # an earlier user may have had the same name
    if wanted.cluster is not None and not visibility.sees_name(wanted.cluster):
        wanted = replace(wanted, owner_id=actor.id)
    return replace(wanted, projects=actor.viewable_projects())


def execution_details(context: Context, actor: Actor, key: ExecutionKey) -> ExecutionDetails:
    view = get_execution(context, actor, key)
    row = view.row
    with context.database.read() as tx:
        phases = execution_pages.phase_counts(tx, row.id)
    spec = read_spec(row)
    metadata, parent = spec.metadata, spec.metadata.parent_node_execution
    is_stopped = row.phase in ("ABORTING", "ABORTED")
    return ExecutionDetails(
        execution=listed(Visibility(context, actor), row, view.clusters),
        namespace=f"{row.project}-{row.domain}",
        asked_pool=spec.cluster_assignment.cluster_pool_name,
        asked_label=spec.execution_cluster_label.value,
        is_spread=is_spread(spec),
        parent=f"{parent.execution_id.name}/{parent.node_id}" if parent.node_id else "",
        reference=metadata.reference_execution.name,
        max_parallelism=spec.max_parallelism,
        data_prefix=spec.raw_output_data_config.output_location_prefix,
        labels=dict(sorted(spec.labels.values.items())),
        annotations=dict(sorted(spec.annotations.values.items())),
        inputs=plain_values(literals_pb2.LiteralMap.FromString(row.inputs).literals),
        outputs=plain_values(literals_pb2.LiteralMap.FromString(row.outputs or b"").literals),
        error=_failure(row),
        abort_cause=row.abort_cause if is_stopped else "",
        abort_by=row.abort_by if is_stopped else "",
        nodes=dict(sorted(phases.items())),
    )


def listed(visibility: Visibility, row: ExecutionRow | ExecutionListRow, clusters: list[str]) -> WorkflowExecution:
    is_own = visibility.is_own(row)
    return WorkflowExecution(
        project=row.project,
        domain=row.domain,
        name=row.name,
        phase=row.phase,
        owner=row.owner,
        kind=row.entity_kind,
        launched=row.entity_name,
        version=row.entity_version,
        workflow=row.workflow_name,
        mode=row.mode,
        created_us=row.created_us,
        pool=row.pool,
        label=row.label,
        clusters=[name for name in clusters if is_own or visibility.sees_name(name)],
        is_archived=bool(row.is_archived),
        started_us=row.started_us,
        ended_us=row.ended_us,
    )


def _failure(row: ExecutionRow) -> ExecutionFailure | None:
    if row.error is None:
        return None
    error: Any = execution_pb2.ExecutionError.FromString(row.error)
    kind = execution_pb2.ExecutionError.ErrorKind.Name(error.kind) if error.kind else ""
    return ExecutionFailure(error.code, error.message, kind)
