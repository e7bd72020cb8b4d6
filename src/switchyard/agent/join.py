"""Joins a cluster, once: exchanges the join token for the agent's credential."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.metadata import version

import msgspec

from switchyard.agent.client import Connection, ServerAddress, ServerUnreachable
from switchyard.agent.credential import Credential
from switchyard.errors import YardError
from switchyard.model.poll import Join, Joined

JOIN_PATH = "/v1/agents/join"
JOIN_S_MAX = 2.5  # for all servers together: a person waits


def join_cluster(
    servers: Sequence[ServerAddress], request: Join, *, token: str | None, ca_file: str | None
) -> Credential:
    """Ask one server after the other until one answers. If none does, raise the last error."""
    until = time.monotonic() + JOIN_S_MAX
    connection = Connection(servers, ca_file=ca_file, bearer=token)
    trouble: YardError = ServerUnreachable("No server was asked.")
    try:
        for number in range(len(servers)):
            share_s = (until - time.monotonic()) / (len(servers) - number)
            server = connection.server
            try:
                body = connection.post(JOIN_PATH, msgspec.json.encode(request), timeout_s=max(0.1, share_s))
                joined = msgspec.json.decode(body, type=Joined)
            except ServerUnreachable as exc:
                trouble = exc  # the connection already uses the next server
                continue
            except msgspec.DecodeError as exc:
                raise ServerUnreachable(f"{server.url} answered something else than a join: {exc}.") from exc
            return Credential(
                agent=joined.agent,
                cluster=joined.cluster,
                name=request.name,
                credential=joined.credential,
                server=server.url,
                journal=request.journal,
                made_s=time.time(),
            )
        raise trouble
    finally:
        connection.close()


def own_version() -> str:
    return version("switchyard")
