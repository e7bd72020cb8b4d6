"""Projects: create, list, look, change, archive. An archived one takes no jobs and no rules; what it has stays."""

from __future__ import annotations

import msgspec

from switchyard.errors import Conflict, NameTaken, NotFound
from switchyard.model.access import Role
from switchyard.model.api import Project, ProjectChange, ProjectRequest
from switchyard.service.access.users import DEFAULT_PROJECT, project_row
from switchyard.service.committer import Batch
from switchyard.service.context import Context, bump_version, record_audit
from switchyard.service.rights import Actor
from switchyard.service.unreadable_rows import read_or_default
from switchyard.store import access


def project_list(context: Context, actor: Actor) -> list[Project]:
    """Those one may view, archived ones too."""
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

    def apply(batch: Batch) -> Project:
        row = project_row(
            request.name, request.description, at_us=batch.now_us, title=request.title, labels=request.labels
        )
        if not access.project_put(batch.tx, row):
            raise NameTaken(f"There is a project {request.name} already.")
        bump_version(batch, "access")
        record_audit(batch, context, actor.name, "project.create", request.name, after=request)
        return Project(request.name, request.description, batch.now_us, request.title, request.labels)

    return context.committer.call(apply)


def project_change(context: Context, actor: Actor, name: str, change: ProjectChange) -> Project:
    """Title, description and labels by the project's administrators; archived and brought back by the platform's."""
    if not actor.may_project(Role.VIEW, name):
        raise _unknown(name)
    if change.is_archived is not None:
        actor.need_platform(Role.ADMIN)
    actor.need_project(Role.ADMIN, name)
    if change.is_archived and name == DEFAULT_PROJECT:
        raise Conflict("The default project cannot be archived: jobs that name no project belong to it.")

    def apply(batch: Batch) -> Project:
        row = access.project_get(batch.tx, name)
        if row is None:
            raise _unknown(name)
        columns: dict[str, object] = {}
        if change.title is not None:
            columns["title"] = change.title
        if change.description is not None:
            columns["description"] = change.description
        if change.labels is not None:
            columns["labels"] = msgspec.json.encode(change.labels, order="sorted").decode()
        if change.is_archived is not None:
            columns["archived_us"] = (row.archived_us or batch.now_us) if change.is_archived else None
        if columns:
            access.project_change(batch.tx, name, columns)
            bump_version(batch, "access")
            record_audit(batch, context, actor.name, "project.change", name, before=_view(row), after=change)
        again = access.project_get(batch.tx, name)
        assert again is not None
        return _view(again)

    return context.committer.call(apply)


def _view(row: access.Row) -> Project:
    labels: dict[str, str] = read_or_default(
        "projects", row.name, lambda: msgspec.json.decode(row.labels, type=dict[str, str]), {}
    )
    return Project(row.name, row.description, row.created_us, row.title, labels, row.archived_us is not None)


def _unknown(name: str) -> NotFound:
    return NotFound(
        f"There is no project {name[:128]!r}, or it is not yours to see.",
        next_step="`yard project ls` lists the projects.",
    )
