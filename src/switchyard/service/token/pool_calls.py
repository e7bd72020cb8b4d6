"""Calls to token pools: register, allocate, renew, release, show.

The registry of pools is in the store, their holders in the pools themselves (memory or Redis). Everyone may see pools.
Allocation needs the role submit on the token's project. Platform administrators register pools and set quotas.
"""

from __future__ import annotations

from msgspec import to_builtins
from msgspec.structs import replace

from switchyard.errors import BadRequest, Conflict, Denied, Malformed, NoSuchPool, Unavailable, UnknownName, YardError
from switchyard.model.rules.access import Role
from switchyard.model.rules.tokens import (
    POOLS_MAX,
    AllocateRequest,
    Allocation,
    PoolTokenRequest,
    Released,
    Renewed,
    RenewRequest,
    TokenHolder,
    TokenManager,
    TokenPool,
    TokenPoolChange,
    TokenPoolRequest,
    check_quota,
    checked_lease_s,
    is_namespace,
)
from switchyard.model.wire.api import Page
from switchyard.service.core.context import Context, bump_version
from switchyard.service.core.rights import Actor
from switchyard.service.core.snapshots.token_settings import PoolEntry
from switchyard.service.core.writes.audit import record_audit
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.service.reserve.pool_type import note_lease
from switchyard.store.rules import token_pools as store
from switchyard.tokens.pools import PoolStatus, no_such_pool, pool_rebuilding, quota_conflict

NAMES_LISTED = 50
POOLS_SCRAPED_MAX = 1000  # pools read for one scrape of /metrics


def pool_manager(context: Context) -> TokenManager:
    tokens = context.tokens
    return TokenManager(tokens.pools.get_id(), tokens.type, tokens.quota_max, tokens.pools.is_enforced)


def pool_list(context: Context) -> list[TokenPool]:
    return [_view(context, namespace) for namespace in sorted(context.snapshots.token_pools.entries)]


def pools_used(context: Context) -> dict[str, int]:
    """Return the used units of each pool, for metrics. Pools that do not answer are left out."""
    units: dict[str, int] = {}
    if not context.tokens.pools.is_enforced:
        return units
    for namespace in sorted(context.snapshots.token_pools.entries)[:POOLS_SCRAPED_MAX]:
        try:
            units[namespace] = context.tokens.pools.stand(namespace).used
        except NoSuchPool:  # lost, and not restored yet
            continue
        except YardError:
            break  # all pools are in one place: the others do not answer either
    return units


def pool_get(context: Context, namespace: str) -> TokenPool:
    _entry(context, namespace)
    return _view(context, namespace)


def register(context: Context, actor: Actor, namespace: str, request: TokenPoolRequest) -> TokenPool:
    """Register a pool. A repeated call with the same quota changes nothing; another quota is a conflict."""
    actor.need_platform(Role.ADMIN)
    _check_namespace(namespace)
    check_quota(request.quota, context.tokens.quota_max)

    def apply(batch: Batch) -> int:
        pool = store.pool_get(batch.tx, namespace)
        if pool is not None:
            if (pool.quota, pool.per_s) != (request.quota, request.per_s):
                raise quota_conflict(namespace, pool.quota, pool.per_s)
            return int(pool.leased_until_us)
        if store.pool_count(batch.tx) >= POOLS_MAX:
            raise BadRequest(f"{POOLS_MAX} token pools are registered, which is the most.")
        bump_version(batch, Topic.TOKENS)
        new = store.TokenPoolRow(
            namespace=namespace,
            quota=request.quota,
            per_s=request.per_s,
            leased_until_us=0,
            created_us=batch.now_us,
            changed_us=batch.now_us,
            changed_by=actor.name,
        )
        store.pool_insert(batch.tx, new)
        record_audit(batch, context, actor, "token-pool.register", namespace, after=to_builtins(request))
        return 0

    leased_until_us = context.committer.call(apply)
    # The store comes first: if this server ends here, the leader sets up the pool from it. An existing pool may have
    # granted leases before this server started; their units are free only after those leases end.
    free_in_s = context.tokens.leases_end_in_s(leased_until_us - context.now_us(), request.per_s)
    context.tokens.pools.settle(namespace, request.quota, request.per_s, free_in_s=free_in_s)
    return _view(context, namespace)


def set_quota(context: Context, actor: Actor, namespace: str, request: TokenPoolChange) -> TokenPool:
    """Change the quota. If more units are in use, their holders keep them and no units are granted meanwhile."""
    actor.need_platform(Role.ADMIN)
    check_quota(request.quota, context.tokens.quota_max)

    def apply(batch: Batch) -> int | None:
        pool = store.pool_get(batch.tx, namespace)
        if pool is None:
            raise _missing(context, namespace)
        per_s: int | None = pool.per_s
        if pool.quota == request.quota:
            return per_s  # a repeated call, perhaps because the pools did not answer
        bump_version(batch, Topic.TOKENS)
        change = store.TokenPoolUpdate(quota=request.quota, changed_us=batch.now_us, changed_by=actor.name)
        store.pool_change(batch.tx, namespace, change)
        before, after = {"quota": pool.quota}, {"quota": request.quota}
        record_audit(batch, context, actor, "token-pool.set-quota", namespace, before=before, after=after)
        return per_s

    per_s = context.committer.call(apply)
    try:
        context.tokens.pools.settle(namespace, request.quota, per_s)
        return _view(context, namespace)
    except Unavailable as exc:
        raise Unavailable(
            f"{exc.detail} The quota is stored, and holds once it does.", next_step=exc.next_step
        ) from exc


def remove(context: Context, actor: Actor, namespace: str) -> None:
    """Remove a pool. Raises Conflict while any of its tokens is held."""
    actor.need_platform(Role.ADMIN)
    _entry(context, namespace)
    try:
        is_free = context.tokens.pools.remove(namespace)
    except NoSuchPool:
        is_free = True
    if not is_free:
        raise Conflict(
            f"Tokens of {namespace} are held.", next_step=f"`yard token-pool holders {namespace}` shows by whom."
        )

    def apply(batch: Batch) -> None:
        bump_version(batch, Topic.TOKENS)
        store.pool_delete(batch.tx, namespace)
        record_audit(batch, context, actor, "token-pool.remove", namespace)

    context.committer.call(apply)


def allocate(context: Context, actor: Actor, namespace: str, request: AllocateRequest) -> Allocation:
    """Claim units of a pool. The answer is a grant, or a refusal with its cause."""
    tokens = context.tokens
    _check_namespace(namespace)
    _check_claim(context, actor, request)
    lease_s = checked_lease_s(request.lease_s, context.tokens.lease_s_max)
    if tokens.pools.is_enforced:
        note_lease(context, namespace, lease_s)
    try:
        allocation = tokens.pools.allocate(namespace, request, owner=actor.id)
    except NoSuchPool as exc:
        raise _lost_or_missing(context, namespace) from exc
    tally = context.tally
    (tally.token_grants if allocation.is_granted else tally.token_refusals).add(namespace)
    return replace(allocation, lease_s=lease_s) if allocation.is_granted else allocation


def renew(context: Context, actor: Actor, namespace: str, request: RenewRequest) -> Renewed:
    _check_namespace(namespace)
    _check_claim(context, actor, request)
    lease_s = checked_lease_s(request.lease_s, context.tokens.lease_s_max)
    if context.tokens.pools.is_enforced:
        note_lease(context, namespace, lease_s)
    try:
        is_held = context.tokens.pools.renew(namespace, request, owner=actor.id)
    except NoSuchPool as exc:
        raise _lost_or_missing(context, namespace) from exc
    return Renewed(is_held)


def release(context: Context, actor: Actor, namespace: str, request: PoolTokenRequest) -> Released:
    """Release a token. Releasing a token that is not held is no error.

    An operator of the project may release tokens of other users; the audit records it.
    """
    _check_namespace(namespace)
    actor.need_project(Role.SUBMIT, request.project)
    try:
        return Released(_release_owned_by(context, namespace, request, actor.id))
    except Denied:  # another user holds it
        if not actor.may_project(Role.OPERATE, request.project):
            raise
    context.changes.charge(actor, 0)  # refuse before the release: afterwards it must be audited
    is_released = _release_owned_by(context, namespace, request, "")
    if is_released:
        context.committer.call(
            lambda batch: record_audit(batch, context, actor, "token-pool.release", namespace, after=request)
        )
    return Released(is_released)


def _release_owned_by(context: Context, namespace: str, request: PoolTokenRequest, owner: str) -> bool:
    """Release a token of this owner, or of any owner if `owner` is empty."""
    try:
        return context.tokens.pools.release(namespace, request, owner=owner)
    except NoSuchPool as exc:
        raise _lost_or_missing(context, namespace) from exc


def holders(context: Context, actor: Actor, namespace: str, *, after: str, limit: int) -> Page[TokenHolder]:
    """Return a page of the pool's holders in projects that the actor may see."""
    _entry(context, namespace)
    try:
        leases, following = context.tokens.pools.holders(namespace, after=after, limit=limit)
    except NoSuchPool as exc:
        raise _lost_or_missing(context, namespace) from exc
    users = context.snapshots.access.users
    visible = [
        replace(lease, owner=users[lease.owner][0]) if lease.owner in users else lease
        for lease in leases
        if actor.may_project(Role.VIEW, lease.project)
    ]
    return Page(visible, following or None)


def _view(context: Context, namespace: str) -> TokenPool:
    tokens = context.tokens
    counts, entry = tokens.counts, context.snapshots.token_pools.entries.get(namespace)
    if entry is None:  # removed meanwhile
        raise no_such_pool(namespace)
    status = _pool_status(context, namespace, entry)
    return TokenPool(
        namespace=namespace,
        quota=entry.quota,
        used=status.used,
        held_by_jobs=status.jobs,
        held_by_callers=status.callers,
        per_s=entry.per_s,
        is_enforced=tokens.pools.is_enforced,
        waiting=counts.waiting.get(namespace, 0),
        opens_in_s=None if status.opens_in_s is None else round(status.opens_in_s, 3),
        refused=int(context.tally.token_refusals.get(namespace)),
        repaired=int(context.tally.token_repairs.get(namespace)),
        waited_s=round(counts.waited_s.get(namespace, 0.0), 3),
        created_us=entry.created_us,
        changed_us=entry.changed_us,
        changed_by=entry.changed_by,
    )


def _pool_status(context: Context, namespace: str, entry: PoolEntry) -> PoolStatus:
    try:
        return context.tokens.pools.stand(namespace)
    except NoSuchPool:  # lost, and not restored yet
        return PoolStatus(entry.quota, 0, entry.per_s, 0, 0, None)


def _check_namespace(namespace: str) -> None:
    """Raise Malformed for an invalid namespace, also where pools are not enforced and any name would work."""
    if not is_namespace(namespace):
        raise Malformed(f"{namespace[:40]!r} is not a namespace: letters, digits and . _ @ + - : inside, at most 128.")


def _check_claim(context: Context, actor: Actor, request: PoolTokenRequest) -> None:
    snapshots = context.snapshots
    actor.need_project(Role.SUBMIT, request.project)  # first: whether a project exists is not for everyone to know
    if request.project not in snapshots.access.projects:
        raise UnknownName(
            f"There is no project {request.project!r}.", next_step="`yard project ls` lists the projects you may use."
        )
    domains = snapshots.policy.platform.domains
    if request.domain not in domains:
        raise UnknownName(f"There is no domain {request.domain!r}.", next_step=f"Known domains: {', '.join(domains)}.")


def _entry(context: Context, namespace: str) -> PoolEntry:
    entry = context.snapshots.token_pools.entries.get(namespace)
    if entry is None:
        context.snapshots.refresh()  # another server may have just registered it
        entry = context.snapshots.token_pools.entries.get(namespace)
    if entry is None:
        raise _missing(context, namespace)
    return entry


def _lost_or_missing(context: Context, namespace: str) -> YardError:
    """Return the error for a namespace that the pools do not know: rebuilding if it is registered, else missing."""
    try:
        _entry(context, namespace)
    except NoSuchPool as exc:
        return exc
    return pool_rebuilding(namespace, 0)


def _missing(context: Context, namespace: str) -> NoSuchPool:
    known = sorted(context.snapshots.token_pools.entries)[:NAMES_LISTED]
    return NoSuchPool(
        f"There is no token pool {namespace[:128]!r}.", next_step=f"Known token pools: {', '.join(known) or 'none'}."
    )
