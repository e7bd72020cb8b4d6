"""The config section `limits`: what one user may have, and for whom it is more or less."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from switchyard.model.jobspec.quantity import parse_bytes
from switchyard.model.rules.names import Name
from switchyard.policy.limits import UserLimits

LimitValue = Annotated[int, Meta(ge=0, le=2**53)]  # 0: no limit
Burst = Annotated[int, Meta(ge=1, le=2**53)]
ByteLimit = LimitValue | Annotated[str, Meta(max_length=40)]
_DEFAULTS = UserLimits()


class UserLimitsSection(Struct, frozen=True, forbid_unknown_fields=True):
    """The limits of one user. A limit that is left out is the one for all users. 0: no limit."""

    waits: LimitValue | None = None
    streams: LimitValue | None = None
    calls: LimitValue | None = None
    requests: LimitValue | None = None
    burst: Burst | None = None
    jobs: LimitValue | None = None
    tasks: LimitValue | None = None
    bytes: ByteLimit | None = None
    changes: LimitValue | None = None
    executions: LimitValue | None = None

    def __post_init__(self) -> None:
        if self.bytes is not None:
            parse_bytes(self.bytes)


class LimitsSection(Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """The limits of each user (docs/reference/limits.md). 0: no limit. Platform administrators have only `calls`."""

    waits: LimitValue = _DEFAULTS.waits
    streams: LimitValue = _DEFAULTS.streams
    calls: LimitValue = _DEFAULTS.calls
    requests: LimitValue = _DEFAULTS.requests
    burst: Burst = _DEFAULTS.burst
    jobs: LimitValue = _DEFAULTS.jobs
    tasks: LimitValue = _DEFAULTS.tasks
    bytes: ByteLimit = _DEFAULTS.bytes
    changes: LimitValue = _DEFAULTS.changes
    executions: LimitValue = _DEFAULTS.executions
    users: dict[Name, UserLimitsSection] = {}

    def __post_init__(self) -> None:
        parse_bytes(self.bytes)

    @cached_property
    def everyone(self) -> UserLimits:
        values = {name: getattr(self, name) for name in UserLimits.__slots__}
        return UserLimits(**values | {"bytes": parse_bytes(self.bytes)})

    @cached_property
    def _named(self) -> dict[str, UserLimits]:
        return {name: self._over(section) for name, section in self.users.items()}

    def _over(self, section: UserLimitsSection) -> UserLimits:
        values = {name: value for name, value in msgspec.structs.asdict(section).items() if value is not None}
        if "bytes" in values:
            values["bytes"] = parse_bytes(values["bytes"])
        return UserLimits(**{name: getattr(self.everyone, name) for name in UserLimits.__slots__} | values)

    def of(self, user: str) -> UserLimits:
        return self._named.get(user, self.everyone)
