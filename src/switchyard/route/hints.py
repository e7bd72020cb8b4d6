"""What would let a job run: the router evaluates the job again with one thing changed at a time. Pure.

No hint is a guess: each names the clusters that accept the changed job. Evaluations and questions to match engines are
bounded, so that no job costs much more than another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from typing import Any

from switchyard.match.demand import Demand, Need, PlainResources
from switchyard.match.engine import Match, Misfit, engine
from switchyard.match.plain_demand import demand_of_plain
from switchyard.match.requirement import Requirement, show_mb
from switchyard.model.cluster.cluster import Health
from switchyard.model.cluster.hardware import GPU, Hardware, types_of_vertex
from switchyard.model.cluster.verdict import Answer, Outcome
from switchyard.model.graph import Graph, NodeKind
from switchyard.model.jobspec.quantity import show_bytes
from switchyard.route.member import Member
from switchyard.route.router import evaluate
from switchyard.route.routing_request import RoutingRequest
from switchyard.route.verdicts import VerdictSet
from switchyard.route.world import World

HINTS_MAX = 8
CLUSTERS_NAMED_MAX = 3  # clusters named in one hint
EVALUATIONS_MAX = 24  # evaluations by the router
PROBES_MAX = 60  # questions to a match engine: some milliseconds
TYPES_MAX = 3  # other types that are tried, the nearest names
MIB, GIB = 2**20, 2**30

# A field of the plain form, and the option that sets it.
AMOUNT_OPTIONS = (
    ("gpus", "--gpus"),
    ("cores", "--cores"),
    ("memory_bytes", "--memory"),
    ("storage_bytes", "--ephemeral-storage"),
)


def find_hints(ask: RoutingRequest, world: World, *, ruled: Mapping[str, str] | None = None) -> list[str]:
    """Return the changes that would let the job run, the smallest first; none if a cluster accepts it as it is.

    `ruled`: the rule that sets `pool` or `label`, if the request does not: then the rule has to change.
    """
    search = _HintSearch(ask, world, ruled or {})
    if any(verdict.say is Answer.YES for verdict, _ in search.verdicts.groups):
        return []
    hints = [*search.of_health(), *search.of_bounds(), *search.of_grants(), *search.of_resources()]
    return [hint.text for hint in sorted(hints, key=lambda hint: hint.change)[:HINTS_MAX]]


@dataclass(frozen=True, slots=True)
class Hint:
    """`change`: 0 for a change outside the request's amounts, else the share of the amount that would have to go."""

    change: float
    text: str


@dataclass(slots=True)
class _HintSearch:
    """The search for hints for one job in one world, and how much of it is still allowed."""

    ask: RoutingRequest
    world: World
    ruled: Mapping[str, str]
    evaluations_left: int = EVALUATIONS_MAX
    probes_left: int = PROBES_MAX
    verdicts: VerdictSet = field(init=False)
    is_rejected: bool = field(init=False)

    def __post_init__(self) -> None:
        eligibility = evaluate(self.ask, self.world)
        self.verdicts, self.is_rejected = eligibility.verdicts, eligibility.outcome is Outcome.REJECT

    def takers(self, changed: RoutingRequest, among: Sequence[Member] | None = None) -> str:
        """Name the clusters that would accept the changed job; empty: none would, or the bound is reached."""
        if self.evaluations_left <= 0:
            return ""
        self.evaluations_left -= 1
        # Evaluated in the whole world, whose roster is cached: a world of the clusters `among` would need its own.
        verdicts = evaluate(changed, self.world).verdicts
        allowed = None if among is None else {member.name for member in among}

        def takers_that(say: Answer) -> list[str]:
            names = verdicts.names(lambda verdict: verdict.say is say)
            return names if allowed is None else [name for name in names if name in allowed]

        if eligible := takers_that(Answer.YES):
            return join_names(eligible)
        # If the job was rejected, a cluster that is only down is progress, too.
        later = takers_that(Answer.WAIT) if self.is_rejected else []
        return f"{join_names(later)}, once up" if later else ""

    def members(self, *steps: str) -> list[Member]:
        """The clusters whose verdict came from one of these steps."""
        return [self.world.by_name[name] for name in self.verdicts.names(lambda verdict: verdict.step in steps)]

    # --- outside the request

    def of_health(self) -> Iterator[Hint]:
        """Clusters that would run the job if they were up: what an operator can do."""
        waiting = self.members("health")
        for text, is_ill in _HEALTH_HINTS:
            names = [member.name for member in waiting if is_ill(member)]
            if names:
                yield Hint(0, text(names))

    def of_bounds(self) -> Iterator[Hint]:
        """Another pool or label, or none; no pin; an interruptible job; no image."""
        ask, bounds = self.ask, self.ask.bounds
        for word, name, sets in (("pool", bounds.pool, self.world.pools), ("label", bounds.label, self.world.labels)):
            if name is not None:
                yield from self._of_set(word, sets)
        if bounds.named is not None and (names := self.takers(ask.bounded(named=None))):
            yield Hint(0, f"without naming a cluster ({names})")
        if self.members("interruptible") and (names := self.takers(ask.bounded(is_interruptible=True))):
            yield Hint(0, f"interruptible: true ({names})")
        if self.members("image") and (names := self.takers(ask.bounded(image=""))):
            yield Hint(0, f"another image, or none ({names})")

    def _of_set(self, word: str, sets: Mapping[str, Mapping[str, float]]) -> Iterator[Hint]:
        rule_of = self.ruled.get(word, "")
        aside = f"; {rule_of} says which, and would have to change" if rule_of else ""
        is_found = False
        current = self.ask.bounds.pool if word == "pool" else self.ask.bounds.label
        for other in sorted(sets):
            if other != current and any(name in self.world.by_name for name in sets[other]):
                names = self.takers(self._with(word, other))
                if names:
                    is_found = True
                    yield Hint(0, f"{word} {other} ({names}){aside}")
        if not is_found and (names := self.takers(self._with(word, None))):
            yield Hint(0, f"without the {word} {current} ({names}){aside}")

    def _with(self, word: str, name: str | None) -> RoutingRequest:
        return replace(self.ask.bounded(pool=name), spilled=()) if word == "pool" else self.ask.bounded(label=name)

    def of_grants(self) -> Iterator[Hint]:
        without = self.members("grant")
        if not without:
            return
        granted = self.ask.granted | {member.id for member in without}
        if names := self.takers(replace(self.ask, granted=granted), among=without):
            yield Hint(0, f"a grant to submit to {names}")

    # --- within the request

    def of_resources(self) -> Iterator[Hint]:
        """Lower one amount to the most that some cluster fits, among the clusters that the job may use."""
        plain, misfits = self.ask.demand.plain, self.members("match")
        graphs = {member.graph.signature: member.graph for member in misfits if member.graph is not None}
        if plain is None:
            yield from self._of_jobspec(misfits, graphs)
            return
        for name, option in AMOUNT_OPTIONS:
            if getattr(plain, name) > _minimum(name):
                yield from self._of_amount(plain, name, option, misfits, graphs)
        if plain.tasks > 1:
            yield from self._of_amount(plain, "tasks", "--tasks", misfits, graphs)
        gpu = Need(GPU, plain.gpus, requires=plain.gpu_requires)
        for need in (gpu, *plain.devices):
            yield from self._of_hardware(plain, need, misfits, graphs)
        if plain.nodes is not None:
            yield from self._of_nodes(plain, misfits, graphs)

    def _of_amount(
        self, plain: PlainResources, name: str, option: str, misfits: Sequence[Member], graphs: Mapping[str, Graph]
    ) -> Iterator[Hint]:
        asks: int = getattr(plain, name)
        # The largest bound first: stop when the next cluster cannot exceed the best amount.
        bounds = sorted(((_upper_bound(plain, graph, name), key) for key, graph in graphs.items()), reverse=True)
        best = _minimum(name) - 1
        for bound, key in bounds:
            if bound <= best:
                break
            amount = self._largest(plain, name, min(bound, asks - 1), graphs[key])
            best = max(best, _minimum(name) - 1 if amount is None else amount)
        if best >= _minimum(name) and (names := self._verified(_with_amount(plain, name, best), misfits)):
            yield Hint(
                1 - best / asks, f"{option} {_show_amount(name, best)} instead of {_show_amount(name, asks)} ({names})"
            )

    def _of_nodes(
        self, plain: PlainResources, misfits: Sequence[Member], graphs: Mapping[str, Graph]
    ) -> Iterator[Hint]:
        """Fewer nodes do not always fit more easily, so only the sizes of real clusters are tried."""
        assert plain.nodes is not None
        sizes = sorted({graph.nodes for graph in graphs.values() if graph.nodes < plain.nodes}, reverse=True)
        for size in sizes[:CLUSTERS_NAMED_MAX]:
            if names := self._verified(replace(plain, nodes=size), misfits):
                yield Hint(1 - size / plain.nodes, f"--nodes {size} instead of {plain.nodes} ({names})")
                return
        if names := self._verified(replace(plain, nodes=None), misfits):
            yield Hint(0.5, f"without --nodes ({names})")

    def _of_hardware(
        self, plain: PlainResources, need: Need, misfits: Sequence[Member], graphs: Mapping[str, Graph]
    ) -> Iterator[Hint]:
        """Another type of the same kind, the nearest name first; or less memory of each device."""
        if not need.hardware:
            return
        told = {hardware for graph in graphs.values() for hardware in _types_of(graph, need.type)}
        for requirement in need.hardware:
            for change, words, changed in _other_hardware(requirement, told):
                others = tuple(changed if other is requirement else other for other in need.requires)
                if names := self._verified(_with_requirements(plain, need, others), misfits):
                    yield Hint(change, f"{need.type} {words} ({names})")

    def _of_jobspec(self, misfits: Sequence[Member], graphs: Mapping[str, Graph]) -> Iterator[Hint]:
        """For a demand in another form: lower a type to the most that the engine reports for one place."""
        hinted_types: set[str] = set()
        for graph in graphs.values():
            misfit = self.world.index.verdict(self.ask.demand, graph, by=self.ask.engine)
            if not isinstance(misfit, Misfit) or not 0 < misfit.best < misfit.needs or misfit.level in hinted_types:
                continue
            capped = replace(self.ask.demand, needs=_cap_needs(self.ask.demand.needs, misfit.level, misfit.best))
            if names := self.takers(replace(self.ask, demand=capped), among=misfits):
                hinted_types.add(misfit.level)
                yield Hint(
                    1 - misfit.best / misfit.needs, f"{misfit.best} {misfit.level} instead of {misfit.needs} ({names})"
                )

    def _verified(self, plain: PlainResources, misfits: Sequence[Member]) -> str:
        return self.takers(replace(self.ask, demand=self._demand(plain)), among=misfits)

    def _largest(self, plain: PlainResources, name: str, limit: int, graph: Graph) -> int | None:
        """Return the largest amount up to `limit` that fits, by bisection. Bytes in steps of a MiB."""
        if limit < _minimum(name) or self._fits(_with_amount(plain, name, limit), graph):
            return limit if limit >= _minimum(name) else None
        step = MIB if limit > MIB else 1
        low, high = _minimum(name), (limit - 1) // step
        largest: int | None = None
        while low <= high and self.probes_left > 0:
            middle = (low + high + 1) // 2
            if self._fits(_with_amount(plain, name, middle * step), graph):
                largest, low = middle * step, middle + 1
            else:
                high = middle - 1
        return largest

    def _fits(self, plain: PlainResources, graph: Graph) -> bool:
        if self.probes_left <= 0:
            return False
        self.probes_left -= 1
        return isinstance(engine(self.ask.engine).satisfy(self._demand(plain), graph), Match)

    def _demand(self, plain: PlainResources) -> Demand:
        return demand_of_plain(plain, self.ask.demand.needs[0].requires)


def _types_of(graph: Graph, kind: str) -> Iterator[Hardware]:
    for shape in graph.shapes:
        if shape.type == kind:
            yield from types_of_vertex(shape.properties)


def _other_hardware(asked: Requirement, told: Iterable[Hardware]) -> Iterator[tuple[float, str, Requirement]]:
    """The nearest of what clusters have instead: how far away it is, in words, and as a requirement."""
    if asked.match is not None:
        names = {hardware.name for hardware in told} - {asked.match}
        alike = {name: SequenceMatcher(None, asked.match, name).ratio() for name in names}
        for name in sorted(names, key=lambda name: (-alike[name], name))[:TYPES_MAX]:
            yield 1 - alike[name], f"of type {name} instead of {asked.match}", replace(asked, match=name)
    elif asked.min is not None:
        least = int(asked.min)
        for size in sorted({size for _, size in told if 0 < size < least}, reverse=True)[:TYPES_MAX]:
            words = f"with {show_mb(size)} instead of {show_mb(least)}"
            yield 1 - size / least, words, replace(asked, min=str(size))


def _with_requirements(plain: PlainResources, need: Need, requires: tuple[Requirement, ...]) -> PlainResources:
    if need not in plain.devices:
        return replace(plain, gpu_requires=requires)
    return replace(
        plain, devices=tuple(replace(need, requires=requires) if other is need else other for other in plain.devices)
    )


def join_names(names: Sequence[str], limit: int = CLUSTERS_NAMED_MAX) -> str:
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")


def _is_cordoned_and_down(member: Member) -> bool:
    """Cordoned, and it would be down if uncordoned."""
    return member.health is Health.CORDONED and (member.is_silent or member.graph is None)


# What an operator can do, and for which clusters that suffices.
_HEALTH_HINTS: tuple[tuple[Callable[[list[str]], str], Callable[[Member], bool]], ...] = (
    (
        lambda names: f"start an agent on {join_names(names)}",
        lambda member: member.graph is None and not _is_cordoned_and_down(member),
    ),
    (
        lambda names: f"uncordon {join_names(names)} (`yard cluster uncordon {names[0]}`)",
        lambda member: member.health is Health.CORDONED and not _is_cordoned_and_down(member),
    ),
    (
        lambda names: f"uncordon {join_names(names)} (`yard cluster uncordon {names[0]}`) and start an agent there",
        _is_cordoned_and_down,
    ),
    (
        lambda names: f"resume an agent of {join_names(names)} (`yard agent resume AGENT`)",
        lambda member: member.health is Health.PAUSED and member.graph is not None,
    ),
    (
        lambda names: f"bring the batch system of {join_names(names)} back: it does not answer its agent",
        lambda member: member.health is Health.DOWN and member.is_batch_silent,
    ),
    (
        lambda names: f"bring the agent{'s' * (len(names) > 1)} of {join_names(names)} back",
        lambda member: member.health is Health.DOWN and member.graph is not None and not member.is_batch_silent,
    ),
)


def _with_amount(plain: PlainResources, name: str, amount: int) -> PlainResources:
    changed: dict[str, Any] = {name: amount}
    return replace(plain, **changed)


def _minimum(name: str) -> int:
    return 1 if name in ("cores", "tasks") else 0


def _upper_bound(plain: PlainResources, graph: Graph, name: str) -> int:
    """An upper bound of the amount that fits; negative: not even the minimum does.

    Of tasks, all that the nodes hold together. Else the most on one node that has enough of everything else.
    """
    if name == "tasks":
        return sum(kind.count * _tasks_per_node(plain, kind) for kind in graph.kinds)
    smallest = _with_amount(plain, name, _minimum(name))
    holds = [(kind, _tasks_per_node(smallest, kind)) for kind in graph.kinds]
    if sum(kind.count * times for kind, times in holds) < plain.tasks:
        return -1
    return max((_amount_on_node(kind, name) for kind, times in holds if times), default=-1)


def _tasks_per_node(plain: PlainResources, kind: NodeKind) -> int:
    """How many tasks one such node holds."""
    tasks = kind.cores // plain.cores
    if plain.gpus:
        tasks = min(tasks, kind.gpus // plain.gpus)
    if plain.memory_bytes:
        tasks = min(tasks, kind.memory_bytes // plain.memory_bytes)
    if plain.storage_bytes:
        tasks = min(tasks, kind.storage_bytes // plain.storage_bytes)
    return tasks


def _amount_on_node(kind: NodeKind, name: str) -> int:
    amount: int = getattr(kind, name)
    return amount


def _show_amount(name: str, value: int) -> str:
    """Show an amount as in a job. Bytes are rounded down: the amount that is shown must fit."""
    if not name.endswith("bytes") or not value:
        return str(value)
    return show_bytes(value) if value < MIB or value % GIB == 0 else f"{value // MIB}MiB"


def _cap_needs(needs: tuple[Need, ...], type_: str, limit: int) -> tuple[Need, ...]:
    """Return the needs with at most `limit` of one type in each place."""
    return tuple(
        replace(
            need,
            count=min(need.count, limit) if need.type == type_ else need.count,
            holds=_cap_needs(need.holds, type_, limit),
        )
        for need in needs
    )
