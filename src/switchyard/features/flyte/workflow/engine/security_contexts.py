"""Flyte's security context in our words. Pure."""

from __future__ import annotations

from typing import Any

from google.protobuf.json_format import MessageToDict

from switchyard.model.executions.execution import RunAs, SecurityContext


def read_security_context(context: Any) -> SecurityContext:
    """Identity, secrets and tokens. What a cluster cannot give is refused where the job is admitted and routed."""
    run_as = context.run_as
    identity = RunAs(
        iam_role=run_as.iam_role or None,
        k8s_service_account=run_as.k8s_service_account or None,
        execution_identity=run_as.execution_identity or None,
        oauth2_client=_plain(run_as.oauth2_client) if run_as.HasField("oauth2_client") else None,
    )
    return SecurityContext(
        run_as=identity if identity != RunAs() else None,
        secrets=[_plain(secret) for secret in context.secrets],
        tokens=[_plain(token) for token in context.tokens],
    )


def _plain(message: Any) -> dict[str, Any]:
    plain: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    return plain
