"""Pools, cluster labels and defaults: read from the server's config file, and overridden at run time.

Everyone may read them, but sees only visible clusters as members. Writing needs `admin` on the platform. Writes may be
conditional on an etag, are audited, and apply in every server within a second.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

import msgspec
import structlog

from switchyard.errors import BadRequest, BadValue, Conflict, Malformed, NotFound, UnknownName
from switchyard.model.job.spill import pools_in_rules
from switchyard.model.rules.access import Role
from switchyard.model.rules.layout import (
    CLUSTER_SETS_MAX,
    NO_LAYOUT,
    STICKY_VALUE,
    ClusterSet,
    Layout,
    LayoutPart,
    LayoutValue,
    LayoutView,
    NamedDefault,
    SetMember,
    SetRequest,
    has_right_form,
    set_mistakes,
)
from switchyard.model.rules.names import NAME_HINT, is_name
from switchyard.model.rules.queue import Queues, known_tags
from switchyard.policy.kinds.cluster_assignment import ClusterAssignmentKind, ClusterAssignmentValue
from switchyard.policy.kinds.execution_cluster_label import ExecutionClusterLabelKind, ExecutionClusterLabelValue
from switchyard.policy.kinds.execution_queue import ExecutionQueueKind, ExecutionQueueValue
from switchyard.service.cluster.clusters import register_configured_cluster
from switchyard.service.core.context import Context, bump_version
from switchyard.service.core.rights import Actor
from switchyard.service.core.snapshots.layout_snapshot import FILE_PART, LayoutSnapshot, load_layout_snapshot
from switchyard.service.core.unreadable_rows import read_or_default
from switchyard.service.core.writes.audit import record_audit
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.service.core.writes.write_condition import WriteCondition
from switchyard.store.clusters import clusters
from switchyard.store.clusters import layout as layout_store
from switchyard.store.engine.database import Tx
from switchyard.store.rules import attributes

log = structlog.get_logger()
PartKey = tuple[LayoutPart, str]
LayoutCheck = Callable[[Tx, Layout], None]  # called in the write's transaction with the layout read there
PART_TITLES = {
    LayoutPart.POOL: "pool",
    LayoutPart.LABEL: "cluster label",
    LayoutPart.DEFAULT_LABEL: "default label",
    LayoutPart.DOMAIN_POOL: "pool of the domain",
    LayoutPart.STICKY: "stickiness of the pool",
    LayoutPart.QUEUE: "queue",
    LayoutPart.DOMAIN_TAGS: "queue tags of the domain",
}
_SORTED = msgspec.json.Encoder(order="sorted")


def layout_view(context: Context, actor: Actor) -> LayoutView:
    snapshot = context.snapshots.laid
    default = snapshot.layout.default_label
    return LayoutView(
        snapshot.version,
        set_list(context, actor, LayoutPart.POOL),
        set_list(context, actor, LayoutPart.LABEL),
        None if default is None else _named_view(snapshot, LayoutPart.DEFAULT_LABEL, "", default),
        [_named_view(snapshot, LayoutPart.DOMAIN_POOL, *item) for item in sorted(snapshot.layout.domain_pools.items())],
        {name: is_on for name, is_on in snapshot.base.clusters.items() if name in visible_clusters(context, actor)},
    )


def set_list(context: Context, actor: Actor, part: LayoutPart) -> list[ClusterSet]:
    snapshot = context.snapshots.laid
    visible = visible_clusters(context, actor)
    sets = snapshot.layout.pools if part is LayoutPart.POOL else snapshot.layout.labels
    return [_set_view(snapshot, part, name, sets[name], visible) for name in sorted(sets)]


def set_get(context: Context, actor: Actor, part: LayoutPart, name: str) -> ClusterSet:
    snapshot = context.snapshots.laid
    members = snapshot.layout.get(part, name)
    if not isinstance(members, dict):
        raise _missing(snapshot.layout, part, name)
    return _set_view(snapshot, part, name, members, visible_clusters(context, actor))


def set_put(
    context: Context, actor: Actor, part: LayoutPart, name: str, request: SetRequest, *, condition: WriteCondition
) -> ClusterSet:
    """Replace the members of a pool or a label. One error lists all mistakes."""
    if part is LayoutPart.LABEL and request.sticky is not None:
        raise BadValue(f"The {PART_TITLES[part]} {name}: only a pool is sticky or not.")

    def check(tx: Tx, _: Layout) -> None:
        known = clusters.cluster_names(tx) | set(context.snapshots.laid.base.clusters)
        if mistakes := set_mistakes(request.members, known):
            kind = BadValue if has_right_form(request.members) else Malformed
            raise kind(f"The {PART_TITLES[part]} {name}: " + "; ".join(mistakes) + ".")

    put_part(
        context,
        actor,
        (part, name),
        {member.id: member.weight for member in request.members},
        condition=condition,
        check=check,
        sticky=request.sticky,
    )
    return set_get(context, actor, part, name)


def default_label_put(context: Context, actor: Actor, label: str, *, condition: WriteCondition) -> NamedDefault:
    def check(_: Tx, layout: Layout) -> None:
        if label not in layout.labels:
            raise _unknown(layout, LayoutPart.LABEL, label)

    put_part(context, actor, (LayoutPart.DEFAULT_LABEL, ""), label, condition=condition, check=check)
    return _named_view(context.snapshots.laid, LayoutPart.DEFAULT_LABEL, "", label)


def domain_pool_put(
    context: Context, actor: Actor, domain: str, pool: str, *, condition: WriteCondition
) -> NamedDefault:
    def check(_: Tx, layout: Layout) -> None:
        domains = context.snapshots.policy.platform.domains
        if domain not in domains:
            known = ", ".join(domains)
            raise UnknownName(f"There is no domain {domain!r}.", next_step=f"Known domains: {known}.")
        if pool not in layout.pools:
            raise _unknown(layout, LayoutPart.POOL, pool)

    put_part(context, actor, (LayoutPart.DOMAIN_POOL, domain), pool, condition=condition, check=check)
    return _named_view(context.snapshots.laid, LayoutPart.DOMAIN_POOL, domain, pool)


def remove_part(
    context: Context, actor: Actor, part: LayoutPart, name: str, *, condition: WriteCondition, is_reset: bool = False
) -> None:
    """Remove a part of the layout, even if the file defines it. `is_reset` removes only the override at run time."""
    actor.need_platform(Role.ADMIN)

    def apply(batch: Batch) -> None:
        bump_version(batch, Topic.LAYOUT)
        snapshot = _load_in_transaction(batch.tx, context)
        before, override = snapshot.layout.get(part, name), snapshot.rows.get((part, name))
        if is_reset and override is None:
            raise NotFound(f"Nothing was set at run time for {_part_title(part, name)}.")
        if before is None and not is_reset:
            raise _missing(snapshot.layout, part, name)
        tag = etag_of(snapshot, part, name) if override is None else (override.etag, override.changed_by)
        condition.check_tag(*tag, _part_title(part, name))
        after = snapshot.base.get(part, name) if is_reset else None
        if after is None:
            _refuse_in_use(batch.tx, snapshot.layout, part, name)
        if part is LayoutPart.POOL:
            layout_store.layout_delete(batch.tx, LayoutPart.STICKY.value, name)
        if after is None and snapshot.base.get(part, name) is not None:
            _write_part(batch, context, actor, (part, name), None)
        else:
            layout_store.layout_delete(batch.tx, part.value, name)
        record_audit(
            batch,
            context,
            actor,
            f"{part.value}.delete",
            name,
            before=_audit_value(before),
            after=_audit_value(after),
        )

    context.committer.call(apply)


def store_file_layout(context: Context, file_layout: Layout) -> list[str]:
    """Store the layout of this server's config file as the base for all servers. The server that started last wins.

    Register the clusters that the file names. Return the names of pool and label members that are not registered.
    """
    text = _SORTED.encode(file_layout).decode()

    def apply(batch: Batch) -> list[str]:
        known = clusters.cluster_names(batch.tx)
        row = layout_store.layout_get(batch.tx, FILE_PART, "")
        is_new = row.value != text if row is not None else file_layout != NO_LAYOUT
        if is_new or not file_layout.clusters.keys() <= known:
            # First: its row lock serializes servers that start at the same time.
            bump_version(batch, Topic.LAYOUT)
            row = layout_store.layout_get(batch.tx, FILE_PART, "")
            _register_file_clusters(batch, context, file_layout, NO_LAYOUT if row is None else _decode_base(row))
            if row is not None and row.value != text:
                log.warning("the clusters section of the config file changed; the new one applies from now on")
            if row is None or row.value != text:
                base = layout_store.LayoutRow(FILE_PART, "", text, context.new_id(), batch.now_us, "config file")
                layout_store.layout_put(batch.tx, base)
                before = None if row is None else _decode_base(row)
                record_audit(batch, context, "config file", "layout.file", "clusters", before=before, after=file_layout)
        known = clusters.cluster_names(batch.tx)
        member_lists = (*file_layout.pools.values(), *file_layout.labels.values())
        named = {name for members in member_lists for name in members}
        return sorted(named - known)

    return context.committer.call(apply)


def _register_file_clusters(batch: Batch, context: Context, file_layout: Layout, before: Layout) -> None:
    for name, is_enabled in file_layout.clusters.items():
        register_configured_cluster(batch, context, name, is_enabled=is_enabled, was_enabled=before.clusters.get(name))


def _decode_base(row: layout_store.LayoutRow) -> Layout:
    return read_or_default("layout", row.part, lambda: msgspec.json.decode(row.value or "", type=Layout), NO_LAYOUT)


def put_part(
    context: Context,
    actor: Actor,
    at: PartKey,
    value: LayoutValue,
    *,
    condition: WriteCondition,
    check: LayoutCheck,
    sticky: bool | None = None,
) -> None:
    """Set one part of the layout at run time, over the value of the config file."""
    part, name = at
    actor.need_platform(Role.ADMIN)
    if name and not is_name(name):
        raise Malformed(f"{name[:40]!r} is not a valid name: {NAME_HINT}.")

    def apply(batch: Batch) -> None:
        bump_version(batch, Topic.LAYOUT)  # first: its row lock serializes the writers on all servers
        snapshot = _load_in_transaction(batch.tx, context)
        condition.check_tag(*etag_of(snapshot, part, name), _part_title(part, name))
        check(batch.tx, snapshot.layout)
        if at not in snapshot.rows and layout_store.layout_count(batch.tx) >= CLUSTER_SETS_MAX:
            raise BadRequest(
                f"{CLUSTER_SETS_MAX} pools, labels and queues are set, which is the most.",
                next_step="Remove some first.",
            )
        _write_part(batch, context, actor, at, value)
        if sticky is not None:
            _write_part(batch, context, actor, (LayoutPart.STICKY, name), STICKY_VALUE if sticky else None)
        before = snapshot.layout.get(part, name)
        record_audit(
            batch,
            context,
            actor,
            f"{part.value}.put",
            name,
            before=_audit_value(before),
            after=_audit_value(value),
        )

    context.committer.call(apply)


def _write_part(batch: Batch, context: Context, actor: Actor, at: PartKey, value: LayoutValue | None) -> None:
    part, name = at
    text = None if value is None else _SORTED.encode(value).decode()
    row = layout_store.LayoutRow(part.value, name, text, context.new_id(), batch.now_us, actor.name)
    layout_store.layout_put(batch.tx, row)


def _audit_value(value: LayoutValue | None) -> object:
    """Return the value for the audit log, which stores only JSON objects."""
    if isinstance(value, list):
        return {"tags": value}
    return {"name": value} if isinstance(value, str) else value


def _refuse_in_use(tx: Tx, layout: Layout, part: LayoutPart, name: str) -> None:
    """Refuse to remove a part that is in use: submits that depend on it would be rejected."""
    users: list[str] = []
    if part is LayoutPart.QUEUE:
        refuse_lost_tags(tx, layout, {other: queue for other, queue in layout.queues.items() if other != name})
        return
    if part is LayoutPart.POOL:
        users = [f"the domain {domain}" for domain, pool in sorted(layout.domain_pools.items()) if pool == name]
        kind = ClusterAssignmentKind.name
        rules = [
            msgspec.json.decode(value, type=ClusterAssignmentValue) for value in attributes.attribute_values(tx, kind)
        ]
        rows = sum(name in (rule.cluster_pool_name, *pools_in_rules(rule.spill or ())) for rule in rules)
    elif part is LayoutPart.LABEL:
        users = ["the default label"] if layout.default_label == name else []
        kind, value = ExecutionClusterLabelKind.name, msgspec.json.encode(ExecutionClusterLabelValue(name)).decode()
        rows = attributes.attribute_values(tx, kind).count(value)
    else:
        return
    if rows:
        users.append(f"{rows} attribute{'' if rows == 1 else 's'} of kind {kind}")
    if users:
        raise Conflict(
            f"The {_part_title(part, name)} is named by {', '.join(users)}.",
            next_step="Change them to name another one first; or keep it and remove its members.",
        )


def refuse_lost_tags(tx: Tx, layout: Layout, queues: Queues) -> None:
    """Refuse new `queues` if no queue has a tag any more that a domain or an attribute uses."""
    lost = known_tags(layout.queues) - known_tags(queues)
    users = [f"the domain {domain}" for domain, tags in sorted(layout.domain_tags.items()) if lost & set(tags)]
    kind = ExecutionQueueKind.name
    rules = [msgspec.json.decode(value, type=ExecutionQueueValue) for value in attributes.attribute_values(tx, kind)]
    if rows := sum(not lost.isdisjoint(rule.tags) for rule in rules):
        users.append(f"{rows} attribute{'' if rows == 1 else 's'} of kind {kind}")
    if users:
        raise Conflict(
            f"No queue would have the tags {', '.join(sorted(lost))} any more, which {', '.join(users)} give to jobs.",
            next_step="Change them to name other tags first, or give the tags to another queue.",
        )


def _load_in_transaction(tx: Tx, context: Context) -> LayoutSnapshot:
    """Read the layout in the write's transaction, because another server may just have changed it."""
    return load_layout_snapshot(tx, 0, before=context.snapshots.laid)


def etag_of(snapshot: LayoutSnapshot, part: LayoutPart, name: str) -> tuple[str | None, str]:
    """Return the etag of the current value and its author. The etag is none if there is no value."""
    value, override = snapshot.layout.get(part, name), snapshot.rows.get((part, name))
    if value is None:
        return None, ""
    if override is not None:
        return override.etag, override.changed_by
    return "file-" + sha256(_SORTED.encode(value)).hexdigest()[:16], "the server's file"


def _set_view(
    snapshot: LayoutSnapshot, part: LayoutPart, name: str, members: dict[str, float], visible: frozenset[str]
) -> ClusterSet:
    visible_members = [SetMember(cluster, weight) for cluster, weight in members.items() if cluster in visible]
    override = snapshot.rows.get((part, name))
    etag, _ = etag_of(snapshot, part, name)
    assert etag is not None
    is_sticky = part is LayoutPart.POOL and name in snapshot.layout.sticky
    if override is None:
        return ClusterSet(name, visible_members, "file", etag, sticky=is_sticky)
    return ClusterSet(name, visible_members, "set", etag, override.changed_us, override.changed_by, sticky=is_sticky)


def _named_view(snapshot: LayoutSnapshot, part: LayoutPart, domain: str, name: str) -> NamedDefault:
    override = snapshot.rows.get((part, domain))
    etag, _ = etag_of(snapshot, part, domain)
    if override is None:
        return NamedDefault(name, "file", etag or "", domain)
    return NamedDefault(name, "set", override.etag, domain, override.changed_us, override.changed_by)


def visible_clusters(context: Context, actor: Actor) -> frozenset[str]:
    """Return the cluster names that the actor may see. Administrators also see names of unregistered clusters."""
    layout = context.snapshots.laid.layout
    members = context.snapshots.world.members
    visible = frozenset(member.name for member in members if actor.may_cluster(Role.VIEW, member))
    if not actor.is_platform_admin:
        return visible
    named = (name for cluster_set in (*layout.pools.values(), *layout.labels.values()) for name in cluster_set)
    return visible | frozenset(named) | frozenset(layout.clusters)


def _part_title(part: LayoutPart, name: str) -> str:
    return f"{PART_TITLES[part]} {name}".strip()


def _missing(layout: Layout, part: LayoutPart, name: str) -> NotFound:
    return NotFound(f"There is no {_part_title(part, name[:128])}.", next_step=_known_names_hint(layout, part))


def _unknown(layout: Layout, part: LayoutPart, name: str) -> UnknownName:
    return UnknownName(f"There is no {PART_TITLES[part]} {name!r}.", next_step=_known_names_hint(layout, part))


def _known_names_hint(layout: Layout, part: LayoutPart) -> str:
    if part in (LayoutPart.QUEUE, LayoutPart.DOMAIN_TAGS):
        return "`yard queue ls` lists what there is."
    if part not in (LayoutPart.POOL, LayoutPart.LABEL):
        return "`yard pool ls` and `yard cluster-label ls` list what there is."
    names = layout.pools if part is LayoutPart.POOL else layout.labels
    return f"Known {PART_TITLES[part]}s: {', '.join(sorted(names)[:50]) or 'none'}."
