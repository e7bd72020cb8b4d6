"""What is no namespace is refused, also where no pool is enforced and any namespace would do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from switchyard.errors import Malformed
from switchyard.model.rules.tokens import AllocateRequest, PoolTokenRequest, RenewRequest
from switchyard.service.token import pool_calls
from tests.service.rig import ADMIN, Rig

CALLS: dict[str, Callable[[Rig], object]] = {
    "allocate": lambda rig: pool_calls.allocate(rig.context, ADMIN, "Uº§", AllocateRequest(token="t")),
    "renew": lambda rig: pool_calls.renew(rig.context, ADMIN, "Uº§", RenewRequest(token="t")),
    "release": lambda rig: pool_calls.release(rig.context, ADMIN, "Uº§", PoolTokenRequest(token="t")),
}


@pytest.mark.parametrize("what", CALLS)
def test_a_call_with_no_namespace_is_malformed(lite: Rig, what: str) -> None:
    with pytest.raises(Malformed, match="is not a namespace"):
        CALLS[what](lite)
