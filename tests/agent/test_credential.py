from __future__ import annotations

import os
from pathlib import Path

import pytest

from switchyard.agent.server import credential as credentials
from switchyard.agent.server.credential import Credential
from switchyard.errors import Conflict, Malformed

ONE = Credential("id", "alpha", "name", "agent_secret", "http://127.0.0.1:1", "journal")


def test_kept_privately_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        credentials.save_credential(tmp_path, ONE)
        credentials.save_credential(tmp_path, ONE)
    finally:
        os.umask(before)
    assert (tmp_path / credentials.CREDENTIAL_FILE).stat().st_mode & 0o777 == 0o600
    assert credentials.load_credential(tmp_path) == ONE
    assert [path.name for path in tmp_path.iterdir()] == [credentials.CREDENTIAL_FILE]


def test_none_and_nonsense(tmp_path: Path) -> None:
    assert credentials.load_credential(tmp_path) is None
    (tmp_path / credentials.CREDENTIAL_FILE).write_text("{")
    with pytest.raises(Malformed, match="not a credential"):
        credentials.load_credential(tmp_path)


def test_folder_is_one_agents_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    held = credentials.lock_data_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    with pytest.raises(Conflict, match=rf"pid {os.getpid()}"):
        credentials.lock_data_folder(folder)
    held.close()
    credentials.lock_data_folder(folder).close()
