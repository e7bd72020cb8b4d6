"""One server per SQLite file, by whatever name it is opened; and what a server does when the disk under it is full."""

from __future__ import annotations

import os
import secrets
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from switchyard.errors import EXIT_CONFLICT, EXIT_NOT_FOUND
from tests.acceptance.full_disk import fill
from tests.acceptance.stage import SOON_S
from tests.processes import free_port, until
from tests.programs import YARD, Answer, Server, call, isolated_env, start_server, yard

DISK_BYTES = 8 * 2**20
RETRY_S = 60.0


def same(folder: Path, file: Path) -> Path:
    return file


def hard_link(folder: Path, file: Path) -> Path:
    (folder / "elsewhere").mkdir()
    os.link(file, folder / "elsewhere/other-name.db")
    return folder / "elsewhere/other-name.db"


def symbolic_link(folder: Path, file: Path) -> Path:
    (folder / "link.db").symlink_to(file)
    return folder / "link.db"


@pytest.mark.parametrize("named", [same, hard_link, symbolic_link])
def test_a_second_server_on_the_same_file_is_refused_and_told_who_has_it(
    tmp_path: Path, named: Callable[[Path, Path], Path]
) -> None:
    file = tmp_path / "yard.db"
    with start_server(tmp_path, database=f"sqlite:///{file}", name="first") as first:
        assert call("POST", f"{first.url}/v1/jobs", {"spec": {"command": ["true"]}}).status == 201
        second = f"sqlite:///{named(tmp_path, file)}"
        words = ["server", "--data", str(tmp_path / "second"), "--http", f"127.0.0.1:{free_port()}"]
        refused = yard(*words, "--database", second, env=isolated_env(tmp_path))
        assert refused.returncode == EXIT_CONFLICT, refused.stderr
        assert f"process {first.pid} on " in refused.stderr
        assert f"--data {tmp_path / 'first-data'}, " in refused.stderr
        assert "since 20" in refused.stderr
        assert "next: Stop it" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert call("POST", f"{first.url}/v1/jobs", {"spec": {"command": ["true"]}}).status == 201
        first.kill()
        if named is hard_link:
            again = yard(*words, "--database", second, env=isolated_env(tmp_path))
            assert (again.returncode, "2 names (hard links)" in again.stderr) == (EXIT_CONFLICT, True), again.stderr
            (tmp_path / "elsewhere/other-name.db").unlink()
        # What a killed server leaves in its WAL is found only beside the name that it used.
        with start_server(tmp_path, database=f"sqlite:///{file}", name="third") as third:
            assert third.pid != first.pid


def test_what_looks_after_the_database_knows_of_the_server_that_runs(tmp_path: Path) -> None:
    file = tmp_path / "yard.db"
    place, env = ["--database", f"sqlite:///{file}"], isolated_env(tmp_path)
    with start_server(tmp_path, database=f"sqlite:///{file}") as server:
        assert "up to date" in yard("db", "status", *place, env=env, check=True).stdout
        assert "up to date" in yard("db", "upgrade", *place, env=env, check=True).stdout
        yard("db", "backup", str(tmp_path / "backup.db"), *place, env=env, check=True)
        refused = yard("db", "restore", str(tmp_path / "backup.db"), "--force", *place, env=env)
        assert (refused.returncode, f"process {server.pid} on " in refused.stderr) == (EXIT_CONFLICT, True)
        with sqlite3.connect(file, timeout=SOON_S) as line:  # so that there is something to upgrade
            line.execute("DROP INDEX ix_events_task")
        line.close()
        refused = yard("db", "upgrade", *place, env=env)
        assert (refused.returncode, f"process {server.pid} on " in refused.stderr) == (EXIT_CONFLICT, True)
    assert "ix_events_task" in yard("db", "upgrade", *place, env=env, check=True).stdout
    yard("db", "restore", str(tmp_path / "backup.db"), "--force", *place, env=env, check=True)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Server, Path]]:
    """A server whose data folder is a small disk of its own, in a mount namespace; and that folder as we see it."""
    data = tmp_path / "server-data"
    data.mkdir()
    room = ["unshare", "-m" if os.getuid() == 0 else "-Urm"]
    mount = f'mount -t tmpfs -o size={DISK_BYTES},mode=700 tmpfs "$0" && exec "$@"'
    with monkeypatch.context() as patch:
        patch.setattr("tests.programs.YARD", [*room, "sh", "-c", mount, str(data), *YARD])
        server = start_server(tmp_path)
    with server:
        yield server, Path(f"/proc/{server.pid}/root{data}")


def submit(server: Server) -> Answer:
    body: dict[str, Any] = {"spec": {"command": ["true"], "env": {"DATA": secrets.token_hex(20_000)}}}
    return call("POST", f"{server.url}/v1/jobs", body)


def test_a_full_disk_is_said_plainly_and_the_server_goes_on_when_there_is_room(small: tuple[Server, Path]) -> None:
    server, disk = small
    assert submit(server).status == 201
    fill(disk / "fill")
    refused = until(lambda: said if (said := submit(server)).status != 201 else None, SOON_S, "a submit is refused")
    assert refused.status == 503
    assert "Disk full" in refused.json["detail"]
    assert "makes room on the disk" in refused.json["next_step"]
    server.wait_for(lambda: "Disk full" in server.log, RETRY_S, "the log says why")
    assert call("GET", f"{server.url}/v1/jobs").status == 200, "what is there can be read"
    for _ in range(20):
        assert submit(server).status == 503
    said = [line for line in server.log.splitlines() if "isk full" in line]
    assert "Traceback" not in server.log
    assert len(said) == len({line.partition(" event=")[2] for line in said}), "one line per event"
    (disk / "fill").unlink()
    until(lambda: submit(server).status == 201, SOON_S, "it goes on by itself")


def test_a_backup_to_a_full_disk_says_so_and_leaves_nothing(small: tuple[Server, Path], tmp_path: Path) -> None:
    server, disk = small
    place, env = ["--database", f"sqlite:///{tmp_path / 'source.db'}"], isolated_env(tmp_path)
    yard("db", "upgrade", *place, env=env, check=True)
    fill(disk / "fill")
    # Inside: SQLite resolves links, and /proc/PID/root would lead it to our own disk.
    enter = [
        "nsenter",
        "-t",
        str(server.pid),
        *(["-m"] if os.getuid() == 0 else ["-U", "-m", "--preserve-credentials"]),
    ]
    words = [*enter, *YARD, "db", "backup", str(tmp_path / "server-data/backup.db"), *place]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=RETRY_S, check=False)
    assert done.returncode != 0
    assert "Disk full: the copy has no room" in done.stderr
    assert "next: " in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(disk.glob("backup.db*"))
    assert server.is_running


def test_a_file_that_is_no_database_and_one_that_is_not_there_are_named(tmp_path: Path) -> None:
    env = isolated_env(tmp_path)
    absent = yard("db", "status", "--data", str(tmp_path / "typo"), env=env)
    assert absent.returncode == EXIT_NOT_FOUND, absent.stderr
    assert not (tmp_path / "typo").exists(), "a look makes nothing"
    (tmp_path / "yard").mkdir()
    (tmp_path / "yard/switchyard.db").write_text("no database " * 1000)
    for words in (["db", "status"], ["server", "--http", f"127.0.0.1:{free_port()}"]):
        refused = yard(*words, "--data", str(tmp_path / "yard"), env=env)
        assert refused.returncode not in (0, EXIT_NOT_FOUND), refused
        assert "no SQLite database" in refused.stderr
        assert "Traceback" not in refused.stderr
