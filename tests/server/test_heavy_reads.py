"""Reads of thousands of rows hold nobody up: they have threads of their own, and one user has one of them at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard.server.grpc.limiter import current_caller
from switchyard.server.http.endpoints import ENDPOINTS
from switchyard.server.loops.runtime import ServerRuntime
from tests.service.rig import running


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[ServerRuntime]:
    with running(f"sqlite:///{tmp_path}/yard.db", tmp_path) as rig:
        yield rig.yard
        rig.yard.workers.close(wait=True)


def test_reads_that_grow_with_the_yard_are_heavy() -> None:
    heavy = {endpoint.path for endpoint in ENDPOINTS if endpoint.is_heavy}
    execution = "/v1/executions/{project}/{domain}/{execution}"
    assert heavy == {
        *("/v1/job-actions", "/v1/stats/routes", "/v1/stats/failures", "/v1/cluster-resources/status"),
        *("/v1/executions", f"{execution}/nodes", f"{execution}/explain"),
    }


def test_heavy_reads_of_one_user_leave_threads_to_everybody(yard: ServerRuntime) -> None:
    let_go = threading.Event()
    at_once: list[int] = []
    running_now = 0

    def heavy() -> None:
        nonlocal running_now
        running_now += 1
        at_once.append(running_now)
        assert let_go.wait(30)
        running_now -= 1

    async def main() -> str:
        current_caller.set("col")
        reads = [asyncio.ensure_future(yard.workers.in_heavy_thread(heavy)) for _ in range(20)]
        await asyncio.sleep(0)
        quick = [await yard.workers.in_thread(lambda: "col")]
        current_caller.set("ann")
        quick.append(await yard.workers.in_heavy_thread(lambda: "ann"))
        let_go.set()
        await asyncio.gather(*reads)
        return " ".join(quick)

    assert asyncio.run(main()) == "col ann"
    assert at_once == [1] * 20
