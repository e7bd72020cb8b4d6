"""Where the data of an execution's tasks goes: files, directories, data frames, pickled values and checkpoints.

An address of a bucket, which tasks on several clusters reach, or a folder of one cluster, where the execution then
stays. Who says it: the execution, its launch plan, the rules of its scope, the server's config; else the cluster.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from switchyard.errors import BadRequest
from switchyard.features.flyte.store.executions.executions import ExecutionRow
from switchyard.features.flyte.workflow.engine.execution_checks import data_of_task
from switchyard.features.flyte.workflow.engine.node_job import CLUSTER_FOLDER
from switchyard.model.cluster.verdict import Answer, Plan
from switchyard.model.executions.execution import ExecutionConfig
from switchyard.model.job.site_needs import DATA_PATTERN, STORE_SCHEMES
from switchyard.model.rules.names import printable_line
from switchyard.policy.kinds.workflow_execution_config import WorkflowExecutionConfigKind
from switchyard.route.member import Member
from switchyard.service.core.context import Context

CHARS_MAX = 512  # ids of the execution, the node and the attempt follow
WHAT_TO_SET = (
    "Say where it goes: `raw_output_data_config` of the execution, of its launch plan, of a rule of the project or in "
    "the server's config (`execution_config`), or `data: {folder: DIR}` in the site file of an agent."
)
_PATTERN = re.compile(DATA_PATTERN)
TryPlan = Callable[[Any], Plan]  # how a job of a task with data would be decided under this spec


def settle_data_place(
    context: Context, row: ExecutionRow, spec: Any, plan: Any, *, needs: str, try_plan: TryPlan
) -> None:
    """Write into the spec where data goes, and the cluster to which that ties the execution.

    `needs`: why a task needs a place; empty: none does. Raises BadRequest if there is no place for it.
    """
    prefix = (
        spec.raw_output_data_config.output_location_prefix
        or plan.raw_output_data_config.output_location_prefix
        or _prefix_of_rules(context, row)
    )
    _check_prefix(prefix)
    place = spec.raw_output_data_config
    place.output_location_prefix = prefix
    if _is_store(prefix) or not (prefix or needs):
        return
    place.output_location_prefix = prefix or CLUSTER_FOLDER
    plan = try_plan(spec)
    folders = _folders(context, plan)
    cluster = plan.chosen if plan.chosen in folders else min(folders, default=None)
    if cluster is None:
        why = printable_line(plan.reason)
        raise BadRequest(
            f"{needs}, and there is no place for such data: {why}." if needs else f"No cluster has {prefix}: {why}.",
            next_step=WHAT_TO_SET,
        )
    place.output_location_prefix = prefix or folders[cluster]
    spec.metadata.system_metadata.execution_cluster = cluster


def with_data_place(spec: Any, template: Any, home: Member | None) -> Any:
    """The spec for a task, which may be one that was not known at creation, as in a dynamic workflow.

    `home`: the cluster of the execution. Its folder is the place for data if there is no other.
    """
    folder = home.graph.site.folder if home is not None and home.graph is not None and home.graph.site else ""
    if folder and not spec.raw_output_data_config.output_location_prefix and any(data_of_task(template)):
        spec.raw_output_data_config.output_location_prefix = folder
    return spec


def _prefix_of_rules(context: Context, row: ExecutionRow) -> str:
    """What the rules of the execution's scope say, or the server's config."""
    policy = context.snapshots.policy
    effective = policy.effective((row.domain, row.project, row.workflow_name, row.entity_name))
    value = effective.value(policy.kinds.get(WorkflowExecutionConfigKind.name))
    config = value if isinstance(value, ExecutionConfig) else ExecutionConfig()
    output = config.raw_output_data_config
    return (output.output_location_prefix or "") if output is not None else ""


def _check_prefix(prefix: str) -> None:
    if prefix.startswith("file:"):
        raise BadRequest("raw_output_data_config: tasks cannot use file://; give the path alone", next_step=WHAT_TO_SET)
    if len(prefix) > CHARS_MAX or not _PATTERN.match(prefix) or prefix == "/":
        schemes = ", ".join(f"{scheme}://" for scheme in STORE_SCHEMES)
        raise BadRequest(
            f"raw_output_data_config: {prefix[:200]!r} is neither an absolute path nor an address with {schemes}"
        )


def _is_store(prefix: str) -> bool:
    return prefix.partition("://")[0] in STORE_SCHEMES


def _folders(context: Context, plan: Plan) -> dict[str, str]:
    """The clusters that can run the job now or later and have a folder for data, with it."""
    graphs = {
        verdict.cluster: context.snapshots.world.by_name[verdict.cluster].graph
        for verdict in plan.verdicts
        if verdict.say is not Answer.NO
    }
    return {
        name: graph.site.folder
        for name, graph in graphs.items()
        if graph is not None and graph.site is not None and graph.site.folder
    }
