"""Files over a limit are refused before the first byte, and what an earlier upload left is not in the way."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard.errors import EXIT_CONFLICT, EXIT_OK
from switchyard.model.files.file_frames import MEDIA, FrameKind, encode_frame
from switchyard.model.files.file_tree import hash_of
from tests.acceptance.files.job_files import upload_tree, yard_in
from tests.acceptance.stage import Stage, staged
from tests.soak import SOAKED

LIMIT = 1_000_000


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "large").write_bytes(os.urandom(2 * LIMIT))
    (folder / "small").write_bytes(os.urandom(LIMIT // 2))
    return folder


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with limited(tmp_path, user_bytes=LIMIT) as made, made.agent("local"):
        yield made


def limited(folder: Path, **limits: int):  # type: ignore[no-untyped-def]
    config = folder / "config.yaml"
    config.write_text(json.dumps({"files": limits}), encoding="utf-8")  # JSON is YAML
    return staged(folder, extra=["--config", str(config)])


def used(stage: Stage) -> int:
    return int(stage.get("/v1/files/usage")["user"]["bytes"])


def submit(stage: Stage, work: Path, name: str) -> None:
    done = yard_in(stage, work, "submit", "--in", name, "--wait", "--", "test", "-s", name)
    assert done.returncode == EXIT_OK, done.stderr


# Each limit is in tests/service/files, too.
@pytest.mark.parametrize("limit", ["user_bytes", SOAKED("project_bytes"), SOAKED("tree_bytes")])
def test_a_submit_over_a_limit_is_refused_before_the_first_byte(tmp_path: Path, work: Path, limit: str) -> None:
    with limited(tmp_path, **{limit: LIMIT}) as stage, stage.agent("local"):
        done = yard_in(stage, work, "submit", "--in", "large", "--", "true")
        assert done.returncode == EXIT_CONFLICT, done.stderr
        assert f"The limit `files.{limit}` of" in done.stderr
        assert "1.9MiB" in done.stderr, "how much it would take"
        assert "server's config file sets it" in done.stderr
        assert used(stage) == 0
        submit(stage, work, "small")


def test_objects_of_a_client_that_was_killed_during_its_upload_are_not_in_the_way(stage: Stage, work: Path) -> None:
    for _ in range(9):
        data = os.urandom(LIMIT // 10)
        body = encode_frame(FrameKind.CONTENT, hash_of(data), data)
        stage.call("POST", "/v1/files/objects", body, headers={"Content-Type": MEDIA})
    assert used(stage) == 9 * LIMIT // 10
    submit(stage, work, "small")
    assert LIMIT // 2 < used(stage) <= LIMIT, "objects in the way are released, the oldest ones first"


def test_a_tree_of_a_client_that_was_killed_before_its_submit_is_not_in_the_way(stage: Stage, work: Path) -> None:
    needed = upload_tree(stage, {"x": os.urandom(LIMIT // 10)})
    job = stage.submit("test", "-s", "x", spec={"files": {"tree": needed}})
    upload_tree(stage, {"y": os.urandom(8 * LIMIT // 10)})
    submit(stage, work, "small")
    assert LIMIT // 10 < used(stage) < 7 * LIMIT // 10
    stage.ended(job)
    files = stage.get(f"/v1/jobs/{job}/files")
    assert files["tree"] == needed
    again = stage.submit("test", "-s", "x", spec={"files": {"tree": needed}})
    assert stage.ended(again)["state"] == "SUCCEEDED", "what a job needs was not released"
