"""Pools, labels and what stands where a request says nothing: from the server's file, and changed at run time.

Everyone may read them, of their members those one may see; changing them is the platform administrator's. Writes say
what they have seen, are audited, and hold in every server within a second.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

import msgspec
import structlog

from switchyard.errors import BadRequest, BadValue, Conflict, Malformed, NotFound, UnknownName
from switchyard.model.access import Role
from switchyard.model.layout import (
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
from switchyard.model.names import NAME_HINT, is_name
from switchyard.model.queue import Queues, known_tags
from switchyard.model.spill import pools_in_rules
from switchyard.policy.kinds.cluster_assignment import ClusterAssignmentKind, ClusterAssignmentValue
from switchyard.policy.kinds.execution_cluster_label import ExecutionClusterLabelKind, ExecutionClusterLabelValue
from switchyard.policy.kinds.execution_queue import ExecutionQueueKind, ExecutionQueueValue
from switchyard.service.cluster.clusters import register_configured_cluster
from switchyard.service.committer import Batch
from switchyard.service.context import Context, bump_version, record_audit
from switchyard.service.layout_snapshot import FILE_PART, LayoutSnapshot, load_layout_snapshot
from switchyard.service.rights import Actor
from switchyard.service.rules.attributes import WriteCondition
from switchyard.service.unreadable_rows import read_or_default
from switchyard.store import attributes, clusters
from switchyard.store import layout as layout_store
from switchyard.store.database import Tx

log = structlog.get_logger()
PartKey = tuple[LayoutPart, str]
LayoutCheck = Callable[[Tx, Layout], None]  # in the write's own transaction, on the layout as it is there
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
    laid = context.snapshots.laid
    default = laid.layout.default_label
    return LayoutView(
        laid.version,
        set_list(context, actor, LayoutPart.POOL),
        set_list(context, actor, LayoutPart.LABEL),
        None if default is None else _named_view(laid, LayoutPart.DEFAULT_LABEL, "", default),
        [_named_view(laid, LayoutPart.DOMAIN_POOL, *each) for each in sorted(laid.layout.domain_pools.items())],
        {name: is_on for name, is_on in laid.base.clusters.items() if name in visible_clusters(context, actor)},
    )


def set_list(context: Context, actor: Actor, part: LayoutPart) -> list[ClusterSet]:
    laid = context.snapshots.laid
    visible = visible_clusters(context, actor)
    sets = laid.layout.pools if part is LayoutPart.POOL else laid.layout.labels
    return [_set_view(laid, part, name, sets[name], visible) for name in sorted(sets)]


def set_get(context: Context, actor: Actor, part: LayoutPart, name: str) -> ClusterSet:
    laid = context.snapshots.laid
    found = laid.layout.get(part, name)
    if not isinstance(found, dict):
        raise _missing(laid.layout, part, name)
    return _set_view(laid, part, name, found, visible_clusters(context, actor))


def set_put(
    context: Context, actor: Actor, part: LayoutPart, name: str, request: SetRequest, *, condition: WriteCondition
) -> ClusterSet:
    """Give a pool or a label these members, and no others; every mistake is said at once."""

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
        {each.id: each.weight for each in request.members},
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
    """Take it away, also where the file has it. `is_reset`: only what was set at run time; the file holds again."""
    actor.need_platform(Role.ADMIN)

    def apply(batch: Batch) -> None:
        bump_version(batch, "layout")
        laid = _load_in_transaction(batch.tx, context)
        before, standing = laid.layout.get(part, name), laid.rows.get((part, name))
        if is_reset and standing is None:
            raise NotFound(f"Nothing was set at run time for {_part_title(part, name)}.")
        if before is None and not is_reset:
            raise _missing(laid.layout, part, name)
        tag = etag_of(laid, part, name) if standing is None else (standing.etag, standing.changed_by)
        condition.check_tag(*tag, _part_title(part, name))
        after = laid.base.get(part, name) if is_reset else None
        if after is None:
            _refuse_in_use(batch.tx, laid.layout, part, name)
        if part is LayoutPart.POOL:
            layout_store.layout_delete(batch.tx, LayoutPart.STICKY.value, name)
        if after is None and laid.base.get(part, name) is not None:
            _write_part(batch, context, actor, (part, name), None)
        else:
            layout_store.layout_delete(batch.tx, part.value, name)
        record_audit(
            batch,
            context,
            actor.name,
            f"{part.value}.delete",
            name,
            before=_audit_value(before),
            after=_audit_value(after),
        )

    context.committer.call(apply)


def store_file_layout(context: Context, own: Layout) -> list[str]:
    """What this server's file says of clusters becomes the base for all servers: the last one that started says it.

    The clusters it names are registered where they are not yet. Gives the members that nobody knows.
    """
    text = _SORTED.encode(own).decode()

    def apply(batch: Batch) -> list[str]:
        known = clusters.cluster_names(batch.tx)
        row = layout_store.layout_get(batch.tx, FILE_PART, "")
        is_new = row.value != text if row is not None else own != NO_LAYOUT
        if is_new or not own.clusters.keys() <= known:
            bump_version(
                batch, "layout"
            )  # first: its lock makes servers that start at once do this one after the other
            row = layout_store.layout_get(batch.tx, FILE_PART, "")
            _register_file_clusters(batch, context, own, NO_LAYOUT if row is None else _decode_base(row))
            if row is not None and row.value != text:
                log.warning("the clusters section of the file differs from the one that held; it holds from here on")
            if row is None or row.value != text:
                columns = {
                    "value": text,
                    "etag": context.new_id(),
                    "changed_us": batch.now_us,
                    "changed_by": "config file",
                }
                layout_store.layout_put(batch.tx, FILE_PART, "", columns)
                before = None if row is None else _decode_base(row)
                record_audit(batch, context, "config file", "layout.file", "clusters", before=before, after=own)
        known = clusters.cluster_names(batch.tx)
        named = {name for sets in (own.pools, own.labels) for members in sets.values() for name in members}
        return sorted(named - known)

    return context.committer.call(apply)


def _register_file_clusters(batch: Batch, context: Context, own: Layout, before: Layout) -> None:
    for name, is_enabled in own.clusters.items():
        register_configured_cluster(batch, context, name, is_enabled=is_enabled, was_enabled=before.clusters.get(name))


def _decode_base(row: layout_store.Row) -> Layout:
    return read_or_default("layout", row.part, lambda: msgspec.json.decode(row.value, type=Layout), NO_LAYOUT)


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
    part, name = at
    actor.need_platform(Role.ADMIN)
    if name and not is_name(name):
        raise Malformed(f"{name[:40]!r} is not a valid name: {NAME_HINT}.")

    def apply(batch: Batch) -> None:
        bump_version(batch, "layout")  # first: its lock makes all writers, on all servers, one after the other
        laid = _load_in_transaction(batch.tx, context)
        condition.check_tag(*etag_of(laid, part, name), _part_title(part, name))
        check(batch.tx, laid.layout)
        if at not in laid.rows and layout_store.layout_count(batch.tx) >= CLUSTER_SETS_MAX:
            raise BadRequest(
                f"{CLUSTER_SETS_MAX} pools, labels and queues are set, which is the most.",
                next_step="Remove some first.",
            )
        _write_part(batch, context, actor, at, value)
        if sticky is not None:
            _write_part(batch, context, actor, (LayoutPart.STICKY, name), STICKY_VALUE if sticky else None)
        before = laid.layout.get(part, name)
        record_audit(
            batch,
            context,
            actor.name,
            f"{part.value}.put",
            name,
            before=_audit_value(before),
            after=_audit_value(value),
        )

    context.committer.call(apply)


def _write_part(batch: Batch, context: Context, actor: Actor, at: PartKey, value: LayoutValue | None) -> None:
    part, name = at
    columns = {
        "value": None if value is None else _SORTED.encode(value).decode(),
        "etag": context.new_id(),
        "changed_us": batch.now_us,
        "changed_by": actor.name,
    }
    layout_store.layout_put(batch.tx, part.value, name, columns)


def _audit_value(value: LayoutValue | None) -> object:
    """What the audit keeps, which is always an object."""
    if isinstance(value, list):
        return {"tags": value}
    return {"name": value} if isinstance(value, str) else value


def _refuse_in_use(tx: Tx, layout: Layout, part: LayoutPart, name: str) -> None:
    """What others name must not vanish under them: every submit there would be refused."""
    users: list[str] = []
    if part is LayoutPart.QUEUE:
        refuse_lost_tags(tx, layout, {each: queue for each, queue in layout.queues.items() if each != name})
        return
    if part is LayoutPart.POOL:
        users = [f"the domain {domain}" for domain, pool in sorted(layout.domain_pools.items()) if pool == name]
        kind = ClusterAssignmentKind.name
        rules = [
            msgspec.json.decode(each, type=ClusterAssignmentValue) for each in attributes.attribute_values(tx, kind)
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
            next_step="Let them name another first; or leave it and take its members away.",
        )


def refuse_lost_tags(tx: Tx, layout: Layout, queues: Queues) -> None:
    """A tag that is stored somewhere stays known to some queue. `queues`: as they would be."""
    lost = known_tags(layout.queues) - known_tags(queues)
    users = [f"the domain {domain}" for domain, tags in sorted(layout.domain_tags.items()) if lost & set(tags)]
    kind = ExecutionQueueKind.name
    rules = [msgspec.json.decode(each, type=ExecutionQueueValue) for each in attributes.attribute_values(tx, kind)]
    if rows := sum(not lost.isdisjoint(rule.tags) for rule in rules):
        users.append(f"{rows} attribute{'' if rows == 1 else 's'} of kind {kind}")
    if users:
        raise Conflict(
            f"No queue would have the tags {', '.join(sorted(lost))} any more, which {', '.join(users)} give to jobs.",
            next_step="Let them name others first, or give the tags to another queue.",
        )


def _load_in_transaction(tx: Tx, context: Context) -> LayoutSnapshot:
    """As the store has it, within the writer's own transaction: another server may have changed it a moment ago."""
    return load_layout_snapshot(tx, 0, before=context.snapshots.laid)


def etag_of(laid: LayoutSnapshot, part: LayoutPart, name: str) -> tuple[str | None, str]:
    """What identifies the value that holds, and who gave it; none where there is none."""
    value, standing = laid.layout.get(part, name), laid.rows.get((part, name))
    if value is None:
        return None, ""
    if standing is not None:
        return standing.etag, standing.changed_by
    return "file-" + sha256(_SORTED.encode(value)).hexdigest()[:16], "the server's file"


def _set_view(
    laid: LayoutSnapshot, part: LayoutPart, name: str, members: dict[str, float], visible: frozenset[str]
) -> ClusterSet:
    shown = [SetMember(each, weight) for each, weight in members.items() if each in visible]
    standing = laid.rows.get((part, name))
    etag, _ = etag_of(laid, part, name)
    assert etag is not None
    is_sticky = part is LayoutPart.POOL and name in laid.layout.sticky
    if standing is None:
        return ClusterSet(name, shown, "file", etag, sticky=is_sticky)
    return ClusterSet(name, shown, "set", etag, standing.changed_us, standing.changed_by, sticky=is_sticky)


def _named_view(laid: LayoutSnapshot, part: LayoutPart, domain: str, name: str) -> NamedDefault:
    standing = laid.rows.get((part, domain))
    etag, _ = etag_of(laid, part, domain)
    if standing is None:
        return NamedDefault(name, "file", etag or "", domain)
    return NamedDefault(name, "set", standing.etag, domain, standing.changed_us, standing.changed_by)


def visible_clusters(context: Context, actor: Actor) -> frozenset[str]:
    """The clusters one may see, and for an administrator also those that are named and not there."""
    layout = context.snapshots.laid.layout
    seen = frozenset(each.name for each in context.snapshots.world.members if actor.may_cluster(Role.VIEW, each))
    if not actor.is_platform_admin:
        return seen
    named = (name for sets in (layout.pools, layout.labels) for members in sets.values() for name in members)
    return seen | frozenset(named) | frozenset(layout.clusters)


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
