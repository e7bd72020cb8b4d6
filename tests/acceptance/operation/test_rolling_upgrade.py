"""`yard db upgrade` of the next version beside a loaded server: no deadlock, no row in the new schema, nothing lost."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from functools import partial
from pathlib import Path

import psycopg

import switchyard
from switchyard.store.engine.database import HEAD_REVISION
from tests.acceptance.stage import SOON_S
from tests.processes import until
from tests.programs import call, isolated_env, start_server, yard
from tests.services import Postgres
from tests.store.prepared import migrated

NEXT_REVISION = "9000"
# Writers lock `jobs` before `events`. The migration changes them the other way round, as one may that nobody thought
# through. Rows that an old server adds after the migration have no mark.
MIGRATION = f'''
import sqlalchemy as sa
from alembic import op

revision = "{NEXT_REVISION}"
down_revision = "{HEAD_REVISION}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("events", "leaders", "jobs"):
        op.add_column(table, sa.Column("mark", sa.Text(), nullable=True))
        op.execute(f"UPDATE {{table}} SET mark = 'migrated'")
'''
THREADS = 4
JOBS_BEFORE = 20


def make_next_version(folder: Path) -> dict[str, str]:
    """Copy the package, add a migration, and return the environment that runs the copy."""
    package = folder / "next" / "switchyard"
    shutil.copytree(Path(switchyard.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__", "static"))
    (package / f"store/migrations/versions/{NEXT_REVISION}_next.py").write_text(MIGRATION)
    module = package / "store/engine/database.py"
    text = module.read_text()
    assert f'HEAD_REVISION = "{HEAD_REVISION}"' in text
    module.write_text(text.replace(f'HEAD_REVISION = "{HEAD_REVISION}"', f'HEAD_REVISION = "{NEXT_REVISION}"'))
    return {**isolated_env(folder), "PYTHONPATH": str(package.parent)}


class Load:
    """Threads that submit jobs until they are stopped."""

    def __init__(self, url: str) -> None:
        self.accepted: list[str] = []
        self.statuses: Counter[int] = Counter()
        self._url = url
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._submit) for _ in range(THREADS)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _submit(self) -> None:
        while not self._stop.is_set():
            answer = call("POST", f"{self._url}/v1/jobs", {"spec": {"command": ["true"]}})
            self.statuses[answer.status] += 1
            if answer.status == 201:
                self.accepted.append(answer.json["id"])


def is_refused_by_name(url: str) -> bool:
    """Whether a refusal names the new revision. Until the server has read it, the refusal names the upgrade."""
    refused = call("GET", url)
    assert refused.status == 503, refused.body
    return NEXT_REVISION in refused.body.decode()


def test_next_version_upgrades_database_beside_loaded_server(tmp_path: Path, postgres: Postgres) -> None:
    url = migrated(postgres)
    env = make_next_version(tmp_path)
    with start_server(tmp_path, database=url) as server, Load(server.url) as load:
        until(lambda: len(load.accepted) >= JOBS_BEFORE, SOON_S, "the server is under load")
        upgraded = yard("db", "upgrade", "--database", url, env=env)
        assert upgraded.returncode == 0, upgraded.stderr
        assert upgraded.stdout == f"upgraded from {HEAD_REVISION} to {NEXT_REVISION}\n"
        for path in ("/readyz", "/v1/jobs"):
            until(partial(is_refused_by_name, server.url + path), SOON_S, "the refusal names the new revision")
        after = len(load.accepted)
        refusals = load.statuses[503]
        until(lambda: load.statuses[503] > refusals + THREADS, SOON_S, "submits are refused")
        assert len(load.accepted) == after
    assert set(load.statuses) == {201, 503}
    with psycopg.connect(url) as line:
        stored = {row[0]: row[1] for row in line.execute("SELECT id, mark FROM jobs")}
    assert stored == dict.fromkeys(load.accepted, "migrated")
    postgres.drop_database(url)
