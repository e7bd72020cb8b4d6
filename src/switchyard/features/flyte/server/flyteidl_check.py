"""What Flyte's clients are told where the package flyteidl is not installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from switchyard.features.flyte.server.grpc_status import FlyteNotServed, code_of
from switchyard.server.grpc.grpc_status import message_of

if TYPE_CHECKING:
    import grpc

    from switchyard.server.grpc.grpc_intake import CallContext


def is_flyteidl_installed() -> bool:
    """flyteidl is optional: it has no release yet for the newest Pythons."""
    try:
        import flyteidl  # noqa: F401
    except ImportError:
        return False
    return True


def not_installed_error() -> FlyteNotServed:
    return FlyteNotServed(
        "Flyte's interface is not served here: the package flyteidl is not installed.",
        next_step="Install it beside the server (`pip install 'flyteidl>=1.16,<2'`); it needs a Python below 3.14.",
    )


def refuse_grpc() -> grpc.GenericRpcHandler:
    """Refuses every call of Flyte's services without reading its message."""
    import grpc  # only servers with a gRPC port load it

    async def refuse(_messages: Any, context: CallContext) -> None:
        error = not_installed_error()
        await context.abort(grpc.StatusCode[code_of(error)], message_of(error))

    class FlyteNotInstalled(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
            return grpc.stream_unary_rpc_method_handler(refuse) if details.method.startswith("/flyteidl.") else None

    return FlyteNotInstalled()
