"""Input files on a real small disk of an agent: what does not fit goes to another cluster, and harms no running job."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard.model.job.job import State
from tests.acceptance.files.job_files import upload_tree
from tests.acceptance.stage import Stage, staged, waiting_for
from tests.agent.files.small_disk import free_bytes, small_disk
from tests.processes import PATIENCE_S, until

MIB = 2**20
SITE = "files: {{folder: {folder}, reserve: 8MiB}}\n"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path) as made:
        yield made


def test_files_that_do_not_fit_go_to_another_cluster_and_leave_running_jobs_their_space(
    stage: Stage, tmp_path: Path
) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    chance = random.Random(3)
    large = upload_tree(stage, {"in": chance.randbytes(70 * MIB)})
    middle = upload_tree(stage, {"in": chance.randbytes(30 * MIB)})
    gate = tmp_path / "gate"
    options = ["--free-bytes-min", "0"]
    with (
        small_disk(place, "64m") as disk,
        stage.agent("small", extra=[*stage.site("small", SITE.format(folder=disk)), *options]),
        stage.agent("roomy", extra=options),
    ):
        refused = stage.submit("true", spec={"files": {"tree": large}}, cluster="small")
        ended = stage.ended(refused)
        assert ended["state"] == State.FAILED
        assert "they take 70MiB, and the disk of the cluster's agent has 64MiB in all, of which 8MiB stay" in str(ended)
        for _ in range(4):  # the draw takes half of them to the small cluster first
            job = stage.submit("true", spec={"files": {"tree": large}})
            assert stage.ended(job)["state"] == State.SUCCEEDED

        # A running job holds most of the disk; another one waits for room, and the running one keeps the reserve.
        write = f"head -c {30 * MIB} /dev/zero > mine"
        fill = f"{write}; touch begun; {waiting_for(gate)}; head -c {20 * MIB} /dev/zero > more"
        holder = stage.submit("sh", "-c", fill, spec={"files": {"out": ["none"]}}, cluster="small")
        until(lambda: list(disk.rglob("begun")), PATIENCE_S, "the job holds its space")
        waiting = stage.submit("true", spec={"files": {"tree": middle}}, cluster="small")
        until(
            lambda: "8MiB that stay free for running jobs" in stage.job(waiting).get("reason", ""),
            PATIENCE_S,
            "what does not fit waits and says why",
        )
        assert stage.job(waiting)["state"] == State.SUBMITTED
        assert free_bytes(disk) > 20 * MIB, "nothing was fetched"
        gate.touch()
        for job in (holder, waiting):
            assert stage.ended(job, timeout_s=2 * PATIENCE_S)["state"] == State.SUCCEEDED, job
