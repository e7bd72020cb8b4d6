"""The base class of all kinds of token pools, and the errors they raise."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from switchyard.errors import Conflict, Denied, Malformed, NoSuchPool, Rebuilding
from switchyard.model.rules.tokens import (
    AllocateRequest,
    Allocation,
    PoolTokenRequest,
    RenewRequest,
    ResourceManager,
    TokenHolder,
)

CLAIMS_MAX = 1000  # in one call: Redis serves nobody else while a script runs
LEASE_S_MAX = 300  # the longest lease; after a loss of data, grants are withheld for this long
JOB_ID_PREFIX = "\x01"  # marks a job's token among those of callers, which are printable


class JobToken(NamedTuple):
    """The units that one job holds, or is to hold, of one pool."""

    job: str
    units: int
    project: str
    domain: str


class PoolStatus(NamedTuple):
    """Use of a pool. `opens_in_s`: grants are withheld for so long; None: until a server restores the pool."""

    quota: int
    used: int
    per_s: int | None
    jobs: int
    callers: int
    opens_in_s: float | None = 0.0


class TokenPools(ResourceManager):
    """Calls of plugins, and calls of the server alone. Every call may raise Unavailable or NoSuchPool."""

    is_enforced: bool

    @abstractmethod
    def allocate(self, namespace: str, request: AllocateRequest, *, owner: str = "") -> Allocation:
        """Claim units. `owner`: whose token it is; another owner cannot claim, renew or give back that token."""

    @abstractmethod
    def allocate_many(
        self, namespace: str, requests: Sequence[AllocateRequest], *, owner: str = ""
    ) -> list[Allocation]:
        """Claim at most CLAIMS_MAX tokens in one call. Each is granted or refused by itself."""

    @abstractmethod
    def renew(self, namespace: str, request: RenewRequest, *, owner: str = "") -> bool: ...

    @abstractmethod
    def release(self, namespace: str, request: PoolTokenRequest, *, owner: str = "") -> bool:
        """Give back. `owner`: only what this owner holds; a token of another owner raises Denied."""

    @abstractmethod
    def release_many(self, namespace: str, requests: Iterable[PoolTokenRequest]) -> list[bool]: ...

    @abstractmethod
    def set_quota(self, namespace: str, quota: int) -> None:
        """Change the quota. Below the used units, holders keep their tokens and nothing is granted."""

    @abstractmethod
    def settle(self, namespace: str, quota: int, per_s: int | None, *, free_in_s: float | None = None) -> None:
        """Make the pool, or change it to this. `free_in_s`: earlier leases end within this time; None: not known."""

    @abstractmethod
    def remove(self, namespace: str) -> bool:
        """Remove an unused pool. False: tokens of it are held."""

    @abstractmethod
    def stand(self, namespace: str) -> PoolStatus: ...

    @abstractmethod
    def holders(self, namespace: str, *, after: str = "", limit: int = 100) -> tuple[list[TokenHolder], str]:
        """A page of holders, and the cursor of the next page (empty: none). A page may exceed `limit` a little."""

    @abstractmethod
    def lead(self, term: str) -> None:
        """From now on only this server takes and gives back tokens of jobs. An earlier leader is refused."""

    @abstractmethod
    def job_take(self, namespace: str, claim: JobToken) -> Allocation:
        """Take tokens for a job, until `job_give`."""

    @abstractmethod
    def job_give(self, namespace: str, claims: Iterable[JobToken]) -> None: ...

    @abstractmethod
    def job_restore(self, namespace: str, claims: Iterable[JobToken]) -> None:
        """Hold tokens that jobs have already, even beyond the quota."""

    @abstractmethod
    def jobs(self, namespace: str) -> Mapping[str, JobToken]:
        """Tokens of jobs by job id. Empty for a rate pool, whose tokens are not given back."""

    @abstractmethod
    def recount(self, namespace: str) -> bool:
        """Correct counters that differ from the held tokens. True: some did."""

    @abstractmethod
    def is_whole(self) -> bool:
        """Whether all granted tokens are known. If not, nothing is granted until `begin`."""

    @abstractmethod
    def begin(self, *, is_first: bool) -> bool:
        """Open the pools after pools and tokens of jobs are restored. False: data was lost before.

        Then tokens of callers may be lost, and grants are withheld until the longest lease is over. `is_first`: nothing
        was ever granted.
        """

    @abstractmethod
    def close(self) -> None: ...


def check_claim_count(requests: Sequence[AllocateRequest]) -> None:
    if len(requests) > CLAIMS_MAX:
        raise Malformed(f"{len(requests)} claims in one call; the most is {CLAIMS_MAX}.")


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
        f"The token pool {namespace} is rebuilding: it is not yet known what was granted before.", next_step=when
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
