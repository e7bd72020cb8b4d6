"""An error as gRPC and grpc-gateway say it: a code, a message, an HTTP status. Pure."""

from __future__ import annotations

from typing import NamedTuple

from switchyard.errors import BadRequest, Conflict, MethodNotAllowed, NotFound, PolicyRefused, TooLarge, YardError

MESSAGE_BYTES_MAX = 2000  # it travels in the trailers, up to three times as long, and gRPC's clients take 8 kB of them


class GrpcCode(NamedTuple):
    number: int
    http: int


# https://github.com/grpc-ecosystem/grpc-gateway/blob/v2.19.0/runtime/errors.go
CODES: dict[str, GrpcCode] = {
    "CANCELLED": GrpcCode(1, 499),
    "UNKNOWN": GrpcCode(2, 500),
    "INVALID_ARGUMENT": GrpcCode(3, 400),
    "DEADLINE_EXCEEDED": GrpcCode(4, 504),
    "NOT_FOUND": GrpcCode(5, 404),
    "ALREADY_EXISTS": GrpcCode(6, 409),
    "PERMISSION_DENIED": GrpcCode(7, 403),
    "RESOURCE_EXHAUSTED": GrpcCode(8, 429),
    "FAILED_PRECONDITION": GrpcCode(9, 400),
    "ABORTED": GrpcCode(10, 409),
    "OUT_OF_RANGE": GrpcCode(11, 400),
    "UNIMPLEMENTED": GrpcCode(12, 501),
    "INTERNAL": GrpcCode(13, 500),
    "UNAVAILABLE": GrpcCode(14, 503),
    "DATA_LOSS": GrpcCode(15, 500),
    "UNAUTHENTICATED": GrpcCode(16, 401),
}


class FlyteInvalid(BadRequest):
    """A mistake that Flyte has words for: the message is those words alone, since programs compare them."""

    default_next = ""


class FlyteNotFound(NotFound):
    """The same for what is not there."""

    default_next = ""


class FlyteNotServed(MethodNotAllowed):
    """This part of Flyte's interface is not served here."""

    default_next = ""


def code_of(error: YardError) -> str:
    if type(error) is Conflict:
        return "FAILED_PRECONDITION"  # ALREADY_EXISTS is for a name that is taken: some clients take it for a success
    if isinstance(error, PolicyRefused):
        return "INVALID_ARGUMENT"  # what Flyte answers to a pool or an amount that its rules do not allow
    # flytekit takes UNKNOWN for a token that ran out, and would ask for another.
    return "INTERNAL" if error.grpc == "UNKNOWN" else error.grpc


def message_of(error: YardError) -> str:
    detail = error.detail
    if error.next_step:
        detail = f"{detail.rstrip()}{'' if detail.rstrip().endswith('.') else '.'} {error.next_step}"
    found = detail.encode()
    return found[:MESSAGE_BYTES_MAX].decode(errors="ignore")


def http_of(error: YardError) -> int:
    # The bound on a body is HTTP's own, met before the gateway: 429 would be an invitation to try again.
    return error.status if isinstance(error, TooLarge) else CODES[code_of(error)].http
