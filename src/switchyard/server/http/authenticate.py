"""From a credential to a user or an agent, in memory. A miss refreshes the snapshots: another server may know more."""

from __future__ import annotations

import asyncio
import random

from switchyard.connection import is_loopback
from switchyard.errors import Denied, Gone, Throttled, Unauthenticated
from switchyard.server.grpc.limiter import AGENT_PREFIX, SERVER, Limiter, current_caller
from switchyard.server.http.connections.asgi_messages import SCOPE_CALLER, AsgiScope, header
from switchyard.server.loops.workers import Workers
from switchyard.service.cluster.agents import finish_rotation, is_next_credential
from switchyard.service.core.agents.credential import secret_matches, split_credential
from switchyard.service.core.agents.fleet import AgentEntry
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor, local_admin

# A flood of bad tokens must not become a flood of queries.
REFRESH_INTERVAL_US = 200_000
THROTTLE_PAUSE_S = 1.0
SCOPE_COUNTED = "server.counted"  # in a request's scope: it has been counted


def bearer(scope: AsgiScope) -> str:
    value = header(scope, b"authorization")
    return "" if value is None else bearer_token(value.decode("latin-1"))


def bearer_token(authorization: str) -> str:
    kind, _, token = authorization.partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def refuse_foreign_origin(scope: AsgiScope) -> None:
    """Refuse requests of other pages: an open server obeys everybody who reaches it, and a browser reaches loopback.

    So it accepts neither pages of another origin nor a host name that was made to point here.
    """
    host = (header(scope, b"host") or b"").decode("latin-1")
    origin = (header(scope, b"origin") or b"").decode("latin-1")
    name = host.rpartition(":")[0] if ":" in host.rpartition("]")[2] else host
    if not is_loopback(name.removeprefix("[").removesuffix("]")):
        raise Denied(
            f"A server without authentication is not served as {host[:100]!r}.",
            next_step="Use its loopback address, or start it with authentication.",
        )
    if origin and origin.partition("://")[2] != host:
        raise Denied(
            f"A server without authentication takes no requests from pages of {origin[:100]!r}.",
            next_step="Start it with authentication.",
        )


def has_agent_credential(scope: AsgiScope) -> bool:
    """Whether the credential is an agent's, by its form."""
    return split_credential(bearer(scope), "agent") is not None


class Authenticator:
    """Lives on the event loop. `is_open`: requests without a token are those of the local administrator."""

    def __init__(self, context: Context, workers: Workers, limiter: Limiter, *, is_open: bool) -> None:
        self._context = context
        self._workers = workers
        self._limiter = limiter
        self._is_open = is_open
        self._refreshed_us = 0  # when an unknown credential last made this server refresh
        self._next_refresh: asyncio.Task[None] | None = None  # for all who miss a credential now
        self.tokens_used: dict[str, int] = {}  # token → when it was last used, not yet stored

    async def user(self, scope: AsgiScope) -> Actor:
        """Find the user of a request. The request counts once, however often it is authenticated."""
        actor = await self.token(bearer(scope))
        scope[SCOPE_CALLER] = actor.name
        if actor.user_id is None:
            refuse_foreign_origin(scope)
        current_caller.set(actor.name)
        if SCOPE_COUNTED not in scope:
            scope[SCOPE_COUNTED] = True
            await self._count(actor)
        return actor

    async def token(self, token: str) -> Actor:
        """Find the user of a token. For an open server that is enough where no browser can come in."""
        actor = self._actor_of_token(token)
        if actor is None and split_credential(token, "yard"):
            await self._refresh()
            actor = self._actor_of_token(token)
        if actor is not None:
            return actor
        if self._is_open:
            return local_admin()
        raise Unauthenticated(
            "This token does not hold: unknown, expired or revoked." if token else "No token was given."
        )

    async def agent(self, scope: AsgiScope) -> AgentEntry:
        parts = split_credential(bearer(scope), "agent")
        if parts is None:
            raise Unauthenticated("This needs an agent's credential.", next_step="Join with `yard agent --token`.")
        agent_id, secret = parts
        entry = self._context.snapshots.fleet.agents.get(agent_id)
        if entry is None or not secret_matches(secret, entry.hash):
            await self._refresh()
            entry = self._context.snapshots.fleet.agents.get(agent_id)
        if entry is None:
            raise Gone("This agent is not registered here any more.")
        scope[SCOPE_CALLER] = f"agent {entry.name}"
        current_caller.set(f"{AGENT_PREFIX}{entry.id}")
        if secret_matches(secret, entry.hash):
            return entry
        if is_next_credential(entry, secret, self._context.now_us()):
            await self._workers.in_thread(finish_rotation, self._context, entry, secret)
            return entry
        raise Unauthenticated("The agent's credential does not hold.", next_step="Join again with a new join token.")

    async def _count(self, actor: Actor) -> None:
        """Delay a burst of one user's requests, so that requests of others come in between.

        A request over the limit is refused after a pause, which slows down clients that do not wait by themselves.
        """
        try:
            delay_s = self._limiter.count_request(actor)
        except Throttled:
            await asyncio.sleep(random.uniform(0.5, 1.5) * THROTTLE_PAUSE_S)  # noqa: S311  spread, not secret
            raise
        if delay_s:
            await asyncio.sleep(delay_s)

    def _actor_of_token(self, token: str) -> Actor | None:
        parts = split_credential(token, "yard")
        access = self._context.snapshots.access
        entry = access.tokens.get(parts[0]) if parts else None
        if parts is None or entry is None or not secret_matches(parts[1], entry.hash):
            return None
        now_us = self._context.now_us()
        if entry.is_revoked or (entry.expires_us is not None and entry.expires_us <= now_us):
            return None
        self.tokens_used[entry.id] = now_us
        return access.caller(entry)

    async def _refresh(self) -> None:
        """Refresh the snapshots once for all who miss a credential now, and not too often."""
        if self._next_refresh is None:
            self._next_refresh = asyncio.ensure_future(self._refresh_later())
        await asyncio.shield(self._next_refresh)

    async def _refresh_later(self) -> None:
        wait_us = self._refreshed_us + REFRESH_INTERVAL_US - self._context.now_us()
        if 0 < wait_us <= REFRESH_INTERVAL_US:
            await asyncio.sleep(wait_us / 1_000_000)
        # First: whoever comes from here on needs another refresh.
        self._refreshed_us, self._next_refresh = self._context.now_us(), None
        current_caller.set(SERVER)  # in a task of its own, for all who wait
        await self._workers.in_thread(self._context.snapshots.refresh)
