"""The client of the commands about workflows."""

from __future__ import annotations

from switchyard.features.flyte.sdk.execution_calls import ExecutionCalls
from switchyard.sdk.client import CoreClient


class WorkflowClient(CoreClient, ExecutionCalls):
    """The core's calls, and those about executions."""
