"""A database whose schema is not the one that this version needs: made early under revision 0001, or by a newer one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from switchyard.errors import EXIT_CONFLICT
from switchyard.model.job.job import State
from switchyard.store.engine.database import HEAD_REVISION, Database, upgrade_schema
from tests.acceptance.stage import END_S, SOON_S, Stage, graph
from tests.processes import free_port, until
from tests.programs import call, isolated_env, start_agent, start_server, yard
from tests.services import Postgres
from tests.soak import SOAKED

# The schema under revision 0001 of some days before it was frozen: `jobs.arrival` and this index came later.
EARLY = ["ALTER TABLE jobs DROP COLUMN arrival", "DROP INDEX ix_events_task"]
OLDER = "0001"
NEWER = ["UPDATE alembic_version SET version_num = '9999'"]


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'yard.db'}"
        return
    server: Postgres = request.getfixturevalue("postgres")
    made = server.create_database()
    yield made
    server.drop_database(made)


def change(url: str, *statements: str) -> None:
    """By hand, as an operator or another version would."""
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as line:
        for statement in statements:
            line.execute(sa.text(statement))
    engine.dispose()


def db(verb: str, url: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return yard("db", verb, "--database", url, env=isolated_env(folder))


def served(url: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A server that is meant not to start."""
    words = ["--data", str(folder / "data"), "--http", f"127.0.0.1:{free_port()}", "--database", url]
    return yard("server", *words, env=isolated_env(folder))


def submit(url: str) -> Any:
    return call("POST", f"{url}/v1/jobs", {"spec": {"command": ["true"]}})


@contextmanager
def running(url: str, folder: Path) -> Iterator[Stage]:
    with start_server(folder, database=url) as server:
        yield Stage(folder, server, None)


# What the SQL does on each database is in tests/store: here each command and the server, on one of them.
@pytest.mark.parametrize("url", [SOAKED("sqlite"), "postgresql"], indirect=True)
def test_an_early_database_is_refused_by_name_and_repaired_by_an_upgrade(url: str, tmp_path: Path) -> None:
    with running(url, tmp_path) as stage, start_agent(tmp_path, stage.url, "alpha", graph=graph(2)):
        before = stage.submit("true", cluster="alpha")
        stage.ended(before)
    change(url, *EARLY)
    for refused in (db("status", url, tmp_path), served(url, tmp_path)):
        assert refused.returncode == EXIT_CONFLICT, refused.stderr
        assert "  - the column jobs.arrival (TEXT) is missing" in refused.stderr
        assert "  - the index ix_events_task on events is missing" in refused.stderr
        assert "next: Back the database up, then run `yard db upgrade`" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert "up to date" not in refused.stdout
    repaired = db("upgrade", url, tmp_path)
    assert repaired.returncode == 0, repaired.stderr
    assert "repaired: the column jobs.arrival (TEXT) is missing" in repaired.stdout
    assert "up to date" in db("status", url, tmp_path).stdout
    with running(url, tmp_path) as stage, start_agent(tmp_path, stage.url, "alpha", graph=graph(2)):
        assert stage.job(before)["state"] == State.SUCCEEDED
        assert stage.ended(stage.submit("true", cluster="alpha"))["state"] == State.SUCCEEDED


@pytest.mark.parametrize("url", ["sqlite", SOAKED("postgresql")], indirect=True)
def test_an_older_database_is_refused_until_it_is_upgraded(url: str, tmp_path: Path) -> None:
    with closing(Database(url)) as database:
        upgrade_schema(database, OLDER)
    refused = served(url, tmp_path)
    assert refused.returncode == EXIT_CONFLICT, refused.stderr
    assert f"The database is at revision {OLDER}, this version needs {HEAD_REVISION}." in refused.stderr
    assert "next: Back it up, then run `yard db upgrade`" in refused.stderr
    assert db("upgrade", url, tmp_path).returncode == 0
    with running(url, tmp_path) as stage:
        assert submit(stage.url).status == 201


@pytest.mark.parametrize("url", ["sqlite", SOAKED("postgresql")], indirect=True)
def test_an_index_of_the_site_is_told_and_stops_nobody(url: str, tmp_path: Path) -> None:
    assert db("upgrade", url, tmp_path).returncode == 0
    change(url, "CREATE INDEX site_names ON jobs (name)")
    told = db("status", url, tmp_path)
    assert (told.returncode, "the index site_names on jobs is not known" in told.stdout) == (0, True)
    with running(url, tmp_path) as stage:
        assert "site_names" in stage.server.log
        assert submit(stage.url).status == 201


@pytest.mark.parametrize("url", ["sqlite", SOAKED("postgresql")], indirect=True)
def test_a_newer_database_is_refused_by_everything_that_an_older_version_has(url: str, tmp_path: Path) -> None:
    assert db("upgrade", url, tmp_path).returncode == 0
    change(url, *NEWER)
    for refused in (db("status", url, tmp_path), db("upgrade", url, tmp_path), served(url, tmp_path)):
        assert refused.returncode == EXIT_CONFLICT, refused.stderr
        assert "revision 9999" in refused.stderr
        assert "next: A newer version made it" in refused.stderr
        assert "Traceback" not in refused.stderr


def test_a_server_stops_working_when_its_database_is_migrated_under_it(tmp_path: Path, postgres: Postgres) -> None:
    url = postgres.create_database()
    with running(url, tmp_path) as stage, start_agent(tmp_path, stage.url, "alpha", graph=graph(2)) as agent:
        with psycopg.connect(url) as line:
            (head,) = line.execute("SELECT version_num FROM alembic_version").fetchone() or ("",)
        change(url, *NEWER)
        until(lambda: call("GET", f"{stage.url}/readyz").status == 503, SOON_S, "it is not ready any more")
        refused = submit(stage.url)
        assert refused.status == 503
        assert "revision 9999" in refused.json["detail"]
        assert "Upgrade this server" in refused.json["next_step"]
        assert call("GET", f"{stage.url}/v1/jobs").status == 503
        assert stage.server.is_running
        assert "Traceback" not in stage.server.log
        change(url, f"UPDATE alembic_version SET version_num = '{head}'")
        until(lambda: call("GET", f"{stage.url}/readyz").status == 200, SOON_S, "it goes on")
        assert stage.ended(stage.submit("true", cluster="alpha"), timeout_s=2 * END_S)["state"] == State.SUCCEEDED
        assert agent.is_running
