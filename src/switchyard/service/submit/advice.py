"""What would let a job run, with what is known of it here: its selection, and which rules gave its bounds."""

from __future__ import annotations

from switchyard.model.attributes import JobPolicy
from switchyard.model.scope import Level
from switchyard.route.ask import Ask
from switchyard.route.explain import hints, listed
from switchyard.route.route import Ruling
from switchyard.route.world import World

KINDS = {"cluster-assignment": ("cluster_pool_name", "pool"), "execution-cluster-label": ("value", "label")}


def advice(ask: Ask, world: World, ruling: Ruling, chosen: Ruling, policy: JobPolicy | None) -> list[str]:
    """`ruling`: before anybody was selected, `chosen`: after. Where clusters can, and the selection takes none of
    them, only that has to change; one that waits for quotes needs nothing but a moment."""
    if ruling.outcome != "assign":
        return hints(ask, world, ruled=_ruled(policy))
    is_stuck = chosen.outcome != "assign" and not chosen.asks
    return [f"--select weighted ({listed(ruling.able.names)})"] if is_stuck else []


def _ruled(policy: JobPolicy | None) -> dict[str, str]:
    """Whether a rule, and not the job itself, says its pool or label; and which rule."""
    found: dict[str, str] = {}
    for used in policy.values if policy is not None else ():
        field, word = KINDS.get(used.kind, ("", ""))
        if used.field == field and word and used.level is not Level.REQUEST:
            found[word] = f"the rule at {used.scope}" if used.scope is not None else "the platform's config"
    return found
