"""How a follower of a file goes on when the attempt has ended: by the answers of a server that it gets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from switchyard.errors import NotFound
from switchyard.model.files.file_views import FileView, FileViewQuery, ViewState
from switchyard.sdk.files import follow_files
from switchyard.sdk.files.follow_files import END_TRIES, FileFollower
from switchyard.sdk.transport.transport import Transport

BEGIN = FileView(job="j", state=ViewState.SEEN, attempt=1, fence=1, is_over=False, data=b"begin ", size=6)
OVER = FileView(job="j", state=ViewState.OVER, attempt=1, fence=1, is_over=True)
AWAY = FileView(job="j", state=ViewState.AWAY, attempt=1, fence=1, is_over=True, why="The agent did not answer.")
END = FileView(job="j", state=ViewState.SEEN, attempt=1, fence=1, is_over=True, offset=6, data=b"end", size=9)


@dataclass
class Answers:
    """The server's answers, in order; and what was asked."""

    views: Iterator[FileView]
    queries: list[FileViewQuery] = field(default_factory=list)

    def view(self, job: str, query: FileViewQuery, *, retry_s: float | None) -> FileView:
        del job, retry_s
        self.queries.append(query)
        return next(self.views)


def follow(monkeypatch: pytest.MonkeyPatch, *views: FileView) -> tuple[bytes, str, Answers]:
    """What is read, the last notice, and the requests."""
    monkeypatch.setattr(follow_files, "AWAY_S", 0.001)
    monkeypatch.setattr(follow_files, "POLL_S_MIN", 0.0)

    def no_files(job: str) -> Any:
        raise NotFound(f"Job {job} has no output files.")

    transport = cast("Transport", SimpleNamespace(patience_s=1.0, has_answered=True))
    follower = FileFollower(
        transport, "j", "large", task=None, attempt=None, offset=0, follow=True, files_of=no_files, job_of=no_files
    )
    answers = Answers(iter(views))
    monkeypatch.setattr(follower, "_calls", answers)
    parts = list(follower.parts())
    return b"".join(chunk.data for part in parts for chunk in part.chunks), parts[-1].notice, answers


def test_an_agent_that_misses_the_request_for_the_end_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    data, _, answers = follow(monkeypatch, BEGIN, OVER, AWAY, END)
    assert data == b"begin end"
    assert [query.is_final for query in answers.queries] == [False, False, True, True]


def test_an_agent_that_stays_away_ends_it_with_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    data, notice, answers = follow(monkeypatch, BEGIN, OVER, *[AWAY] * END_TRIES)
    assert data == b"begin "
    assert "the last bytes may be missing" in notice
    assert len(answers.queries) == 2 + END_TRIES
