"""Decodes the answer to a poll, lease by lease: an unreadable job must not hide the others."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from msgspec import Raw, Struct

from switchyard.agent.server.client import ServerUnreachable
from switchyard.model.cluster.poll import AttemptRef, Lease, Stop
from switchyard.model.cluster.quote import QuoteAsk
from switchyard.model.files.file_views import FileAsk
from switchyard.model.job.job import JobSpec
from switchyard.model.job.lifecycle import ReportAnswer
from switchyard.model.job.log import OUTPUT_BYTES_MAX

OUTPUT_BOUND_MIN, OUTPUT_BOUND_MAX = 1024, 2**40  # sensible values of how much a server keeps of a stream


class PollAnswerHead(Struct, frozen=True, kw_only=True):
    """An answer whose parts are decoded one by one, later."""

    session: int
    leases: list[Raw] = []
    cancels: list[AttemptRef] = []
    stops: list[Stop] = []
    answers: list[ReportAnswer] = []
    quotes: list[Raw] = []
    files: list[Raw] = []
    cluster_resources: str = ""  # version of the objects of all namespaces
    is_closing: bool = False
    is_rotation_asked: bool = False
    output_bytes_max: int = OUTPUT_BYTES_MAX
    event_mark: str = ""


class _LeaseIdentity(Struct, frozen=True):
    job: str
    attempt: int
    fence: int


@dataclass(frozen=True, slots=True)
class UnreadableLease:
    """A lease that this agent cannot decode. `lease` has only its identity."""

    lease: Lease
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedPollAnswer:
    head: PollAnswerHead
    leases: list[Lease]
    unreadable: list[UnreadableLease]
    quotes: list[QuoteAsk]
    files: list[FileAsk]

    @property
    def output_bytes_max(self) -> int:
        return min(max(self.head.output_bytes_max, OUTPUT_BOUND_MIN), OUTPUT_BOUND_MAX)


def read_poll_answer(body: bytes) -> DecodedPollAnswer:
    try:
        head = msgspec.json.decode(body, type=PollAnswerHead)
        leases = [_read_lease(raw) for raw in head.leases]
    except msgspec.DecodeError as exc:
        raise ServerUnreachable(f"The server's answer cannot be read: {exc}.") from exc
    return DecodedPollAnswer(
        head=head,
        leases=[lease for lease in leases if isinstance(lease, Lease)],
        unreadable=[lease for lease in leases if isinstance(lease, UnreadableLease)],
        quotes=[inquiry for raw in head.quotes if (inquiry := _read_inquiry(raw)) is not None],
        files=[ask for raw in head.files if (ask := _read_file_ask(raw)) is not None],
    )


def _read_inquiry(raw: Raw) -> QuoteAsk | None:
    """None: the inquiry cannot be decoded and is not answered. The server waits only for a short time."""
    try:
        return msgspec.json.decode(raw, type=QuoteAsk)
    except msgspec.DecodeError:
        return None


def _read_file_ask(raw: Raw) -> FileAsk | None:
    """The same for an ask for a part of a file."""
    try:
        return msgspec.json.decode(raw, type=FileAsk)
    except msgspec.DecodeError:
        return None


def _read_lease(raw: Raw) -> Lease | UnreadableLease:
    try:
        return msgspec.json.decode(raw, type=Lease)
    except msgspec.DecodeError as exc:
        identity = msgspec.json.decode(raw, type=_LeaseIdentity)
        stand_in = JobSpec(command=["unreadable"])
        lease = Lease(
            job=identity.job,
            attempt=identity.attempt,
            fence=identity.fence,
            name="",
            owner="",
            project="",
            domain="",
            spec=stand_in,
        )
        return UnreadableLease(lease, str(exc))
