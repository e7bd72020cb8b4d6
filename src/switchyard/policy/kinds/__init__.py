"""The kinds of attributes: one small class each. A third party adds one by the entry point group ENTRY_POINT_GROUP."""

from __future__ import annotations

from switchyard.policy.kinds.cluster_assignment import ClusterAssignmentKind
from switchyard.policy.kinds.cluster_resources import ClusterResourcesKind
from switchyard.policy.kinds.execution_cluster_label import ExecutionClusterLabelKind
from switchyard.policy.kinds.execution_queue import ExecutionQueueKind
from switchyard.policy.kinds.job_priority import JOB_PRIORITY
from switchyard.policy.kinds.kind import Kind, Kinds
from switchyard.policy.kinds.plugin_override import PluginOverrideKind
from switchyard.policy.kinds.quality_of_service import QualityOfServiceKind
from switchyard.policy.kinds.retry_policy import RetryPolicyKind
from switchyard.policy.kinds.task_resources import TaskResourcesKind
from switchyard.policy.kinds.tokens import TokensKind
from switchyard.policy.kinds.workflow_execution_config import WorkflowExecutionConfigKind

ENTRY_POINT_GROUP = "switchyard.attribute_kinds"
BUILTIN_KINDS: tuple[Kind, ...] = (
    TaskResourcesKind(),
    ClusterResourcesKind(),
    ExecutionQueueKind(),
    ExecutionClusterLabelKind(),
    QualityOfServiceKind(),
    PluginOverrideKind(),
    WorkflowExecutionConfigKind(),
    ClusterAssignmentKind(),
    JOB_PRIORITY,
    TokensKind(),
    RetryPolicyKind(),
)

__all__ = ["BUILTIN_KINDS", "ENTRY_POINT_GROUP", "Kind", "Kinds"]
