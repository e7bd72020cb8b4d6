"""The gate's counting, the bounds that follow from open files, the refusal log and the places for waits: no sockets."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import pytest
import structlog.testing

from switchyard.errors import Busy
from switchyard.server import refusal_log
from switchyard.server.config.connections_section import ConnectionBounds, ConnectionsSection, connection_bounds
from switchyard.server.grpc.limiter import OpenRequestSlots
from switchyard.server.http.connections.connection_gate import (
    ClientConnection,
    ConnectionGate,
    ConnectionPhase,
    client_network,
)
from switchyard.server.refusal_log import RefusalLog, credential_id

BOUNDS = ConnectionBounds(http_max=6, address_max=3, grpc_max=6, head_s=1, idle_s=1, body_s=1, answer_s=1, slow_bytes=1)
SECRET = "yard_" + "0" * 26 + "_very-secret"


class Line:
    """A connection that only knows whether it was closed."""

    def __init__(self) -> None:
        self.is_closed = False

    def check(self, now: int) -> None:
        """Nothing is ever too slow here."""

    def evict(self) -> None:
        self.is_closed = True


def come(gate: ConnectionGate, host: str) -> tuple[ClientConnection | None, Line]:
    peer, line = gate.admit(host, cast("socket.socket", None)), Line()
    if peer is not None:
        peer.protocol = line
    return peer, line


def test_the_oldest_silent_one_of_an_address_makes_room() -> None:
    gate = ConnectionGate(BOUNDS)
    lines = [come(gate, "a")[1] for _ in range(5)]
    assert [line.is_closed for line in lines] == [True, True, False, False, False]
    assert len(gate) == 3


def test_requests_in_work_are_never_closed() -> None:
    gate = ConnectionGate(BOUNDS)
    peers = [come(gate, host) for host in ("a", "a", "a", "b", "b", "b")]
    for peer, _ in peers:
        assert peer is not None
        gate.move(peer, ConnectionPhase.BUSY)
    assert come(gate, "a")[0] is None
    assert come(gate, "c")[0] is None
    assert not any(line.is_closed for _, line in peers)
    first = peers[0][0]
    assert first is not None
    gate.leave(first)
    gate.leave(first)  # once is enough
    assert come(gate, "c")[0] is not None


def test_a_body_on_its_way_goes_only_if_nobody_is_silent() -> None:
    gate = ConnectionGate(BOUNDS)
    peers = [come(gate, host) for host in ("a", "a", "b", "b", "c", "c")]
    for peer, _ in peers[:5]:
        assert peer is not None
        gate.move(peer, ConnectionPhase.BODY)
    come(gate, "d")
    assert [line.is_closed for _, line in peers] == [False] * 5 + [True]
    newest, _ = come(gate, "e")  # now "d" is the only silent one
    assert newest is not None
    gate.move(newest, ConnectionPhase.BUSY)
    come(gate, "f")
    assert [line.is_closed for _, line in peers] == [True] + [False] * 4 + [True]


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("no address", "no address"),
    ],
)
def test_what_counts_as_one_address(host: str, address: str) -> None:
    assert client_network(host) == address


@pytest.mark.parametrize("open_files", [64, 1024, 20_000, 1_000_000])
def test_the_bounds_fit_the_open_files(open_files: int) -> None:
    bounds = connection_bounds(ConnectionsSection(), open_files)
    assert 16 <= bounds.address_max <= bounds.http_max
    assert bounds.http_max + bounds.grpc_max <= max(64, open_files)
    assert connection_bounds(ConnectionsSection(http_max=1_000_000), open_files).http_max <= max(64, open_files)


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as lines:
        monkeypatch.setattr(refusal_log, "log", structlog.get_logger())
        yield lines


def test_a_flood_of_refusals_is_one_line_and_a_count(logged: list[Any]) -> None:
    log = RefusalLog()
    for _ in range(100):
        log.note(
            "call refused", address="a", reason="denied", path="/x\n" + "y" * 1000, credential=credential_id(SECRET)
        )
    log.note("call refused", address="b", reason="denied")
    log.flush(is_last=True)
    assert [line["event"] for line in logged] == ["call refused", "call refused", "call refused again"]
    assert (logged[2]["address"], logged[2]["times"]) == ("a", 99)
    assert "very-secret" not in repr(logged)
    assert logged[0]["credential"] == "yard_" + "0" * 26
    assert len(logged[0]["path"]) <= 200
    assert "\n" not in logged[0]["path"]


def test_many_addresses_are_kept_within_a_bound(logged: list[Any]) -> None:
    log = RefusalLog()
    for number in range(3 * refusal_log.LINES_MAX):
        log.note("call refused", address=str(number), reason="denied")
    assert len(logged) == refusal_log.LINES_MAX
    log.flush(is_last=True)
    assert logged[-1] == {
        "event": "refusals that were only counted",
        "times": 2 * refusal_log.LINES_MAX,
        "log_level": "warning",
    }


def test_refused_waits_come_again_one_after_the_other() -> None:
    """Two thousand that came again each second would leave no time for submits."""
    slots = OpenRequestSlots(1, 1, "waits", clock=lambda: 100.0)
    pauses: Counter[int] = Counter()
    with slots.hold("ann"):
        for _ in range(2000):
            with pytest.raises(Busy) as caught, slots.hold("ann"):
                pass
            pauses[caught.value.retry_after_s or 0] += 1
    assert [pauses[second] for second in (1, 2, 14)] == [50, 50, 50]
    assert max(pauses) == 15
