"""`yard db` refuses an SQLite file with a second name: it would not see what is committed under the other one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from switchyard.errors import EXIT_OK, Conflict
from switchyard.server.commands import db_command
from tests.store.prepared import sqlite_url

__all__ = ["sqlite_url"]


@pytest.mark.parametrize("verb", ["status", "upgrade", "backup"])
def test_a_hard_link_is_refused(sqlite_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    here, linked = tmp_path / "here", tmp_path / "linked"
    here.mkdir()
    linked.mkdir()
    shutil.copy(sqlite_url.removeprefix("sqlite:///"), here / "switchyard.db")
    words = [verb, *([str(tmp_path / f"{verb}.backup")] if verb == "backup" else [])]
    assert db_command.main([*words, "--data", str(here)]) == EXIT_OK
    os.link(here / "switchyard.db", linked / "switchyard.db")
    for folder in (here, linked):
        again = [verb, *([str(tmp_path / "again.backup")] if verb == "backup" else [])]
        assert db_command.main([*again, "--data", str(folder)]) == Conflict.exit_code
        assert "has 2 names (hard links)" in capsys.readouterr().err
    assert not (tmp_path / "again.backup").exists()
