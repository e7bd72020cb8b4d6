"""Write, read, list and delete attributes, and show their history. Every write is audited and may be conditional.

Writing a row of a project needs `admin` on the project. A row of a domain, or of a kind that is for platform
administrators, needs `admin` on the platform. Reading a row of a project needs `view` on it. Everyone may read the rows
of domains, because they apply to everyone.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from switchyard.errors import BadRequest, BadValue, Malformed, NoSuchAttribute, UnknownName
from switchyard.model.rules.access import Role
from switchyard.model.rules.attributes import (
    AttributeRow,
    Domain,
    EffectiveAttribute,
    EffectiveField,
    KindInfo,
    PolicyView,
)
from switchyard.model.rules.scope import LEVEL_RANK, Level, Scope, scope_of
from switchyard.model.wire.api import AuditEntry, Page
from switchyard.policy.draft import Entry
from switchyard.policy.kinds.kind import Kind
from switchyard.policy.resolve import EffectiveRules, Policy
from switchyard.service.core.context import Context, bump_version
from switchyard.service.core.rights import Actor
from switchyard.service.core.unreadable_rows import read_or_default
from switchyard.service.core.writes.audit import audit_entry, record_audit
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.service.core.writes.write_condition import WriteCondition
from switchyard.store.access import access
from switchyard.store.engine.database import Tx
from switchyard.store.rules import attributes

ROWS_MAX = 200_000  # every server caches all rows: about 100 MB
VALUE_BYTES_MAX = 2**20
UNCONDITIONAL = WriteCondition()


def put(
    context: Context,
    actor: Actor,
    kind: str | int,
    scope: Scope,
    raw: object,
    *,
    condition: WriteCondition = UNCONDITIONAL,
    is_merged: bool = False,
) -> AttributeRow:
    """Create or replace the row exactly at a scope. `raw` is plain data or the kind's struct.

    `is_merged` keeps the other fields of an existing row. The Flyte API writes plugin overrides this way.
    """
    definition = kind_of(context, kind)
    require_write(context, actor, definition, scope)
    value = _check_value(context, definition, raw, scope)
    what = _object_name(definition, scope)

    def apply(batch: Batch) -> AttributeRow:
        bump_version(batch, Topic.POLICY)  # first: its row lock serializes the writers of rules on all servers
        _require_active_project(batch.tx, scope)
        before = attributes.attribute_get(batch.tx, definition.name, scope.key)
        condition.check(before, what)
        merged = _merge(context, (definition, scope), before, value) if is_merged and before is not None else value
        if before is None and attributes.attribute_count(batch.tx) >= ROWS_MAX:
            raise BadRequest(f"There are {ROWS_MAX} attribute rows, which is the most.", next_step="Delete some first.")
        row = _write(batch, context, actor, row=(definition, scope), value=msgspec.json.encode(merged).decode())
        old_value = None if before is None else msgspec.json.decode(before.value)
        record_audit(batch, context, actor, "attribute.put", what, before=old_value, after=merged)
        return _row_view(definition, row)

    return context.committer.call(apply)


def check(context: Context, actor: Actor, kind: str | int, scope: Scope, raw: object) -> dict[str, object]:
    """Return the value as `put` would store it, or raise the same errors. Stores nothing."""
    definition = kind_of(context, kind)
    require_write(context, actor, definition, scope)
    with context.database.read() as tx:
        _require_active_project(tx, scope)
    plain: dict[str, object] = msgspec.to_builtins(_check_value(context, definition, raw, scope))
    return plain


def get_exact(context: Context, actor: Actor, kind: str | int, scope: Scope) -> AttributeRow:
    """Return the row exactly at a scope, without inherited values."""
    definition = kind_of(context, kind)
    _may_read(context, actor, scope)
    _require_level(definition, scope)
    with context.database.read() as tx:
        row = attributes.attribute_get(tx, definition.name, scope.key)
    if row is None:
        raise NoSuchAttribute(f"There is no {definition.name} exactly at {scope}.")
    return _row_view(definition, row)


def rows_at(context: Context, actor: Actor, scope: Scope) -> dict[str, AttributeRow]:
    """Return the rows exactly at a scope, by kind."""
    _may_read(context, actor, scope)
    kinds = [kind for kind in context.snapshots.policy.kinds if scope.level in kind.levels]
    with context.database.read() as tx:
        rows = [(kind, attributes.attribute_get(tx, kind.name, scope.key)) for kind in kinds]
    return {kind.name: _row_view(kind, row) for kind, row in rows if row is not None}


def get_nearest(context: Context, actor: Actor, kind: str | int, scope: Scope) -> AttributeRow | None:
    """Return the most specific row that applies at a scope, with the row's own scope. Flyte calls this Get."""
    definition = kind_of(context, kind)
    _may_read(context, actor, scope)
    with context.database.read() as tx:
        row = attributes.attribute_nearest(tx, definition.name, scope.key)
    return None if row is None else _row_view(definition, row)


def get_effective(context: Context, actor: Actor, kind: str | int, scope: Scope) -> EffectiveAttribute:
    """Return the merged value at a scope. Each field names the level it comes from."""
    definition = kind_of(context, kind)
    _may_read(context, actor, scope)
    return _effective_view(definition, context.snapshots.policy.effective(scope.key))


def policy_view(context: Context, actor: Actor, scope: Scope) -> PolicyView:
    """Return the effective values of all kinds at a scope."""
    _may_read(context, actor, scope)
    policy: Policy = context.snapshots.policy
    effective = policy.effective(scope.key)
    views = [_effective_view(kind, effective) for kind in policy.kinds if effective.fields(kind)]
    return PolicyView(policy.version, scope, views)


def list_rows(
    context: Context,
    actor: Actor,
    kind: str | int,
    *,
    level: Level | None = None,
    domain: str | None = None,
    project: str | None = None,
    workflow: str | None = None,
    launch_plan: str | None = None,
    after: str = "",
    limit: int = 100,
) -> Page[AttributeRow]:
    """Return the visible rows of a kind, most specific first. A row must match every filter that is given."""
    definition = kind_of(context, kind)
    filters = {"domain": domain, "project": project, "workflow": workflow, "launch_plan": launch_plan}
    wanted = {name: text for name, text in filters.items() if text is not None}
    rank, last = _read_cursor(after)
    with context.database.read() as tx:
        rows = attributes.attribute_list(
            tx,
            definition.name,
            wanted=wanted,
            rank=None if level is None else LEVEL_RANK[level],
            projects=actor.viewable_projects(),
            after=(rank, last),
            limit=limit,
        )
    more = f"{rows[-1].rank}:{rows[-1].id}" if len(rows) == limit else None
    return Page([_row_view(definition, row) for row in rows], more)


def delete_exact(
    context: Context, actor: Actor, kind: str | int, scope: Scope, *, condition: WriteCondition = UNCONDITIONAL
) -> bool:
    """Delete the row exactly at a scope. Return false if there is none."""
    definition = kind_of(context, kind)
    require_write(context, actor, definition, scope)
    what = _object_name(definition, scope)

    def apply(batch: Batch) -> bool:
        if attributes.attribute_get(batch.tx, definition.name, scope.key) is None:
            return False  # before the version changes: no server needs to reload
        bump_version(batch, Topic.POLICY)
        before = attributes.attribute_get(batch.tx, definition.name, scope.key)  # again, under the lock
        if before is None:
            return False
        condition.check(before, what)
        _write(batch, context, actor, row=(definition, scope), value=None)
        record_audit(batch, context, actor.name, "attribute.delete", what, before=msgspec.json.decode(before.value))
        return True

    return context.committer.call(apply)


def history(
    context: Context, actor: Actor, kind: str | int, scope: Scope, *, before: str | None = None, limit: int = 100
) -> Page[AuditEntry]:
    """Return the changes of the row at a scope, newest first. The history of a deleted row remains."""
    definition = kind_of(context, kind)
    _may_read(context, actor, scope)
    with context.database.read() as tx:
        rows = access.audit_list_of(tx, _object_name(definition, scope), before=before, limit=limit)
    items = [audit_entry(row) for row in rows]
    return Page(items, items[-1].id if len(items) == limit else None)


def kind_list(context: Context) -> list[KindInfo]:
    """Return the kinds that this server knows, each with the JSON schema of its value."""
    return [_kind_info(kind) for kind in context.snapshots.policy.kinds]


def domain_list(context: Context) -> list[Domain]:
    return [Domain(name, title) for name, title in context.snapshots.policy.platform.domains.items()]


def kind_of(context: Context, kind: str | int) -> Kind:
    return context.snapshots.policy.kinds.get(kind)


def _kind_info(kind: Kind) -> KindInfo:
    schema = msgspec.json.schema(kind.value)
    return KindInfo(kind.name, kind.number, kind.title, list(kind.levels), kind.merge.value, schema, dict(kind.sample))


def _object_name(kind: Kind, scope: Scope) -> str:
    """Return the name of the row in the audit log."""
    return f"{kind.name} at {scope}"


def _row_view(kind: Kind, row: attributes.StoredAttribute) -> AttributeRow:
    scope = scope_of((row.domain, row.project, row.workflow, row.launch_plan))
    return AttributeRow(
        id=row.id,
        kind=kind.name,
        number=kind.number,
        level=scope.level,
        scope=scope,
        value=read_or_default("attributes", row.id, lambda: msgspec.json.decode(row.value or ""), {}),
        etag=row.etag,
        changed_us=row.changed_us,
        changed_by=row.changed_by,
    )


def _effective_view(kind: Kind, effective: EffectiveRules) -> EffectiveAttribute:
    fields = [
        _field_view(path, entry) for path, entry in sorted(effective.fields(kind).items()) if entry.value is not None
    ]
    value = effective.value(kind)
    plain = {} if value is None else msgspec.to_builtins(value)
    return EffectiveAttribute(kind.name, kind.number, scope_of(effective.key), plain, fields)


def _field_view(path: str, entry: Entry) -> EffectiveField:
    source = entry.source
    scope = scope_of(source.key)
    return EffectiveField(path, entry.value, source.level, scope if any(source.key) else None, source.row or None)


def _check_value(context: Context, kind: Kind, raw: object, scope: Scope) -> Struct:
    """Return the value in the form to store. Raise an error with all mistakes if it is invalid."""
    plain = msgspec.to_builtins(raw) if isinstance(raw, Struct) else raw
    value = kind.read(plain)
    mistakes = kind.check(value, context.snapshots.policy.platform)
    if restricted := kind.restrict(value, scope.level)[1]:
        mistakes = [*mistakes, restricted]
    if mistakes:
        raise Malformed(f"{kind.title}: " + "; ".join(mistakes) + ".")
    if len(msgspec.json.encode(value)) > VALUE_BYTES_MAX:
        raise BadRequest(f"{kind.title}: the value is over {VALUE_BYTES_MAX} bytes.")
    return value


def _merge(context: Context, row: tuple[Kind, Scope], before: attributes.AttributeWithValue, value: Struct) -> Struct:
    kind, scope = row
    old_fields = kind.flatten(kind.read(msgspec.json.decode(before.value)))
    return _check_value(context, kind, kind.assemble(old_fields | kind.flatten(value)), scope)


def _write(
    batch: Batch, context: Context, actor: Actor, *, row: tuple[Kind, Scope], value: str | None
) -> attributes.StoredAttribute:
    kind, scope = row
    return attributes.attribute_put(
        batch.tx,
        kind.name,
        scope.key,
        attributes.WrittenValue(
            id=context.new_id(),
            rank=LEVEL_RANK[scope.level],
            value=value,
            etag=context.new_id(),
            changed_us=batch.now_us,
            changed_by=actor.name,
        ),
    )


def require_write(context: Context, actor: Actor, kind: Kind, scope: Scope) -> None:
    """Raise an error unless the actor may write rows of this kind at this scope."""
    _require_level(kind, scope)
    if scope.project is None or kind.is_for_platform_admins:
        actor.need_platform(Role.ADMIN)
    else:
        actor.need_project(Role.ADMIN, scope.project)
    _known_domain(context, scope)


def _may_read(context: Context, actor: Actor, scope: Scope) -> None:
    if scope.project is not None:
        _known_project(context, actor, scope.project)
        actor.need_project(Role.VIEW, scope.project)
    _known_domain(context, scope)


def _require_level(kind: Kind, scope: Scope) -> None:
    level = scope.level
    if level in kind.levels:
        return
    allowed = ", ".join(level.value for level in kind.levels)
    if level is Level.PLATFORM:
        raise BadValue(
            f"{kind.title}: give a domain, a project, or both.", next_step=f"It can be set at these levels: {allowed}."
        )
    raise BadRequest(
        f"{kind.title} cannot be set at the level {level.value}.",
        next_step=f"It can be set at these levels: {allowed}.",
    )


def _known_domain(context: Context, scope: Scope) -> None:
    domains = context.snapshots.policy.platform.domains
    if scope.domain is not None and scope.domain not in domains:
        known = ", ".join(domains)
        raise UnknownName(f"There is no domain {scope.domain!r}.", next_step=f"Known domains: {known}.")


def _known_project(context: Context, actor: Actor, project: str) -> None:
    if project not in context.snapshots.access.projects and actor.is_platform_admin:
        raise UnknownName(f"There is no project {project!r}.", next_step="`yard project ls` lists the projects.")


def _require_active_project(tx: Tx, scope: Scope) -> None:
    """Refuse an archived project. Runs in the write's transaction, because a project may be archived at any time."""
    if scope.project is None:
        return
    row = access.project_get(tx, scope.project)
    if row is None:
        raise UnknownName(f"There is no project {scope.project!r}.", next_step="`yard project ls` lists the projects.")
    if row.archived_us is not None:
        raise BadRequest(
            f"The project {scope.project} is archived.", next_step=f"`yard project update {scope.project} --activate`."
        )


def _read_cursor(text: str) -> tuple[int, str]:
    if not text:
        return max(LEVEL_RANK.values()) + 1, ""
    rank, _, last = text.partition(":")
    if not (rank.isascii() and rank.isdigit() and len(rank) < 3):
        raise Malformed("The parameter 'cursor' is not one that this list returned.")
    return int(rank), last
