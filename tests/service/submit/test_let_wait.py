"""A job that waits is looked at after it came, whatever came while it was being taken in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard.service.core.writes.batch import CommitNotice
from switchyard.service.submit.bulk import BulkInsert
from tests.builders import a_request
from tests.service.rig import ADMIN, Rig, RigAgent, running
from tests.services import Postgres
from tests.store.prepared import migrated


def listened(rig: Rig) -> list[str]:
    """What is said to all servers from here on."""
    said: list[str] = []
    before = rig.committer.after_commit

    def note(woken: CommitNotice) -> None:
        said.extend(woken.versions)
        before(woken)

    rig.committer.after_commit = note
    return said


@pytest.fixture
def away(rig: Rig) -> RigAgent:
    """The agent of the only cluster, silent."""
    agent = rig.cluster("alpha")
    rig.clock.wait(3600)
    rig.context.snapshots.rebuild_world()
    return agent


def test_what_came_between_decision_and_commit_is_not_missed(rig: Rig, away: RigAgent) -> None:
    write, said = rig.decided(), listened(rig)
    assert write.created.state == "PENDING"
    away.seen()
    rig.committer.do(write)
    assert "pending" in said


def test_in_a_bulk_too(rig: Rig, away: RigAgent) -> None:
    write = rig.decided()
    bulk = BulkInsert((write,), {}, write.row.id, True, None, "", ADMIN.name)
    said = listened(rig)
    away.seen()
    rig.committer.do(bulk)
    assert "pending" in said


def test_where_nothing_came_nobody_is_told(rig: Rig, away: RigAgent) -> None:
    said = listened(rig)
    assert [rig.submit().state, rig.submit(a_request(hold=True)).state] == ["PENDING", "PENDING"]
    rig.submits.pending_wakeup.tell_leader()
    assert "pending" not in said


@pytest.fixture
def two(postgres: Postgres, tmp_path: Path) -> Iterator[tuple[Rig, Rig]]:
    """The leader, and another server of its database."""
    url = migrated(postgres)
    with running(url, tmp_path / "one") as one, running(url, tmp_path / "two", clock=one.clock) as two:
        yield one, two


@pytest.mark.long
def test_a_server_that_learned_late_tells_the_leader(two: tuple[Rig, Rig]) -> None:
    one, other = two
    agent = one.cluster("alpha")
    one.clock.wait(3600)
    assert other.context.snapshots.refresh()
    assert other.submit().state == "PENDING", "it is away, as far as this server knows"
    said = listened(other)
    other.submits.pending_wakeup.tell_leader()
    assert said == [], "it has learned nothing since"
    agent.sync()
    assert other.context.snapshots.refresh()
    other.submits.pending_wakeup.tell_leader()
    assert said == ["pending"]
    other.submits.pending_wakeup.tell_leader()
    assert said == ["pending"], "once is enough"


def test_one_that_came_later_does_not_hide_it(rig: Rig, away: RigAgent) -> None:
    rig.submit()
    rig.cluster("beta")
    rig.clock.wait(3600)
    rig.context.snapshots.rebuild_world()  # something was learned, and nobody told yet
    assert rig.submit().state == "PENDING"
    assert rig.submits.pending_wakeup.take()
    assert not rig.submits.pending_wakeup.take(), "once"
