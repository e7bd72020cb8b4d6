"""The gRPC port under large messages, slow ones, wrong secrets and silent sockets: memory and places stay bounded."""

from __future__ import annotations

import contextlib
import re
import resource
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from switchyard.features.rainbow.server.messages import message
from tests.acceptance.access.grpc_calls import MIB, WAIT_S, ask, body_of, path_of, peak_mib
from tests.processes import until
from tests.programs import Server
from tests.server.rainbow_door import CALL_S, METHODS, SECRET, Door, rainbow

LARGEST = 31 * MIB  # a graph of this size still fits into the largest message
AT_ONCE = 24
# What the server may grow by while it refuses 24 messages of the largest size. One after the other they need about
# 100 MiB (the message, and two copies while it is decoded); kept all at once they would need over 2 GiB.
GROWN_MIB_MAX = 500
SLOW_CALLS = 40  # with a message that never comes: five times the places that one address has
SILENT = 300
GRAPH = {"graph": {"nodes": {"0": {"metadata": {"type": "cluster"}}}, "edges": []}}


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Door]]:
    with rainbow(tmp_path_factory.mktemp("bounds"), auth=True) as found:
        yield found


FLOODS = {
    "registrations with a wrong secret": ("Register", {"name": "a", "secret": "wrong", "nodes": "x" * LARGEST}),
    "subsystems with a wrong secret": (
        "RegisterSubsystem",
        {"name": "a", "secret": "wrong", "subsystem": "io", "nodes": "x" * LARGEST},
    ),
    "jobs without a cluster": ("SubmitJob", {"name": "a", "jobspec": "x" * LARGEST}),
    "questions of strangers": ("Satisfy", {"payload": "x" * LARGEST}),
}


OFTEN = ("registrations with a wrong secret",)  # of jobs, test_grpc_message_memory.py has smaller ones


@pytest.mark.parametrize("row", [pytest.param(row, marks=[] if row in OFTEN else [pytest.mark.slow]) for row in FLOODS])
def test_refused_messages_are_not_kept(tmp_path: Path, row: str) -> None:
    call, fields = FLOODS[row]
    with rainbow(tmp_path, auth=True) as (server, door):
        door("Register", name="warm", secret="wrong", nodes=GRAPH)
        before, body = peak_mib(server), body_of(call, **fields)
        with ThreadPoolExecutor(AT_ONCE) as clients:
            codes = list(clients.map(lambda _: ask(door.address, path_of(call), body), range(AT_ONCE)))
        assert set(codes) <= {"PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "INVALID_ARGUMENT"}, codes
        grown = peak_mib(server) - before
        print(f"{row}: {grown} MiB")
        assert grown < GROWN_MIB_MAX
        assert door("Satisfy", payload='{"version": 1}').code != "UNAVAILABLE", "others are still served"
        assert 'event="call refused" address=127.0.0.1' in server.log
        assert "wrong" not in re.sub(r"wrong (registration )?secret|a wrong", "", server.log), "no secret is logged"


SMALL = sorted(set(METHODS) - {"Register", "RegisterSubsystem"})


@pytest.mark.parametrize("call", SMALL)
def test_a_message_over_4_mib_is_refused(opened: tuple[Server, Door], call: str) -> None:
    server, door = opened
    kind = message(METHODS[call].input_type.full_name)
    text = next(field.name for field in kind.DESCRIPTOR.fields if field.type == field.TYPE_STRING)
    code = ask(door.address, path_of(call), body_of(call, **{text: "x" * (4 * MIB + 1)}))
    assert code in ("RESOURCE_EXHAUSTED", "UNIMPLEMENTED"), code
    assert server.is_running


GRAPHS = {
    "5 MiB, right secret": (SECRET, 5 * MIB, "INVALID_ARGUMENT"),  # it is read, and is no graph
    "5 MiB, wrong secret": ("wrong", 5 * MIB, "PERMISSION_DENIED"),
    "over the bound": (SECRET, 33 * MIB, "RESOURCE_EXHAUSTED"),
}


@pytest.mark.parametrize("row", GRAPHS)
def test_a_graph_may_be_larger(opened: tuple[Server, Door], row: str) -> None:
    secret, size, code = GRAPHS[row]
    body = body_of("Register", name="big", secret=secret, nodes="x" * size)
    assert ask(opened[1].address, path_of("Register"), body) == code


def test_health_checks_are_small(opened: tuple[Server, Door]) -> None:
    path = "/grpc.health.v1.Health/Check"
    assert ask(opened[1].address, path, b"") == "OK"
    assert ask(opened[1].address, path, b"\n\x80\x80\x04" + b"x" * 65536) == "RESOURCE_EXHAUSTED"


def test_flyte_calls_without_a_token_are_refused_before_their_message(opened: tuple[Server, Door]) -> None:
    """The message is no message at all, which nobody notices: the credential comes first."""
    server, door = opened
    path = "/flyteidl.service.AdminService/UpdateProjectAttributes"
    garbage = b"\xff" * (3 * MIB)
    assert ask(door.address, path, garbage) == "UNAUTHENTICATED"
    bearer = (("authorization", f"Bearer {server.admin_token}"),)
    assert ask(door.address, path, garbage, bearer) == "INVALID_ARGUMENT"


def test_calls_whose_message_never_comes_hold_up_nobody(opened: tuple[Server, Door]) -> None:
    _, door = opened
    over = threading.Event()

    def never() -> Iterator[bytes]:
        over.wait(WAIT_S)
        yield from ()

    with grpc.insecure_channel(door.address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        slow = [channel.stream_unary(path_of("Satisfy")).future(never()) for _ in range(SLOW_CALLS)]
        try:
            assert ask(door.address, path_of("Satisfy"), body_of("Satisfy", payload="{}")) != "UNAVAILABLE"
            assert door("ReceiveJobs", cluster="nobody", secret="x").code == "PERMISSION_DENIED"
        finally:
            over.set()
            for call in slow:
                call.cancel()


def test_silent_sockets_end_and_lock_nobody_out(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    section = {"grpc_max": SILENT + 100, "head_s": 2, "idle_s": 2}
    (tmp_path / "door").mkdir()
    with _bounded(tmp_path / "door", section) as (_, door), contextlib.ExitStack() as kept:
        host, _, port = door.address.rpartition(":")
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
        silent = [kept.enter_context(socket.create_connection((host, int(port)), CALL_S)) for _ in range(SILENT)]
        for sock in silent[::2]:  # one half speaks HTTP/2 and makes no call
            with contextlib.suppress(OSError):
                sock.sendall(preface)
        assert ask(door.address, "/grpc.health.v1.Health/Check", b"") == "OK"
        until(lambda: all(_is_closed(sock) for sock in silent), WAIT_S, "the server has closed them all")
        assert ask(door.address, "/grpc.health.v1.Health/Check", b"") == "OK"


@contextlib.contextmanager
def _bounded(folder: Path, section: dict[str, int]) -> Iterator[tuple[Server, Door]]:
    import yaml

    from tests.processes import free_port
    from tests.programs import start_server

    config = folder / "bounded.yaml"
    config.write_text(yaml.safe_dump({"connections": section}), encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    with start_server(folder, extra=["--grpc", address, "--config", str(config)]) as server:
        door = Door(address)
        try:
            yield server, door
        finally:
            door.close()


def _is_closed(sock: socket.socket) -> bool:
    """Read what there is; true at the end of the connection."""
    sock.setblocking(False)
    try:
        while sock.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
