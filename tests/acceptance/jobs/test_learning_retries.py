"""Retries that learn: by the kind of the failure, with more memory or time, elsewhere, within the rules; what failed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.acceptance.stage import Stage, graph, staged
from tests.programs import start_agent

# As much memory as a limit of 128MiB refuses, and one of 256MiB allows.
HUNGRY = (sys.executable, "-S", "-c", "bytearray(150 << 20)")
SMALL = {"memory": "128MiB"}
DOUBLE = {"out-of-memory": {"limit": 2, "memory": "x2"}}


def retry(on: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"backoff": 1, "on": on, **fields}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("learning")
    with staged(folder) as stage, start_agent(folder, stage.url, "alpha", graph=graph(4, memory="1GiB")):
        with start_agent(folder, stage.url, "beta", graph=graph(4, memory="1GiB")):
            yield stage


def test_a_job_that_ran_out_of_memory_runs_again_with_more(stage: Stage) -> None:
    done = stage.ended(stage.submit(*HUNGRY, spec={"resources": SMALL, "retry": retry(DOUBLE)}))
    assert (done["state"], done["tries"], done["spec"]["resources"]["memory"]) == ("SUCCEEDED", 1, "256MiB")
    (first,) = done["attempts"]
    assert (first["ended"], first["failure"], first["asked"]) == ("failed", "out-of-memory", {"memory": "128MiB"})
    assert first["reason"].endswith("next attempt: memory 256MiB instead of 128MiB")
    shown = stage.yard("show", done["id"], check=True).stdout
    assert "out-of-memory, with memory 128MiB" in shown
    assert "256MiB memory" in shown
