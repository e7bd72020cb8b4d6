"""Attributes: write, read exactly here, read what holds, list, delete, history. Audited; no writer overwrites unseen.

Rows that name a project need `admin` on it, rows of a domain `admin` on the platform. Reading needs `view` on the
project; what a domain sets holds for everyone, so everyone may read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct

from switchyard.errors import BadRequest, BadValue, Malformed, NoSuchAttribute, Outdated, UnknownName
from switchyard.model.access import Role
from switchyard.model.api import AuditEntry, Page
from switchyard.model.attributes import (
    AttributeRow,
    Domain,
    EffectiveAttribute,
    EffectiveField,
    KindInfo,
    PolicyView,
)
from switchyard.model.scope import LEVEL_RANK, Level, Scope, scope_of
from switchyard.policy.draft import Entry
from switchyard.policy.kinds.kind import Kind
from switchyard.policy.resolve import EffectiveRules, Policy
from switchyard.service.access.users import audit_entry
from switchyard.service.committer import Batch
from switchyard.service.context import Context, bump_version, record_audit
from switchyard.service.rights import Actor
from switchyard.service.unreadable_rows import read_or_default
from switchyard.store import access, attributes
from switchyard.store.database import Tx

ROWS_MAX = 200_000  # all are kept in memory by every server: some 100 MB
VALUE_BYTES_MAX = 2**20


@dataclass(frozen=True, slots=True)
class WriteCondition:
    """When a write may happen. Neither: in any case, the last writer wins (Flyte's door)."""

    if_match: str | None = None  # only while the row has this etag; `*`: while there is one
    if_none_match: bool = False  # only while there is no row

    def check(self, row: attributes.Row | None, what: str) -> None:
        self.check_tag(None if row is None else row.etag, "" if row is None else row.changed_by, f"row of {what}")

    def check_tag(self, etag: str | None, changed_by: str, what: str) -> None:
        """`etag`: of what is there now; none: nothing is."""
        if self.if_none_match and etag is not None:
            raise Outdated(
                f"There is a {what} already, changed by {changed_by}.",
                next_step="Read it, then write with If-Match and its ETag.",
            )
        if self.if_match is not None and (etag is None or self.if_match not in ("*", etag)):
            now = "it is gone" if etag is None else f"{changed_by} changed it"
            raise Outdated(f"The {what} is no longer what you read: {now}.")


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
    """Create or replace the row exactly at a scope. `raw`: plain data, or the kind's own struct.

    `is_merged`: what the row has besides stays (how Flyte's door writes plugin overrides).
    """
    found = kind_of(context, kind)
    _may_write(context, actor, found, scope)
    value = _checked(context, found, raw, scope)
    what = object_name(found, scope)

    def apply(batch: Batch) -> AttributeRow:
        bump_version(batch, "policy")  # first: its lock makes all writers of rules, on all servers, one after the other
        _require_active_project(batch.tx, scope)
        before = attributes.attribute_get(batch.tx, found.name, scope.key)
        condition.check(before, what)
        merged = _merged(context, (found, scope), before, value) if is_merged and before is not None else value
        if before is None and attributes.attribute_count(batch.tx) >= ROWS_MAX:
            raise BadRequest(f"There are {ROWS_MAX} attribute rows, which is the most.", next_step="Delete some first.")
        row = _write(batch, context, actor, row=(found, scope), value=msgspec.json.encode(merged).decode())
        was = None if before is None else msgspec.json.decode(before.value)
        record_audit(batch, context, actor.name, "attribute.put", what, before=was, after=merged)
        return row_view(found, row)

    return context.committer.call(apply)


def check(context: Context, actor: Actor, kind: str | int, scope: Scope, raw: object) -> dict[str, Any]:
    """The value as `put` would store it, refused as there; nothing is stored."""
    found = kind_of(context, kind)
    _may_write(context, actor, found, scope)
    with context.database.read() as tx:
        _require_active_project(tx, scope)
    plain: dict[str, Any] = msgspec.to_builtins(_checked(context, found, raw, scope))
    return plain


def get_exact(context: Context, actor: Actor, kind: str | int, scope: Scope) -> AttributeRow:
    """The row exactly at a scope, inherited values not considered."""
    found = kind_of(context, kind)
    _may_read(context, actor, scope)
    _require_level(found, scope)
    with context.database.read() as tx:
        row = attributes.attribute_get(tx, found.name, scope.key)
    if row is None:
        raise NoSuchAttribute(f"There is no {found.name} exactly at {scope}.")
    return row_view(found, row)


def get_nearest(context: Context, actor: Actor, kind: str | int, scope: Scope) -> AttributeRow | None:
    """The most specific stored row that holds at a scope, whole and with its own scope: what Flyte calls Get."""
    found = kind_of(context, kind)
    _may_read(context, actor, scope)
    with context.database.read() as tx:
        row = attributes.attribute_nearest(tx, found.name, scope.key)
    return None if row is None else row_view(found, row)


def get_effective(context: Context, actor: Actor, kind: str | int, scope: Scope) -> EffectiveAttribute:
    """What holds at a scope, merged, each field with the level that gave it."""
    found = kind_of(context, kind)
    _may_read(context, actor, scope)
    return effective_view(found, context.snapshots.policy.effective(scope.key))


def policy_view(context: Context, actor: Actor, scope: Scope) -> PolicyView:
    """Every effective value of every kind."""
    _may_read(context, actor, scope)
    policy: Policy = context.snapshots.policy
    effective = policy.effective(scope.key)
    views = [effective_view(kind, effective) for kind in policy.kinds if effective.fields(kind)]
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
    """The rows of a kind one may see, the most specific first; each word that is given must hold of the row."""
    found = kind_of(context, kind)
    named = {"domain": domain, "project": project, "workflow": workflow, "launch_plan": launch_plan}
    wanted = {name: text for name, text in named.items() if text is not None}
    rank, last = _read_cursor(after)
    with context.database.read() as tx:
        rows = attributes.attribute_list(
            tx,
            found.name,
            wanted=wanted,
            rank=None if level is None else LEVEL_RANK[level],
            projects=actor.viewable_projects(),
            after=(rank, last),
            limit=limit,
        )
    more = f"{rows[-1].rank}:{rows[-1].id}" if len(rows) == limit else None
    return Page([row_view(found, row) for row in rows], more)


def delete_exact(
    context: Context, actor: Actor, kind: str | int, scope: Scope, *, condition: WriteCondition = UNCONDITIONAL
) -> bool:
    """Delete the row exactly at a scope, and no other; false if there was none."""
    found = kind_of(context, kind)
    _may_write(context, actor, found, scope)
    what = object_name(found, scope)

    def apply(batch: Batch) -> bool:
        if attributes.attribute_get(batch.tx, found.name, scope.key) is None:
            return False  # nothing changes, so no server has to look
        bump_version(batch, "policy")
        before = attributes.attribute_get(batch.tx, found.name, scope.key)  # now that nobody else changes it
        if before is None:
            return False
        condition.check(before, what)
        _write(batch, context, actor, row=(found, scope), value=None)
        record_audit(batch, context, actor.name, "attribute.delete", what, before=msgspec.json.decode(before.value))
        return True

    return context.committer.call(apply)


def history(
    context: Context, actor: Actor, kind: str | int, scope: Scope, *, before: str | None = None, limit: int = 100
) -> Page[AuditEntry]:
    """Who changed the row at a scope, when, from what to what; the newest first. It outlives the row."""
    found = kind_of(context, kind)
    _may_read(context, actor, scope)
    with context.database.read() as tx:
        rows = access.audit_list_of(tx, object_name(found, scope), before=before, limit=limit)
    items = [audit_entry(row) for row in rows]
    return Page(items, items[-1].id if len(items) == limit else None)


def kind_list(context: Context) -> list[KindInfo]:
    """The kinds this server knows, with what a client needs to write one."""
    return [kind_info(kind) for kind in context.snapshots.policy.kinds]


def domain_list(context: Context) -> list[Domain]:
    return [Domain(name, title) for name, title in context.snapshots.policy.platform.domains.items()]


def kind_of(context: Context, kind: str | int) -> Kind:
    return context.snapshots.policy.kinds.get(kind)


def kind_info(kind: Kind) -> KindInfo:
    schema = msgspec.json.schema(kind.value)
    return KindInfo(kind.name, kind.number, kind.title, list(kind.levels), kind.merge.value, schema, dict(kind.sample))


def object_name(kind: Kind, scope: Scope) -> str:
    """What the audit calls the row."""
    return f"{kind.name} at {scope}"


def row_view(kind: Kind, row: attributes.Row) -> AttributeRow:
    scope = scope_of((row.domain, row.project, row.workflow, row.launch_plan))
    return AttributeRow(
        id=row.id,
        kind=kind.name,
        number=kind.number,
        level=scope.level,
        scope=scope,
        value=read_or_default("attributes", row.id, lambda: msgspec.json.decode(row.value), {}),
        etag=row.etag,
        changed_us=row.changed_us,
        changed_by=row.changed_by,
    )


def effective_view(kind: Kind, effective: EffectiveRules) -> EffectiveAttribute:
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


def _checked(context: Context, kind: Kind, raw: object, scope: Scope) -> Struct:
    """A value that may be stored; else every mistake that was found."""
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


def _merged(context: Context, row: tuple[Kind, Scope], before: attributes.Row, value: Struct) -> Struct:
    kind, scope = row
    kept = kind.flatten(kind.read(msgspec.json.decode(before.value)))
    return _checked(context, kind, kind.assemble(kept | kind.flatten(value)), scope)


def _write(
    batch: Batch, context: Context, actor: Actor, *, row: tuple[Kind, Scope], value: str | None
) -> attributes.Row:
    kind, scope = row
    return attributes.attribute_put(
        batch.tx,
        kind.name,
        scope.key,
        {
            "id": context.new_id(),
            "rank": LEVEL_RANK[scope.level],
            "value": value,
            "etag": context.new_id(),
            "changed_us": batch.now_us,
            "changed_by": actor.name,
        },
    )


def _may_write(context: Context, actor: Actor, kind: Kind, scope: Scope) -> None:
    _require_level(kind, scope)
    if scope.project is None:
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
    allowed = ", ".join(each.value for each in kind.levels)
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
    """In the write's own transaction: a project may have been archived meanwhile."""
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
        raise Malformed("The parameter 'cursor' is not one that this list gave out.")
    return int(rank), last
