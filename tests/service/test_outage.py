"""A database that dies and comes back: what was accepted is there, who asks meanwhile is told to come again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import monotonic

import pytest

from switchyard.errors import Unavailable
from switchyard.model.job.lifecycle import ObservedState, ReportAnswer
from switchyard.service.core.writes import committer
from switchyard.service.core.writes.committer import Outage
from switchyard.service.job import jobs
from switchyard.store.jobs.failures import ConnectionLost
from tests.service.rig import ADMIN, running
from tests.services import Postgres
from tests.store.prepared import migrated


def test_a_killed_postgresql_is_unavailable_and_then_as_before(own_postgres: Postgres, tmp_path: Path) -> None:
    with running(migrated(own_postgres), tmp_path) as rig:
        agent = rig.cluster("alpha")
        made = rig.submit(key="k")
        held = agent.lease_one()
        with rig.context.database.read():  # a reader that holds a connection when it happens
            own_postgres.kill()
        for _ in range(3):
            with pytest.raises(Unavailable) as caught:
                rig.submit()
            assert caught.value.transient
            with pytest.raises(Unavailable):
                rig.job(made.id)
        with pytest.raises(Unavailable):
            agent.report(held, ObservedState.SUCCEEDED)
        own_postgres.start()
        assert rig.accept(key="k").created.id == made.id
        assert agent.report(held, ObservedState.SUCCEEDED) is ReportAnswer.TAKEN
        assert agent.sync().stops == []
        assert [event.kind for event in jobs.job_events(rig.context, ADMIN, made.id, after=0, limit=9).items] == [
            "accepted",
            "leased",
            "succeeded",
        ]


def test_a_submit_outlasts_a_restart_of_postgresql(
    own_postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "WAIT_S", 120.0)  # whatever the restart takes on a busy machine
    with running(migrated(own_postgres), tmp_path) as rig, ThreadPoolExecutor(1) as aside:
        rig.cluster("alpha")
        own_postgres.stop()
        submitted = aside.submit(rig.submit)
        with pytest.raises(TimeoutError):
            submitted.result(0.5)  # it waits at the server, and is not refused
        own_postgres.start()
        made = submitted.result(60)
        with suppress(Unavailable):  # a reader's connection from before the restart
            rig.job(made.id)
        assert rig.job(made.id).id == made.id


def test_after_a_long_outage_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "AGAIN_S", 0.0)
    tries: list[float] = []

    def commit() -> None:
        tries.append(monotonic())
        raise ConnectionLost

    away = Outage()
    monkeypatch.setattr(committer, "WAIT_S", 0.05)
    with pytest.raises(ConnectionLost):
        away.retry_while_away(commit, is_closed=lambda: False)
    assert len(tries) > 1
    tries.clear()
    with pytest.raises(ConnectionLost):
        away.retry_while_away(commit, is_closed=lambda: False)
    assert len(tries) == 1
    assert away.retry_while_away(lambda: "done", is_closed=lambda: False) == "done"
    tries.clear()
    with pytest.raises(ConnectionLost):
        away.retry_while_away(commit, is_closed=lambda: False)
    assert len(tries) > 1, "after a success the next outage is a new one"


def test_a_commit_in_doubt_is_not_tried_again() -> None:
    """It may have given leases: whoever asked for them must know that an answer was lost."""
    tries: list[bool] = []

    def commit() -> None:
        tries.append(True)
        lost = ConnectionLost()
        lost.is_in_doubt = True
        raise lost

    with pytest.raises(ConnectionLost):
        Outage().retry_while_away(commit, is_closed=lambda: False)
    assert len(tries) == 1
