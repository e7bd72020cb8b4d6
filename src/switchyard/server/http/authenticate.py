"""Credential → actor or agent, from memory. A miss looks once at the store: another replica may know more."""

from __future__ import annotations

import asyncio
import random

from switchyard.connection import is_loopback
from switchyard.errors import Denied, Gone, Throttled, Unauthenticated
from switchyard.server.http.asgi_messages import SCOPE_CALLER, AsgiScope, header
from switchyard.server.limiter import SERVER, current_caller
from switchyard.server.runtime import ServerRuntime
from switchyard.service.cluster.agents import finish_rotation, is_next_credential
from switchyard.service.credential import secret_matches, split_credential
from switchyard.service.fleet import AgentEntry
from switchyard.service.rights import Actor, local_admin

# A flood of bad tokens must not become a flood of queries.
STORE_LOOKUP_INTERVAL_US = 200_000
THROTTLE_PAUSE_S = 1.0
SCOPE_COUNTED = "yard.counted"  # in the scope of a request: it has been counted


def bearer(scope: AsgiScope) -> str:
    value = header(scope, b"authorization")
    return "" if value is None else bearer_token(value.decode("latin-1"))


def bearer_token(authorization: str) -> str:
    kind, _, token = authorization.partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def refuse_foreign_origin(scope: AsgiScope) -> None:
    """An open server obeys whoever reaches it, and a browser reaches loopback for any page that asks it to.

    So no page of another origin, and no name that was made to point here, may speak through it.
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


async def authenticate_user(yard: ServerRuntime, scope: AsgiScope) -> Actor:
    """Whose request this is. It counts towards the user's requests once, however often it is authenticated anew."""
    actor = await authenticate_token(yard, bearer(scope))
    scope[SCOPE_CALLER] = actor.name
    if actor.user_id is None:
        refuse_foreign_origin(scope)
    current_caller.set(actor.name)
    if SCOPE_COUNTED not in scope:
        scope[SCOPE_COUNTED] = True
        await _count(yard, actor)
    return actor


async def _count(yard: ServerRuntime, actor: Actor) -> None:
    """Hundreds of requests of one user at once begin one by one, so that others' come in between.

    A request too many is refused after a pause: a client that does not wait by itself is made to.
    """
    try:
        delay_s = yard.limiter.request(actor)
    except Throttled:
        await asyncio.sleep(random.uniform(0.5, 1.5) * THROTTLE_PAUSE_S)  # noqa: S311  spread, not secret
        raise
    if delay_s:
        await asyncio.sleep(delay_s)


async def authenticate_token(yard: ServerRuntime, token: str) -> Actor:
    """Whose token this is; of an open server that is enough to know where no browser can come in."""
    found = _actor_of_token(yard, token)
    if found is None and split_credential(token, "yard"):
        await _refresh_shared(yard)
        found = _actor_of_token(yard, token)
    if found is not None:
        return found
    if yard.settings.is_open:
        return local_admin()
    raise Unauthenticated("This token does not hold: unknown, expired or revoked." if token else "No token was given.")


def has_agent_credential(scope: AsgiScope) -> bool:
    """Whether the credential is an agent's, by its form."""
    return split_credential(bearer(scope), "agent") is not None


async def authenticate_agent(yard: ServerRuntime, scope: AsgiScope) -> AgentEntry:
    token = bearer(scope)
    parts = split_credential(token, "agent")
    if parts is None:
        raise Unauthenticated("This needs an agent's credential.", next_step="Join with `yard agent --token`.")
    entry = yard.context.snapshots.fleet.agents.get(parts[0])
    if entry is None or not secret_matches(parts[1], entry.hash):
        await _refresh_shared(yard)
        entry = yard.context.snapshots.fleet.agents.get(parts[0])
    if entry is None:
        raise Gone("This agent is not registered here any more.")
    scope[SCOPE_CALLER] = f"agent {entry.name}"
    current_caller.set(f"agent:{entry.id}")
    if secret_matches(parts[1], entry.hash):
        return entry
    if is_next_credential(entry, parts[1], yard.context.now_us()):
        await yard.in_thread(finish_rotation, yard.context, entry, parts[1])
        return entry
    raise Unauthenticated("The agent's credential does not hold.", next_step="Join again with a new join token.")


def _actor_of_token(yard: ServerRuntime, token: str) -> Actor | None:
    parts = split_credential(token, "yard")
    access = yard.context.snapshots.access
    entry = access.tokens.get(parts[0]) if parts else None
    if parts is None or entry is None or not secret_matches(parts[1], entry.hash):
        return None
    now_us = yard.context.now_us()
    if entry.is_revoked or (entry.expires_us is not None and entry.expires_us <= now_us):
        return None
    yard.tokens_used[entry.id] = now_us
    return access.caller(entry)


async def _refresh_shared(yard: ServerRuntime) -> None:
    """Look at the store once for all who miss something now, and not too often: a no must not be outdated."""
    if yard.next_look is None:
        yard.next_look = asyncio.ensure_future(_refresh_later(yard))
    await asyncio.shield(yard.next_look)


async def _refresh_later(yard: ServerRuntime) -> None:
    wait_us = yard.looked_us + STORE_LOOKUP_INTERVAL_US - yard.context.now_us()
    if 0 < wait_us <= STORE_LOOKUP_INTERVAL_US:
        await asyncio.sleep(wait_us / 1_000_000)
    yard.looked_us, yard.next_look = yard.context.now_us(), None  # whoever comes from here on needs another look
    current_caller.set(SERVER)  # in a task of its own, for all who wait
    await yard.in_thread(yard.context.snapshots.refresh)
