"""Rainbow's services on the gRPC port: from messages to calls of ours, and from our errors to gRPC codes."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from threading import Lock
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from switchyard.errors import BadRequest, Denied, LimitReached, PolicyRefused, YardError
from switchyard.features.rainbow.server import calls
from switchyard.features.rainbow.server.calls import RainbowServer
from switchyard.features.rainbow.server.messages import GRAPH, HANDOVER, SCHEDULER, SatisfyResponse, message
from switchyard.features.rainbow.server.secret_guesses import SecretGuessLimiter, caller_address
from switchyard.features.rainbow.service.pollers import ReceivedJobs
from switchyard.features.rainbow.service.rainbow import NumberedInsert
from switchyard.server.commits import COMMIT_WAIT_S_MAX, deliver_to_loop, settle_future
from switchyard.server.grpc.grpc_intake import CallContext, GrpcMethod, MessageIntake, peer_address
from switchyard.server.grpc.grpc_message import message_reader
from switchyard.server.loops.loop_calls import run_on_thread
from switchyard.server.loops.runtime import ServerRuntime
from switchyard.service.core.writes.committer import DeliverResults, Write
from switchyard.service.placement.decision import TooSlowForLoop

GRAPH_CALLS = frozenset({"Register", "RegisterSubsystem"})  # calls whose messages may be large
ANSWERS_MAX = 4096  # cached answers of Satisfy
ANSWERS_BYTES_MAX = 64 * 2**20  # of all cached answers with their requests: anybody may call
ANSWER_KEY_BYTES_MAX = 16 * 1024

THREADS = 4

Serve = Callable[[Any], Awaitable[Any]]


def handlers(server: ServerRuntime, intake: MessageIntake) -> tuple[grpc.GenericRpcHandler, ...]:
    rainbow = RainbowServer(server.services, server.limiter, SecretGuessLimiter(time.monotonic), ReceivedJobs())
    threads = ThreadPoolExecutor(THREADS, thread_name_prefix="rainbow")
    cold = {**calls.SCHEDULER_CALLS, **calls.HANDOVER_CALLS}
    by_name: dict[str, Serve] = {
        name: partial(_in_thread, threads, partial(call, rainbow)) for name, call in cold.items()
    }
    deliver = partial(deliver_to_loop, asyncio.get_running_loop())
    by_name |= {
        "SubmitJob": partial(_submit, threads, rainbow, deliver),
        "ReceiveJobs": partial(_receive, threads, rainbow, deliver),
        "AcceptJobs": partial(_accept, threads, rainbow, deliver),
        "Satisfy": partial(_satisfy, threads, SatisfyCache(rainbow)),
    }
    return tuple(_service(service, by_name, intake) for service in (SCHEDULER, HANDOVER, GRAPH))


async def _in_thread(threads: ThreadPoolExecutor, call: Callable[[Any], Any], request: Any) -> Any:
    """Run a call that waits for the database."""
    return await run_on_thread(asyncio.get_running_loop(), threads, partial(copy_context().run, call, request))


async def _submit(threads: ThreadPoolExecutor, server: RainbowServer, deliver: DeliverResults, request: Any) -> Any:
    """Decide on the loop, or on a thread if that may take long. No thread waits for the commit."""
    try:
        decided = calls.submit_decide(server, request, is_quick=True)
    except (TooSlowForLoop, BadRequest, Denied, LimitReached, PolicyRefused):
        decided = await _in_thread(threads, partial(calls.submit_decide_fresh, server), request)
    if not isinstance(decided, NumberedInsert):
        return decided
    return calls.submit_response(await _committed(server, deliver, decided))


async def _receive(threads: ThreadPoolExecutor, server: RainbowServer, deliver: DeliverResults, request: Any) -> Any:
    """Answer on the loop if the caller is known and no job is overdue, else on a thread."""
    write = calls.receive_write(server, request)
    texts = await _committed(server, deliver, write) if write is not None else None
    if texts is not None:
        return calls.receive_response(texts)
    return await _in_thread(threads, partial(calls.receive_jobs, server), request)


async def _accept(threads: ThreadPoolExecutor, server: RainbowServer, deliver: DeliverResults, request: Any) -> Any:
    """Answer on the loop if the caller and the jobs are known, else on a thread."""
    write = calls.accept_write(server, request)
    if write is not None:
        return calls.accept_response(request, await _committed(server, deliver, write))
    return await _in_thread(threads, partial(calls.accept_jobs, server), request)


async def _committed(server: RainbowServer, deliver: DeliverResults, write: Write) -> Any:
    """Wait for the commit of a write, without a thread. Returns its result."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    server.context.committer.put(write, partial(settle_future, future), deliver=deliver)
    async with asyncio.timeout(COMMIT_WAIT_S_MAX):
        return await future


async def _satisfy(threads: ThreadPoolExecutor, satisfy: SatisfyCache, request: Any) -> bytes:
    if (cached := satisfy.cached(request)) is not None:
        return cached
    return await run_on_thread(asyncio.get_running_loop(), threads, partial(satisfy.answer, request))


def _service(service: ServiceDescriptor, by_name: dict[str, Serve], intake: MessageIntake) -> grpc.GenericRpcHandler:
    handlers_by_name = {
        method.name: intake.handler(
            GrpcMethod(
                method.name,
                partial(_serve, by_name[method.name]),
                read=message_reader(message(method.input_type.full_name)),
                write=_bytes,
                code=_code,
                admit=_note_caller,
                has_graph=method.name in GRAPH_CALLS,
            )
        )
        for method in service.methods
        if method.name in by_name
    }
    return grpc.method_handlers_generic_handler(service.full_name, handlers_by_name)


def _bytes(answer: Any) -> bytes:
    content: bytes = answer if isinstance(answer, bytes) else answer.SerializeToString()
    return content


async def _note_caller(context: CallContext) -> None:
    """Note the caller's address: wrong secrets are counted by address."""
    caller_address.set(peer_address(context.peer()))


def _code(error: YardError) -> str:
    return error.grpc


async def _serve(serve: Serve, request: Any, _admitted: None) -> Any:
    return await serve(request)


class SatisfyCache:
    """Caches encoded answers until a snapshot changes: clients ask before every submit, and mostly the same."""

    def __init__(self, server: RainbowServer) -> None:
        self._server = server
        self._answers: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._cached_bytes = 0
        self._versions: tuple[int, int] = (-1, -1)
        self._lock = Lock()

    def cached(self, request: Any) -> bytes | None:
        """Return the cached answer, if the snapshots are still the same."""
        versions, key = self._server.context.snapshots.versions, (request.payload, request.matcher)
        if _size(key, b"") > ANSWER_KEY_BYTES_MAX:
            return None  # never cached, and not looked up: hashing a key of megabytes takes time
        with self._lock:
            if self._versions != versions:
                self._answers, self._versions, self._cached_bytes = OrderedDict(), versions, 0
            return self._answers.get(key)

    def answer(self, request: Any) -> bytes:
        versions = self._server.context.snapshots.versions
        fit = calls.match_anonymous(self._server, request.payload, request.matcher)
        names = [item.cluster for item in fit.items]
        answer: bytes = SatisfyResponse(
            clusters=names,
            status="RESULT_TYPE_SUCCESS",
            total_clusters=fit.asked,
            total_matches=len(names),
            total_mismatches=fit.asked - len(names),
        ).SerializeToString()
        key = (request.payload, request.matcher)
        with self._lock:
            if self._versions == versions and key not in self._answers and _size(key, b"") <= ANSWER_KEY_BYTES_MAX:
                self._answers[key] = answer
                self._cached_bytes += _size(key, answer)
                while len(self._answers) > ANSWERS_MAX or self._cached_bytes > ANSWERS_BYTES_MAX:
                    self._cached_bytes -= _size(*self._answers.popitem(last=False))
        return answer


def _size(key: tuple[str, str], answer: bytes) -> int:
    return sum(map(len, key)) + len(answer)
