"""Two credentials around a rotation: whatever is lost at whatever moment, the agent finds one that holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchyard.agent.server import credential as credentials
from switchyard.agent.server.credential import AgentCredentials, Credential
from switchyard.errors import Unavailable

OLD, NEW = "agent_old", "agent_new"
ONE = Credential("id", "alpha", "name", OLD, "http://127.0.0.1:1", "journal", made_s=1.0)


class Server:
    """Which credentials it takes, as the server's own rules have it: the first use of the next one ends the old."""

    def __init__(self) -> None:
        self.current = OLD
        self.next: str | None = None

    def rotate(self) -> str:
        self.next = NEW
        return NEW

    def takes(self, sent: str) -> bool:
        if sent == self.next:
            self.current, self.next = sent, None
        return sent == self.current


def call(keys: AgentCredentials, server: Server) -> bool:
    """A request, repeated as the agent does, until one is taken or there is nothing left to try."""
    for _ in range(5):
        sent = keys.bearer
        if server.takes(sent):
            keys.note_accepted(sent)
            return True
        if not keys.note_refused(sent):
            return False
    raise AssertionError("it goes round and round")


def start(folder: Path) -> AgentCredentials:
    """A new incarnation: what it knows is in the file."""
    kept = credentials.load_credential(folder)
    assert kept is not None
    return AgentCredentials(folder, kept)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    credentials.save_credential(tmp_path, ONE)
    return tmp_path


def test_a_rotation_without_trouble(folder: Path) -> None:
    keys, server = start(folder), Server()
    keys.renew(server.rotate())
    assert call(keys, server)
    assert not server.takes(OLD)
    kept = credentials.load_credential(folder)
    assert kept is not None
    assert (kept.credential, kept.next, kept.previous) == (NEW, None, OLD)
    assert kept.made_s > ONE.made_s
    assert call(start(folder), server)


def test_killed_before_the_answer_was_kept(folder: Path) -> None:
    server = Server()
    server.rotate()
    assert call(start(folder), server), "the old one holds"


@pytest.mark.parametrize("is_used", [True, False])
def test_killed_after_it_was_kept(folder: Path, is_used: bool) -> None:
    """Whether or not the server had seen the new one by then."""
    server = Server()
    start(folder).renew(server.rotate())
    if is_used:
        assert server.takes(NEW)
    again = start(folder)
    assert again.bearer == NEW
    assert call(again, server)
    assert credentials.load_credential(folder) == again.current
    assert (again.current.credential, again.current.next) == (NEW, None)


def test_a_next_one_that_was_forgotten_by_the_server_is_let_go(folder: Path) -> None:
    server = Server()
    start(folder).renew(server.rotate())
    server.next = None  # ten minutes later
    again = start(folder)
    assert call(again, server)
    assert (again.current.credential, again.current.next) == (OLD, None)
    assert call(again, server)


def test_a_request_under_the_old_one_that_comes_late_is_no_end(folder: Path) -> None:
    keys, server = start(folder), Server()
    sent = keys.bearer
    keys.renew(server.rotate())
    assert call(keys, server)
    assert not server.takes(sent)
    assert keys.note_refused(sent), "another one is in use by now: try again"
    assert keys.bearer == NEW


def test_an_answer_to_the_old_one_does_not_take_the_next_one_away(folder: Path) -> None:
    keys, server = start(folder), Server()
    parked = keys.bearer
    keys.renew(server.rotate())
    keys.note_accepted(parked)
    assert keys.bearer == NEW


def test_a_server_that_was_turned_back_knows_the_previous_one(folder: Path) -> None:
    keys, server = start(folder), Server()
    keys.renew(server.rotate())
    assert call(keys, server)
    restored = Server()
    assert call(keys, restored)
    assert (keys.current.credential, keys.current.previous) == (OLD, None)
    assert call(start(folder), restored)


def test_when_none_holds_it_is_over(folder: Path) -> None:
    keys, server = start(folder), Server()
    server.current = "another"
    assert not call(keys, server)
    keys.renew(NEW)
    assert not call(keys, server)


def test_what_cannot_be_kept_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = start(folder)

    def full(*_: object) -> None:
        raise Unavailable("no space left")

    monkeypatch.setattr(credentials, "save_credential", full)
    with pytest.raises(Unavailable):
        keys.renew(NEW)
    assert keys.bearer == OLD


def test_a_file_of_before_rotations_is_read_and_counts_as_new(tmp_path: Path) -> None:
    (tmp_path / credentials.CREDENTIAL_FILE).write_text(
        '{"agent":"a","cluster":"alpha","name":"n","credential":"agent_old","server":"http://x","journal":"j"}'
    )
    keys = start(tmp_path)
    assert (keys.bearer, keys.current.next) == (OLD, None)
    assert keys.age_s() < 60
