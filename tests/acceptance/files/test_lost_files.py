"""The store loses a file of a job: the job says which one, and the next submit of the same files brings it back."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from switchyard.model.files.file_tree import hash_of
from switchyard.model.job.job import State
from tests.acceptance.stage import Stage, staged
from tests.processes import PATIENCE_S, until
from tests.s3_service import REGION, s3_running
from tests.soak import SOAKED

NAME = "model.bin"
NO_CACHE = "files: {cache: 0}\n"  # else the agent needs no store for the second job


@contextmanager
def stage_on(kind: str, folder: Path) -> Iterator[tuple[Stage, Path]]:
    """A server, and the folder in which its store keeps objects."""
    if kind == "folder":
        with staged(folder, extra=["--config", str(_config(folder, {"url": str(folder / "kept")}))]) as stage:
            yield stage, folder / "kept"
        return
    with s3_running() as store:
        bucket = store.create_bucket()
        section = {"url": f"s3://{bucket}/files", "endpoint": store.endpoint, "region": REGION, "allow_http": True}
        with staged(folder, extra=["--config", str(_config(folder, section))], env=store.credentials) as stage:
            yield stage, store.buckets / bucket / "files"


def _config(folder: Path, section: dict[str, object]) -> Path:
    path = folder / "config.yaml"
    path.write_text(json.dumps({"storage": section}), encoding="utf-8")  # JSON is YAML
    return path


@pytest.mark.parametrize(
    ("kind", "damage"), [("folder", "gone"), ("s3", "changed"), SOAKED("folder", "changed"), SOAKED("s3", "gone")]
)
def test_a_lost_file_is_named_and_the_next_submit_heals(tmp_path: Path, kind: str, damage: str) -> None:
    data = random.Random(18).randbytes(2**20)
    file = tmp_path / NAME
    file.write_bytes(data)
    with stage_on(kind, tmp_path) as (stage, kept), stage.agent("local", extra=stage.site("a", NO_CACHE)):
        words = ("submit", "--in", f"{file}:data/{NAME}", "--cluster", "local")
        first = stage.read(*words, "--", "sha256sum", f"data/{NAME}")["id"]
        assert stage.ended(first)["state"] == State.SUCCEEDED
        name = hash_of(data).hex()
        [stored] = [path for path in kept.rglob("*") if f"{path.parent.name}{path.name}".endswith(name)]
        stored.unlink() if damage == "gone" else stored.write_bytes(data[:-1] + b"?")
        tree = stage.job(first)["spec"]["files"]["tree"]
        waiting = stage.submit("sha256sum", f"data/{NAME}", spec={"files": {"tree": tree}}, cluster="local")
        reason = f"the object {name[:12]} of 'data/{NAME}' is missing from the store; send the files again"
        until(lambda: reason in stage.job(waiting).get("reason", ""), PATIENCE_S, "the job says what is missing")
        assert stage.job(waiting)["state"] == State.SUBMITTED
        again = stage.read(*words, "--", "sha256sum", f"data/{NAME}")["id"]
        for job in (again, waiting):
            assert stage.ended(job, timeout_s=2 * PATIENCE_S)["state"] == State.SUCCEEDED, job
        assert stage.raw("logs", waiting) == stage.raw("logs", first)


def test_one_submit_of_a_folder_heals_a_store_that_was_emptied(tmp_path: Path) -> None:
    work = tmp_path / "work"
    for name in ("a/b/c/d/e/x", "a/y", "z"):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(name)
    with stage_on("folder", tmp_path) as (stage, kept), stage.agent("local", extra=stage.site("a", NO_CACHE)):
        words = ("submit", "--workdir", str(work), "--cluster", "local", "--", "cat", "a/b/c/d/e/x", "a/y", "z")
        first = stage.read(*words)["id"]
        assert stage.ended(first)["state"] == State.SUCCEEDED
        shutil.rmtree(kept)
        tree = stage.job(first)["spec"]["files"]["tree"]
        waiting = stage.submit("cat", "a/b/c/d/e/x", "a/y", "z", spec={"files": {"tree": tree}}, cluster="local")
        until(lambda: "missing from the store" in stage.job(waiting).get("reason", ""), PATIENCE_S, "the job says so")
        again = stage.read(*words)["id"]
        for job in (again, waiting):
            assert stage.ended(job, timeout_s=2 * PATIENCE_S)["state"] == State.SUCCEEDED, job
            assert stage.raw("logs", job) == stage.raw("logs", first)
