"""Rainbow's door of a real server, called by the names of its calls with plain data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import yaml
from google.protobuf import json_format

from switchyard.features.rainbow.server.messages import GRAPH, HANDOVER, SCHEDULER, message
from tests.processes import free_port
from tests.programs import Server, start_server

CALL_S = 30
SECRET = "chocolate-cookies"
METHODS = {method.name: method for service in (SCHEDULER, GRAPH, HANDOVER) for method in service.methods}
JOB = "version: 1\nresources:\n  a:\n    type: node\n    replicas: 1\n    with:\n    - type: core\n      count: 1\n"
JOB += "tasks:\n- command: [app]\n  resources: a\n"


@dataclass(frozen=True, repr=False)
class Said:
    """What came back: `code` OK and the answer's fields, or the code of the refusal and its words."""

    code: str
    words: str
    answer: Any

    def __repr__(self) -> str:
        """Without the answer: it may have secrets in it, and whatever fails is shown."""
        return f"<{self.code} {self.words}>"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.answer, name)

    @property
    def status(self) -> str:
        field = self.answer.DESCRIPTOR.fields_by_name["status"]
        return str(field.enum_type.values_by_number[self.answer.status].name)


class Door:
    """One channel. `text` of a payload or a graph may be given as data: it is sent as JSON."""

    def __init__(self, address: str, *, credentials: grpc.ChannelCredentials | None = None) -> None:
        self.address = address
        self._is_patient = credentials is None  # with TLS, not to be let in is an answer
        options = [("grpc.max_receive_message_length", 64 * 2**20), ("grpc.max_send_message_length", 64 * 2**20)]
        self._channel = (
            grpc.insecure_channel(address, options)
            if credentials is None
            else grpc.secure_channel(address, credentials, options)
        )

    def __call__(self, call: str, /, **fields: Any) -> Said:
        method = METHODS[call]
        request = message(method.input_type.full_name)()
        json_format.ParseDict({key: _text(value) for key, value in fields.items()}, request)
        asked = self._channel.unary_unary(
            f"/{method.containing_service.full_name}/{call}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=message(method.output_type.full_name).FromString,
        )
        try:
            return Said("OK", "", asked(request, timeout=CALL_S, wait_for_ready=self._is_patient))
        except grpc.RpcError as exc:
            return Said(exc.code().name, exc.details() or "", None)

    def close(self) -> None:
        self._channel.close()


def _text(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, Mapping) and ("graph" in value or "version" in value) else value


@contextmanager
def rainbow(
    folder: Path,
    *,
    database: str | None = None,
    auth: bool = False,
    extra: tuple[str, ...] = (),
    requests: int = 0,
    **section: Any,
) -> Iterator[tuple[Server, Door]]:
    """A server with the door open, and a channel to it. `requests`: a second, of all whose token names nobody."""
    port = free_port()
    config = folder / "rainbow.yaml"
    given = {"registration_secret": SECRET, "anonymous_match": True, **section}
    limits = {"users": {"rainbow": {"requests": requests, "burst": max(1, requests)}}}
    config.write_text(yaml.safe_dump({"rainbow": given, "limits": limits}), encoding="utf-8")
    more = ("--grpc", f"127.0.0.1:{port}", "--config", str(config), *extra)
    with start_server(folder, database=database, auth=auth, extra=more) as server:
        door = Door(f"127.0.0.1:{port}")
        try:
            yield server, door
        finally:
            door.close()
