"""Our errors in the form of Flyte's gRPC and grpc-gateway: a code, an HTTP status. Pure."""

from __future__ import annotations

from typing import NamedTuple

from switchyard.errors import BadRequest, Conflict, MethodNotAllowed, NotFound, PolicyRefused, TooLarge, YardError


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
    """An error with Flyte's exact text, because programs compare it."""

    default_next = ""


class FlyteNotFound(NotFound):
    """The same for something that does not exist."""

    default_next = ""


class FlyteNotServed(MethodNotAllowed):
    """This part of Flyte's interface is not served here."""

    default_next = ""


def code_of(error: YardError) -> str:
    if type(error) is Conflict:
        return "FAILED_PRECONDITION"  # not ALREADY_EXISTS, which some clients treat as success
    if isinstance(error, PolicyRefused):
        return "INVALID_ARGUMENT"  # as Flyte answers for a pool or an amount that its rules forbid
    # Not UNKNOWN: flytekit takes it for an expired token, and would ask for another.
    return "INTERNAL" if error.grpc == "UNKNOWN" else error.grpc


def http_of(error: YardError) -> int:
    # The bound on a body is HTTP's own and is checked before the gateway. 429 would invite a retry.
    return error.status if isinstance(error, TooLarge) else CODES[code_of(error)].http
