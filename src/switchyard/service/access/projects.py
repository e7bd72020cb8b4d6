"""Create, list, show, change and archive projects. An archived project accepts no new jobs and no new rules."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from switchyard.errors import BadRequest, Conflict, NameTaken, NotFound
from switchyard.model.executions.execution import server_label_mistakes
from switchyard.model.rules.access import Role
from switchyard.model.wire.api import Project, ProjectChange, ProjectRequest
from switchyard.service.access.users import DEFAULT_PROJECT, project_row
from switchyard.service.core.context import Context, bump_version
from switchyard.service.core.rights import Actor
from switchyard.service.core.unreadable_rows import read_or_default
from switchyard.service.core.writes.audit import record_audit
from switchyard.service.core.writes.batch import Batch, Topic
from switchyard.store.access import access


def project_list(context: Context, actor: Actor) -> list[Project]:
    """Return the projects that the actor may view, including archived projects."""
    with context.database.read() as tx:
        rows = access.project_all(tx)
    return [_view(row) for row in rows if actor.may_project(Role.VIEW, row.name)]


def project_get(context: Context, actor: Actor, name: str) -> Project:
    with context.database.read() as tx:
        row = access.project_get(tx, name)
    if row is None or not actor.may_project(Role.VIEW, name):
        raise _unknown(name)
    return _view(row)


def project_create(context: Context, actor: Actor, request: ProjectRequest) -> Project:
    actor.need_platform(Role.ADMIN)
    _refuse_server_labels(request.labels)

    def apply(batch: Batch) -> Project:
        row = project_row(
            request.name, request.description, at_us=batch.now_us, title=request.title, labels=request.labels
        )
        if not access.project_put(batch.tx, row):
            raise NameTaken(f"There is a project {request.name} already.")
        bump_version(batch, Topic.ACCESS)
        record_audit(batch, context, actor, "project.create", request.name, after=request)
        return Project(request.name, request.description, batch.now_us, request.title, request.labels)

    return context.committer.call(apply)


def project_change(context: Context, actor: Actor, name: str, change: ProjectChange) -> Project:
    """Change a project. This needs `admin` on the project, and `admin` on the platform to archive or activate it."""
    if not actor.may_project(Role.VIEW, name):
        raise _unknown(name)
    if change.is_archived is not None:
        actor.need_platform(Role.ADMIN)
    actor.need_project(Role.ADMIN, name)
    _refuse_server_labels(change.labels or {})
    if change.is_archived and name == DEFAULT_PROJECT:
        raise Conflict("The default project cannot be archived: jobs that name no project belong to it.")

    def apply(batch: Batch) -> Project:
        row = access.project_get(batch.tx, name)
        if row is None:
            raise _unknown(name)
        update = access.ProjectUpdate()
        if change.title is not None:
            update = replace(update, title=change.title)
        if change.description is not None:
            update = replace(update, description=change.description)
        if change.labels is not None:
            update = replace(update, labels=msgspec.json.encode(change.labels, order="sorted").decode())
        if change.is_archived is not None:
            archived_us = (row.archived_us or batch.now_us) if change.is_archived else None
            update = replace(update, archived_us=archived_us)
        if update:
            access.project_change(batch.tx, name, update)
            bump_version(batch, Topic.ACCESS)
            record_audit(batch, context, actor, "project.change", name, before=_view(row), after=change)
        changed = access.project_get(batch.tx, name)
        assert changed is not None
        return _view(changed)

    return context.committer.call(apply)


def _refuse_server_labels(keys: Iterable[str]) -> None:
    if mistakes := server_label_mistakes(keys):
        raise BadRequest(f"The {mistakes[0]}.", next_step="Give the label another name.")


def _view(row: access.ProjectRow) -> Project:
    labels: dict[str, str] = read_or_default(
        "projects", row.name, lambda: msgspec.json.decode(row.labels, type=dict[str, str]), {}
    )
    return Project(row.name, row.description, row.created_us, row.title, labels, row.archived_us is not None)


def _unknown(name: str) -> NotFound:
    return NotFound(
        f"There is no project {name[:128]!r}, or it is not yours to see.",
        next_step="`yard project ls` lists the projects.",
    )
