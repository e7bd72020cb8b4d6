"""The limits of live executions: of one user, and of one project."""

from __future__ import annotations

from switchyard.errors import LimitReached
from switchyard.policy.limits import exceeds_limit
from switchyard.service.core.batch import Batch
from switchyard.service.core.context import Context
from switchyard.service.core.rights import Actor
from switchyard.store import executions as store
from switchyard.workflow.limits import CONFIG_SECTION


def refuse_over_limits(batch: Batch, context: Context, actor: Actor, project: str) -> None:
    """Refuse one more execution, in the transaction that would insert it.

    Executions that nodes of others start are not counted: a parent would wait for a child that waits for the parent.
    """
    context.usage.refuse_executions(actor, store.live_count(batch.tx, owner_id=actor.id))
    most, live = context.workflows.project_executions, store.live_count(batch.tx, project=project)
    if not actor.is_platform_admin and exceeds_limit(most, live, 1):
        error = LimitReached(
            f"The limit `{CONFIG_SECTION}.project_executions` is reached: project {project} has {live} live "
            f"executions, and one project may have {most}. It is set in the server's config file.",
            next_step="Wait until some end, or terminate some.",
        )
        error.limit = f"{CONFIG_SECTION}.project_executions"
        raise error
