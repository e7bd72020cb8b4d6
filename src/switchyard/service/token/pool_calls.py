"""Token pools for callers: register, claim, renew, give back, look.

The registry is in the store, who holds what is where the pools are. Everyone may look at pools; claiming needs the role
submit on the token's project; what there is and how much of it is the platform administrator's.
"""

from __future__ import annotations

from msgspec import to_builtins
from msgspec.structs import replace

from switchyard.errors import BadRequest, Conflict, Denied, Malformed, NoSuchPool, Unavailable, UnknownName, YardError
from switchyard.model.access import Role
from switchyard.model.api import Page
from switchyard.model.tokens import (
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
from switchyard.service.committer import Batch
from switchyard.service.context import Context, bump_version, record_audit
from switchyard.service.rights import Actor
from switchyard.service.token.settings import PoolEntry
from switchyard.store import token_pools as store
from switchyard.tokens.pools import PoolStatus, no_such_pool, pool_rebuilding, quota_conflict

NAMES_LISTED = 50
POOLS_SCRAPED_MAX = 1000  # pools that are asked for their use at a scrape


def pool_manager(context: Context) -> TokenManager:
    tokens = context.tokens
    return TokenManager(tokens.pools.get_id(), tokens.type, tokens.quota_max, tokens.pools.is_enforced)


def pool_list(context: Context) -> list[TokenPool]:
    return [_view(context, namespace) for namespace in sorted(context.snapshots.token_pools.entries)]


def pools_used(context: Context) -> dict[str, int]:
    """How much of each is used, for whoever watches them all. Pools that do not answer are left out."""
    found: dict[str, int] = {}
    if not context.tokens.pools.is_enforced:
        return found
    for namespace in sorted(context.snapshots.token_pools.entries)[:POOLS_SCRAPED_MAX]:
        try:
            found[namespace] = context.tokens.pools.stand(namespace).used
        except NoSuchPool:  # lost, and not restored yet
            continue
        except YardError:
            break  # the others are where this one is
    return found


def pool_get(context: Context, namespace: str) -> TokenPool:
    _entry(context, namespace)
    return _view(context, namespace)


def register(context: Context, actor: Actor, namespace: str, request: TokenPoolRequest) -> TokenPool:
    """Make a pool; once more with the same quota changes nothing, with another it is an error."""
    actor.need_platform(Role.ADMIN)
    _check_namespace(namespace)
    check_quota(request.quota, context.tokens.quota_max)

    def apply(batch: Batch) -> int:
        there = store.pool_get(batch.tx, namespace)
        if there is not None:
            if (there.quota, there.per_s) != (request.quota, request.per_s):
                raise quota_conflict(namespace, there.quota, there.per_s)
            return int(there.leased_until_us)
        if store.pool_count(batch.tx) >= POOLS_MAX:
            raise BadRequest(f"{POOLS_MAX} token pools are registered, which is the most.")
        bump_version(batch, "tokens")
        new = {"quota": request.quota, "per_s": request.per_s, "leased_until_us": 0, "changed_by": actor.name}
        times = {"created_us": batch.now_us, "changed_us": batch.now_us}
        store.pool_insert(batch.tx, {"namespace": namespace} | new | times)
        record_audit(batch, context, actor.name, "token-pool.register", namespace, after=to_builtins(request))
        return 0

    leased_until_us = context.committer.call(apply)
    # After the store, which is the truth: should we end here, the leader makes it so. One that was there may have
    # granted leases before this server started, whose end is waited for.
    free_in_s = context.tokens.leases_end_in_s(leased_until_us - context.now_us(), request.per_s)
    context.tokens.pools.settle(namespace, request.quota, request.per_s, free_in_s=free_in_s)
    return _view(context, namespace)


def set_quota(context: Context, actor: Actor, namespace: str, request: TokenPoolChange) -> TokenPool:
    """Below what is used: who holds goes on, and nobody is granted meanwhile."""
    actor.need_platform(Role.ADMIN)
    check_quota(request.quota, context.tokens.quota_max)

    def apply(batch: Batch) -> int | None:
        there = store.pool_get(batch.tx, namespace)
        if there is None:
            raise _missing(context, namespace)
        per_s: int | None = there.per_s
        if there.quota == request.quota:
            return per_s  # asked again, perhaps because the pools did not answer
        bump_version(batch, "tokens")
        columns = {"quota": request.quota, "changed_us": batch.now_us, "changed_by": actor.name}
        store.pool_change(batch.tx, namespace, columns)
        before, after = {"quota": there.quota}, {"quota": request.quota}
        record_audit(batch, context, actor.name, "token-pool.set-quota", namespace, before=before, after=after)
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
    """Only while nothing of it is held."""
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
        bump_version(batch, "tokens")
        store.pool_delete(batch.tx, namespace)
        record_audit(batch, context, actor.name, "token-pool.remove", namespace)

    context.committer.call(apply)


def allocate(context: Context, actor: Actor, namespace: str, request: AllocateRequest) -> Allocation:
    """Claim units; the answer is a grant, or a refusal that says what it is limited by."""
    tokens = context.tokens
    _check_namespace(namespace)
    _check_claim(context, actor, request)
    lease_s = checked_lease_s(request.lease_s, context.tokens.lease_s_max)
    if tokens.pools.is_enforced:
        note_lease(context, namespace, lease_s)
    try:
        found = tokens.pools.allocate_resource(
            namespace,
            request.token,
            request.constraints,
            project=request.project,
            domain=request.domain,
            units=request.units,
            lease_s=lease_s,
            owner=actor.id,
        )
    except NoSuchPool as exc:
        raise _lost_or_missing(context, namespace) from exc
    tally = context.tally
    (tally.token_grants if found.is_granted else tally.token_refusals).add(namespace)
    return replace(found, lease_s=lease_s) if found.is_granted else found


def renew(context: Context, actor: Actor, namespace: str, request: RenewRequest) -> Renewed:
    _check_namespace(namespace)
    _check_claim(context, actor, request)
    lease_s = checked_lease_s(request.lease_s, context.tokens.lease_s_max)
    if context.tokens.pools.is_enforced:
        note_lease(context, namespace, lease_s)
    try:
        is_held = context.tokens.pools.renew_resource(
            namespace,
            request.token,
            project=request.project,
            domain=request.domain,
            units=request.units,
            lease_s=lease_s,
            owner=actor.id,
        )
    except NoSuchPool as exc:
        raise _lost_or_missing(context, namespace) from exc
    return Renewed(is_held)


def release(context: Context, actor: Actor, namespace: str, request: PoolTokenRequest) -> Released:
    """Give back; what was not held is no mistake. What others hold is given back by an operator of the project, and
    the audit records it."""
    _check_namespace(namespace)
    actor.need_project(Role.SUBMIT, request.project)
    try:
        return Released(_release_owned_by(context, namespace, request, actor.id))
    except Denied:  # another user holds it
        if not actor.may_project(Role.OPERATE, request.project):
            raise
    is_released = _release_owned_by(context, namespace, request, "")
    if is_released:
        context.committer.call(
            lambda batch: record_audit(batch, context, actor.name, "token-pool.release", namespace, after=request)
        )
    return Released(is_released)


def _release_owned_by(context: Context, namespace: str, request: PoolTokenRequest, owner: str) -> bool:
    """Give back what this owner holds; an empty text: whoever holds it."""
    try:
        return context.tokens.pools.release_resource(
            namespace, request.token, project=request.project, domain=request.domain, owner=owner
        )
    except NoSuchPool as exc:
        raise _lost_or_missing(context, namespace) from exc


def holders(context: Context, actor: Actor, namespace: str, *, after: str, limit: int) -> Page[TokenHolder]:
    """Who holds what, of the projects one may see."""
    _entry(context, namespace)
    try:
        found, following = context.tokens.pools.holders(namespace, after=after, limit=limit)
    except NoSuchPool as exc:
        raise _lost_or_missing(context, namespace) from exc
    users = context.snapshots.access.users
    seen = [
        replace(each, owner=users[each.owner][0]) if each.owner in users else each
        for each in found
        if actor.may_project(Role.VIEW, each.project)
    ]
    return Page(seen, following or None)


def _view(context: Context, namespace: str) -> TokenPool:
    tokens = context.tokens
    counts, entry = tokens.counts, context.snapshots.token_pools.entries.get(namespace)
    if entry is None:  # removed at this very moment
        raise no_such_pool(namespace)
    standing = _pool_status(context, namespace, entry)
    return TokenPool(
        namespace=namespace,
        quota=entry.quota,
        used=standing.used,
        held_by_jobs=standing.jobs,
        held_by_callers=standing.callers,
        per_s=entry.per_s,
        is_enforced=tokens.pools.is_enforced,
        waiting=counts.waiting.get(namespace, 0),
        opens_in_s=None if standing.opens_in_s is None else round(standing.opens_in_s, 3),
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
    """Also where no pool is enforced, and any namespace would do."""
    if not is_namespace(namespace):
        raise Malformed(f"{namespace[:40]!r} is not a namespace: letters, digits and . _ @ + - : inside, at most 128.")


def _check_claim(context: Context, actor: Actor, request: PoolTokenRequest) -> None:
    snapshots = context.snapshots
    if request.project not in snapshots.access.projects:
        raise UnknownName(
            f"There is no project {request.project!r}.", next_step="`yard project ls` lists the projects you may use."
        )
    actor.need_project(Role.SUBMIT, request.project)
    domains = snapshots.policy.platform.domains
    if request.domain not in domains:
        raise UnknownName(f"There is no domain {request.domain!r}.", next_step=f"Known domains: {', '.join(domains)}.")


def note_lease(context: Context, namespace: str, lease_s: int) -> None:
    """Pools in memory are gone with the server: the store must know until when a caller may hold tokens then.

    Written ahead, so that it is written seldom.
    """
    if context.tokens.type != "memory":
        return
    entry = context.snapshots.token_pools.entries.get(namespace)
    if entry is None:
        return
    until_us = context.now_us() + max(lease_s, entry.per_s or 0) * 1_000_000
    if entry.leased_until_us >= until_us:
        return
    ahead_us = until_us + context.tokens.lease_s_max * 1_000_000

    def apply(batch: Batch) -> None:
        bump_version(batch, "tokens")
        store.pool_change(batch.tx, namespace, {"leased_until_us": ahead_us})

    context.committer.call(apply)


def _entry(context: Context, namespace: str) -> PoolEntry:
    found = context.snapshots.token_pools.entries.get(namespace)
    if found is None:
        context.snapshots.refresh()  # another server may have registered it a moment ago
        found = context.snapshots.token_pools.entries.get(namespace)
    if found is None:
        raise _missing(context, namespace)
    return found


def _lost_or_missing(context: Context, namespace: str) -> YardError:
    """The pools do not know it; the registry may."""
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
