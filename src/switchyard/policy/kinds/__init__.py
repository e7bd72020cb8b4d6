"""The kinds of attributes: one small class each. A third party adds one by the entry point group GROUP."""

from __future__ import annotations

from switchyard.policy.kinds.cluster_assignment import ClusterAssignment
from switchyard.policy.kinds.cluster_resources import ClusterResources
from switchyard.policy.kinds.execution_cluster_label import ExecutionClusterLabel
from switchyard.policy.kinds.execution_queue import ExecutionQueue
from switchyard.policy.kinds.kind import Kind, Kinds
from switchyard.policy.kinds.plugin_override import PluginOverride
from switchyard.policy.kinds.quality_of_service import QualityOfServiceKind
from switchyard.policy.kinds.task_resources import TaskResources
from switchyard.policy.kinds.tokens import Tokens
from switchyard.policy.kinds.workflow_execution_config import WorkflowExecutionConfig

GROUP = "switchyard.attribute_kinds"
BUILTIN: tuple[Kind, ...] = (
    TaskResources(),
    ClusterResources(),
    ExecutionQueue(),
    ExecutionClusterLabel(),
    QualityOfServiceKind(),
    PluginOverride(),
    WorkflowExecutionConfig(),
    ClusterAssignment(),
    Tokens(),
)

__all__ = ["BUILTIN", "GROUP", "Kind", "Kinds"]
