"""Hints that would let a job run. They take into account its selection and the rules that set its bounds."""

from __future__ import annotations

from switchyard.model.rules.attributes import JobPolicy
from switchyard.model.rules.scope import Level
from switchyard.route.hints import find_hints, join_names
from switchyard.route.router import Eligibility
from switchyard.route.routing_request import RoutingRequest
from switchyard.route.world import World

RULE_FIELDS = {"cluster-assignment": ("cluster_pool_name", "pool"), "execution-cluster-label": ("value", "label")}


def job_hints(
    ask: RoutingRequest, world: World, ruling: Eligibility, chosen: Eligibility, policy: JobPolicy | None
) -> list[str]:
    """Return what would let the job run. `ruling`: before the selection; `chosen`: after it.

    If clusters are eligible but the selection takes no cluster, the hint is another selection. A job that waits for
    quotes needs no hint.
    """
    if ruling.outcome != "assign":
        return find_hints(ask, world, ruled=_rules_of_pool_and_label(policy))
    is_stuck = chosen.outcome != "assign" and not chosen.asks
    return [f"--select weighted ({join_names(ruling.eligible.names)})"] if is_stuck else []


def _rules_of_pool_and_label(policy: JobPolicy | None) -> dict[str, str]:
    """Return the rule that set the job's pool or label, if a rule and not the request set it."""
    rules: dict[str, str] = {}
    for used in policy.values if policy is not None else ():
        field, option = RULE_FIELDS.get(used.kind, ("", ""))
        if used.field == field and option and used.level is not Level.REQUEST:
            rules[option] = f"the rule at {used.scope}" if used.scope is not None else "the platform's config"
    return rules
