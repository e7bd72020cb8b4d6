"""Rainbow's messages, from the compiled form of `proto/*.proto` (made by `make proto`).

They stand in a pool of their own: Rainbow's Python client has messages of the same names, and may live in one process
with this. No generated code either, which would be bound to one range of versions of protobuf.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import ServiceDescriptor

COMPILED = files(__package__) / "proto" / "rainbow.binpb"


def _pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(COMPILED.read_bytes()).file:
        pool.Add(file)
    return pool


POOL = _pool()
SCHEDULER: ServiceDescriptor = POOL.FindServiceByName("convergedcomputing.org.grpc.v1.RainbowScheduler")
GRAPH: ServiceDescriptor = POOL.FindServiceByName("service.MemoryGraph")
HANDOVER: ServiceDescriptor = POOL.FindServiceByName("switchyard.rainbow.v1.Handover")


def message(name: str) -> Any:
    """The class of a message, by its full name."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(name))


_RAINBOW = "convergedcomputing.org.grpc.v1"
RegisterResponse = message(f"{_RAINBOW}.RegisterResponse")
DeleteResponse = message(f"{_RAINBOW}.DeleteResponse")
UpdateStateResponse = message(f"{_RAINBOW}.UpdateStateResponse")
SubmitJobResponse = message(f"{_RAINBOW}.SubmitJobResponse")
ReceiveJobsResponse = message(f"{_RAINBOW}.ReceiveJobsResponse")
AcceptJobsResponse = message(f"{_RAINBOW}.AcceptJobsResponse")
SatisfyResponse = message("service.SatisfyResponse")
ReportJobsResponse = message("switchyard.rainbow.v1.ReportJobsResponse")
