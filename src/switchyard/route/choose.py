"""From who is able to who is drawn from: a selection algorithm applied to a ruling. Pure.

It comes after the ruling and before the draw. A ruling is kept per shape for as long as the world stands; what an
algorithm says may hang on the clusters' state, which changes with every poll, so it is never kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from switchyard.model.verdict import Say, Verdict
from switchyard.route.operators import Value
from switchyard.route.route import Ruling
from switchyard.route.select.selector import Contender, Failed, Quoted, Selected, Selector
from switchyard.route.select.weighted import Field
from switchyard.route.verdicts import Told, Verdicts
from switchyard.route.world import World

States = Mapping[str, Mapping[str, Value]]  # cluster's name → what is known of it now
NO_QUOTES: Mapping[str, Quoted] = MappingProxyType({})
SHOWN_MAX = 5
NOBODY = "waits: no clusters passed selection"  # how the reason begins


def contenders(
    ruling: Ruling, world: World, states: States, order: Sequence[str] = (), quotes: Mapping[str, Quoted] = NO_QUOTES
) -> list[Contender]:
    """The able clusters of a ruling, in its order, or those that `order` names first."""
    found = []
    place = {name: number for number, name in enumerate(order)}
    weighted = zip(ruling.able.names, ruling.able.weights, strict=True)
    for name, weight in sorted(weighted, key=lambda pair: place.get(pair[0], len(place))):
        member = world.by_name.get(name)  # gone, if the world is a newer one
        graph = member.graph if member else None
        cores = graph.totals.get("core", 0) if graph else 0
        found.append(Contender(name, weight, cores, states.get(name, {}), quotes.get(name)))
    return found


def choose(
    ruling: Ruling,
    algorithm: str,
    selector: Selector,
    *,
    world: World,
    states: States,
    parameters: Mapping[str, Value],
    order: Sequence[str] = (),
    quotes: Mapping[str, Quoted] = NO_QUOTES,
) -> Ruling | Failed:
    """The ruling with only those the algorithm leaves in the race. Nobody: the job waits, with each one's reason."""
    if ruling.outcome != "assign":
        return replace(ruling, algorithm=algorithm)
    selected = selector.select(contenders(ruling, world, states, order, quotes), parameters)
    if isinstance(selected, Failed):
        return selected
    weights = dict(zip(ruling.able.names, ruling.able.weights, strict=True))
    among = Field.of(selected.among, [1.0 if selected.is_even else weights[name] for name in selected.among])
    verdicts = Verdicts.of((each.cluster, _told(each, selected)) for each in ruling.verdicts)
    left = replace(ruling, able=among, verdicts=verdicts, algorithm=algorithm, remaining=selected.remaining)
    return left if selected.among else replace(left, outcome="hold", reason=_nobody(algorithm, selected))


def _told(verdict: Verdict, selected: Selected) -> Told:
    if (why := selected.out.get(verdict.cluster)) is not None:
        return Told(Say.WAIT, "select", why)
    if (why := selected.notes.get(verdict.cluster)) is not None:
        return Told(Say.YES, "select", f"{verdict.reason}; {why}")
    return Told(verdict.say, verdict.step, verdict.reason)


def _nobody(algorithm: str, selected: Selected) -> str:
    shown = [f"{name}: {why}" for name, why in list(selected.out.items())[:SHOWN_MAX]]
    more = len(selected.out) - len(shown)
    listed = "; ".join(shown) + (f"; and {more} more" if more > 0 else "")
    return f"{NOBODY} ({algorithm}): {listed}"
