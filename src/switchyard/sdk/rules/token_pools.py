"""Client calls for token pools, the resource manager interface of plugins, and tokens held for a `with` block."""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Iterator
from types import TracebackType

from switchyard.errors import Conflict, Rebuilding, TimedOut, Unavailable, YardError
from switchyard.model.rules.tokens import (
    LEASE_S_DEFAULT,
    NO_CONSTRAINTS,
    AllocateRequest,
    Allocation,
    PoolTokenRequest,
    Released,
    Renewed,
    RenewRequest,
    ResourceConstraintsSpec,
    ResourceManager,
    TokenHolder,
    TokenManager,
    TokenPool,
    TokenPoolChange,
    TokenPoolRequest,
)
from switchyard.model.wire.api import Page
from switchyard.sdk.transport.calls import ApiCalls, api_path

PAUSE_S_FIRST = 0.1  # before the first retry; it grows
PAUSE_S_MAX = 2.0
RENEWALS_PER_LEASE = 3  # two of them may fail


class TokenPoolCalls(ApiCalls):
    """Client calls for token pools."""

    def token_pools(self, *, limit: int | None = None) -> Iterator[TokenPool]:
        """Yield the token pools, at most `limit`."""
        return self._walk(api_path("token-pools"), Page[TokenPool], limit=limit)

    def token_pool(self, namespace: str) -> TokenPool:
        """Return a token pool. Raise NotFound if there is none of this name."""
        return self._get(api_path("token-pools", namespace), TokenPool)

    def register_token_pool(self, namespace: str, quota: int, *, per_s: int | None = None) -> TokenPool:
        """Create a pool. Repeating it with the same quota is allowed. `per_s`: `quota` tokens in that time."""
        return self._put(api_path("token-pools", namespace), TokenPool, body=TokenPoolRequest(quota, per_s), headers={})

    def set_token_quota(self, namespace: str, quota: int) -> TokenPool:
        """Change the quota. Below the used number, holders keep their tokens and no new ones are granted."""
        return self._patch(api_path("token-pools", namespace), TokenPool, body=TokenPoolChange(quota))

    def delete_token_pool(self, namespace: str) -> None:
        """Delete a token pool. Raise NotFound if there is none of this name."""
        self._delete(api_path("token-pools", namespace))

    def token_holders(self, namespace: str, *, limit: int | None = None) -> Iterator[TokenHolder]:
        """Iterate over the holders of tokens. Changes during the listing may be missed."""
        path = api_path("token-pools", namespace, "holders")
        return self._walk(path, Page[TokenHolder], limit=limit, cursor_name="after")

    def resource_manager(self) -> RemoteResourceManager:
        """Return the resource manager interface of plugins."""
        return RemoteResourceManager(self)

    def tokens(
        self,
        namespace: str,
        *,
        constraints: ResourceConstraintsSpec = NO_CONSTRAINTS,
        units: int = 1,
        token: str | None = None,
        project: str = "default",
        domain: str = "development",
        lease_s: int | None = None,
        timeout_s: float | None = None,
    ) -> HeldTokens:
        """Hold tokens for a `with` block: wait for them, renew them meanwhile, release them at its end.

        >>> with client.tokens("default_cluster", constraints=ResourceConstraintsSpec(project=5)):
        ...     query()
        """
        claim = AllocateRequest(
            token or f"sdk-{secrets.token_hex(8)}",
            project,
            domain=domain,
            units=units,
            lease_s=lease_s,
            constraints=constraints,
        )
        return HeldTokens(RemoteResourceManager(self), namespace, claim, timeout_s=timeout_s)


class RemoteResourceManager(ResourceManager):
    """A ResourceManager that asks the server."""

    def __init__(self, calls: TokenPoolCalls) -> None:
        self._calls = calls

    def get_id(self) -> str:
        return self.info().id

    def info(self) -> TokenManager:
        return self._calls._get(api_path("token-manager"), TokenManager)

    def register_resource(self, namespace: str, quota: int, *, per_s: int | None = None) -> None:
        self._calls.register_token_pool(namespace, quota, per_s=per_s)

    def allocate(self, namespace: str, request: AllocateRequest) -> Allocation:
        # Repeatable: the same token is granted once more, and counts once.
        path = api_path("token-pools", namespace, "allocate")
        return self._calls._post(path, Allocation, body=request, repeatable=True)

    def renew(self, namespace: str, request: RenewRequest) -> bool:
        path = api_path("token-pools", namespace, "renew")
        return self._calls._post(path, Renewed, body=request, repeatable=True).renewed

    def release(self, namespace: str, request: PoolTokenRequest) -> bool:
        path = api_path("token-pools", namespace, "release")
        return self._calls._post(path, Released, body=request, repeatable=True).released


class HeldTokens:
    """Tokens held for a `with` block. `is_held` turns false if the lease is lost meanwhile."""

    def __init__(
        self, manager: RemoteResourceManager, namespace: str, claim: AllocateRequest, *, timeout_s: float | None
    ) -> None:
        self.namespace = namespace
        self.token = claim.token
        self.is_held = False
        self._manager = manager
        self._claim = claim
        self._timeout_s = timeout_s
        self._is_over = threading.Event()
        self._renewing: threading.Thread | None = None

    def __enter__(self) -> HeldTokens:
        lease_s = self._wait()
        self.is_held = True
        self._is_over.clear()
        self._renewing = threading.Thread(
            target=self._renew, args=(lease_s,), name=f"lease of {self.namespace}", daemon=True
        )
        self._renewing.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        assert self._renewing is not None
        self._renewing.join()
        self.is_held = False
        claim = self._claim
        try:
            self._manager.release_resource(self.namespace, claim.token, project=claim.project, domain=claim.domain)
        except YardError:
            if error is None:
                raise  # it comes back when the lease is over; say so, unless something worse is being said

    def check(self) -> None:
        """Raise if the tokens are no longer held: somebody else may have them."""
        if not self.is_held:
            raise Conflict(
                f"The lease of {self.token} of {self.namespace} ran out.",
                next_step="Stop what needs it, and claim it again.",
            )

    def _wait(self) -> int:
        """Wait until the tokens are granted. Return the seconds of the lease."""
        began, pause_s = time.monotonic(), PAUSE_S_FIRST
        while True:
            wait_s = pause_s
            try:
                allocation = self._manager.allocate(self.namespace, self._claim)
                if allocation.is_granted:
                    return allocation.lease_s or LEASE_S_DEFAULT
                reason = f"{self.namespace} is exhausted (limited by {allocation.limited_by})"
                wait_s = min(allocation.retry_after_s or pause_s, PAUSE_S_MAX)
            except Rebuilding as exc:
                reason = exc.detail
            left_s = None if self._timeout_s is None else began + self._timeout_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise TimedOut(f"No token within {self._timeout_s:g} s: {reason}.", next_step="Give more time.")
            wait_s *= random.uniform(0.5, 1.0)  # noqa: S311 — spreads clients, guards no secret
            time.sleep(wait_s if left_s is None else min(wait_s, left_s))
            pause_s = min(pause_s * 1.5, PAUSE_S_MAX)

    def _renew(self, lease_s: int) -> None:
        claim, renewed_at = self._claim, time.monotonic()
        while not self._is_over.wait(lease_s / RENEWALS_PER_LEASE):
            asked_at = time.monotonic()
            try:
                self.is_held = self._manager.renew_resource(
                    self.namespace,
                    claim.token,
                    project=claim.project,
                    domain=claim.domain,
                    units=claim.units,
                    lease_s=lease_s,
                )
                renewed_at = asked_at
            except Unavailable:
                self.is_held = time.monotonic() < renewed_at + lease_s
            except YardError:
                self.is_held = False
            if not self.is_held:
                return
