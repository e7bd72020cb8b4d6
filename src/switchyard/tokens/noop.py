"""The default kind of token pools: everything is granted, nothing is stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from switchyard.model.rules.tokens import (
    GRANTED,
    AllocateRequest,
    Allocation,
    PoolTokenRequest,
    RenewRequest,
    TokenHolder,
)
from switchyard.tokens.pools import JobToken, PoolStatus, TokenPools


class NoopPools(TokenPools):
    """Grants everything: the external systems enforce their limits themselves."""

    is_enforced = False

    def get_id(self) -> str:
        return "noopresourcemanager"

    def register_resource(self, namespace: str, quota: int, *, per_s: int | None = None) -> None:
        pass

    def allocate(self, namespace: str, request: AllocateRequest, *, owner: str = "") -> Allocation:
        return GRANTED

    def allocate_many(
        self, namespace: str, requests: Sequence[AllocateRequest], *, owner: str = ""
    ) -> list[Allocation]:
        return [GRANTED] * len(requests)

    def renew(self, namespace: str, request: RenewRequest, *, owner: str = "") -> bool:
        return True

    def release(self, namespace: str, request: PoolTokenRequest, *, owner: str = "") -> bool:
        return True

    def release_many(self, namespace: str, requests: Iterable[PoolTokenRequest]) -> list[bool]:
        return [True for _ in requests]

    def set_quota(self, namespace: str, quota: int) -> None:
        pass

    def settle(self, namespace: str, quota: int, per_s: int | None, *, free_in_s: float | None = None) -> None:
        pass

    def remove(self, namespace: str) -> bool:
        return True

    def stand(self, namespace: str) -> PoolStatus:
        return PoolStatus(0, 0, None, 0, 0)

    def holders(self, namespace: str, *, after: str = "", limit: int = 100) -> tuple[list[TokenHolder], str]:
        return [], ""

    def lead(self, term: str) -> None:
        pass

    def job_take(self, namespace: str, claim: JobToken) -> Allocation:
        return GRANTED

    def job_give(self, namespace: str, claims: Iterable[JobToken]) -> None:
        pass

    def job_restore(self, namespace: str, claims: Iterable[JobToken]) -> None:
        pass

    def jobs(self, namespace: str) -> Mapping[str, JobToken]:
        return {}

    def recount(self, namespace: str) -> bool:
        return False

    def is_whole(self) -> bool:
        return True

    def begin(self, *, is_first: bool) -> bool:
        return True

    def close(self) -> None:
        pass
