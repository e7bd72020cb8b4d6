"""Rainbow's services as gRPC serves them: from bytes to a call of ours, and from our errors to honest codes."""

from __future__ import annotations

import asyncio
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
from switchyard.server.grpc_intake import CallContext, GrpcMethod, MessageIntake, peer_address
from switchyard.server.grpc_message import message_reader
from switchyard.server.rainbow import calls
from switchyard.server.rainbow.messages import GRAPH, HANDOVER, SCHEDULER, SatisfyResponse, message
from switchyard.server.rainbow.secret_guesses import caller_address
from switchyard.server.runtime import COMMIT_WAIT_S_MAX, ServerRuntime, deliver_results, settle_future
from switchyard.service.committer import Deliveries, DeliverResults
from switchyard.service.submit.rainbow import NumberedInsert, NumberedJob
from switchyard.service.submit.submit import TooSlowForLoop

GRAPH_CALLS = frozenset({"Register", "RegisterSubsystem"})  # calls whose messages may be large
ANSWERS_MAX = 4096  # of Satisfy, kept for one version of the world
ANSWERS_BYTES_MAX = 64 * 2**20  # of them all, with the questions: strangers ask
ANSWER_KEY_BYTES_MAX = 16 * 1024

THREADS = 4

Serve = Callable[[Any], Awaitable[Any]]


def handlers(yard: ServerRuntime, intake: MessageIntake) -> tuple[grpc.GenericRpcHandler, ...]:
    """None without the section: Rainbow's services are then not served at all."""
    if yard.settings.config.rainbow is None:
        return ()
    threads = ThreadPoolExecutor(THREADS, thread_name_prefix="rainbow")
    cold = {**calls.SCHEDULER_CALLS, **calls.HANDOVER_CALLS}
    by_name: dict[str, Serve] = {name: partial(_in_thread, threads, partial(call, yard)) for name, call in cold.items()}
    loop = asyncio.get_running_loop()

    def deliver(told: Deliveries) -> None:
        loop.call_soon_threadsafe(deliver_results, told)

    by_name |= {
        "SubmitJob": partial(_submit, threads, yard, deliver),
        "Satisfy": partial(_satisfy, threads, SatisfyCache(yard)),
    }
    return tuple(_service(service, by_name, intake) for service in (SCHEDULER, HANDOVER, GRAPH))


async def _in_thread(threads: ThreadPoolExecutor, call: Callable[[Any], Any], request: Any) -> Any:
    """What waits for the database."""
    return await asyncio.get_running_loop().run_in_executor(threads, copy_context().run, call, request)


async def _submit(threads: ThreadPoolExecutor, yard: ServerRuntime, deliver: DeliverResults, request: Any) -> Any:
    """Decided here, or on a thread where that may take long; committed without one: hundreds may wait for a commit."""
    try:
        decided = calls.submit_decide(yard, request, is_quick=True)
    except (TooSlowForLoop, BadRequest, Denied, LimitReached, PolicyRefused):
        decided = await _in_thread(threads, partial(calls.submit_decide_fresh, yard), request)
    if not isinstance(decided, NumberedInsert):
        return decided
    future: asyncio.Future[NumberedJob] = asyncio.get_running_loop().create_future()
    yard.context.committer.put(decided, partial(settle_future, future), deliver=deliver)
    async with asyncio.timeout(COMMIT_WAIT_S_MAX):
        return calls.submit_response(await future)


async def _satisfy(threads: ThreadPoolExecutor, satisfy: SatisfyCache, request: Any) -> bytes:
    if (kept := satisfy.kept(request)) is not None:
        return kept
    return await asyncio.get_running_loop().run_in_executor(threads, satisfy.answer, request)


def _service(service: ServiceDescriptor, by_name: dict[str, Serve], intake: MessageIntake) -> grpc.GenericRpcHandler:
    found = {
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
    return grpc.method_handlers_generic_handler(service.full_name, found)


def _bytes(answer: Any) -> bytes:
    found: bytes = answer if isinstance(answer, bytes) else answer.SerializeToString()
    return found


async def _note_caller(context: CallContext) -> None:
    """Who guesses secrets is known by the address."""
    caller_address.set(peer_address(context.peer()))


def _code(error: YardError) -> str:
    return error.grpc


async def _serve(serve: Serve, request: Any, _admitted: None) -> Any:
    return await serve(request)


class SatisfyCache:
    """Clients ask it before every submit, mostly the same: the answer's bytes are kept while the world stands."""

    def __init__(self, yard: ServerRuntime) -> None:
        self._yard = yard
        self._kept: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._kept_bytes = 0
        self._kept_of: tuple[int, int] = (-1, -1)
        self._lock = Lock()

    def kept(self, request: Any) -> bytes | None:
        """The answer that was given before, if the world is still the same."""
        versions, key = self._yard.context.snapshots.versions, (request.payload, request.matcher)
        if _size(key, b"") > ANSWER_KEY_BYTES_MAX:
            return None  # never kept: not even looked up, as a key of megabytes takes its time
        with self._lock:
            if self._kept_of != versions:
                self._kept, self._kept_of, self._kept_bytes = OrderedDict(), versions, 0
            return self._kept.get(key)

    def answer(self, request: Any) -> bytes:
        versions = self._yard.context.snapshots.versions
        fit = calls.match_anonymous(self._yard, request.payload, request.matcher)
        names = [each.cluster for each in fit.items]
        answer: bytes = SatisfyResponse(
            clusters=names,
            status="RESULT_TYPE_SUCCESS",
            total_clusters=fit.asked,
            total_matches=len(names),
            total_mismatches=fit.asked - len(names),
        ).SerializeToString()
        key = (request.payload, request.matcher)
        with self._lock:
            if self._kept_of == versions and key not in self._kept and _size(key, b"") <= ANSWER_KEY_BYTES_MAX:
                self._kept[key] = answer
                self._kept_bytes += _size(key, answer)
                while len(self._kept) > ANSWERS_MAX or self._kept_bytes > ANSWERS_BYTES_MAX:
                    self._kept_bytes -= _size(*self._kept.popitem(last=False))
        return answer


def _size(key: tuple[str, str], answer: bytes) -> int:
    return sum(map(len, key)) + len(answer)
