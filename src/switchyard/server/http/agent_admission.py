"""Let an agent's call in by the one table of `service/core/agents/agent_calls.py`."""

from __future__ import annotations

import re

from switchyard.errors import Malformed
from switchyard.model.cluster.poll import INCARNATION_HEADER, OPAQUE_ID_CHARS_MAX, OPAQUE_ID_PATTERN
from switchyard.server.http.connections.asgi_messages import AsgiScope, header
from switchyard.server.loops.runtime import ServerRuntime
from switchyard.service.core.agents.agent_calls import (
    AGENT_CALLS,
    AgentAttempt,
    AgentCaller,
    AttemptNeed,
    CallingProcess,
    CallRule,
    admit_call,
)

_HEADER = INCARNATION_HEADER.lower().encode()


def rule_of(method: str, path: str) -> CallRule:
    """The rule of an endpoint for agents. An endpoint without a row in the table is a mistake in the code."""
    name = f"{method} {path}"
    assert name in AGENT_CALLS, f"{name} takes an agent's credential and has no row in AGENT_CALLS"
    return AGENT_CALLS[name]


def read_incarnation(scope: AsgiScope) -> str | None:
    """The incarnation that the header names; None: the agent is older than this header."""
    value = header(scope, _HEADER)
    if value is None:
        return None
    text = value.decode("latin-1")
    if len(text) > OPAQUE_ID_CHARS_MAX or not re.match(OPAQUE_ID_PATTERN, text):
        raise Malformed(f"The header {INCARNATION_HEADER} is not an incarnation.")
    return text


async def admit_agent(server: ServerRuntime, scope: AsgiScope, rule: CallRule) -> AgentCaller:
    """Authenticate an agent. A rule that is about an attempt is checked with it (`admit_for_attempt`)."""
    caller = AgentCaller(await server.authenticator.agent(scope), read_incarnation(scope))
    if rule.process is CallingProcess.HOLDER and rule.attempt is AttemptNeed.NONE:
        await server.workers.in_thread(admit_call, server.context, caller, rule)
    return caller


async def admit_for_attempt(
    server: ServerRuntime, scope: AsgiScope, rule: CallRule, job: str, fence: int
) -> AgentAttempt:
    """Authenticate an agent that calls for an attempt. Returns the attempt."""
    caller = await admit_agent(server, scope, rule)
    attempt = await server.workers.in_file_thread(admit_call, server.context, caller, rule, job, fence)
    assert attempt is not None
    return attempt
