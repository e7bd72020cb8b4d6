"""Token pools: quotas on things outside every cluster, the interface to them, and the messages of the API.

A pool is registered under a namespace with a quota. A token is held by a job, or by a caller for the time of a lease;
it belongs to a project and domain, and two projects may use the same word for different tokens.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from enum import IntEnum, StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from switchyard.errors import BadRequest, Malformed
from switchyard.model.rules.names import Name

# As a name, with the colons by which plugins put their own name before a pool's.
NAMESPACE_PATTERN = r"^[A-Za-z0-9_]([A-Za-z0-9._@+:-]{0,126}[A-Za-z0-9_])?(?!\n)$"
WORD_PATTERN = r"^[^\u0000-\u001f\u007f-\u009f\u2028\u2029]+(?!\n)$"
TOKEN_CHARS_MAX = 1024
QUOTA_MAX = 1_000_000_000  # whatever a config allows: sums of units stay exact in Lua's numbers
UNITS_MAX = 1_000_000
PER_S_MAX = 86_400  # of a rate pool
LEASE_S_DEFAULT = 60
LEASE_S_MAX = 3600  # the most that a config may allow
POOLS_MAX = 10_000  # every server keeps them all in memory
TOKENS_OF_JOB_MAX = 16  # pools that one job may hold tokens of

_NAMESPACE = re.compile(NAMESPACE_PATTERN)

Namespace = Annotated[str, Meta(pattern=NAMESPACE_PATTERN, min_length=1, max_length=128)]
PoolTokenName = Annotated[str, Meta(pattern=WORD_PATTERN, min_length=1, max_length=TOKEN_CHARS_MAX)]
Units = Annotated[int, Meta(ge=1, le=UNITS_MAX)]
# Checked against the server's resourceMaxQuota, whose message is the better one.
Quota = Annotated[int, Meta(extra_json_schema={"minimum": 1, "maximum": QUOTA_MAX})]
Cap = Annotated[int, Meta(ge=0, le=QUOTA_MAX)]
PerSeconds = Annotated[int, Meta(ge=1, le=PER_S_MAX)]
LeaseSeconds = Annotated[int, Meta(ge=1, le=LEASE_S_MAX)]
TokensOfJob = Annotated[dict[Namespace, Units], Meta(max_length=TOKENS_OF_JOB_MAX)]


class AllocationStatus(IntEnum):
    """The numbers are Flyte's. The first and last are never given: a failure is an exception, a cap is EXHAUSTED."""

    UNDEFINED = 0
    GRANTED = 1
    EXHAUSTED = 2
    NAMESPACE_QUOTA_EXCEEDED = 3


class LimitedBy(StrEnum):
    """The limit that refused: the pool's quota, or the caller's cap for its project or for its project and domain."""

    POOL = "pool"
    PROJECT = "project"
    NAMESPACE = "namespace"


class ResourceConstraintsSpec(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How many tokens of a pool a project, and a project and domain, may hold. Absent: no cap; 0: none allowed."""

    project: Cap | None = None
    namespace: Cap | None = None


class Allocation(Struct, frozen=True, omit_defaults=True):
    """The answer to a claim. `retry_after_s`: of a rate pool, when the next may be granted at the earliest.

    `lease_s`: for how long it is granted, as a server says it.
    """

    status: AllocationStatus
    limited_by: LimitedBy | None = None
    retry_after_s: float | None = None
    lease_s: int | None = None

    @property
    def is_granted(self) -> bool:
        return self.status is AllocationStatus.GRANTED


NO_CONSTRAINTS = ResourceConstraintsSpec()
GRANTED = Allocation(AllocationStatus.GRANTED)
EXHAUSTED_BY = {by: Allocation(AllocationStatus.EXHAUSTED, by) for by in LimitedBy}


def token_prefix(project: str, domain: str, execution: str) -> str:
    """How Flyte begins the tokens of an execution."""
    return f"ex:{project}:{domain}:{execution}"


def plugin_namespace(manager_id: str, plugin: str, namespace: str) -> str:
    """How Flyte calls the pool of a plugin."""
    return f"{manager_id}:{plugin}:{namespace}"


def is_namespace(text: str) -> bool:
    return _NAMESPACE.match(text) is not None


def check_quota(quota: int, quota_max: int) -> None:
    if not 1 <= quota <= quota_max:
        raise BadRequest(
            f"A quota is from 1 to {quota_max} (resourceMaxQuota); this one is {quota}.",
            next_step="Give another quota, or let an operator raise resourceMaxQuota in the server's file.",
        )


def check_pool_token(token: str, project: str, domain: str) -> None:
    """Check a token of a caller inside the process. HTTP and gRPC check tokens by type."""
    if "/" in project or "/" in domain or not project or not domain:
        raise Malformed("The project and the domain of a token are names, without a slash.")
    if not 1 <= len(token) <= TOKEN_CHARS_MAX or not token.isprintable():
        raise Malformed(f"A token is a word of 1 to {TOKEN_CHARS_MAX} printable characters; this one has {len(token)}.")


def checked_lease_s(lease_s: int | None, lease_s_max: int) -> int:
    """Return the length of a lease: as requested, by default a minute, and at most what is allowed."""
    if lease_s is None:
        return min(LEASE_S_DEFAULT, lease_s_max)
    if not 1 <= lease_s <= lease_s_max:
        raise BadRequest(
            f"A lease is from 1 s to {lease_s_max} s (resourcemanager.leaseMax); this one is {lease_s} s.",
            next_step="Ask for a shorter one and renew it; the SDK does that by itself.",
        )
    return lease_s


class TokenPoolRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A pool to register. `per_s`: a rate pool, whose quota is for each such time."""

    quota: Quota
    per_s: PerSeconds | None = None


class TokenPoolChange(Struct, frozen=True, forbid_unknown_fields=True):
    quota: Quota


class PoolTokenRequest(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The token of a holder: a name within a project and domain."""

    token: PoolTokenName
    project: Name = "default"
    domain: Name = "development"


class RenewRequest(PoolTokenRequest, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`lease_s`: not given, a minute, or less where the server allows no more."""

    units: Units = 1
    lease_s: LeaseSeconds | None = None


class AllocateRequest(RenewRequest, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    constraints: ResourceConstraintsSpec = NO_CONSTRAINTS


class ResourceManager(ABC):
    """What a plugin is handed: by the SDK, or by `switchyard.tokens` or a feature without a server between.

    Plugins use the calls with named arguments, which are Flyte's. A subclass implements those that take a request.
    """

    @abstractmethod
    def get_id(self) -> str: ...

    @abstractmethod
    def register_resource(self, namespace: str, quota: int, *, per_s: int | None = None) -> None:
        """Make a pool; once more with the same quota is fine. `per_s`: so many in that time, not so many at once."""

    @abstractmethod
    def allocate(self, namespace: str, request: AllocateRequest) -> Allocation:
        """Claim units under a token. A token that is held already is granted and counts once; its lease begins anew."""

    @abstractmethod
    def renew(self, namespace: str, request: RenewRequest) -> bool:
        """Renew the lease. False: the token is no longer held."""

    @abstractmethod
    def release(self, namespace: str, request: PoolTokenRequest) -> bool:
        """Release the token. False: it was not held, which is no error."""

    def allocate_resource(
        self,
        namespace: str,
        token: str,
        constraints: ResourceConstraintsSpec = NO_CONSTRAINTS,
        *,
        project: str = "default",
        domain: str = "development",
        units: int = 1,
        lease_s: int | None = None,
    ) -> Allocation:
        return self.allocate(namespace, AllocateRequest(token, project, domain, units, lease_s, constraints))

    def renew_resource(
        self,
        namespace: str,
        token: str,
        *,
        project: str = "default",
        domain: str = "development",
        units: int = 1,
        lease_s: int | None = None,
    ) -> bool:
        return self.renew(namespace, RenewRequest(token, project, domain, units, lease_s))

    def release_resource(
        self, namespace: str, token: str, *, project: str = "default", domain: str = "development"
    ) -> bool:
        return self.release(namespace, PoolTokenRequest(token, project, domain))


class Released(Struct, frozen=True):
    released: bool


class Renewed(Struct, frozen=True):
    renewed: bool


class TokenPool(Struct, frozen=True):
    """The present state of a pool. Counted since the server started: refused, waited_s (the longest), repaired."""

    namespace: str
    quota: int
    used: int = 0
    held_by_jobs: int = 0
    held_by_callers: int = 0
    per_s: int | None = None
    is_enforced: bool = True
    waiting: int = 0  # jobs
    # Grants are withheld for so long, since it is being found out who held what; none: until a server has restored it.
    opens_in_s: float | None = 0.0
    refused: int = 0
    repaired: int = 0
    waited_s: float = 0.0
    created_us: int = 0
    changed_us: int = 0
    changed_by: str = ""


class TokenHolder(Struct, frozen=True):
    """`job`: the job that holds it, whose tokens come back at its end; else a caller, until `expires_in_s`."""

    token: str
    units: int
    project: str
    domain: str
    owner: str = ""
    job: str | None = None
    held_s: float = 0.0
    expires_in_s: float | None = None


class TokenManager(Struct, frozen=True):
    """The type of a server's resource manager."""

    id: str
    type: str
    quota_max: int
    is_enforced: bool
