"""Decide where a job goes. Pure: the same inputs and seed give the same plan.

narrow   pool · label · pin · grant   clusters that the job may use
image    the site's rules             … that run the job's image
match    the graph                    … that could run it when empty
health   up · down · cordoned         … that can take it now: these are eligible; those in trouble come last
select   weighted rendezvous          the cluster that gets it
"""

from __future__ import annotations

from dataclasses import dataclass

from switchyard.match.engine import Match, Misfit
from switchyard.model.cluster.cluster import POLLING_BACKEND, Health
from switchyard.model.cluster.quote import Quote
from switchyard.model.cluster.verdict import Answer, Plan
from switchyard.model.graph import Graph
from switchyard.model.job.image_rules import image_note, image_refusal
from switchyard.model.job.site_needs import site_refusal
from switchyard.route.member import Member
from switchyard.route.narrow import RoutingBounds, refuse_zero_weights
from switchyard.route.roster import MemberIndexes, RosterCache
from switchyard.route.routing_request import RoutingRequest
from switchyard.route.select.weighted_draw import WeightedCandidates
from switchyard.route.verdicts import GroupVerdict, VerdictSet
from switchyard.route.world import World

DEFAULT_ALGORITHM = "weighted"
ONLY_POLLS = frozenset({POLLING_BACKEND})
LAST_STEP = "last"
NO_GRAPH_REASON = "its agent has not told what it has"
POLLER_TAKES_NO_ARRAYS = GroupVerdict(Answer.NO, "backend", "it only polls, and is handed one job at a time: no arrays")
POD_BACKEND = "kubernetes"
ONLY_FLUX = frozenset({"flux"})
TAKES_NO_PODS = GroupVerdict(Answer.NO, "backend", "it is no Kubernetes cluster, and the job is a pod")
CLUSTER_INTERRUPTIBLE = GroupVerdict(Answer.NO, "interruptible", "its nodes may be taken away, and the job must not be")
ENDS_AND_NO_LIMIT = GroupVerdict(Answer.NO, "end", "ends at a set time, so it takes only jobs with a time limit")
MINUTE_S = 60
TAKES_NOTHING = "takes nothing new now: "
TAKES_NO_FILES = "takes no jobs with files now: "
REASONS_SHOWN_MAX = 5
STEPS = (
    "pool",
    "label",
    "pin",
    "grant",
    "interruptible",
    "backend",
    "image",
    "site",
    "match",
    "end",
    "weight",
    "refused",
)

GroupVerdicts = list[tuple[GroupVerdict, MemberIndexes]]


@dataclass(frozen=True, slots=True)
class Eligibility:
    """The decision except the draw. It is the same for all jobs with the same request, so callers cache it."""

    outcome: str  # assign · hold · reject
    eligible: WeightedCandidates
    verdicts: VerdictSet
    reason: str
    # A selection algorithm narrows the candidates further (apply_selection.py) and ranks them, the best first.
    algorithm: str = DEFAULT_ALGORITHM
    remaining: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()  # of a hold: the clusters whose quotes the job waits for
    quoted: tuple[Quote, ...] = ()  # quotes that the selection used


def route_job(ask: RoutingRequest, world: World, *, seed: str) -> Plan:
    """Decide where a job goes."""
    return make_plan(evaluate(ask, world), seed=seed)


def evaluate(ask: RoutingRequest, world: World) -> Eligibility:
    """Give one verdict per cluster, and the outcome that follows from all of them."""
    bounds, evaluator, rosters = RoutingBounds.of(ask, world), _Evaluator(ask, world), world.rosters
    roster = rosters.of(ask, bounds.refuse, bounds.weight)
    alone = evaluator.avoided.keys() | evaluator.refused.keys()
    groups = rosters.split_out(roster.groups, alone) if alone else roster.groups
    evaluated = refuse_zero_weights(bounds, [(group, evaluator.verdict(group.example)) for group in groups])
    eligible = [(group, verdict) for group, verdict in evaluated if verdict.say is Answer.YES]
    candidates = [group for group, verdict in eligible if verdict.step != LAST_STEP] or [group for group, _ in eligible]
    verdicts = [*((verdict, group.indexes) for group, verdict in evaluated), *roster.outside]
    outcome, reason = _conclude(verdicts, bounds.missing, rosters)
    return Eligibility(outcome, rosters.candidates(candidates), _verdict_set(verdicts, rosters), reason)


def make_plan(ruling: Eligibility, *, seed: str, is_shown: bool = True) -> Plan:
    """Draw the cluster for one job. `is_shown`: with all verdicts, of which there may be thousands."""
    chosen = ruling.eligible.names[ruling.eligible.draw(seed)] if ruling.outcome == "assign" else None
    return Plan(
        chosen=chosen,
        verdicts=list(ruling.verdicts) if is_shown else [],
        algorithm=ruling.algorithm,
        seed=seed,
        outcome=ruling.outcome,
        reason=ruling.reason,
        remaining=list(ruling.remaining),
    )


class _Evaluator:
    """Evaluates clusters that the bounds allow. Clusters with equal graphs share the answer whether the job fits."""

    def __init__(self, ask: RoutingRequest, world: World) -> None:
        self.avoided, self.refused = dict(ask.last), dict(ask.refused)
        self._ask = ask
        self._index = world.index
        self._by_class: dict[str, GroupVerdict] = {}

    def verdict(self, member: Member) -> GroupVerdict:
        """Check permanent reasons before temporary ones: a cluster that does not fit and is down does not fit."""
        ask = self._ask
        if member.is_interruptible and not ask.is_interruptible:
            return CLUSTER_INTERRUPTIBLE
        if refused := _backend_verdict(ask, member.backends):
            return refused
        if member.graph is None:
            return GroupVerdict(Answer.WAIT, "health", f"{member.health.value}: {member.reason or NO_GRAPH_REASON}")
        if refused := _site_verdict(ask, member.graph):
            return refused
        fits = self._fits(member.graph)
        if fits.say is Answer.NO:
            return fits
        if member.left_s is not None and (too_long := _end_verdict(ask.time_limit_s, member.left_s)):
            return too_long
        if why := self.refused.get(member.id):
            return GroupVerdict(Answer.NO, "refused", f"refused it before its start: {why}")
        if member.health is not Health.UP:
            return GroupVerdict(Answer.WAIT, "health", f"{member.health.value}: {member.reason}".rstrip(": "))
        if ask.has_files and member.files_trouble:
            return GroupVerdict(Answer.WAIT, "health", f"{TAKES_NO_FILES}{member.files_trouble}")
        if why := self.avoided.get(member.id):
            return GroupVerdict(Answer.YES, LAST_STEP, f"fits, but comes last: {why}")
        if member.trouble:
            return GroupVerdict(Answer.YES, LAST_STEP, f"fits, but comes last: {TAKES_NOTHING}{member.trouble}")
        if ask.image:
            # Always said, because a rule may run the command on the host.
            return GroupVerdict(Answer.YES, "match", f"{fits.reason}; {_image_note(ask.image, member.graph)}")
        return fits

    def _fits(self, graph: Graph) -> GroupVerdict:
        demand = self._ask.demand
        verdict = None if demand.is_by_name else self._by_class.get(graph.signature)
        if verdict is None:
            answer = self._index.verdict(demand, graph, by=self._ask.engine)
            if isinstance(answer, Misfit):
                verdict = GroupVerdict(Answer.NO, "match", answer.reason)
            else:
                verdict = GroupVerdict(Answer.YES, "match", _fit_reason(answer, demand.unit_word))
            self._by_class[graph.signature] = verdict
        return verdict


def _backend_verdict(ask: RoutingRequest, backends: frozenset[str]) -> GroupVerdict | None:
    """The refusal by what kind of cluster it is; None: its kind can run the job, or no agent has said it yet."""
    if ask.needs_backend and backends and backends.isdisjoint(ask.backends):
        return GroupVerdict(Answer.NO, "backend", f"has none of the backends {', '.join(ask.backends)}")
    if ask.is_array and backends == ONLY_POLLS:
        return POLLER_TAKES_NO_ARRAYS
    if ask.has_pod and backends and POD_BACKEND not in backends:
        return TAKES_NO_PODS
    if ask.flux_refusal and backends == ONLY_FLUX:
        return GroupVerdict(Answer.NO, "backend", ask.flux_refusal.rstrip("."))
    return None


def _site_verdict(ask: RoutingRequest, graph: Graph) -> GroupVerdict | None:
    """The refusal by what the cluster's site file says about images, data and secrets; None: it refuses nothing."""
    if ask.image and graph.images is not None and (refusal := image_refusal(ask.image, graph.images)):
        return GroupVerdict(Answer.NO, "image", refusal)
    if ask.site is not None and (refusal := site_refusal(ask.site, graph.site)):
        return GroupVerdict(Answer.NO, "site", refusal)
    return None


def _end_verdict(limit_s: int | None, left_s: int) -> GroupVerdict | None:
    """The refusal of a job that cannot end before its cluster; None: it can. The agent knows the end to the second."""
    if limit_s is None:
        return ENDS_AND_NO_LIMIT
    if limit_s <= left_s:
        return None
    ends = f"ends within {_format_seconds(left_s)}, and the job may run for {_format_seconds(limit_s)}"
    return GroupVerdict(Answer.NO, "end", f"{ends}: it does not fit before the end")


def _format_seconds(seconds: int) -> str:
    return f"{seconds} s" if seconds < 2 * MINUTE_S else f"{-(-seconds // MINUTE_S)} min"


def _image_note(image: str, graph: Graph) -> str:
    if graph.images is None:
        return "it has not said whether it runs images"
    return image_note(image, graph.images)


def _fit_reason(match: Match, unit_word: str) -> str:
    if match.undecided:
        return f"may fit: {match.undecided}"
    if match.slots is None:
        return "fits"
    return f"fits; holds {match.slots} such {unit_word}{'' if match.slots == 1 else 's'} at once"


def _verdict_set(verdicts: GroupVerdicts, rosters: RosterCache) -> VerdictSet:
    groups: dict[GroupVerdict, list[MemberIndexes]] = {}
    for verdict, indexes in verdicts:
        groups.setdefault(verdict, []).append(indexes)
    return VerdictSet.grouped({verdict: rosters.names(arrays) for verdict, arrays in groups.items()})


def _conclude(verdicts: GroupVerdicts, missing: str, rosters: RosterCache) -> tuple[str, str]:
    """Return the outcome and its reason."""
    if any(verdict.say is Answer.YES for verdict, _ in verdicts):
        return "assign", ""
    waiting = [(verdict, indexes) for verdict, indexes in verdicts if verdict.say is Answer.WAIT]
    if waiting:
        return "hold", "waits for " + _summarize_reasons(waiting, rosters)
    if not verdicts:
        return "reject", missing or "no cluster is registered that you may see"
    # The cluster that passed the most steps comes first: its reason is the most useful.
    reasons = _summarize_reasons(verdicts, rosters, is_furthest=True)
    return "reject", f"{missing or 'no cluster could ever run it'}: {reasons}"


def _summarize_reasons(verdicts: GroupVerdicts, rosters: RosterCache, *, is_furthest: bool = False) -> str:
    """Show the first few reasons, in the order of the clusters' names; `explain` shows all."""
    reasons = sorted(
        (-STEPS.index(verdict.step) if is_furthest else 0, int(index), verdict.reason)
        for verdict, indexes in verdicts
        for index in indexes[:REASONS_SHOWN_MAX]
    )
    shown = [f"{rosters.name(index)}: {reason}" for _, index, reason in reasons[:REASONS_SHOWN_MAX]]
    more = sum(len(indexes) for _, indexes in verdicts) - REASONS_SHOWN_MAX
    return "; ".join(shown) + (f"; and {more} more" if more > 0 else "")
