"""Client calls about executions of Flyte's workflows and tasks: list, read, explain, create."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any

import msgspec

from switchyard.decoder_warmup import warm_type
from switchyard.features.flyte.model.workflow_execution import (
    CreatedExecution,
    ExecutionDetails,
    ExecutionExplanation,
    ExecutionNode,
    LaunchRequest,
    WorkflowExecution,
)
from switchyard.model.wire.api import Page
from switchyard.model.wire.decode import validation_refusal
from switchyard.sdk.client import CoreClient
from switchyard.sdk.transport.calls import ApiCalls, api_path

PROJECT, DOMAIN = "default", "development"
NAME_BYTES = 10  # of a random name
NODES_PAGE_SIZE = 500  # the server's limit: each page costs it a walk over all nodes of the execution


class ExecutionCalls(ApiCalls):
    """The part of the client about executions."""

    def executions(
        self,
        *,
        project: str | None = None,
        domain: str | None = None,
        phase: str | Sequence[str] | None = None,
        cluster: str | None = None,
        pool: str | None = None,
        label: str | None = None,
        owner: str | None = None,
        launched: str | None = None,
        archived: bool = False,
        limit: int | None = None,
    ) -> Iterator[WorkflowExecution]:
        """Yield executions, newest first, fetched page by page. `launched`: the name of the launch plan or task."""
        query = {
            "project": project,
            "domain": domain,
            "phase": [phase] if isinstance(phase, str) else list(phase or ()),
            "cluster": cluster,
            "pool": pool,
            "label": label,
            "owner": owner,
            "launched": launched,
            "archived": archived or None,
        }
        return self._walk(api_path("executions"), Page[WorkflowExecution], query=query, limit=limit)

    def execution(self, name: str, *, project: str = PROJECT, domain: str = DOMAIN) -> ExecutionDetails:
        """Return one execution. Raise NotFound if there is none, and Denied without the right to view its project."""
        return self._get(api_path("executions", project, domain, name), ExecutionDetails)

    def execution_nodes(
        self, name: str, *, project: str = PROJECT, domain: str = DOMAIN, limit: int | None = None
    ) -> Iterator[ExecutionNode]:
        """Yield the nodes of an execution, also those that have not begun, each before the nodes inside it."""
        path = api_path("executions", project, domain, name, "nodes")
        return self._walk(path, Page[ExecutionNode], limit=limit, page_size=NODES_PAGE_SIZE)

    def explain_execution(self, name: str, *, project: str = PROJECT, domain: str = DOMAIN) -> ExecutionExplanation:
        """Return where an execution runs and why, with each cluster's verdict for each of its tasks."""
        return self._get(api_path("executions", project, domain, name, "explain"), ExecutionExplanation)

    def create_execution(self, **fields: Any) -> CreatedExecution:
        """Create an execution, or run one again. `fields` are those of LaunchRequest; None is the same as leaving out.

        Raise Malformed for a bad field, BadValue for inputs of a wrong type, and Conflict if another request has made
        an execution of this name. Without a name it gets a random one, so a retry never creates a second execution.
        Infinite inputs and NaN are sent as the texts `inf`, `-inf` and `nan`, which count as numbers where a number
        is expected: JSON has no such numbers.

        >>> yard.create_execution(launch_plan="flows.twice", inputs={"a": 3}, pool="lab")
        """
        given = {word: value for word, value in fields.items() if value is not None}
        if "inputs" in given:
            given["inputs"] = _infinite_as_text(given["inputs"])
        given.setdefault("name", "f" + os.urandom(NAME_BYTES).hex()[:19])
        warm_type(LaunchRequest)
        try:
            request = msgspec.convert(given, LaunchRequest)
        except msgspec.ValidationError as exc:
            raise validation_refusal(exc, "The execution: ") from exc
        return self._post(api_path("executions"), CreatedExecution, body=request, repeatable=True)


def _infinite_as_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _infinite_as_text(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_infinite_as_text(item) for item in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value


class WorkflowClient(CoreClient, ExecutionCalls):
    """The core's calls, and those about executions."""
