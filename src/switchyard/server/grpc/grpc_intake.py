"""Reads messages at the gRPC port: first the caller's credential, then the message, and few large ones at a time.

gRPC has one bound on messages for a whole port, and reads a message before the server sees its call. So each call is
registered as one with a stream of messages: the server then reads the message itself, and before that the client may
send at most a window of 64 KiB. A message over its call's own bound is refused before protobuf decodes it.
Rainbow's messages carry the secrets, so large ones are also bounded by address, and in bytes until their calls are
answered (`grpc_intake.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import unquote

import grpc
import grpc.aio
import structlog

from switchyard.errors import (
    Busy,
    Denied,
    Internal,
    Malformed,
    TooLarge,
    TooSlow,
    Unavailable,
    YardError,
)
from switchyard.server.grpc.byte_budget import LARGE_BYTES_MIN, ByteBudget
from switchyard.server.grpc.grpc_message import refuse_undecodable
from switchyard.server.grpc.grpc_status import message_of
from switchyard.server.grpc.limiter import TooManyGuesses
from switchyard.server.http.connections.asgi_messages import REFUSAL_STATUSES, TOO_DEEP
from switchyard.server.http.connections.connection_gate import client_network
from switchyard.server.refusal_log import REFUSALS

# Bounds the memory of messages at the gRPC port while calls work on them, in total and by address.
#
# A call of Rainbow's carries its secret inside the message, so anybody can have a message read. Few messages are read
# at a time (`grpc_intake.py`), but a message that was read stays in memory until its call is answered, and hundreds of
# calls may wait for a thread. So the bytes of large messages are counted until the answer. Small messages are not
# counted: the bound on open calls bounds them.

# Wrong secrets of one address within the window: at most so many messages, of so many bytes together.
WRONG_SECRETS_MAX = 60
WRONG_SECRET_BYTES_MAX = 64 * 2**20
WRONG_SECRET_WINDOW_S = 60.0
ADDRESSES_MAX = 1000


class MessageBudget(ByteBudget):
    """Counts the bytes of large messages in work, by address."""

    @contextmanager
    def hold(self, address: str, size: int) -> Iterator[None]:
        """Count a message while the block runs. Busy: there is no room for it."""
        if size < LARGE_BYTES_MIN:
            yield
            return
        if not self.has_room(address, size, size):
            raise Busy(
                "Too many large messages are in work.",
                next_step=f"Try again later, or send messages below {LARGE_BYTES_MIN // 1024} KiB.",
            )
        self.take(address, size)
        try:
            yield
        finally:
            self.give_back(address, size)


@dataclass
class WrongSecrets:
    """Counts recent messages with a wrong secret, by address. `what`: the noun for them in a refusal."""

    what: str
    next_step: str
    clock: Callable[[], float]
    by_address: OrderedDict[str, deque[tuple[float, int]]] = field(default_factory=OrderedDict)  # when; size in bytes

    def check(self, address: str) -> None:
        """Refuse an address that sent too many of them."""
        if not self.by_address:
            return
        since = self.clock() - WRONG_SECRET_WINDOW_S
        sizes = [size for at, size in self.by_address.get(address, ()) if at > since]
        if len(sizes) >= WRONG_SECRETS_MAX or sum(sizes) >= WRONG_SECRET_BYTES_MAX:
            raise Busy(f"{len(sizes)} {self.what} of this address had a wrong secret.", next_step=self.next_step)

    def note(self, address: str, size: int) -> None:
        wrong = self.by_address.pop(address, None) or deque(maxlen=WRONG_SECRETS_MAX)
        wrong.append((self.clock(), size))
        self.by_address[address] = wrong
        while len(self.by_address) > ADDRESSES_MAX:
            self.by_address.popitem(last=False)


MESSAGE_BYTES_MAX = 4 * 2**20
GRAPH_MESSAGE_BYTES_MAX = 32 * 2**20
CALLS_MAX = 1000  # in work and waiting; above: RESOURCE_EXHAUSTED, and clients retry
ADDRESS_CALLS_MAX = CALLS_MAX // 2
READS_MAX = 16  # messages being read; nearly all arrive within a turn of the loop
ADDRESS_READS_MAX = 4
GRAPHS_MAX = 2
ADDRESS_GRAPHS_MAX = 1
READ_S = 20.0  # for a message, including the wait for a slot to read it
GRAPH_READ_S = 60.0
READ_TURN_S = 1.0  # a message that takes longer gives up its slot if others wait
GRAPH_TURN_S = 15.0
# Bytes of large messages whose calls are not answered yet. A message takes two to three times its size in memory.
WORK_BYTES_MAX, ADDRESS_WORK_BYTES_MAX = 16 * MESSAGE_BYTES_MAX, 4 * MESSAGE_BYTES_MAX
GRAPH_WORK_BYTES_MAX, ADDRESS_GRAPH_WORK_BYTES_MAX = 4 * GRAPH_MESSAGE_BYTES_MAX, 2 * GRAPH_MESSAGE_BYTES_MAX

log = structlog.get_logger()
# gRPC's two kinds of server share no type for it.
CallContext: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


@dataclass(frozen=True)
class GrpcMethod:
    """One method. `admit` looks at the call's metadata, before any message; `serve` gets its answer."""

    name: str
    serve: Callable[[Any, Any], Awaitable[Any]]
    read: Callable[[bytes], Any]
    write: Callable[[Any], bytes]
    code: Callable[[YardError], str]
    admit: Callable[[CallContext], Awaitable[Any]] | None = None
    has_graph: bool = False

    @property
    def bytes_max(self) -> int:
        return GRAPH_MESSAGE_BYTES_MAX if self.has_graph else MESSAGE_BYTES_MAX


@dataclass
class _ReadSlots:
    """Slots for reading messages, in total and by address. The newest waiter is served first: old ones are slow.

    `reserve_bytes`: how much must be left in the budget before a message is read. 0: every message is read, and a large
    one that finds no room is refused afterwards. So a small message never waits for large ones.
    """

    places: int
    address_places: int
    read_s: float
    turn_s: float
    budget: MessageBudget
    reserve_bytes: int = 0
    reading: OrderedDict[asyncio.Timeout, tuple[str, float]] = field(default_factory=OrderedDict)  # oldest first
    waiting: list[tuple[str, asyncio.Future[None]]] = field(default_factory=list)

    def has_place(self, address: str) -> bool:
        if len(self.reading) >= self.places:
            return False
        used = self._used(address) if self.reserve_bytes or len(self.reading) >= self.address_places else 0
        reserve = self.reserve_bytes
        return used < self.address_places and (
            not reserve or self.budget.has_room(address, (used + 1) * reserve, (len(self.reading) + 1) * reserve)
        )

    def _used(self, address: str) -> int:
        return sum(reader == address for reader, _ in self.reading.values())

    async def place(self, address: str) -> None:
        """Wait for a slot. If the slowest message has been read for longer than `turn_s`, it is given up."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.read_s
        while not self.has_place(address):
            if loop.time() >= until:
                raise Busy("Too many large messages at once.")
            self._give_up_slowest(address, loop.time())
            freed: asyncio.Future[None] = loop.create_future()
            self.waiting.append((address, freed))
            try:
                await asyncio.wait({freed}, timeout=self.turn_s)
            finally:
                self.waiting.remove((address, freed))

    def _give_up_slowest(self, address: str, now: float) -> None:
        is_full = self._used(address) >= self.address_places
        for limit, (reader, begun) in self.reading.items():
            if now - begun < self.turn_s:
                return
            if reader == address or not is_full:
                limit.reschedule(now)
                return

    def free(self) -> None:
        """A slot is free: wake a waiter that may have it."""
        for address, freed in reversed(self.waiting):
            if not freed.done() and self.has_place(address):
                freed.set_result(None)
                return


class MessageIntake:
    """Reads all messages of the port. Used on its loop alone."""

    def __init__(self) -> None:
        self._small = _ReadSlots(
            READS_MAX, ADDRESS_READS_MAX, READ_S, READ_TURN_S, MessageBudget(WORK_BYTES_MAX, ADDRESS_WORK_BYTES_MAX)
        )
        self._graphs = _ReadSlots(
            GRAPHS_MAX,
            ADDRESS_GRAPHS_MAX,
            GRAPH_READ_S,
            GRAPH_TURN_S,
            MessageBudget(GRAPH_WORK_BYTES_MAX, ADDRESS_GRAPH_WORK_BYTES_MAX),
            reserve_bytes=GRAPH_MESSAGE_BYTES_MAX,
        )
        self._calls: dict[str, int] = {}
        wait = f"Wait {WRONG_SECRET_WINDOW_S:.0f} s, then "
        self._wrong_graphs = WrongSecrets(
            "registrations", f"{wait}use the registration secret or a new join token.", time.monotonic
        )
        self._wrong_messages = WrongSecrets(
            "large messages", f"{wait}show the right token or secret. Small messages are read.", time.monotonic
        )

    def handler(self, call: GrpcMethod) -> grpc.RpcMethodHandler:
        async def answer(_messages: Any, context: CallContext) -> Any:
            return await self._answer(call, context)

        return grpc.stream_unary_rpc_method_handler(answer, response_serializer=call.write)

    async def _answer(self, call: GrpcMethod, context: CallContext) -> Any:
        address = peer_address(context.peer())
        try:
            with self._counted(address):
                return await self._serve(call, context, address)
        except TimeoutError:
            error: YardError = Unavailable("The database did not take it in time; it may still come about.")
        except YardError as exc:
            if exc.status >= 500 and not exc.transient:
                log.error("request failed", call=call.name, error=repr(exc), exc_info=exc)
            error = exc
        except RecursionError:
            error = Malformed(TOO_DEEP)
        except Exception as exc:  # a defect: the client gets a status, the log the traceback
            log.error("defect", call=call.name, exc_info=exc)
            error = Internal()
        note_refusal(error, address, call.name)
        code, text = grpc.StatusCode[call.code(error)], message_of(error)
        # gRPC keeps this frame in a reference cycle after an abort. An error and the errors before it keep their
        # frames, which have the message: without this line each refused message stays until a full collection.
        del error
        return await context.abort(code, text)

    async def _serve(self, call: GrpcMethod, context: CallContext, address: str) -> Any:
        """Read the message and answer it. While the call works, the message counts against the budget."""
        admitted = await call.admit(context) if call.admit is not None else None
        if call.has_graph:
            self._wrong_graphs.check(address)
        body = await self.message(context, address, call.bytes_max, has_graph=call.has_graph)
        size, lane = len(body), self._graphs if call.has_graph else self._small
        if size >= LARGE_BYTES_MIN and not call.has_graph and admitted is None:
            self._wrong_messages.check(address)
        try:
            with lane.budget.hold(address, size):
                request = call.read(body)
                del body  # it may be large, and the answer may take long
                refuse_undecodable(request)
                return await call.serve(request, admitted)
        except (Denied, TooManyGuesses):
            self._note_wrong(call, address, size, is_known=admitted is not None)
            raise
        finally:
            lane.free()

    def _note_wrong(self, call: GrpcMethod, address: str, size: int, *, is_known: bool) -> None:
        """Count a refused secret. `is_known`: the metadata had a user's token, so the message has no secret."""
        if call.has_graph:
            self._wrong_graphs.note(address, size)
        elif size >= LARGE_BYTES_MIN and not is_known:
            self._wrong_messages.note(address, size)

    @contextmanager
    def _counted(self, address: str) -> Iterator[None]:
        if self._calls.get(address, 0) >= ADDRESS_CALLS_MAX:
            raise Busy(f"{ADDRESS_CALLS_MAX} calls of this address are open.")
        self._calls[address] = self._calls.get(address, 0) + 1
        try:
            yield
        finally:
            self._calls[address] -= 1
            if not self._calls[address]:
                del self._calls[address]

    async def message(self, context: CallContext, address: str, bytes_max: int, *, has_graph: bool = False) -> bytes:
        """Read the message of a call, once there is a slot."""
        lane = self._graphs if has_graph else self._small
        if not lane.has_place(address):
            await lane.place(address)
        if has_graph:
            self._wrong_graphs.check(address)  # others of this address may have been refused meanwhile
        return await self._read(context, address, lane, bytes_max)

    async def _read(self, context: CallContext, address: str, lane: _ReadSlots, bytes_max: int) -> bytes:
        try:
            async with asyncio.timeout(lane.read_s) as limit:
                lane.reading[limit] = (address, asyncio.get_running_loop().time())
                try:
                    body = await context.read()
                finally:
                    del lane.reading[limit]
                    lane.free()
        except TimeoutError:
            raise TooSlow("The message did not arrive in time.") from None
        if not isinstance(body, bytes):
            raise Malformed("The call came without a message.")
        if (size := len(body)) > bytes_max:
            del body  # an error keeps what its function knows
            raise TooLarge(f"The message has {size} bytes; the most of this call is {bytes_max}.")
        return body


def note_refusal(error: YardError, address: str, call: str) -> None:
    if error.status in REFUSAL_STATUSES or isinstance(error, Busy | TooLarge | TooSlow):
        REFUSALS.note("call refused", address=address, reason=error.code, call=call, detail=error.detail)


def peer_address(peer: str) -> str:
    """The address in gRPC's name of a client: `ipv4:1.2.3.4:567`, `ipv6:%5B::1%5D:567`, `unix:`."""
    kind, _, rest = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return kind
    return client_network(rest.rpartition(":")[0].removeprefix("[").removesuffix("]"))
