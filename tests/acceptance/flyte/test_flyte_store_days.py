"""Bad days of the store that keeps files: executions wait for it, and go on when it is back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.flyte.flyte_site import FlyteSite, flyte_site
from tests.acceptance.flyte.shell_flows import (
    INT,
    closure,
    ended,
    good,
    jobs_of,
    outputs_of,
    start,
    task,
    task_node,
    workflow,
)
from tests.processes import PATIENCE_S, until
from tests.s3_service import REGION, S3Server, s3_running

pytestmark = pytest.mark.timeout(340)


@contextmanager
def bucket_site(folder: Path, s3: S3Server) -> Iterator[FlyteSite]:
    """A site whose server keeps files in a bucket, and a workflow of two tasks: the first one waits for a file."""
    section = {"url": f"s3://{s3.create_bucket()}/files", "endpoint": s3.endpoint, "region": REGION}
    config: dict[str, Any] = {"storage": {**section, "allow_http": True}}
    with flyte_site(folder, config=config, server_environment=s3.credentials) as site:
        gate = folder / "gate"
        task(site, "waits", f"until [ -e {gate} ]; do sleep 0.1; done; give 3", inputs={})
        task(site, "gives", "give 4", inputs={})
        second = task_node("n1", "gives", upstream_node_ids=["n0"])
        good(workflow(site, "two", [task_node("n0", "waits"), second], outputs={"o": (INT, "n1", "o0")}))
        yield site


def is_running(site: FlyteSite, name: str) -> bool:
    return [job["state"] for job in jobs_of(site, name)] == ["RUNNING"]


def test_an_execution_goes_on_when_a_store_that_was_away_is_back(tmp_path: Path) -> None:
    with s3_running() as s3, bucket_site(tmp_path, s3) as site:
        good(start(site, "away", "two"))
        until(lambda: is_running(site, "away"), PATIENCE_S, "its first task runs")
        s3.kill()
        good(start(site, "late", "two"))  # its files cannot be stored now
        (tmp_path / "gate").touch()
        until(lambda: not is_running(site, "away"), PATIENCE_S, "the task has ended, and its files have nowhere to go")
        assert closure(site, "away")["phase"] == "RUNNING"
        assert closure(site, "late")["phase"] in ("QUEUED", "RUNNING")
        s3.start()
        for name in ("away", "late"):
            assert ended(site, name, 2 * PATIENCE_S)["phase"] == "SUCCEEDED"
            assert (outputs_of(site, name), len(jobs_of(site, name))) == ({"o": 4}, 2)


def fill(file: Path) -> None:
    """Write until the disk is full."""
    with contextlib.suppress(OSError), file.open("wb") as out:
        while True:
            out.write(bytes(4096))
            out.flush()


def test_an_execution_goes_on_when_a_store_that_hung_or_was_full_is_well(tmp_path: Path) -> None:
    with s3_running(disk="8m") as s3, bucket_site(tmp_path, s3) as site:
        good(start(site, "full", "two"))
        until(lambda: is_running(site, "full"), PATIENCE_S, "its first task runs")
        filler = s3.buckets / "filler"
        fill(filler)
        (tmp_path / "gate").touch()
        until(lambda: not is_running(site, "full"), PATIENCE_S, "the task has ended")
        assert closure(site, "full")["phase"] == "RUNNING"
        filler.unlink()
        with s3.hung():
            good(start(site, "hung", "two"))
            assert jobs_of(site, "hung") == [], "its files cannot be stored"
        for name in ("full", "hung"):
            assert ended(site, name, 2 * PATIENCE_S)["phase"] == "SUCCEEDED"
            assert (outputs_of(site, name), len(jobs_of(site, name))) == ({"o": 4}, 2)
