"""Rainbow's services as gRPC serves them: from bytes to a call of ours, and from our errors to honest codes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any

import grpc
import structlog
from google.protobuf.descriptor import ServiceDescriptor

from switchyard.errors import Internal, YardError
from switchyard.server.flyte.status import message_of
from switchyard.server.rainbow import calls
from switchyard.server.rainbow.messages import GRAPH, HANDOVER, SCHEDULER, SatisfyResponse, message
from switchyard.server.yard import Yard

log = structlog.get_logger()
ANSWERS_MAX = 4096  # of Satisfy, kept for one version of the world
ANSWER_KEY_BYTES_MAX = 16 * 1024

Serve = Callable[[Any], Any]


def handlers(yard: Yard) -> tuple[grpc.GenericRpcHandler, ...]:
    """None without the section: Rainbow's services are then not served at all."""
    if yard.settings.config.rainbow is None:
        return ()
    satisfy = Satisfy(yard)
    return (
        _service(SCHEDULER, {name: partial(call, yard) for name, call in calls.SCHEDULER.items()}),
        _service(HANDOVER, {name: partial(call, yard) for name, call in calls.HANDOVER.items()}),
        _service(GRAPH, {"Satisfy": satisfy.answer}),
    )


def _service(service: ServiceDescriptor, by_name: dict[str, Serve]) -> grpc.GenericRpcHandler:
    found = {}
    for method in service.methods:
        if method.name in by_name:
            found[method.name] = grpc.unary_unary_rpc_method_handler(
                partial(_serve, method.name, by_name[method.name]),
                request_deserializer=message(method.input_type.full_name).FromString,
                response_serializer=_bytes,
            )
    return grpc.method_handlers_generic_handler(service.full_name, found)


def _bytes(answer: Any) -> bytes:
    found: bytes = answer if isinstance(answer, bytes) else answer.SerializeToString()
    return found


def _serve(name: str, serve: Serve, request: Any, context: grpc.ServicerContext) -> Any:
    try:
        return serve(request)
    except YardError as exc:
        if exc.status >= 500 and not exc.transient:
            log.error("request failed", call=name, error=repr(exc), exc_info=exc)
        error = exc
    except Exception as exc:  # the door's last resort: the client gets a status, the log the place
        log.error("defect", call=name, exc_info=exc)
        error = Internal()
    return context.abort(grpc.StatusCode[error.grpc], message_of(error))


class Satisfy:
    """Clients ask it before every submit, mostly the same: the answer's bytes are kept while the world stands."""

    def __init__(self, yard: Yard) -> None:
        self._yard = yard
        self._kept: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._kept_of: tuple[int, int] = (-1, -1)
        self._lock = Lock()

    def answer(self, request: Any) -> bytes:
        snapshots = self._yard.context.snapshots
        versions = snapshots.world.version, snapshots.access.version
        key = (request.payload, request.matcher)
        with self._lock:
            if self._kept_of != versions:
                self._kept, self._kept_of = OrderedDict(), versions
            if (found := self._kept.get(key)) is not None:
                return found
        fit = calls.fitting(self._yard, request.payload, request.matcher)
        names = [each.cluster for each in fit.items]
        answer: bytes = SatisfyResponse(
            clusters=names,
            status="RESULT_TYPE_SUCCESS",
            total_clusters=fit.asked,
            total_matches=len(names),
            total_mismatches=fit.asked - len(names),
        ).SerializeToString()
        with self._lock:
            if self._kept_of == versions and len(request.payload) <= ANSWER_KEY_BYTES_MAX:
                self._kept[key] = answer
                while len(self._kept) > ANSWERS_MAX:
                    self._kept.popitem(last=False)
        return answer
