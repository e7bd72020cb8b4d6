"""The router's world follows who is alive: reckoned only where something turned, it is what all of it would give."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard.model.cluster.cluster import ClusterChange, Health, Load
from switchyard.service.cluster import clusters
from switchyard.service.core.snapshots.snapshots import Snapshots
from tests.builders import a_graph
from tests.service.rig import ADMIN, Clock, Rig

STEPS = 400


class Ticking(Clock):
    """Each look at it takes so many microseconds."""

    tick_us = 0

    def __call__(self) -> int:
        self.at_us += self.tick_us
        return self.at_us


@pytest.fixture
def clock() -> Ticking:
    return Ticking()


@pytest.fixture
def rig(sqlite_url: str, tmp_path: Path, clock: Ticking) -> Iterator[Rig]:
    rig = Rig(sqlite_url, tmp_path, clock=clock)
    yield rig
    rig.close()


def test_who_falls_silent_while_the_world_is_reckoned_is_seen_when_they_speak(rig: Rig, clock: Ticking) -> None:
    snapshots = rig.context.snapshots
    agent = rig.cluster("alpha")
    agent.seen()
    clock.at_us = snapshots.seen[agent.id] + snapshots.silent_after_us - 2
    clock.tick_us = 1  # it is alive at the first look, and no more at the next
    snapshots.refresh(force=True)
    clock.tick_us = 0
    clock.wait(1)
    agent.seen()
    assert snapshots.world.by_name["alpha"].health is Health.UP


def test_what_failed_is_reckoned_again(rig: Rig, clock: Ticking, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshots = rig.context.snapshots
    agent = rig.cluster("alpha")
    clock.wait(snapshots.silent_after_us / 1e6 + 1)
    snapshots.rebuild_world()
    assert snapshots.world.by_name["alpha"].health is Health.DOWN
    with monkeypatch.context() as patched:
        patched.setattr("switchyard.service.core.snapshots.snapshots.World.of", lambda *_, **__: 1 / 0)
        snapshots.mark_seen(agent.id, clock())
        with pytest.raises(ZeroDivisionError):
            snapshots.rebuild_world()
    snapshots.rebuild_world()
    assert snapshots.world.by_name["alpha"].health is Health.UP


@pytest.mark.parametrize("seed", range(3))
def test_a_world_kept_up_to_date_is_the_world_made_anew(rig: Rig, clock: Ticking, seed: int) -> None:
    chance, snapshots = random.Random(seed), rig.context.snapshots
    agents = [rig.cluster(f"c{number}", graph=a_graph(cores=4 + number % 3)) for number in range(8)]
    for number in range(STEPS):
        agent = chance.choice(agents)
        what = chance.random()
        if what < 0.6:
            snapshots.mark_seen(agent.id, clock())
        elif what < 0.65:
            change = ClusterChange(is_cordoned=chance.random() < 0.5, reason=f"step {number}")
            clusters.cluster_change(rig.context, ADMIN, agent.cluster, change)
        clock.wait(chance.choice((0.0, 1.0, snapshots.silent_after_us / 1e6)))
        snapshots.rebuild_world()
        assert snapshots.world.members == _anew(rig, snapshots).world.members
        assert snapshots.world.index.classes == 3


def _anew(rig: Rig, kept: Snapshots) -> Snapshots:
    """As a server that starts now would see it, having heard the same."""
    context = rig.context
    made = Snapshots(
        context.database,
        policy=kept.policy,
        now_us=rig.clock,
        silent_after_us=kept.silent_after_us,
        layout=kept.laid.layout,
    )
    made.seen = dict(kept.seen)
    made.refresh(force=True)
    return made


def test_nothing_is_kept_of_agents_and_clusters_that_were_removed(rig: Rig) -> None:
    """Each pilot and each ephemeral cluster comes with agents of its own: what is kept of them would grow for ever."""
    snapshots, presence, hub = rig.context.snapshots, rig.yard.agents, rig.yard.wakeups.hub
    agent = rig.cluster("alpha")
    ids = {agent.id, agent.cluster_id}
    presence.forget_removed()
    snapshots.take_load(agent.id, Load(trouble="disk full", ends_in_s=60), rig.clock())
    with presence.processes.polling(agent.id, "i1", 0):
        presence.processes.note_holder(agent.id, "i1")
    presence.empty_polls[agent.id] = presence.flushed_loads[agent.id] = ()  # type: ignore[assignment]
    hub.wake([agent.cluster_id], ())

    def kept() -> set[str]:
        """The tables that have one of the ids."""
        owners = (snapshots, snapshots._troubles, snapshots._ends, presence, presence.processes, hub)
        tables = [item for owner in owners for item in vars(owner).items()]
        return {name for name, table in tables if isinstance(table, dict) and ids & table.keys()}

    assert kept() >= {"seen", "loads", "load_times", "_causes", "_ends_us", "empty_polls", "_heard", "_versions"}
    clusters.cluster_delete(rig.context, ADMIN, "alpha")
    snapshots.refresh()
    presence.forget_removed()
    assert kept() == set()
