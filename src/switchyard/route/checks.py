"""The router's checks: what keeps a job from a cluster, by name, in the order in which a cluster passes them. Pure.

A check is made for one request, and then asked about one cluster of each group (`roster.py`). It answers for all of
them, so it reads only what they have in common (`GroupMember`). A bound is asked about each cluster by its name or id.
Neither is made if the request gives it nothing to do, so that a simple job costs few checks.

Permanent reasons come before temporary ones: a cluster that does not fit and is down is reported as not fitting.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import NamedTuple

from switchyard.match.engine import Match, Misfit
from switchyard.model.cluster.cluster import POLLING_BACKEND, Health
from switchyard.model.cluster.verdict import Answer
from switchyard.model.graph import Graph
from switchyard.model.job.image_rules import image_note, image_refusal
from switchyard.model.job.site_needs import role_note, site_refusal
from switchyard.route.member import GroupMember, Member
from switchyard.route.routing_request import ClusterBounds, RoutingRequest
from switchyard.route.verdicts import GroupVerdict
from switchyard.route.weights import clusters_of_label, clusters_of_pool
from switchyard.route.world import World

MINUTE_S = 60
LAST_STEP = "last"
TAKES_NOTHING = "takes nothing new now: "
TAKES_NO_FILES = "takes no jobs with files now: "
NO_GRAPH_REASON = "its agent has not told what it has"
ONLY_POLLS, ONLY_FLUX = frozenset({POLLING_BACKEND}), frozenset({"flux"})
POD_BACKEND = "kubernetes"

PINNED_ELSEWHERE = GroupVerdict(Answer.NO, "pin", "the request names other clusters")
PROMISED_ELSEWHERE = GroupVerdict(
    Answer.NO, "pin", "its submitter was told another cluster, or its execution runs on another one"
)
BEGUN_ELSEWHERE = GroupVerdict(Answer.NO, "pin", "its tasks stay together, and another cluster has begun them")
NOT_GRANTED = GroupVerdict(Answer.NO, "grant", "you have no grant to submit here")
CLUSTER_INTERRUPTIBLE = GroupVerdict(Answer.NO, "interruptible", "its nodes may be taken away, and the job must not be")
POLLER_TAKES_NO_ARRAYS = GroupVerdict(Answer.NO, "backend", "it only polls, and is handed one job at a time: no arrays")
TAKES_NO_PODS = GroupVerdict(Answer.NO, "backend", "it is no Kubernetes cluster, and the job is a pod")
ENDS_AND_NO_LIMIT = GroupVerdict(Answer.NO, "end", "ends at a set time, so it takes only jobs with a time limit")

Check = Callable[[GroupMember], GroupVerdict | None]  # none: it has nothing to say of this cluster


class NamedCheck(NamedTuple):
    """`step`: the name in verdicts. `make`: returns the check for one request, or none if it has nothing to do."""

    step: str
    make: Callable[[RoutingRequest, World], Check | None]


class Bound(NamedTuple):
    """A check of thousands of clusters, one by one: the name or the id of a cluster must be `inside`."""

    inside: Container[str]
    refusal: GroupVerdict
    is_by_name: bool = False


class NamedBound(NamedTuple):
    """As NamedCheck, of a bound that the request sets. It is made once for all requests with the same bounds."""

    step: str
    make: Callable[[ClusterBounds, World], Bound | None]


def make_checks(ask: RoutingRequest, world: World) -> list[Check]:
    return [check for _, make in CLUSTER_CHECKS if (check := make(ask, world)) is not None]


def make_bounds(bounds: ClusterBounds, world: World) -> list[Bound]:
    return [bound for _, make in BOUND_CHECKS if (bound := make(bounds, world)) is not None]


def refusal_of(bounds: Iterable[Bound], member: Member) -> GroupVerdict | None:
    """Return the verdict of the first bound that excludes the cluster; none: it is inside all of them."""
    cluster_id, name = member.id, member.name
    for inside, refusal, is_by_name in bounds:
        if (name if is_by_name else cluster_id) not in inside:
            return refusal
    return None


def verdict_of(checks: Iterable[Check], member: GroupMember) -> GroupVerdict:
    """Return the first no or wait; without one, the last yes. Of clusters that stand their checks, `match` says yes."""
    last_yes = None
    for check in checks:
        verdict = check(member)
        if verdict is not None:
            if verdict.say is not Answer.YES:
                return verdict
            last_yes = verdict
    assert last_yes is not None, "a cluster with a graph matches or does not"
    return last_yes


# The bounds of the request: they need only the name and the id of a cluster.


def _pool(bounds: ClusterBounds, world: World) -> Bound | None:
    pool = clusters_of_pool(bounds, world)
    if pool is None:
        return None
    wider = f", nor in {', '.join(bounds.spilled)}" if bounds.spilled else ""
    return Bound(pool, GroupVerdict(Answer.NO, "pool", f"not in pool {bounds.pool}{wider}"), is_by_name=True)


def _label(bounds: ClusterBounds, world: World) -> Bound | None:
    label = clusters_of_label(bounds, world)
    if label is None:
        return None
    return Bound(label, GroupVerdict(Answer.NO, "label", f"not under label {bounds.label}"), is_by_name=True)


def _named_cluster(bounds: ClusterBounds, _: World) -> Bound | None:
    named = bounds.named
    return None if named is None else Bound(frozenset(named), PINNED_ELSEWHERE)


def _promised_cluster(bounds: ClusterBounds, _: World) -> Bound | None:
    settled = bounds.settled
    return None if settled is None else Bound((settled,), PROMISED_ELSEWHERE)


def _begun_cluster(bounds: ClusterBounds, _: World) -> Bound | None:
    begun_on = bounds.begun_on
    return None if begun_on is None else Bound((begun_on,), BEGUN_ELSEWHERE)


def _grant(bounds: ClusterBounds, _: World) -> Bound | None:
    return Bound(bounds.granted, NOT_GRANTED)


# What the cluster is, and what its agents say of it.


def _interruptible(ask: RoutingRequest, _: World) -> Check | None:
    if ask.bounds.is_interruptible:
        return None
    return lambda member: CLUSTER_INTERRUPTIBLE if member.is_interruptible else None


# A cluster without backends passes: no agent has said yet of what kind it is.


def _wanted_backend(ask: RoutingRequest, _: World) -> Check | None:
    wanted = ask.bounds.backends
    if not ask.bounds.needs_backend:
        return None
    refusal = GroupVerdict(Answer.NO, "backend", f"has none of the backends {', '.join(wanted)}")
    return lambda member: refusal if member.backends and member.backends.isdisjoint(wanted) else None


def _array_backend(ask: RoutingRequest, _: World) -> Check | None:
    if not ask.bounds.is_array:
        return None
    return lambda member: POLLER_TAKES_NO_ARRAYS if member.backends == ONLY_POLLS else None


def _pod_backend(ask: RoutingRequest, _: World) -> Check | None:
    if not ask.bounds.has_pod:
        return None
    return lambda member: TAKES_NO_PODS if member.backends and POD_BACKEND not in member.backends else None


def _flux_backend(ask: RoutingRequest, _: World) -> Check | None:
    if not ask.bounds.flux_refusal:
        return None
    refusal = GroupVerdict(Answer.NO, "backend", ask.bounds.flux_refusal.rstrip("."))
    return lambda member: refusal if member.backends == ONLY_FLUX else None


def _has_graph(_: RoutingRequest, __: World) -> Check | None:
    def check(member: GroupMember) -> GroupVerdict | None:
        if member.graph is not None:
            return None
        return GroupVerdict(Answer.WAIT, "health", f"{member.health.value}: {member.reason or NO_GRAPH_REASON}")

    return check


def _image(ask: RoutingRequest, _: World) -> Check | None:
    image = ask.bounds.image

    def check(member: GroupMember) -> GroupVerdict | None:
        images = _graph_of(member).images
        refusal = image_refusal(image, images) if images is not None else ""
        return GroupVerdict(Answer.NO, "image", refusal) if refusal else None

    return check if image else None


def _site(ask: RoutingRequest, _: World) -> Check | None:
    needs = ask.bounds.site
    if needs is None:
        return None

    def check(member: GroupMember) -> GroupVerdict | None:
        refusal = site_refusal(needs, _graph_of(member).site)
        return GroupVerdict(Answer.NO, "site", refusal) if refusal else None

    return check


def _match(ask: RoutingRequest, world: World) -> Check | None:
    """Clusters with equal graphs share the answer whether the job fits, unless the job names nodes."""
    demand, engine, image, index = ask.demand, ask.engine, ask.bounds.image, world.index
    role = ask.bounds.iam_role
    is_by_name, by_class = demand.is_by_name, dict[str, GroupVerdict]()

    def check(member: GroupMember) -> GroupVerdict | None:
        graph = _graph_of(member)
        verdict = None if is_by_name else by_class.get(graph.signature)
        if verdict is None:
            answer = index.verdict(demand, graph, by=engine)
            if isinstance(answer, Misfit):
                verdict = GroupVerdict(Answer.NO, "match", answer.reason)
            else:
                verdict = GroupVerdict(Answer.YES, "match", _fit_reason(answer, demand.unit_word))
            by_class[graph.signature] = verdict
        if not (image or role) or verdict.say is Answer.NO:
            return verdict
        # Always said: a rule may run the command on the host, and most clusters only tell the job its role.
        notes = [_image_note(image, graph)] if image else []
        notes += [role_note(role, graph.site)] if role else []
        return GroupVerdict(Answer.YES, "match", "; ".join((verdict.reason, *notes)))

    return check


def _end(ask: RoutingRequest, world: World) -> Check | None:
    """The agent knows the end of its cluster to the second."""
    limit_s = ask.time_limit_s

    def check(member: GroupMember) -> GroupVerdict | None:
        left_s = member.left_s
        if left_s is None or (limit_s is not None and limit_s <= left_s):
            return None
        if limit_s is None:
            return ENDS_AND_NO_LIMIT
        ends = f"ends within {_format_seconds(left_s)}, and the job may run for {_format_seconds(limit_s)}"
        return GroupVerdict(Answer.NO, "end", f"{ends}: it does not fit before the end")

    return check if world.has_ends else None


def _refused_before(ask: RoutingRequest, _: World) -> Check | None:
    reasons = dict(ask.refused)

    def check(member: GroupMember) -> GroupVerdict | None:
        why = reasons.get(member.id)
        return GroupVerdict(Answer.NO, "refused", f"refused it before its start: {why}") if why else None

    return check if reasons else None


def _health(_: RoutingRequest, __: World) -> Check | None:
    def check(member: GroupMember) -> GroupVerdict | None:
        if member.health is Health.UP:
            return None
        return GroupVerdict(Answer.WAIT, "health", f"{member.health.value}: {member.reason}".rstrip(": "))

    return check


def _takes_files(ask: RoutingRequest, _: World) -> Check | None:
    def check(member: GroupMember) -> GroupVerdict | None:
        trouble = member.files_trouble
        return GroupVerdict(Answer.WAIT, "health", f"{TAKES_NO_FILES}{trouble}") if trouble else None

    return check if ask.bounds.has_files else None


def _in_trouble(_: RoutingRequest, __: World) -> Check | None:
    return lambda member: _comes_last(f"{TAKES_NOTHING}{member.trouble}") if member.trouble else None


def _on_probation(_: RoutingRequest, world: World) -> Check | None:
    if not world.has_probation:
        return None
    return lambda member: _comes_last(member.probation) if member.probation else None


def _avoided(ask: RoutingRequest, _: World) -> Check | None:
    reasons = dict(ask.last)

    def check(member: GroupMember) -> GroupVerdict | None:
        why = reasons.get(member.id)
        return _comes_last(why) if why else None

    return check if reasons else None


def _comes_last(why: str) -> GroupVerdict:
    return GroupVerdict(Answer.YES, LAST_STEP, f"fits, but comes last: {why}")


def _graph_of(member: GroupMember) -> Graph:
    assert member.graph is not None, "`has_graph` comes first"
    return member.graph


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


BOUND_CHECKS = (
    NamedBound("pool", _pool),
    NamedBound("label", _label),
    NamedBound("pin", _named_cluster),
    NamedBound("pin", _promised_cluster),
    NamedBound("pin", _begun_cluster),
    NamedBound("grant", _grant),
)
CLUSTER_CHECKS = (
    NamedCheck("interruptible", _interruptible),
    NamedCheck("backend", _wanted_backend),
    NamedCheck("backend", _array_backend),
    NamedCheck("backend", _pod_backend),
    NamedCheck("backend", _flux_backend),
    NamedCheck("health", _has_graph),
    NamedCheck("image", _image),
    NamedCheck("site", _site),
    NamedCheck("match", _match),
    NamedCheck("end", _end),
    NamedCheck("refused", _refused_before),
    NamedCheck("health", _health),
    NamedCheck("health", _takes_files),
    NamedCheck(LAST_STEP, _in_trouble),
    NamedCheck(LAST_STEP, _on_probation),
    NamedCheck(LAST_STEP, _avoided),
)
WEIGHT_STEP = "weight"  # compares clusters, so it comes after all checks (weights.py)
# The steps in which a cluster may say no: the later one is, the further came the cluster.
STEPS = (
    *dict.fromkeys(check.step for check in (*BOUND_CHECKS, *CLUSTER_CHECKS) if check.step not in ("health", LAST_STEP)),
    WEIGHT_STEP,
)
