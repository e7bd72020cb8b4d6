"""Users, grants, the audit, and the very first start."""

from __future__ import annotations

import msgspec

from switchyard.errors import BadRequest, Conflict, Denied, NameTaken, NotFound, UnknownName
from switchyard.model.access import (
    EVERYONE,
    ROLE_RANK,
    Grant,
    GranteeKind,
    GrantRequest,
    GrantTarget,
    Role,
    TokenRequest,
    User,
    UserChange,
    UserRequest,
)
from switchyard.model.api import AuditEntry, Me, Page
from switchyard.service.access.user_tokens import make_token
from switchyard.service.committer import Batch
from switchyard.service.context import Context, bump_version, record_audit
from switchyard.service.rights import Actor, grant_applies
from switchyard.service.unreadable_rows import read_or_default
from switchyard.store import access, submit_tokens

FIRST_ADMIN = "admin"
DEFAULT_PROJECT = "default"


def prepare_first_start(context: Context, *, is_open: bool) -> str | None:
    """On an empty database: the default project; and at the first start with authentication the first administrator
    and their token, shown once. An open server has no use for them, and would only hide them from a later start."""

    def apply(batch: Batch) -> str | None:
        bump_version(batch, "access")  # first: its row's lock makes two servers' first starts one after the other
        if access.project_put(batch.tx, project_row(DEFAULT_PROJECT, "made at first start", at_us=batch.now_us)):
            _insert_grant(
                batch,
                context,
                GrantRequest(Role.SUBMIT, GranteeKind.EVERYONE, GrantTarget.PROJECT, EVERYONE, DEFAULT_PROJECT),
            )
        if is_open or access.user_all(batch.tx):
            return None
        token = _ensure_admin_token(batch, context, FIRST_ADMIN, "made at first start")
        record_audit(batch, context, "server", "first-start", FIRST_ADMIN)
        return token

    return context.committer.call(apply)


def create_admin_token(context: Context, name: str) -> str:
    """A token of a platform administrator for whoever has the database: the user and the grant are made if need be."""
    note = "made by `yard server new-admin-token`"

    def apply(batch: Batch) -> str:
        bump_version(batch, "access")
        token = _ensure_admin_token(batch, context, name, note)
        record_audit(batch, context, "server", "new-admin-token", name)
        return token

    return context.committer.call(apply)


def _ensure_admin_token(batch: Batch, context: Context, name: str, note: str) -> str:
    """A new token of this user, who is enabled and an administrator of the platform from here on."""
    row = access.user_by_name(batch.tx, name)
    user_id: str = row.id if row is not None else _insert_user(batch, context, UserRequest(name, note))
    if row is not None and not row.is_enabled:
        access.user_change(batch.tx, user_id, {"is_enabled": True})
    wanted = GrantRequest(Role.ADMIN, GranteeKind.USER, GrantTarget.PLATFORM, user_id)
    is_granted = any(
        (grant.to_kind, grant.subject, grant.on_kind, grant.role)
        == (wanted.to.value, user_id, wanted.on.value, wanted.role.value)
        for grant in access.grant_all(batch.tx)
    )
    if not is_granted:
        _insert_grant(batch, context, wanted)
    token, _ = make_token(batch, context, user_id, TokenRequest(note=note), name)
    return token


def project_row(
    name: str, description: str, *, at_us: int, title: str = "", labels: dict[str, str] | None = None
) -> dict[str, object]:
    """A new project, as it is stored."""
    text = msgspec.json.encode(labels or {}, order="sorted").decode()
    return {"name": name, "title": title, "description": description, "labels": text, "created_us": at_us}


def describe_caller(context: Context, actor: Actor) -> Me:
    reach = [
        f"{grant.role.value} on {grant.on.value} {_object_name(context, grant)}"
        for grant in context.snapshots.access.grants
        if grant_applies(grant, actor.id, actor.groups)
    ]
    return Me(actor.name, list(actor.groups), actor.is_platform_admin, reach)


def user_list(context: Context, actor: Actor) -> list[User]:
    actor.need_platform(Role.ADMIN)
    with context.database.read() as tx:
        return [_user_view(row) for row in access.user_all(tx)]


def user_get(context: Context, actor: Actor, name: str) -> User:
    if name != actor.name:
        actor.need_platform(Role.ADMIN)
    with context.database.read() as tx:
        row = access.user_by_name(tx, name)
    if row is None:
        raise NotFound(f"There is no user {name[:128]!r}.", next_step="`yard user ls` lists the users.")
    return _user_view(row)


def user_create(context: Context, actor: Actor, request: UserRequest) -> User:
    actor.need_platform(Role.ADMIN)

    def apply(batch: Batch) -> None:
        if access.user_by_name(batch.tx, request.name) is not None:
            raise NameTaken(f"There is a user {request.name} already.")
        _insert_user(batch, context, request)
        bump_version(batch, "access")
        record_audit(batch, context, actor.name, "user.create", request.name, after=request)

    context.committer.call(apply)
    return user_get(context, actor, request.name)


def user_change(context: Context, actor: Actor, name: str, change: UserChange) -> User:
    actor.need_platform(Role.ADMIN)
    before = user_get(context, actor, name)
    columns: dict[str, object] = {}
    if change.full_name is not None:
        columns["full_name"] = change.full_name
    if change.groups is not None:
        columns["groups"] = msgspec.json.encode(sorted(set(change.groups))).decode()
    if change.is_enabled is not None:
        _refuse_self(actor, name, "disable")
        columns["is_enabled"] = change.is_enabled

    def apply(batch: Batch) -> None:
        if columns:
            access.user_change(batch.tx, before.id, columns)
            bump_version(batch, "access")
            record_audit(batch, context, actor.name, "user.change", name, before=before, after=change)

    context.committer.call(apply)
    return user_get(context, actor, name)


def user_delete(context: Context, actor: Actor, name: str) -> None:
    actor.need_platform(Role.ADMIN)
    _refuse_self(actor, name, "delete")
    before = user_get(context, actor, name)

    def apply(batch: Batch) -> None:
        access.user_delete(batch.tx, before.id)
        submit_tokens.submit_token_delete_account(batch.tx, before.id)
        bump_version(batch, "access")
        bump_version(batch, "clusters")
        record_audit(batch, context, actor.name, "user.delete", name, before=before)

    context.committer.call(apply)


def grant_list(context: Context, actor: Actor) -> list[Grant]:
    """An administrator sees all grants, others those on what they administer."""
    return [
        _grant_view(context, grant)
        for grant in context.snapshots.access.grants
        if _may_administer(context, actor, grant.on, grant.object)
    ]


def grant_create(context: Context, actor: Actor, request: GrantRequest) -> Grant:
    object_ = _object_key(context, actor, request)
    if not _may_administer(context, actor, request.on, object_):
        raise Denied(f"Granting here needs the role admin on {request.on.value} {request.object}.")

    def apply(batch: Batch) -> Grant:
        user = access.user_lock(batch.tx, request.subject) if request.to is GranteeKind.USER else None
        if request.to is GranteeKind.USER and user is None:
            raise UnknownName(f"There is no user {request.subject!r}.", next_step="`yard user ls` lists the users.")
        subject = user.id if user is not None else request.subject
        grant = _insert_grant(batch, context, msgspec.structs.replace(request, subject=subject, object=object_))
        bump_version(batch, "access")
        record_audit(batch, context, actor.name, "grant.create", grant.id, after=request)
        shown = request.subject if user is not None else grant.subject
        return msgspec.structs.replace(grant, subject=shown, object=request.object)

    return context.committer.call(apply)


def grant_delete(context: Context, actor: Actor, grant_id: str) -> None:
    found = next((grant for grant in context.snapshots.access.grants if grant.id == grant_id), None)
    if found is None or not _may_administer(context, actor, found.on, found.object):
        raise NotFound(f"There is no grant {grant_id[:40]}.", next_step="`yard grant ls` lists the grants.")
    admins = [g for g in context.snapshots.access.grants if g.on is GrantTarget.PLATFORM and g.role is Role.ADMIN]
    if admins == [found]:
        raise Conflict("This is the last administrator's grant.", next_step="Make another administrator first.")

    def apply(batch: Batch) -> None:
        access.grant_delete(batch.tx, grant_id)
        bump_version(batch, "access")
        record_audit(batch, context, actor.name, "grant.delete", grant_id, before=_grant_view(context, found))

    context.committer.call(apply)


def audit_list(context: Context, actor: Actor, *, before: str | None, limit: int) -> Page[AuditEntry]:
    actor.need_platform(Role.ADMIN)
    with context.database.read() as tx:
        rows = access.audit_list(tx, before=before, limit=limit)
    items = [audit_entry(row) for row in rows]
    return Page(items, items[-1].id if len(items) == limit else None)


def audit_entry(row: access.Row) -> AuditEntry:
    return AuditEntry(
        id=row.id,
        at_us=row.at_us,
        actor=row.actor,
        action=row.action,
        object=row.object,
        before=read_or_default("audit", row.id, lambda: msgspec.json.decode(row.before) if row.before else None, None),
        after=read_or_default("audit", row.id, lambda: msgspec.json.decode(row.after) if row.after else None, None),
    )


def _insert_user(batch: Batch, context: Context, request: UserRequest) -> str:
    user_id = context.new_id()
    row = {
        "id": user_id,
        "name": request.name,
        "full_name": request.full_name,
        "groups": msgspec.json.encode(sorted(set(request.groups))).decode(),
        "is_enabled": True,
        "created_us": batch.now_us,
    }
    access.user_insert(batch.tx, row)
    return user_id


def _insert_grant(batch: Batch, context: Context, request: GrantRequest) -> Grant:
    subject = EVERYONE if request.to is GranteeKind.EVERYONE else request.subject
    object_ = "all" if request.on is GrantTarget.PLATFORM else request.object
    grant = Grant(context.new_id(), request.role, request.to, subject, request.on, object_, batch.now_us)
    row = {
        "id": grant.id,
        "role": grant.role.value,
        "to_kind": grant.to.value,
        "subject": subject,
        "on_kind": grant.on.value,
        "object": object_,
        "created_us": batch.now_us,
    }
    access.grant_insert(batch.tx, row)
    return grant


def _object_key(context: Context, actor: Actor, request: GrantRequest) -> str:
    """A cluster is granted by its registration, so that a later one of its name inherits nothing."""
    if request.on is GrantTarget.PLATFORM:
        return "all"
    if request.on is GrantTarget.CLUSTER:
        member = context.snapshots.world.by_name.get(request.object)
        if member is None or not actor.may_cluster(Role.VIEW, member):  # no word on what is hidden
            raise UnknownName(f"There is no cluster {request.object!r}.", next_step="`yard cluster ls` lists them.")
        return member.id
    is_project = request.on is GrantTarget.PROJECT
    projects = context.snapshots.access.projects if actor.may_project(Role.VIEW, request.object) else {}
    if is_project and request.object not in projects:  # missing and hidden projects are told the same
        raise UnknownName(f"There is no project {request.object!r}.", next_step="`yard project ls` lists them.")
    return request.object


def _grant_view(context: Context, grant: Grant) -> Grant:
    """As it is shown: with names."""
    users = context.snapshots.access.users
    is_known = grant.to is GranteeKind.USER and grant.subject in users
    subject = users[grant.subject][0] if is_known else grant.subject
    return msgspec.structs.replace(grant, subject=subject, object=_object_name(context, grant))


def _object_name(context: Context, grant: Grant) -> str:
    if grant.on is not GrantTarget.CLUSTER:
        return grant.object
    member = context.snapshots.world.by_id.get(grant.object)
    return member.name if member else grant.object


def _may_administer(context: Context, actor: Actor, on: GrantTarget, object_: str) -> bool:
    if actor.is_platform_admin:
        return True
    if on is GrantTarget.PROJECT:
        return actor.may_project(Role.ADMIN, object_)
    if on is GrantTarget.CLUSTER:
        member = context.snapshots.world.by_id.get(object_)
        return member is not None and actor.may_cluster(Role.ADMIN, member)
    if on is GrantTarget.CLUSTER_GROUP:
        return actor.rights.cluster_groups.get(object_, -1) >= ROLE_RANK[Role.ADMIN]
    return False


def _refuse_self(actor: Actor, name: str, verb: str) -> None:
    if actor.name == name:
        raise BadRequest(f"You cannot {verb} yourself.", next_step="Ask another administrator.")


def _user_view(row: access.Row) -> User:
    groups: list[str] = read_or_default("users", row.id, lambda: msgspec.json.decode(row.groups, type=list[str]), [])
    return User(row.id, row.name, row.full_name, groups, bool(row.is_enabled), row.created_us)
