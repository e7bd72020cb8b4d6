"""What would let a job run, with what is known of it here: its selection, and which rules gave its bounds."""

from __future__ import annotations

from switchyard.model.attributes import JobPolicy
from switchyard.model.scope import Level
from switchyard.route.hints import find_hints, join_names
from switchyard.route.router import Eligibility
from switchyard.route.routing_request import RoutingRequest
from switchyard.route.world import World

RULE_FIELDS = {"cluster-assignment": ("cluster_pool_name", "pool"), "execution-cluster-label": ("value", "label")}


def job_hints(
    ask: RoutingRequest, world: World, ruling: Eligibility, chosen: Eligibility, policy: JobPolicy | None
) -> list[str]:
    """`ruling`: before anybody was selected, `chosen`: after. Where clusters can, and the selection takes none of
    them, only that has to change; one that waits for quotes needs nothing but a moment."""
    if ruling.outcome != "assign":
        return find_hints(ask, world, ruled=_rules_of_pool_and_label(policy))
    is_stuck = chosen.outcome != "assign" and not chosen.asks
    return [f"--select weighted ({join_names(ruling.able.names)})"] if is_stuck else []


def _rules_of_pool_and_label(policy: JobPolicy | None) -> dict[str, str]:
    """Whether a rule, and not the job itself, says its pool or label; and which rule."""
    found: dict[str, str] = {}
    for used in policy.values if policy is not None else ():
        field, word = RULE_FIELDS.get(used.kind, ("", ""))
        if used.field == field and word and used.level is not Level.REQUEST:
            found[word] = f"the rule at {used.scope}" if used.scope is not None else "the platform's config"
    return found
