"""What every kind of token pools does: the interface of plugins, and what a server needs besides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from switchyard.errors import Conflict, Denied, NoSuchPool, Rebuilding
from switchyard.model.tokens import (
    NO_CONSTRAINTS,
    Allocation,
    ResourceConstraintsSpec,
    ResourceManager,
    TokenHolder,
)

CLAIMS_MAX = 1000  # in one call: a Lua script holds up everybody else while it runs
LEASE_S_MAX = 300  # the longest lease; after a loss of all that was known, grants are withheld for so long
JOB_ID_PREFIX = "\x01"  # before a job's id where its token lies among those of callers, whose own are printable


class TokenClaim(NamedTuple):
    """One of many tokens to be claimed in one call."""

    token: str
    constraints: ResourceConstraintsSpec = NO_CONSTRAINTS
    project: str = "default"
    domain: str = "development"
    units: int = 1
    lease_s: int | None = None


class JobToken(NamedTuple):
    """What one job holds, or shall hold, of one pool."""

    job: str
    units: int
    project: str
    domain: str


class PoolStatus(NamedTuple):
    """A pool as it stands. `opens_in_s`: grants are withheld for so long; none: until somebody restores it."""

    quota: int
    used: int
    per_s: int | None
    jobs: int
    callers: int
    opens_in_s: float | None = 0.0


class TokenPools(ResourceManager, Protocol):
    """What the server is built on. Every call may raise Unavailable; what is not there is NoSuchPool."""

    is_enforced: bool

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
        owner: str = "",
    ) -> Allocation:
        """As a plugin calls it. `owner`: whose it is; no other owner claims, renews or gives back that token."""
        ...

    def renew_resource(
        self,
        namespace: str,
        token: str,
        *,
        project: str = "default",
        domain: str = "development",
        units: int = 1,
        lease_s: int | None = None,
        owner: str = "",
    ) -> bool: ...

    def allocate_many(self, namespace: str, claims: Sequence[TokenClaim], *, owner: str = "") -> list[Allocation]:
        """Many at once, each granted or refused by itself, at most CLAIMS_MAX."""
        ...

    def release_resource(
        self, namespace: str, token: str, *, project: str = "default", domain: str = "development", owner: str = ""
    ) -> bool:
        """Give back. `owner`: only what this owner holds; what another one holds is a Denied."""
        ...

    def release_many(self, namespace: str, claims: Iterable[TokenClaim]) -> list[bool]: ...

    def set_quota(self, namespace: str, quota: int) -> None:
        """Below what is used: who holds goes on, and nobody is granted meanwhile."""
        ...

    def settle(self, namespace: str, quota: int, per_s: int | None, *, free_in_s: float | None = None) -> None:
        """Make the pool, or make it be like this. `free_in_s`: no lease granted before lasts longer; none: unknown."""
        ...

    def remove(self, namespace: str) -> bool:
        """False: something of it is held."""
        ...

    def stand(self, namespace: str) -> PoolStatus: ...

    def holders(self, namespace: str, *, after: str = "", limit: int = 100) -> tuple[list[TokenHolder], str]:
        """Some holders and where to go on; an empty text: that was all. A page may be a little longer than asked."""
        ...

    def lead(self, term: str) -> None:
        """From here on only this server takes and gives back for jobs; one that led before is refused."""
        ...

    def job_take(self, namespace: str, claim: JobToken) -> Allocation:
        """Held until it is given back."""
        ...

    def job_give(self, namespace: str, claims: Iterable[JobToken]) -> None: ...

    def job_restore(self, namespace: str, claims: Iterable[JobToken]) -> None:
        """Hold it whatever the quota says: the job has it."""
        ...

    def jobs(self, namespace: str) -> Mapping[str, JobToken]:
        """What jobs hold, by their id. Of a rate pool: nothing, for nothing of it is given back."""
        ...

    def recount(self, namespace: str) -> bool:
        """Put counters right that do not agree with what is held; whether there were any."""
        ...

    def is_whole(self) -> bool:
        """Whether all that was granted is known here; else nothing is granted until `begin`."""
        ...

    def begin(self, *, is_first: bool) -> bool:
        """From here on all is known: pools and jobs are restored. False: something was lost before.

        Callers' tokens may have been: grants are withheld until the longest lease is over. `is_first`: nobody was ever
        granted anything.
        """
        ...

    def close(self) -> None: ...


def no_such_pool(namespace: str) -> NoSuchPool:
    return NoSuchPool(f"There is no token pool {namespace!r}.")


def pool_rebuilding(namespace: str, opens_in_s: float) -> Rebuilding:
    soon = f"It grants again in {opens_in_s:.0f} s."
    when = (
        soon
        if opens_in_s > 0
        else "It grants again once the server that leads has restored it; pools in memory grant there alone."
    )
    return Rebuilding(
        f"The token pool {namespace} is rebuilding: what was granted before is being found out.", next_step=when
    )


def units_conflict(namespace: str, token: str, units: int) -> Conflict:
    return Conflict(
        f"The token {token[:80]!r} of {namespace} is held with another number of units than {units}.",
        next_step="Give it back first, or use another token.",
    )


def owner_conflict(namespace: str, token: str) -> Denied:
    return Denied(
        f"The token {token[:80]!r} of {namespace} is held by another user.",
        next_step="Claim under a token of your own; an operator of the project gives back what others hold.",
    )


def quota_conflict(namespace: str, quota: int, per_s: int | None) -> Conflict:
    kind = f"{quota} per {per_s} s" if per_s else f"{quota}"
    return Conflict(
        f"The token pool {namespace} is registered with another quota: {kind}.",
        next_step="`yard token-pool set-quota` changes it.",
    )
