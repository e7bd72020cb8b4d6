"""Who may do what with entities: `view` on the project to read, `submit` to register. And what must be there."""

from __future__ import annotations

from switchyard.errors import BadRequest, NotFound
from switchyard.features.flyte.store.entities.entities import EntityKey
from switchyard.features.flyte.workflow.compile.entity_id import EntityId
from switchyard.model.rules.access import Role
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.store.access import access
from switchyard.store.engine.database import Tx


def require_read(actor: Actor, project: str, domain: str) -> None:
    """Whoever may view a project may read its entities, also when it is archived."""
    _require_given(project, domain)
    actor.need_project(Role.VIEW, project)


def require_write(context: Context, actor: Actor, project: str, domain: str) -> None:
    _require_given(project, domain)
    actor.need_project(Role.VIEW, project)  # first: whether a project exists is not for everyone to know
    with context.database.read() as tx:
        require_active_project(tx, project, domain)
    if domain not in context.snapshots.policy.platform.domains:
        raise BadRequest(f"domain [{domain[:80]}] is unrecognized by system")
    actor.need_project(Role.SUBMIT, project)


def require_active_project(tx: Tx, project: str, domain: str) -> None:
    """Runs again in the write's transaction, because a project may be archived at any time."""
    row = access.project_get(tx, project) if len(project) < 1000 and "\0" not in project else None
    if row is None:
        raise BadRequest(
            f"failed to validate that project [{project[:80]}] and domain [{domain[:80]}] are registered, "
            f"err: [project [{project[:80]}] not found]"
        )
    if row.archived_us is not None:
        raise BadRequest(f"project [{project}] is not active")


def stored_key(entity: EntityId) -> EntityKey:
    return EntityKey(entity.kind.value, entity.project, entity.domain, entity.name, entity.version)


def missing_entity(entity: EntityId) -> NotFound:
    return NotFound(
        f"missing entity of type {entity.kind.name} with identifier project:{entity.project[:80]!r} "
        f"domain:{entity.domain[:80]!r} name:{entity.name[:256]!r} version:{entity.version[:256]!r}"
    )


def _require_given(project: str, domain: str) -> None:
    for word, value in (("project", project), ("domain", domain)):
        if not value:
            raise BadRequest(f"missing {word}")
        if "\0" in value:
            raise BadRequest(f"the {word} has a NUL character")
