"""The client that users get: the calls of the core, and those of the features that come with this package."""

from __future__ import annotations

from switchyard.features.flyte.sdk.execution_calls import WorkflowClient
from switchyard.features.functions.sdk.function_client import FunctionClient
from switchyard.features.kubernetes.sdk.resource_calls import ClusterResourceCalls


class Client(WorkflowClient, ClusterResourceCalls, FunctionClient):
    """Calls one server; threads may share it. Missing arguments come from the environment or the user's file.

    >>> with Client() as yard:
    ...     job = yard.submit(["python", "train.py"], cores=4, memory="8GiB")
    ...     print(job.wait().state, job.text())
    """
