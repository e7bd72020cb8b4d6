"""Our errors in Flyte's codes and words."""

from __future__ import annotations

import pytest

from switchyard.errors import Conflict, Internal, Malformed, NameTaken, PolicyRefused, TooLarge, YardError
from switchyard.features.flyte.server.grpc_status import FlyteInvalid, code_of, http_of
from switchyard.server.grpc.grpc_status import message_of

ERRORS: list[tuple[YardError, str, int]] = [
    (PolicyRefused("pool: asks for 'a', and its scope is bound to 'b'."), "INVALID_ARGUMENT", 400),
    (Malformed("No."), "INVALID_ARGUMENT", 400),
    (NameTaken("Taken."), "ALREADY_EXISTS", 409),
    (Conflict("Not now."), "FAILED_PRECONDITION", 400),
    (TooLarge("Large."), "RESOURCE_EXHAUSTED", 413),
    (Internal(), "INTERNAL", 500),
]


@pytest.mark.parametrize(("error", "code", "http"), ERRORS, ids=[type(row[0]).__name__ for row in ERRORS])
def test_codes(error: YardError, code: str, http: int) -> None:
    assert (code_of(error), http_of(error)) == (code, http)


def test_what_happened_and_what_to_do_are_two_sentences() -> None:
    assert message_of(Malformed("It is red", next_step="Paint it.")) == "It is red. Paint it."
    assert message_of(Malformed("It is red.", next_step="Paint it.")) == "It is red. Paint it."
    assert message_of(FlyteInvalid("missing name")) == "missing name"
