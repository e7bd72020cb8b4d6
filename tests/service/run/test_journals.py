"""Which process has an agent's place: copies, backups and restarts, step by step on a clock of our own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from switchyard.errors import JournalRefused, PlaceAsked, Resync
from switchyard.model.cluster.poll import Origin, Rotate
from switchyard.service.cluster.agents import agent_list, require_place, rotate_credential
from switchyard.service.core.agents.agent_sessions import (
    FOREIGN_NOTED_EVERY_US,
    FOREIGN_REASON,
    RIVAL_ANSWER_US,
    LastHeardProcess,
    SyncRequest,
)
from switchyard.service.run.lease import LeaseAnswer
from switchyard.store.tables.schema import audit
from tests.service.rig import ADMIN, Rig, RigAgent


class Process:
    """One process of an agent: what it says of itself."""

    def __init__(
        self, rig: Rig, agent: RigAgent, name: str, start: int, *, found: int = 0, journal: str = "j1"
    ) -> None:
        self.rig, self.agent, self.name = rig, agent, name
        self.origin = Origin(journal=journal, start=start, found=found, place=f"host-{name}:/data")
        self.session = 0

    def sync(self, *, is_live: bool = False, **fields: Any) -> LeaseAnswer:
        ask = SyncRequest(self.agent.id, self.agent.cluster, self.name, frozenset(), self.origin, is_live)
        given: LeaseAnswer = self.rig.committer.do(replace(ask, **fields))
        self.session = given.session
        return given

    def poll(self, *, is_fresh: bool = True) -> LeaseAnswer:
        ask = replace(self.agent.ask(), session=self.session, incarnation=self.name, is_fresh=is_fresh)
        given: LeaseAnswer = self.rig.committer.do(ask)
        return given


@pytest.fixture
def agent(rig: Rig) -> RigAgent:
    return rig.join("alpha")


def test_a_number_that_was_seen_is_refused_and_shown(rig: Rig, agent: RigAgent) -> None:
    first, copy, later = (Process(rig, agent, name, start) for name, start in (("a", 1), ("b", 1), ("c", 2)))
    first.sync()
    with pytest.raises(JournalRefused, match="start 1 was here already") as refused:
        copy.sync()
    assert "host-a:/data" in refused.value.detail
    rig.context.snapshots.refresh()
    [shown] = agent_list(rig.context, ADMIN, "alpha")
    assert shown.rival is not None
    assert (shown.place, shown.rival.incarnation, shown.rival.place) == ("host-a:/data", "b", "host-b:/data")
    later.sync()
    with pytest.raises(JournalRefused):
        first.sync()  # A, then C, then A again
    with pytest.raises(Resync):
        first.poll()


def test_another_journal_is_refused(rig: Rig, agent: RigAgent) -> None:
    with pytest.raises(JournalRefused, match="not the one that this agent joined with"):
        Process(rig, agent, "a", 1, journal="j2").sync()


def test_a_journal_that_lacks_what_the_server_was_told_of_is_refused(rig: Rig, agent: RigAgent) -> None:
    Process(rig, agent, "a", 1).sync()
    old = Process(rig, agent, "b", 2, found=6)
    with pytest.raises(JournalRefused, match="6 writes when it was opened, and 7 were known"):
        old.sync(last_heard=LastHeardProcess("a", writes=7))
    old.sync(last_heard=LastHeardProcess("another", writes=7))


def test_a_journal_that_was_damaged_is_no_outdated_copy(rig: Rig, agent: RigAgent) -> None:
    Process(rig, agent, "a", 1).sync()
    process = Process(rig, agent, "b", 2)
    process.origin = Origin(journal="j1", start=2, is_rebuilt=True)
    process.sync(last_heard=LastHeardProcess("a", writes=7))


def test_the_process_that_has_the_place_is_asked_and_keeps_it(rig: Rig, agent: RigAgent) -> None:
    first, copy = Process(rig, agent, "a", 1), Process(rig, agent, "b", 2)
    first.sync()
    with pytest.raises(PlaceAsked):
        copy.sync(is_live=True)
    assert first.poll(is_fresh=False).is_asked, "a parked poll comes back, and proves nothing"
    with pytest.raises(PlaceAsked):
        copy.sync(is_live=True)
    assert not first.poll().is_asked
    for _ in range(2):
        with pytest.raises(JournalRefused, match="is alive"):
            copy.sync(is_live=True)
    first.poll()


def test_the_place_of_a_process_that_does_not_answer_is_given_away(rig: Rig, agent: RigAgent) -> None:
    first, second = Process(rig, agent, "a", 1), Process(rig, agent, "b", 2)
    first.sync()
    with pytest.raises(PlaceAsked):
        second.sync(is_live=True)
    rig.clock.wait(RIVAL_ANSWER_US / 1_000_000)
    second.sync(is_live=True)
    with pytest.raises(Resync):
        first.poll()
    with pytest.raises(JournalRefused, match="start 2 was here already"):
        first.sync(is_live=True)
    second.poll()


def test_a_process_that_is_known_to_be_gone_is_not_asked(rig: Rig, agent: RigAgent) -> None:
    Process(rig, agent, "a", 1).sync()
    Process(rig, agent, "b", 2).sync(is_live=True, last_heard=LastHeardProcess("a", is_gone=True))


def test_a_sync_whose_answer_was_lost_is_sent_again(rig: Rig, agent: RigAgent) -> None:
    process = Process(rig, agent, "a", 1)
    assert process.sync().session < process.sync(is_live=True).session


def test_an_agent_that_was_killed_before_it_counted_its_start_is_let_in(rig: Rig, agent: RigAgent) -> None:
    """The server has accepted start 1, and the agent's disk does not know it: it shows start 1 and its claim again."""
    Process(rig, agent, "claim1-a", 1, found=3).sync()
    with pytest.raises(JournalRefused, match="start 1 was here already"):
        Process(rig, agent, "claim2-b", 1, found=3).sync()
    with pytest.raises(JournalRefused, match="2 writes when it was opened"):
        Process(rig, agent, "claim1-c", 1, found=2).sync()
    Process(rig, agent, "claim1-d", 1, found=3).sync()


@pytest.mark.parametrize("incarnation", ["a", "", "-a", "claim1"])
def test_an_incarnation_without_a_claim_is_no_claim(rig: Rig, agent: RigAgent, incarnation: str) -> None:
    Process(rig, agent, "a", 1).sync()
    with pytest.raises(JournalRefused):
        Process(rig, agent, f"{incarnation}-b", 1).sync()


def test_a_process_that_leaves_its_journal_out_is_refused_where_an_earlier_one_named_it(
    rig: Rig, agent: RigAgent
) -> None:
    Process(rig, agent, "a", 1).sync()
    with pytest.raises(JournalRefused, match="does not say which journal"):
        Process(rig, agent, "b", 2).sync(origin=None)


def test_an_agent_that_never_began_a_session_gets_no_leases(rig: Rig, agent: RigAgent) -> None:
    with pytest.raises(Resync):
        Process(rig, agent, "a", 1).poll()


def refused_times(rig: Rig) -> int:
    with rig.context.database.read() as tx:
        return [row.action for row in tx.execute(sa.select(audit.c.action))].count("agent.refuse")


def test_a_foreign_process_is_refused_and_shown_once_a_minute(rig: Rig, agent: RigAgent) -> None:
    entry = rig.context.snapshots.fleet.agents[agent.id]
    with pytest.raises(Resync):
        require_place(rig.context, entry, "a")  # nobody has the place, so nobody is foreign
    assert agent_list(rig.context, ADMIN, "alpha")[0].rival is None
    Process(rig, agent, "a", 1).sync()
    require_place(rig.context, entry, "a")
    for name in ("b", "c"):
        with pytest.raises(Resync):
            require_place(rig.context, entry, name)
    rig.context.snapshots.refresh()
    [shown] = agent_list(rig.context, ADMIN, "alpha")
    assert shown.rival is not None
    assert (shown.rival.incarnation, shown.rival.why) == ("b", FOREIGN_REASON)
    assert refused_times(rig) == 1
    rig.clock.wait(FOREIGN_NOTED_EVERY_US / 1_000_000)
    with pytest.raises(Resync):
        require_place(rig.context, entry, "d")
    assert refused_times(rig) == 2
    require_place(rig.context, entry, "a")


def test_a_foreign_process_does_not_hide_that_the_place_was_asked_for(rig: Rig, agent: RigAgent) -> None:
    first, second = Process(rig, agent, "a", 1), Process(rig, agent, "b", 2)
    first.sync()
    with pytest.raises(PlaceAsked):
        second.sync(is_live=True)
    with pytest.raises(Resync):
        require_place(rig.context, rig.context.snapshots.fleet.agents[agent.id], "c")
    assert first.poll(is_fresh=False).is_asked


def test_only_the_process_that_has_the_place_rotates_the_credential(rig: Rig, agent: RigAgent) -> None:
    Process(rig, agent, "a", 1).sync()
    entry = rig.context.snapshots.fleet.agents[agent.id]
    for request in (Rotate(), Rotate(incarnation="b")):
        with pytest.raises(Resync):
            rotate_credential(rig.context, entry, request)
    assert rig.context.snapshots.fleet.agents[agent.id].next_hash is None
    assert refused_times(rig) == 1
    assert rotate_credential(rig.context, entry, Rotate(incarnation="a")).credential


def test_agents_of_an_older_version_are_let_in_and_asked(rig: Rig, agent: RigAgent) -> None:
    first, second = Process(rig, agent, "a", 1), Process(rig, agent, "b", 2)
    first.sync(origin=None)
    with pytest.raises(PlaceAsked):
        second.sync(origin=None, is_live=True)
    first.poll()
    with pytest.raises(JournalRefused):
        second.sync(origin=None, is_live=True)
    second.sync(origin=None)  # the first one is silent


def test_a_join_with_a_token_lets_a_folder_from_a_backup_in(rig: Rig, agent: RigAgent) -> None:
    Process(rig, agent, "a", 5, found=9).sync()
    restored = Process(rig, agent, "b", 3, found=2)
    with pytest.raises(JournalRefused):
        restored.sync()
    rig.clock.wait(60)
    rig.join("alpha")
    restored.sync(last_heard=LastHeardProcess("a", writes=22))  # what this server still remembers of the process before
