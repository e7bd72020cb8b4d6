"""Users, grants, the audit log, and the first start of a server."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from switchyard.errors import BadRequest, Conflict, Denied, NameTaken, NotFound, UnknownName
from switchyard.model.rules.access import (
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
from switchyard.model.wire.api import AuditEntry, Me, Page
from switchyard.service.access.user_tokens import make_token
from switchyard.service.core.context import Context, bump_version
from switchyard.service.core.rights import Actor, grant_applies
from switchyard.service.core.unreadable_rows import read_or_default
from switchyard.service.core.writes.audit import audit_entry, record_audit
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.store.access import access, submit_tokens

FIRST_ADMIN = "admin"
DEFAULT_PROJECT = "default"


def prepare_first_start(context: Context, *, is_open: bool) -> str | None:
    """Create the default project and the first administrator in an empty database.

    Return the administrator's token, which is shown once. A server without authentication creates no administrator:
    a later start with authentication would then find a user and show no token.
    """

    def apply(batch: Batch) -> str | None:
        bump_version(batch, Topic.ACCESS)  # first: its row lock serializes servers that start at the same time
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
    """Create a platform administrator's token for an operator with database access. Add user and grant if missing."""
    note = "made by `yard server new-admin-token`"

    def apply(batch: Batch) -> str:
        bump_version(batch, Topic.ACCESS)
        token = _ensure_admin_token(batch, context, name, note)
        record_audit(batch, context, "server", "new-admin-token", name)
        return token

    return context.committer.call(apply)


def _ensure_admin_token(batch: Batch, context: Context, name: str, note: str) -> str:
    """Create a token for this user. Enable the user and grant `admin` on the platform if needed."""
    row = access.user_by_name(batch.tx, name)
    user_id: str = row.id if row is not None else _insert_user(batch, context, UserRequest(name, note))
    if row is not None and not row.is_enabled:
        access.user_change(batch.tx, user_id, access.UserUpdate(is_enabled=True))
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
) -> access.ProjectRow:
    """Return the stored row of a new project."""
    text = msgspec.json.encode(labels or {}, order="sorted").decode()
    return access.ProjectRow(
        name=name, title=title, description=description, labels=text, created_us=at_us, archived_us=None
    )


def describe_caller(context: Context, actor: Actor) -> Me:
    grants = [
        f"{grant.role.value} on {grant.on.value} {_object_name(context, grant)}"
        for grant in context.snapshots.access.grants
        if grant_applies(grant, actor.id, actor.groups)
    ]
    return Me(actor.name, list(actor.groups), actor.is_platform_admin, grants)


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
        bump_version(batch, Topic.ACCESS)
        record_audit(batch, context, actor, "user.create", request.name, after=request)

    context.committer.call(apply)
    return user_get(context, actor, request.name)


def user_change(context: Context, actor: Actor, name: str, change: UserChange) -> User:
    actor.need_platform(Role.ADMIN)
    before = user_get(context, actor, name)
    update = access.UserUpdate()
    if change.full_name is not None:
        update = replace(update, full_name=change.full_name)
    if change.groups is not None:
        update = replace(update, groups=msgspec.json.encode(sorted(set(change.groups))).decode())
    if change.is_enabled is not None:
        _refuse_self(actor, name, "disable")
        update = replace(update, is_enabled=change.is_enabled)

    def apply(batch: Batch) -> None:
        if update:
            access.user_change(batch.tx, before.id, update)
            bump_version(batch, Topic.ACCESS)
            record_audit(batch, context, actor, "user.change", name, before=before, after=change)

    context.committer.call(apply)
    return user_get(context, actor, name)


def user_delete(context: Context, actor: Actor, name: str) -> None:
    actor.need_platform(Role.ADMIN)
    _refuse_self(actor, name, "delete")
    before = user_get(context, actor, name)

    def apply(batch: Batch) -> None:
        access.user_delete(batch.tx, before.id)
        submit_tokens.submit_token_delete_account(batch.tx, before.id)
        bump_version(batch, Topic.ACCESS)
        bump_version(batch, Topic.CLUSTERS)
        record_audit(batch, context, actor, "user.delete", name, before=before)

    context.committer.call(apply)


def grant_list(context: Context, actor: Actor) -> list[Grant]:
    """Return all grants to a platform administrator, and to others the grants on objects they administer."""
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
        bump_version(batch, Topic.ACCESS)
        record_audit(batch, context, actor, "grant.create", grant.id, after=request)
        subject_name = request.subject if user is not None else grant.subject
        return msgspec.structs.replace(grant, subject=subject_name, object=request.object)

    return context.committer.call(apply)


def grant_delete(context: Context, actor: Actor, grant_id: str) -> None:
    grants = context.snapshots.access.grants
    revoked = next((grant for grant in grants if grant.id == grant_id), None)
    if revoked is None or not _may_administer(context, actor, revoked.on, revoked.object):
        raise NotFound(f"There is no grant {grant_id[:40]}.", next_step="`yard grant ls` lists the grants.")
    admin_grants = [grant for grant in grants if grant.on is GrantTarget.PLATFORM and grant.role is Role.ADMIN]
    if admin_grants == [revoked]:
        raise Conflict("This is the last administrator's grant.", next_step="Make another administrator first.")

    def apply(batch: Batch) -> None:
        access.grant_delete(batch.tx, grant_id)
        bump_version(batch, Topic.ACCESS)
        record_audit(batch, context, actor.name, "grant.delete", grant_id, before=_grant_view(context, revoked))

    context.committer.call(apply)


def audit_list(context: Context, actor: Actor, *, before: str | None, limit: int) -> Page[AuditEntry]:
    actor.need_platform(Role.ADMIN)
    with context.database.read() as tx:
        rows = access.audit_list(tx, before=before, limit=limit)
    items = [audit_entry(row) for row in rows]
    return Page(items, items[-1].id if len(items) == limit else None)


def _insert_user(batch: Batch, context: Context, request: UserRequest) -> str:
    user_id = context.new_id()
    row = access.UserRow(
        id=user_id,
        name=request.name,
        full_name=request.full_name,
        groups=msgspec.json.encode(sorted(set(request.groups))).decode(),
        is_enabled=True,
        created_us=batch.now_us,
    )
    access.user_insert(batch.tx, row)
    return user_id


def _insert_grant(batch: Batch, context: Context, request: GrantRequest) -> Grant:
    subject = EVERYONE if request.to is GranteeKind.EVERYONE else request.subject
    object_ = "all" if request.on is GrantTarget.PLATFORM else request.object
    grant = Grant(context.new_id(), request.role, request.to, subject, request.on, object_, batch.now_us)
    row = access.GrantRow(
        id=grant.id,
        role=grant.role.value,
        to_kind=grant.to.value,
        subject=subject,
        on_kind=grant.on.value,
        object=object_,
        created_us=batch.now_us,
    )
    access.grant_insert(batch.tx, row)
    return grant


def _object_key(context: Context, actor: Actor, request: GrantRequest) -> str:
    """Return the key of the granted object. A cluster's key is its id: a later cluster of its name inherits nothing."""
    if request.on is GrantTarget.PLATFORM:
        return "all"
    if request.on is GrantTarget.CLUSTER:
        member = context.snapshots.world.by_name.get(request.object)
        if member is None or not actor.may_cluster(Role.VIEW, member):  # do not reveal hidden clusters
            raise UnknownName(f"There is no cluster {request.object!r}.", next_step="`yard cluster ls` lists them.")
        return member.id
    is_known = request.on is not GrantTarget.PROJECT or request.object in context.snapshots.access.projects
    if not is_known and _may_administer(context, actor, request.on, request.object):  # others may not learn it
        raise UnknownName(f"There is no project {request.object!r}.", next_step="`yard project ls` lists them.")
    return request.object


def _grant_view(context: Context, grant: Grant) -> Grant:
    """Return the grant with names in place of ids."""
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


def _user_view(row: access.UserRow) -> User:
    groups: list[str] = read_or_default("users", row.id, lambda: msgspec.json.decode(row.groups, type=list[str]), [])
    return User(row.id, row.name, row.full_name, groups, bool(row.is_enabled), row.created_us)
