"""A database that dies and comes back: what was accepted is there, who asks meanwhile is told to come again."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchyard.errors import Unavailable
from switchyard.model.lifecycle import Answer, Seen
from switchyard.service.job import jobs
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
            agent.report(held, Seen.SUCCEEDED)
        own_postgres.start()
        assert rig.accept(key="k").created.id == made.id
        assert agent.report(held, Seen.SUCCEEDED) is Answer.TAKEN
        assert agent.sync().stops == []
        assert [event.kind for event in jobs.job_events(rig.context, ADMIN, made.id, after=0, limit=9).items] == [
            "accepted",
            "leased",
            "succeeded",
        ]
