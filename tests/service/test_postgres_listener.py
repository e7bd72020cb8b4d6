"""Notices of commits on PostgreSQL: other servers hear of a commit; the server that made it does not hear it again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from switchyard.server.loops.postgres_listener import PostgresListener
from switchyard.service.core.writes.batch import CommitNotice, Topic
from tests.processes import until
from tests.service.rig import Rig, running
from tests.services import Postgres
from tests.store.prepared import migrated

PATIENCE_S = 30.0


class RecordingLoop:
    """Takes the place of the event loop: it notes what it is told, and runs nothing."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def is_closed(self) -> bool:
        return False

    def call_soon_threadsafe(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.told.append((function.__name__, arguments[0] if arguments else None))


def test_a_server_does_not_hear_its_own_commits_again(postgres: Postgres, tmp_path: Path) -> None:
    url = migrated(postgres)
    with running(url, tmp_path / "one") as one, running(url, tmp_path / "two", clock=one.clock) as two:
        loop: Any = RecordingLoop()
        one.yard.wakeups.loop = loop
        listener = PostgresListener(one.context.database, one.yard.wakeups, own_name=one.committer.name)
        listener.start()
        try:
            until(lambda: ("handle_unknown_commits", None) in loop.told, PATIENCE_S, "it listens")
            for rig in (one, two):  # PostgreSQL tells of commits in their order
                rig.committer.call(lambda batch: batch.topics.add(Topic.EXECUTIONS))
            until(lambda: "handle_remote_commit" in dict(loop.told), PATIENCE_S, "it hears of the other server")
        finally:
            listener.stop()
        remote = [notice.sender for name, notice in loop.told if name == "handle_remote_commit"]
        local = [notice.versions for name, notice in loop.told if name == "handle_commit"]
        assert (remote, local) == ([two.committer.name], [["executions"]])


def test_steps_of_executions_at_another_server_refresh_nothing(lite: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    wakeups, refreshes = lite.yard.wakeups, list[Any]()
    monkeypatch.setattr(lite.yard.workers, "start", refreshes.append)
    kick = wakeups.kick_of(Topic.EXECUTIONS)
    wakeups.handle_remote_commit(CommitNotice(versions=["executions"]))
    assert (refreshes, kick.is_set()) == ([], True)
    wakeups.handle_remote_commit(CommitNotice(versions=["executions", "seen"]))
    assert len(refreshes) == 1
