"""The files of a server and of an agent are for their own user alone, and an administrator's token is not logged."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard.errors import EXIT_CONFLICT, EXIT_NOT_FOUND
from tests.acceptance.stage import SOON_S, staged
from tests.processes import free_port
from tests.programs import START_S, YARD, call, isolated_env, start_server, yard
from tests.services import Postgres
from tests.store.prepared import migrated

OTHERS = 0o077
TOKEN = re.compile(r"yard_[0-9A-Z]{26}_\S+")


@pytest.fixture
def wide() -> Iterator[None]:
    """As most machines have it: what a program makes is readable to everybody."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    return sorted(
        f"{path.relative_to(folder)} {path.lstat().st_mode & 0o777:o}"
        for path in (folder, *folder.rglob("*"))
        if not path.is_symlink() and path.lstat().st_mode & OTHERS
    )


@pytest.mark.usefixtures("wide")
def test_no_file_of_a_server_or_an_agent_is_for_others_and_a_jobs_files_are_as_ever(tmp_path: Path) -> None:
    with staged(tmp_path) as stage, stage.agent("alpha") as agent:
        made = tmp_path / "made-by-the-job"
        job = stage.submit("sh", "-c", f"umask > {made}; touch {made}.file; mkdir {made}.folder")
        assert stage.ended(job)["state"] == "SUCCEEDED"
        data = tmp_path / "server-data"
        assert {"switchyard.db", "switchyard.db-wal", "switchyard.db-shm"} <= {each.name for each in data.iterdir()}
        assert open_to_others(data) == []
        theirs = [each for each in open_to_others(agent.data) if "/work" not in each]
        assert theirs == []
        assert made.read_text().strip() == "0022"
        assert Path(f"{made}.file").stat().st_mode & 0o777 == 0o644
        assert Path(f"{made}.folder").stat().st_mode & 0o777 == 0o755
        place = ("--data", str(data))
        yard("db", "backup", str(tmp_path / "backup.db"), *place, env=stage.env, check=True)
        assert (tmp_path / "backup.db").stat().st_mode & 0o777 == 0o600


@pytest.mark.usefixtures("wide")
def test_a_database_that_others_can_read_is_put_right_at_the_next_start(tmp_path: Path) -> None:
    with staged(tmp_path) as stage:
        data = tmp_path / "server-data"
        stage.server.kill()  # as after a crash: the WAL and the locks are left
        left = [each for each in data.iterdir() if each.is_file()]
        assert len(left) >= 4
        for each in left:
            each.chmod(0o644)
        stage.server.start().wait_ready()
        assert open_to_others(data) == []
        assert "others could read a file of the server" in stage.server.log
        backup = tmp_path / "b.db"
        yard("db", "backup", str(backup), "--data", str(data), env=stage.env, check=True)
        stage.server.terminate()
        (data / "switchyard.db").chmod(0o644)
        yard("db", "restore", str(backup), "--data", str(data), "--force", env=stage.env, check=True)
        assert open_to_others(data) == []


def test_on_a_terminal_the_first_token_is_shown_and_no_file_has_it(tmp_path: Path) -> None:
    main, side = pty.openpty()
    words = ["server", "--data", str(tmp_path / "d"), "--http", f"127.0.0.1:{free_port()}"]
    server = subprocess.Popen([*YARD, *words], stdout=side, stderr=subprocess.DEVNULL, env=isolated_env(tmp_path))
    os.close(side)
    try:
        said, until = "", time.monotonic() + START_S
        while not TOKEN.search(said) and time.monotonic() < until:
            if select.select([main], [], [], SOON_S)[0]:
                said += os.read(main, 4096).decode()
        assert TOKEN.search(said), said
        assert not (tmp_path / "d" / "first-admin-token").exists()
    finally:
        server.kill()
        server.wait()
        os.close(main)


def test_another_administrators_token_is_made_while_the_server_is_stopped(tmp_path: Path) -> None:
    with staged(tmp_path, auth=True) as stage:
        place = ("server", "new-admin-token", "--data", str(tmp_path / "server-data"))
        running = yard(*place, env=stage.env)
        assert running.returncode == EXIT_CONFLICT, "SQLite has one writer"
        assert "is in use" in running.stderr
        assert not TOKEN.search(running.stdout)
        name = stage.get("/v1/users")["items"][0]["name"]
        grants = len(stage.get("/v1/grants")["items"])
        stage.server.terminate()
        token = yard(*place, env=stage.env, check=True).stdout.strip()
        other = yard(*place, "--user", "ann", env=stage.env, check=True).stdout.strip()
        stage.server.start().wait_ready()
        assert stage.get("/v1/whoami", token=token) == stage.get("/v1/whoami") | {"name": name}
        assert stage.get("/v1/whoami", token=other)["is_platform_admin"]
        assert len(stage.get("/v1/grants")["items"]) == grants + 1, "ann's; admin had one"
        made = [each for each in stage.get("/v1/audit")["items"] if each["action"] == "new-admin-token"]
        assert [(each["actor"], each["object"]) for each in made] == [("server", "ann"), ("server", "admin")]


def test_who_disabled_the_last_administrator_gets_in_again(tmp_path: Path) -> None:
    with staged(tmp_path, auth=True) as stage:
        stage.post("/v1/users", {"name": "ann"})
        stage.post("/v1/grants", {"role": "admin", "to": "user", "subject": "ann", "on": "platform"})
        ann = stage.post("/v1/tokens", {"user": "ann"})["token"]
        stage.call("PATCH", "/v1/users/admin", {"is_enabled": False}, token=ann)
        stage.server.terminate()
        place = ("server", "new-admin-token", "--data", str(tmp_path / "server-data"))
        token = yard(*place, env=stage.env, check=True).stdout.strip()
        stage.server.start().wait_ready()
        assert stage.get("/v1/whoami", token=token)["is_platform_admin"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--data", "{tmp}/nowhere"], EXIT_NOT_FOUND, "no database"),
        (["--data", "{tmp}", "--user", "a b"], 2, "not the name of a user"),
        (["--database", "mysql://x"], 2, ""),
        (["extra"], 2, "unrecognized"),
    ],
)
def test_bad_words_make_no_token(tmp_path: Path, words: list[str], code: int, said: str) -> None:
    done = yard("server", "new-admin-token", *(word.format(tmp=tmp_path) for word in words), env=isolated_env(tmp_path))
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert said in done.stderr
    assert not list(tmp_path.glob("**/*.db")), "nothing is made"


def test_with_postgresql_servers_may_run_and_know_the_token_at_once(tmp_path: Path, postgres: Postgres) -> None:
    url = migrated(postgres)
    with start_server(tmp_path, database=url, auth=True) as server:
        env = isolated_env(tmp_path)
        token = yard("server", "new-admin-token", "--database", url, env=env, check=True).stdout.strip()
        assert call("GET", f"{server.url}/v1/whoami", token=token).status == 200
