"""Uploads, releases and the leader's sweep lock rows in one order, so that two servers never block each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from switchyard.server.config.config import Config, FilesSection
from switchyard.service.files.upload_room import release_unused
from switchyard.service.upkeep.collect_files import FileCollection
from switchyard.store.engine.database import Database
from switchyard.store.files import file_objects
from tests.processes import PATIENCE_S, until
from tests.service.files.trees import a_tree, send
from tests.service.rig import ADMIN, Rig, running

OWNER = ADMIN.id


@pytest.fixture
def rig(postgres_url: str, tmp_path: Path) -> Iterator[Rig]:
    with running(postgres_url, tmp_path, config=Config(files=FilesSection(grace="1h"))) as rig:
        yield rig


def sweep(rig: Rig) -> None:
    rig.leader.take(rig.context)
    chore = FileCollection()
    while chore.go(rig.context, rig.leader):
        pass


def release(rig: Rig) -> None:
    release_unused(rig.context, OWNER)


def is_waiting_or_done(url: str, is_done: Callable[[], bool]) -> bool:
    with psycopg.connect(url) as line:
        row = line.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()
    return is_done() or (row is not None and row[0] > 0)


@pytest.mark.parametrize("remove", [sweep, release])
def test_an_upload_on_another_server_ends_while_unused_objects_are_removed(
    rig: Rig, postgres_url: str, remove: Callable[[Rig], None]
) -> None:
    tree = a_tree({"x": b"x"})
    send(rig.context, OWNER, tree.frames())
    rig.clock.wait(3 * 3600)
    sizes = {digest: len(data) for digest, data in tree.objects.items()}
    with closing(Database(postgres_url)) as other, ThreadPoolExecutor(1) as pool:
        with other.write() as tx:
            file_objects.object_put(tx, sizes, now_us=rig.context.now_us())
            removal = pool.submit(remove, rig)
            until(lambda: is_waiting_or_done(postgres_url, removal.done) or None, PATIENCE_S, "the removal waits")
            file_objects.usage_add(tx, {OWNER: 1})
        removal.result(PATIENCE_S)
