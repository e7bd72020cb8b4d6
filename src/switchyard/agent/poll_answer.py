"""Reads the server's answer to a poll, lease by lease: a job this agent cannot read must not hide the others."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from msgspec import Raw, Struct

from switchyard.agent.client import ServerUnreachable
from switchyard.model.job import JobSpec
from switchyard.model.lifecycle import ReportAnswer
from switchyard.model.log import OUTPUT_BYTES_MAX
from switchyard.model.poll import AttemptRef, Lease, Stop
from switchyard.model.quote import QuoteAsk

OUTPUT_BOUND_MIN, OUTPUT_BOUND_MAX = 1024, 2**40  # what a server may sensibly keep of a stream


class _WireAnswer(Struct, frozen=True, kw_only=True):
    session: int
    leases: list[Raw] = []
    cancels: list[AttemptRef] = []
    stops: list[Stop] = []
    answers: list[ReportAnswer] = []
    quotes: list[Raw] = []
    is_closing: bool = False
    is_rotation_asked: bool = False
    output_bytes_max: int = OUTPUT_BYTES_MAX


class _LeaseIdentity(Struct, frozen=True):
    job: str
    attempt: int
    fence: int


@dataclass(frozen=True, slots=True)
class UnreadableLease:
    """A lease of a form this agent does not know, with a stand-in that only carries its identity."""

    lease: Lease
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedPollAnswer:
    session: int
    leases: list[Lease]
    unreadable: list[UnreadableLease]
    cancels: list[AttemptRef]
    stops: list[Stop]
    answers: list[ReportAnswer]
    is_closing: bool
    is_rotation_asked: bool = False
    output_bytes_max: int = OUTPUT_BYTES_MAX
    quotes: list[QuoteAsk] = field(default_factory=list)


def read_poll_answer(body: bytes) -> DecodedPollAnswer:
    try:
        wire = msgspec.json.decode(body, type=_WireAnswer)
        leases = [_read_lease(raw) for raw in wire.leases]
    except msgspec.DecodeError as exc:
        raise ServerUnreachable(f"The server's answer cannot be read: {exc}.") from exc
    return DecodedPollAnswer(
        session=wire.session,
        leases=[each for each in leases if isinstance(each, Lease)],
        unreadable=[each for each in leases if isinstance(each, UnreadableLease)],
        cancels=wire.cancels,
        stops=wire.stops,
        answers=wire.answers,
        is_closing=wire.is_closing,
        is_rotation_asked=wire.is_rotation_asked,
        output_bytes_max=min(max(wire.output_bytes_max, OUTPUT_BOUND_MIN), OUTPUT_BOUND_MAX),
        quotes=[each for raw in wire.quotes if (each := _read_inquiry(raw)) is not None],
    )


def _read_inquiry(raw: Raw) -> QuoteAsk | None:
    """One that cannot be read is not answered: whoever asked does not wait for long."""
    try:
        return msgspec.json.decode(raw, type=QuoteAsk)
    except msgspec.DecodeError:
        return None


def _read_lease(raw: Raw) -> Lease | UnreadableLease:
    try:
        return msgspec.json.decode(raw, type=Lease)
    except msgspec.DecodeError as exc:
        head = msgspec.json.decode(raw, type=_LeaseIdentity)
        stand_in = JobSpec(command=["unreadable"])
        lease = Lease(
            job=head.job,
            attempt=head.attempt,
            fence=head.fence,
            name="",
            owner="",
            project="",
            domain="",
            spec=stand_in,
        )
        return UnreadableLease(lease, str(exc))
