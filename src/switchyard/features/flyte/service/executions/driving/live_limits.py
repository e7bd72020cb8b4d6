"""The limits of live executions: of one user, of one project, and of one launch plan."""

from __future__ import annotations

from switchyard.errors import LimitReached
from switchyard.features.flyte.store.entities import entities
from switchyard.features.flyte.store.entities.entities import EntityKey
from switchyard.features.flyte.store.executions import executions as store
from switchyard.features.flyte.workflow.compile.entity_id import EntityId
from switchyard.features.flyte.workflow.values.limits import CONFIG_SECTION, WorkflowLimits
from switchyard.policy.limits import exceeds_limit
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.service.core.writes.batch import Batch
from switchyard.store.engine.database import Tx


def refuse_over_limits(batch: Batch, context: Context, actor: Actor, project: str) -> None:
    """Refuse one more execution, in the transaction that would insert it."""
    context.usage.refuse_executions(actor, store.live_count(batch.tx, owner_id=actor.id))
    most, live = context.setting(WorkflowLimits).project_executions, store.live_count(batch.tx, project=project)
    if not actor.is_platform_admin and exceeds_limit(most, live, 1):
        error = LimitReached(
            f"The limit `{CONFIG_SECTION}.project_executions` is reached: project {project} has {live} live "
            f"executions, and one project may have {most}. It is set in the server's config file.",
            next_step="Wait until some end, or terminate some.",
        )
        error.limit = f"{CONFIG_SECTION}.project_executions"
        raise error


def executions_left(tx: Tx, context: Context, actor: Actor, project: str) -> int | None:
    """How many live executions more the limits of the user and of the project allow. None: there is no limit."""
    most = 0 if actor.is_platform_admin else context.setting(WorkflowLimits).project_executions
    by_user = context.usage.executions_left(actor, store.live_count(tx, owner_id=actor.id))
    by_project = most - store.live_count(tx, project=project) if most else None
    return min((left for left in (by_user, by_project) if left is not None), default=None)


def lock_policy(tx: Tx, plan: EntityId) -> None:
    """Let no other server insert an execution of this launch plan until the commit."""
    entities.entity_lock(tx, EntityKey(plan.kind.value, plan.project, plan.domain, plan.name, plan.version))


def refuse_over_policy(tx: Tx, plan: EntityId, most: int) -> None:
    """Refuse one more execution of a launch plan whose concurrency policy allows `most`."""
    live = store.live_count_of_entity(
        tx, kind=plan.kind.value, project=plan.project, domain=plan.domain, name=plan.name, version=plan.version
    )
    if live >= most:
        raise LimitReached(
            f"The launch plan {plan.name} of version {plan.version} has {live} live executions, and its concurrency "
            f"policy allows {most}.",
            next_step="Wait until one ends, or terminate one.",
        )
