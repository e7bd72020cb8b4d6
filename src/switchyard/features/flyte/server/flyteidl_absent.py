"""What the gRPC port answers to Flyte's clients where the package flyteidl is not installed."""

from __future__ import annotations

from typing import Any

import grpc

from switchyard.features.flyte.server.flyteidl_check import not_installed_error
from switchyard.features.flyte.server.grpc_status import code_of
from switchyard.server.grpc.grpc_intake import CallContext
from switchyard.server.grpc.grpc_status import message_of


class FlyteNotInstalled(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Refuses every call of Flyte's services without reading its message."""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        return grpc.stream_unary_rpc_method_handler(_refuse) if details.method.startswith("/flyteidl.") else None


async def _refuse(_messages: Any, context: CallContext) -> None:
    error = not_installed_error()
    await context.abort(grpc.StatusCode[code_of(error)], message_of(error))
