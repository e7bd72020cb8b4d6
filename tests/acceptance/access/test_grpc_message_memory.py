"""Memory of the gRPC port under large messages of Rainbow's calls, whose secrets are inside the message."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.acceptance.access.grpc_calls import MIB, ask, body_of, path_of, peak_mib
from tests.server.rainbow_door import Door, Said, rainbow

LARGE = 4000 * 1024  # fits into a message of a call without a graph
CALLS = 75
# One message takes up to 10 MiB while its call works. 75 that stay take 300 MiB or more; 4 at a time take 100 MiB.
GROWN_MIB_MAX = 250
GRAPH = {"graph": {"nodes": {"0": {"metadata": {"type": "cluster"}}}, "edges": []}}
WRONG_TOKEN = [{"name": "alpha", "token": "nope"}]


def test_a_refused_message_is_freed_with_its_call(tmp_path: Path) -> None:
    """One after the other, refused for its content: nothing but the last message may be in memory."""
    with rainbow(tmp_path, auth=True) as (server, door):
        body, before = body_of("SubmitJob", name="a", jobspec="x" * LARGE), peak_mib(server)
        codes = {ask(door.address, path_of("SubmitJob"), body) for _ in range(CALLS)}
        assert codes == {"INVALID_ARGUMENT"}
        grown = peak_mib(server) - before
        print(f"grown by {grown} MiB")
        assert grown < GROWN_MIB_MAX


def test_large_messages_at_once_stay_within_a_budget(tmp_path: Path) -> None:
    with rainbow(tmp_path, auth=True) as (server, door):
        before = peak_mib(server)
        for clusters in ([], WRONG_TOKEN):
            body = body_of("SubmitJob", name="a", jobspec="x" * LARGE, clusters=clusters)
            with ThreadPoolExecutor(CALLS) as clients:
                codes = list(clients.map(lambda _, it=body: ask(door.address, path_of("SubmitJob"), it), range(CALLS)))
            assert set(codes) <= {"PERMISSION_DENIED", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"}, codes
        grown = peak_mib(server) - before
        print(f"grown by {grown} MiB")
        assert grown < GROWN_MIB_MAX


def test_wrong_tokens_in_large_messages_are_throttled_by_address(tmp_path: Path) -> None:
    """Small messages of the same address are still looked at."""
    with rainbow(tmp_path, auth=True) as (_, door):
        body = body_of("SubmitJob", name="a", jobspec="x" * LARGE, clusters=WRONG_TOKEN)
        codes = [ask(door.address, path_of("SubmitJob"), body) for _ in range(20)]
        assert codes[0] == "PERMISSION_DENIED"
        assert codes[-1] == "RESOURCE_EXHAUSTED"
        assert _submit_small(door).code == "PERMISSION_DENIED"


def _submit_small(door: Door) -> Said:
    return door("SubmitJob", name="a", jobspec="x", clusters=WRONG_TOKEN)


def test_large_registrations_are_counted_while_guesses_are_throttled(tmp_path: Path) -> None:
    """The secret is no longer compared then, but the messages were read: after 64 MiB they are refused unread."""
    with rainbow(tmp_path, auth=True) as (_, door):
        for number in range(12):
            door("Register", name="a", secret=f"guess-number-{number}", nodes=GRAPH)
        throttled = door("Register", name="a", secret="guess", nodes=GRAPH)
        assert "Too many wrong registration secrets" in throttled.words
        body = body_of("Register", name="a", secret="guess", nodes="x" * (31 * MIB))
        for _ in range(3):
            assert ask(door.address, path_of("Register"), body) == "RESOURCE_EXHAUSTED"
        refused = door("Register", name="a", secret="guess", nodes=GRAPH)
        assert "registrations of this address had a wrong secret" in refused.words
