"""Bounds the memory of large bodies that are being read, in total and by caller.

A body that is complete is bounded by the pool of threads that works on it. Until then a client decides how long the
server keeps it. So a large body is read only when its whole size has room: meanwhile nothing is read from its
connection. Small bodies never wait for large ones: the bound on connections bounds them.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from switchyard.errors import Busy, Throttled
from switchyard.model.jobspec.quantity import show_bytes
from switchyard.server.grpc.byte_budget import LARGE_BYTES_MIN, ByteBudget
from switchyard.server.grpc.limiter import AGENT_PREFIX, ANONYMOUS, current_caller
from switchyard.server.http.connections.asgi_messages import AsgiScope
from switchyard.server.http.connections.connection_gate import client_network

BODIES = "bodies"  # the name of this limit in refusals and metrics
USERS_BYTES_MAX = AGENTS_BYTES_MAX = 256 * 2**20  # each: users never hold up agents, whose polls carry results
CALLER_BYTES_MAX = 64 * 2**20  # of one user or agent: one body of the largest kind
STRANGERS_BYTES_MAX = 16 * 2**20  # of all callers without a credential, as agents that join: their bodies are small
ADDRESS_BYTES_MAX = 4 * 2**20  # of one address of them
# A connection whose body waits keeps up to 320 KiB that the server has already read.
WAITING_MAX = 256
CALLER_WAITING_MAX = 16
WAIT_S = 15  # less than the time in which a body must move (`body_s`)
RETRY_S = 5


@dataclass(eq=False, slots=True)
class _WaitingBody:
    caller: str
    size: int
    admitted: asyncio.Future[None]


@dataclass
class BodyBudget(ByteBudget):
    """Bodies of one kind of callers. A body waits for room in the order of arrival. `count_refusal` counts refusals."""

    count_refusal: Callable[[str], None]
    wait_s: float = WAIT_S
    waiting: deque[_WaitingBody] = field(default_factory=deque, init=False)

    @asynccontextmanager
    async def hold(self, caller: str, size: int) -> AsyncIterator[None]:
        """Wait until a body of this size has room, and count it while the block runs. Busy: it had to wait too long."""
        if self.waiting or not self.has_room(caller, size, size):
            await self._wait(caller, size)
        else:
            self.take(caller, size)
        try:
            yield
        finally:
            self._release(caller, size)

    async def _wait(self, caller: str, size: int) -> None:
        if len(self.waiting) >= WAITING_MAX:
            raise self._refusal(caller, is_own=False)
        if sum(body.caller == caller for body in self.waiting) >= CALLER_WAITING_MAX:
            raise self._refusal(caller, is_own=True)
        body = _WaitingBody(caller, size, asyncio.get_running_loop().create_future())
        self.waiting.append(body)
        self._admit()
        try:
            await asyncio.wait({body.admitted}, timeout=self.wait_s)
        except asyncio.CancelledError:  # the server stops
            if body.admitted.done():
                self._release(caller, size)
            else:
                self.waiting.remove(body)
            raise
        if not body.admitted.done():
            self.waiting.remove(body)
            self._admit()
            raise self._refusal(caller, is_own=not self.has_room(caller, size, 0))

    def _release(self, caller: str, size: int) -> None:
        self.give_back(caller, size)
        self._admit()

    def _admit(self) -> None:
        """Admit bodies in the order of arrival. Callers who have all that one caller may have are passed over."""
        passed_over: set[str] = set()
        remaining: deque[_WaitingBody] = deque()
        is_full = False
        for body in self.waiting:
            if not is_full and body.caller not in passed_over:
                if self.has_room(body.caller, body.size, body.size):
                    self.take(body.caller, body.size)
                    body.admitted.set_result(None)
                    continue
                # In total there is no room: smaller bodies must not overtake for ever.
                is_full = self.has_room(body.caller, body.size, 0)
                passed_over.add(body.caller)
            remaining.append(body)
        self.waiting = remaining

    def _refusal(self, caller: str, *, is_own: bool) -> Busy:
        self.count_refusal(BODIES)
        waiting = Counter(body.caller for body in self.waiting)
        large = f"bodies over {show_bytes(LARGE_BYTES_MIN)} that have not arrived completely"
        if is_own:
            error: Busy = Throttled(
                f"The limit `{BODIES}` is reached: you have {large} of {show_bytes(self.by_holder.get(caller, 0))} on "
                f"this server, and {waiting[caller]} more wait. One caller may have "
                f"{show_bytes(self.holder_bytes_max)}, and {CALLER_WAITING_MAX} more waiting. The numbers are set in "
                "the code.",
                next_step="Send fewer large requests at the same time.",
            )
        else:
            error = Busy(
                f"The limit `{BODIES}` is reached: this server is reading {large} of {show_bytes(self.bytes_held)}, "
                f"and {waiting.total()} more wait.",
            )
        error.limit, error.retry_after_s = BODIES, RETRY_S
        return error


class BodyBudgets:
    """The budgets of users, of agents, and of callers without a credential. Used on the server's loop alone."""

    def __init__(self, count_refusal: Callable[[str], None]) -> None:
        self._users = BodyBudget(USERS_BYTES_MAX, CALLER_BYTES_MAX, count_refusal)
        self._agents = BodyBudget(AGENTS_BYTES_MAX, CALLER_BYTES_MAX, count_refusal)
        self._strangers = BodyBudget(STRANGERS_BYTES_MAX, ADDRESS_BYTES_MAX, count_refusal)

    def hold(self, scope: AsgiScope, size: int) -> AbstractAsyncContextManager[None]:
        """Count a body of this request's caller while the block runs."""
        caller = current_caller.get()
        if caller == ANONYMOUS:
            client = scope.get("client")
            return self._strangers.hold(client_network(client[0]) if client else "", size)
        return (self._agents if caller.startswith(AGENT_PREFIX) else self._users).hold(caller, size)
