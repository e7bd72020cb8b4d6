"""Joins a cluster, once: exchanges the join token for the agent's credential."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version

import msgspec

from switchyard.agent.client import Connection, ServerAddress, ServerUnreachable
from switchyard.agent.credential import Credential
from switchyard.errors import ProofMissing, YardError
from switchyard.model.poll import Join, Joined, proof_line

JOIN_PATH = "/v1/agents/join"
JOIN_S_MAX = 2.5  # for all servers together: a person waits
PROOF_BYTES = 16
PROOF_EVERY_S = 1.0
PROOF_S_MAX = 300.0  # until the output of the job around the agent has reached the server; 2 s is usual


def join_cluster(
    servers: Sequence[ServerAddress],
    request: Join,
    *,
    token: str | None,
    ca_file: str | None,
    show: Callable[[str], None] = print,
) -> Credential:
    """Join, and if the token is for a job, show that this agent runs in it: `show` writes a line into the job's output.

    The output takes a moment to reach the server, by the agent of the cluster that runs the job.
    """
    try:
        return _ask_servers(servers, request, token=token, ca_file=ca_file)
    except ProofMissing:
        proven = msgspec.structs.replace(request, proof=secrets.token_hex(PROOF_BYTES))
    show(proof_line(proven.proof or ""))
    until = time.monotonic() + PROOF_S_MAX
    while True:
        try:
            return _ask_servers(servers, proven, token=token, ca_file=ca_file)
        except (ProofMissing, ServerUnreachable):
            if time.monotonic() > until:
                raise
        time.sleep(PROOF_EVERY_S)


def _ask_servers(
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
