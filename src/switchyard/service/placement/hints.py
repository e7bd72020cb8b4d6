"""Hints that would let a job run. They take into account its selection and the rules that set its bounds."""

from __future__ import annotations

from switchyard.model.cluster.verdict import Outcome
from switchyard.model.rules.attributes import JobPolicy
from switchyard.model.rules.scope import Level
from switchyard.route.hints import find_hints, join_names
from switchyard.route.router import Eligibility
from switchyard.route.routing_request import RoutingRequest
from switchyard.route.world import World

RULE_FIELDS = {"cluster-assignment": ("cluster_pool_name", "pool"), "execution-cluster-label": ("value", "label")}


def job_hints(
    request: RoutingRequest,
    world: World,
    *,
    eligibility: Eligibility,
    selection: Eligibility,
    policy: JobPolicy | None,
) -> list[str]:
    """Return what would let the job run. `eligibility`: before the selection; `selection`: after it.

    If clusters are eligible but the selection takes no cluster, the hint is another selection. A job that waits for
    quotes needs no hint.
    """
    if eligibility.outcome is not Outcome.ASSIGN:
        return find_hints(request, world, ruled=_rules_of_pool_and_label(policy))
    is_stuck = selection.outcome is not Outcome.ASSIGN and not selection.asks
    return [f"--select weighted ({join_names(eligibility.eligible.names)})"] if is_stuck else []


def _rules_of_pool_and_label(policy: JobPolicy | None) -> dict[str, str]:
    """Return the rule that set the job's pool or label, if a rule and not the request set it."""
    rules: dict[str, str] = {}
    for used in policy.values if policy is not None else ():
        field, option = RULE_FIELDS.get(used.kind, ("", ""))
        if used.field == field and option and used.level is not Level.REQUEST:
            rules[option] = f"the rule at {used.scope}" if used.scope is not None else "the platform's config"
    return rules
