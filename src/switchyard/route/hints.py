"""What would let a job run: the router is asked again with one thing changed at a time. Pure.

No hint is a guess: each names the clusters that said yes to the changed question. Both kinds of question are counted,
so that a strange job over strange clusters costs as little as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from switchyard.match.demand import Demand, Need, PlainResources
from switchyard.match.engine import Match, Misfit, engine
from switchyard.match.plain_demand import demand_of_plain
from switchyard.model.cluster import Health
from switchyard.model.graph import Graph, NodeKind
from switchyard.model.quantity import show_bytes
from switchyard.model.verdict import Answer
from switchyard.route.router import evaluate
from switchyard.route.routing_request import RoutingRequest
from switchyard.route.verdicts import VerdictSet
from switchyard.route.world import Member, World

HINTS_MAX = 8
CLUSTERS_NAMED_MAX = 3  # clusters named in one hint
EVALUATIONS_MAX = 24  # questions to the router
PROBES_MAX = 60  # questions to a match engine: some milliseconds
MIB, GIB = 2**20, 2**30

# A field of the plain form, and the option that sets it.
AMOUNT_OPTIONS = (
    ("gpus", "--gpus"),
    ("cores", "--cores"),
    ("memory_bytes", "--memory"),
    ("storage_bytes", "--ephemeral-storage"),
)


def find_hints(ask: RoutingRequest, world: World, *, ruled: Mapping[str, str] | None = None) -> list[str]:
    """What would let it run, the smallest change first; none if a cluster takes it as it is.

    `ruled`: of `pool` and `label`, where a rule and not the request says which: then the rule has to change.
    """
    advice = _HintSearch(ask, world, ruled or {})
    if any(verdict.say is Answer.YES for verdict in advice.verdicts):
        return []
    found = [*advice.of_health(), *advice.of_bounds(), *advice.of_grants(), *advice.of_resources()]
    return [hint.text for hint in sorted(found, key=lambda hint: hint.change)[:HINTS_MAX]]


@dataclass(frozen=True, slots=True)
class Hint:
    """`change`: 0 for something outside the request, else the part of the request that would have to go."""

    change: float
    text: str


@dataclass(slots=True)
class _HintSearch:
    """One job's question to one world, and how often it may still be asked in another form."""

    ask: RoutingRequest
    world: World
    ruled: Mapping[str, str]
    rulings_left: int = EVALUATIONS_MAX
    probes_left: int = PROBES_MAX
    verdicts: VerdictSet = field(init=False)
    is_rejected: bool = field(init=False)

    def __post_init__(self) -> None:
        found = evaluate(self.ask, self.world)
        self.verdicts, self.is_rejected = found.verdicts, found.outcome == "reject"

    def takers(self, changed: RoutingRequest, among: Sequence[Member] | None = None) -> str:
        """Who would take the changed job, in words; empty: nobody, or it was asked often enough."""
        if self.rulings_left <= 0:
            return ""
        self.rulings_left -= 1
        world = self.world if among is None else replace(self.world, members=tuple(among))
        verdicts = evaluate(changed, world).verdicts
        if able := [verdict.cluster for verdict in verdicts if verdict.say is Answer.YES]:
            return join_names(able)
        # From never to not now is a step forward, too; from not now to not now is none.
        later = [verdict.cluster for verdict in verdicts if verdict.say is Answer.WAIT] if self.is_rejected else []
        return f"{join_names(later)}, once up" if later else ""

    def members(self, *steps: str) -> list[Member]:
        """The clusters whose verdict came from one of these steps."""
        return [self.world.by_name[verdict.cluster] for verdict in self.verdicts if verdict.step in steps]

    # --- outside the request

    def of_health(self) -> Iterator[Hint]:
        """Whoever only waits would take it: what an operator can do about that."""
        waiting = self.members("health")
        for text, is_ill in _HEALTH_HINTS:
            names = [member.name for member in waiting if is_ill(member)]
            if names:
                yield Hint(0, text(names))

    def of_bounds(self) -> Iterator[Hint]:
        """Another pool or label, none at all, no named cluster, a job that bears to be interrupted."""
        ask = self.ask
        for word, name, sets in (("pool", ask.pool, self.world.pools), ("label", ask.label, self.world.labels)):
            if name is not None:
                yield from self._of_set(word, sets)
        if ask.named is not None and (names := self.takers(replace(ask, named=None))):
            yield Hint(0, f"without naming a cluster ({names})")
        if self.members("interruptible") and (names := self.takers(replace(ask, is_interruptible=True))):
            yield Hint(0, f"interruptible: true ({names})")

    def _of_set(self, word: str, sets: Mapping[str, Mapping[str, float]]) -> Iterator[Hint]:
        rule_of = self.ruled.get(word, "")
        aside = f"; {rule_of} says which, and would have to change" if rule_of else ""
        is_found = False
        current = self.ask.pool if word == "pool" else self.ask.label
        for other in sorted(sets):
            if other != current and any(name in self.world.by_name for name in sets[other]):
                names = self.takers(self._with(word, other))
                if names:
                    is_found = True
                    yield Hint(0, f"{word} {other} ({names}){aside}")
        if not is_found and (names := self.takers(self._with(word, None))):
            yield Hint(0, f"without the {word} {current} ({names}){aside}")

    def _with(self, word: str, name: str | None) -> RoutingRequest:
        return replace(self.ask, pool=name, spilled=()) if word == "pool" else replace(self.ask, label=name)

    def of_grants(self) -> Iterator[Hint]:
        without = self.members("grant")
        if not without:
            return
        granted = self.ask.granted | {member.id for member in without}
        if names := self.takers(replace(self.ask, granted=granted), among=without):
            yield Hint(0, f"a grant to submit to {names}")

    # --- within the request

    def of_resources(self) -> Iterator[Hint]:
        """One amount alone lowered to the most that some cluster takes, of those that may run it at all."""
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
        if plain.nodes is not None:
            yield from self._of_nodes(plain, misfits, graphs)

    def _of_amount(
        self, plain: PlainResources, name: str, option: str, misfits: Sequence[Member], graphs: Mapping[str, Graph]
    ) -> Iterator[Hint]:
        asks: int = getattr(plain, name)
        # The best first: once what is found is as much as the next could have, nobody has more.
        bounds = sorted(((_upper_bound(plain, graph, name), key) for key, graph in graphs.items()), reverse=True)
        best = _minimum(name) - 1
        for bound, key in bounds:
            if bound <= best:
                break
            found = self._largest(plain, name, min(bound, asks - 1), graphs[key])
            best = max(best, _minimum(name) - 1 if found is None else found)
        if best >= _minimum(name) and (names := self._verified(replace(plain, **{name: best}), misfits)):
            yield Hint(
                1 - best / asks, f"{option} {_show_amount(name, best)} instead of {_show_amount(name, asks)} ({names})"
            )

    def _of_nodes(
        self, plain: PlainResources, misfits: Sequence[Member], graphs: Mapping[str, Graph]
    ) -> Iterator[Hint]:
        """Fewer nodes are not always easier to find room on, so only the sizes of real clusters are tried."""
        assert plain.nodes is not None
        sizes = sorted({graph.nodes for graph in graphs.values() if graph.nodes < plain.nodes}, reverse=True)
        for size in sizes[:CLUSTERS_NAMED_MAX]:
            if names := self._verified(replace(plain, nodes=size), misfits):
                yield Hint(1 - size / plain.nodes, f"--nodes {size} instead of {plain.nodes} ({names})")
                return
        if names := self._verified(replace(plain, nodes=None), misfits):
            yield Hint(0.5, f"without --nodes ({names})")

    def _of_jobspec(self, misfits: Sequence[Member], graphs: Mapping[str, Graph]) -> Iterator[Hint]:
        """Of a demand in another form: what the engine says is the most in one place."""
        told: set[str] = set()
        for graph in graphs.values():
            found = self.world.index.verdict(self.ask.demand, graph, by=self.ask.engine)
            if not isinstance(found, Misfit) or not 0 < found.best < found.needs or found.level in told:
                continue
            capped = replace(self.ask.demand, needs=_cap_needs(self.ask.demand.needs, found.level, found.best))
            if names := self.takers(replace(self.ask, demand=capped), among=misfits):
                told.add(found.level)
                yield Hint(
                    1 - found.best / found.needs, f"{found.best} {found.level} instead of {found.needs} ({names})"
                )

    def _verified(self, plain: PlainResources, misfits: Sequence[Member]) -> str:
        return self.takers(replace(self.ask, demand=self._demand(plain)), among=misfits)

    def _largest(self, plain: PlainResources, name: str, most: int, graph: Graph) -> int | None:
        """The largest amount up to `most` that fits; less is never harder to place. Bytes in steps of a MiB."""
        if most < _minimum(name) or self._fits(replace(plain, **{name: most}), graph):
            return most if most >= _minimum(name) else None
        step = MIB if most > MIB else 1
        low, high = _minimum(name), (most - 1) // step
        found: int | None = None
        while low <= high and self.probes_left > 0:
            middle = (low + high + 1) // 2
            if self._fits(replace(plain, **{name: middle * step}), graph):
                found, low = middle * step, middle + 1
            else:
                high = middle - 1
        return found

    def _fits(self, plain: PlainResources, graph: Graph) -> bool:
        if self.probes_left <= 0:
            return False
        self.probes_left -= 1
        return isinstance(engine(self.ask.engine).satisfy(self._demand(plain), graph), Match)

    def _demand(self, plain: PlainResources) -> Demand:
        return demand_of_plain(plain, self.ask.demand.needs[0].requires)


def join_names(names: Sequence[str], most: int = CLUSTERS_NAMED_MAX) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _is_cordoned_and_down(member: Member) -> bool:
    """Cordoned, and with that taken away still not up."""
    return member.health is Health.CORDONED and (member.is_silent or member.graph is None)


# What one can do, and for whom that is all it takes.
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
        lambda names: f"bring the agent{'s' * (len(names) > 1)} of {join_names(names)} back",
        lambda member: member.health is Health.DOWN and member.graph is not None,
    ),
)


def _minimum(name: str) -> int:
    return 1 if name in ("cores", "tasks") else 0


def _upper_bound(plain: PlainResources, graph: Graph, name: str) -> int:
    """No more of it than this can fit. Of an amount, the most on one node that has enough of all the rest; of tasks,
    what the nodes hold together. Less than nothing where even the least of it would not help."""
    if name == "tasks":
        return sum(kind.count * _tasks_per_node(plain, kind) for kind in graph.kinds)
    least = replace(plain, **{name: _minimum(name)})
    holds = [(kind, _tasks_per_node(least, kind)) for kind in graph.kinds]
    if sum(kind.count * times for kind, times in holds) < plain.tasks:
        return -1
    return max((_amount_on_node(kind, name) for kind, times in holds if times), default=-1)


def _tasks_per_node(plain: PlainResources, kind: NodeKind) -> int:
    """How many tasks one such node holds."""
    found = kind.cores // plain.cores
    if plain.gpus:
        found = min(found, kind.gpus // plain.gpus)
    if plain.memory_bytes:
        found = min(found, kind.memory_bytes // plain.memory_bytes)
    if plain.storage_bytes:
        found = min(found, kind.storage_bytes // plain.storage_bytes)
    return found


def _amount_on_node(kind: NodeKind, name: str) -> int:
    found: int = getattr(kind, name)
    return found


def _show_amount(name: str, value: int) -> str:
    """As it is written in a job. Bytes are rounded down: what is shown must fit, too."""
    if not name.endswith("bytes") or not value:
        return str(value)
    return show_bytes(value) if value < MIB or value % GIB == 0 else f"{value // MIB}MiB"


def _cap_needs(needs: tuple[Need, ...], type_: str, most: int) -> tuple[Need, ...]:
    """The same needs with at most so many of one type in each place."""
    return tuple(
        replace(
            need,
            count=min(need.count, most) if need.type == type_ else need.count,
            holds=_cap_needs(need.holds, type_, most),
        )
        for need in needs
    )
