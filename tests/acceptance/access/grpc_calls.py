"""Calls of the gRPC port with any body, and the server's memory meanwhile."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import grpc

from switchyard.features.rainbow.server.messages import message
from tests.programs import Server
from tests.server.rainbow_door import METHODS

MIB = 2**20
WAIT_S = 60.0


def ask(address: str, path: str, body: bytes, metadata: tuple[tuple[str, str], ...] = ()) -> str:
    """The code of one call on a connection of its own."""
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(address, options) as channel:
        try:
            channel.unary_unary(path)(body, timeout=WAIT_S, metadata=metadata)
        except grpc.RpcError as exc:
            return str(exc.code().name)
    return "OK"


def path_of(call: str) -> str:
    return f"/{METHODS[call].containing_service.full_name}/{call}"


def body_of(call: str, **fields: Any) -> bytes:
    found: bytes = message(METHODS[call].input_type.full_name)(**fields).SerializeToString()
    return found


def peak_mib(server: Server) -> int:
    """The most memory that the server had so far."""
    status = Path(f"/proc/{server.pid}/status").read_text(encoding="utf-8")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) // 1024
