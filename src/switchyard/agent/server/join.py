"""Joins a cluster, once: exchanges the join token for the agent's credential."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from functools import partial
from importlib.metadata import version

import msgspec

from switchyard.agent.log import line
from switchyard.agent.server.client import Connection, ServerAddress, ServerUnreachable
from switchyard.agent.server.credential import Credential
from switchyard.errors import ProofMissing, YardError
from switchyard.model.cluster.poll import Join, Joined, proof_line

JOIN_PATH = "/v1/agents/join"
JOIN_S_MAX = 2.5  # for all servers together: a person waits
ANSWER_SHARE = 0.6  # of a server's time; the rest is for finding out whether it lives
BUSY_S_MAX = 60.0  # for the answer of a server that lives, beyond that time
PROOF_BYTES = 16
PROOF_EVERY_S = 1.0
PROOF_S_MAX = 300.0  # until the output of the job around the agent has reached the server; 2 s is usual

log = logging.getLogger(__name__)


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
    trouble: YardError = ServerUnreachable("No server was asked.")
    for number, server in enumerate(servers):
        share_s = max(0.1, (until - time.monotonic()) / (len(servers) - number))
        try:
            body = _ask_server(server, msgspec.json.encode(request), token=token, ca_file=ca_file, share_s=share_s)
            joined = msgspec.json.decode(body, type=Joined)
        except ServerUnreachable as exc:
            trouble = exc
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


def _ask_server(server: ServerAddress, body: bytes, *, token: str | None, ca_file: str | None, share_s: float) -> bytes:
    """Ask one server. Wait for longer than `share_s` only if it shows that it lives: it is busy.

    The request is sent once: of two requests under way, the server might do the first one last, and so make the
    credential of the second invalid.
    """
    connection = Connection([server], ca_file=ca_file, bearer=token)
    post = partial(connection.post, JOIN_PATH, body, wait_s=BUSY_S_MAX, timeout_s=share_s)
    thread = ThreadPoolExecutor(1, thread_name_prefix="join")
    answer = thread.submit(post)
    try:
        wait([answer], share_s * ANSWER_SHARE)
        if not answer.done() and _lives(server, ca_file=ca_file, timeout_s=share_s * (1 - ANSWER_SHARE)):
            log.warning(line("server-busy", server=server.url, waiting_s_max=BUSY_S_MAX))
            wait([answer], BUSY_S_MAX)
        if not answer.done():
            raise ServerUnreachable(f"{server.url} did not answer: no answer in time.")
        return answer.result()
    finally:
        connection.abort(for_good=True)  # ends the thread
        thread.shutdown(wait=False)
        connection.close()


def _lives(server: ServerAddress, *, ca_file: str | None, timeout_s: float) -> bool:
    """Whether the server answers at all. /healthz needs no database."""
    with closing(Connection([server], ca_file=ca_file)) as connection:
        try:
            connection.get("/healthz", timeout_s=timeout_s)
        except ServerUnreachable:
            return False
        except YardError:
            return True
    return True


def own_version() -> str:
    return version("switchyard")
