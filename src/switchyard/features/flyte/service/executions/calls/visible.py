"""Redact executions for a reader, as jobs are: other users' secrets, and the names of hidden clusters."""

from __future__ import annotations

from typing import Any

import msgspec
from flyteidl.admin import execution_pb2
from flyteidl.core import execution_pb2 as core_execution_pb2

from switchyard.features.flyte.store.executions.execution_nodes import NodeAttemptRow, NodeRow
from switchyard.features.flyte.store.executions.executions import ExecutionRow
from switchyard.features.flyte.workflow.values.content import content_bytes
from switchyard.service.lifecycle.visibility import Visibility


class ExecutionSight:
    """What one reader sees of one execution."""

    def __init__(self, visibility: Visibility, execution: ExecutionRow) -> None:
        self._visibility = visibility
        self._is_own = visibility.is_own(execution)
        self._sees_secrets = visibility.sees_secrets(execution)

    def execution(self, row: ExecutionRow) -> ExecutionRow:
        return msgspec.structs.replace(
            row, spec=self._spec(row.spec), error=self._error(row.error), abort_cause=self.text(row.abort_cause)
        )

    def node(self, row: NodeRow) -> NodeRow:
        return msgspec.structs.replace(row, error=self._error(row.error))

    def attempt(self, row: NodeAttemptRow) -> NodeAttemptRow:
        return msgspec.structs.replace(
            row, error=self._error(row.error), reason=self.text(row.reason), cluster=self.cluster(row.cluster)
        )

    def text(self, text: str) -> str:
        return self._visibility.text(text, is_own=self._is_own)

    def cluster(self, name: str) -> str:
        """Empty for a hidden one."""
        return name if self._is_own or self._visibility.sees_name(name) else ""

    def clusters(self, names: list[str]) -> list[str]:
        return [name for name in names if self.cluster(name)]

    def _spec(self, body: bytes) -> bytes:
        if self._sees_secrets:
            return body
        spec: Any = execution_pb2.ExecutionSpec.FromString(body)
        _clear_secrets(spec)
        return content_bytes(spec)

    def _error(self, body: bytes | None) -> bytes | None:
        if body is None or self._is_own:
            return body
        error: Any = core_execution_pb2.ExecutionError.FromString(body)
        error.message = self.text(error.message)
        return content_bytes(error)


def _clear_secrets(spec: Any) -> None:
    """As `model/job/spec_secrets.py` does for jobs."""
    spec.ClearField("envs")
    if not spec.HasField("security_context"):
        return
    context = spec.security_context
    context.ClearField("secrets")
    context.ClearField("tokens")
    if context.run_as.HasField("oauth2_client"):
        context.run_as.oauth2_client.ClearField("client_secret")
