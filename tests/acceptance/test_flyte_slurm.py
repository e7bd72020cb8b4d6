"""Ten workflows of the corpus on a real Slurm cluster, by unmodified flytekit; the agent is killed in between."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from tests.acceptance.flyte_site import HOST_RULE, RUNS_S, FlyteSite, flyte_site
from tests.acceptance.slurm_stage import SITE
from tests.acceptance.test_flyte_runs import difference
from tests.slurm_bed import SlurmBed
from tests.workflow.corpus import FOLDER

pytestmark = [pytest.mark.xdist_group("flyte-slurm"), pytest.mark.timeout(RUNS_S)]
MODULES = (
    *("01_scalars", "04_attr_path", "05_union", "07_subworkflow", "09_map"),
    *("11_dynamic", "16_on_failure", "21_files", "26_imperative", "27_checkpoint"),
)
ENDS_PER_KILL = 6  # jobs that end between two kills of the agent
LOOK_S = 0.5
# Slurm's own default of memory is too little for flytekit. Two cores each: not all tasks begin at once.
DEFAULTS = {"task_resources": {"defaults": {"cpu": "2", "memory": "700Mi"}}}


def test_workflows_of_the_corpus_end_on_slurm_as_they_do_in_flyte(tmp_path: Path, slurm: SlurmBed) -> None:
    cluster = slurm["alpha"]
    (tmp_path / "data").mkdir()
    sections = {
        "images": [HOST_RULE],
        "data": {"folder": str(tmp_path / "data")},
        "slurm": {**SITE, "bin": str(cluster.bin)},
    }
    try:
        with flyte_site(tmp_path, cluster="alpha", backend="slurm", site=sections, config=DEFAULTS) as site:
            for module in MODULES:
                shutil.copy(FOLDER / f"{module}.py", tmp_path / "flows")
            site.register()
            results = run_with_kills(site)
            assert [wrong for found in results if (wrong := difference(found))] == []
            assert {found["cluster"] for found in results} == {"alpha"}
            jobs = site.doors.v1("GET", "/v1/jobs?limit=500")["items"]
            assert {job["cluster"] for job in jobs} == {"alpha"}
    finally:
        cluster.heal()


def run_with_kills(site: FlyteSite) -> list[dict[str, object]]:
    """Run all cases while the agent is killed again and again, each time after some jobs have ended."""
    is_over = threading.Event()

    def reap() -> None:
        killed_at = 0
        while not is_over.wait(LOOK_S):
            ended = len(site.doors.v1("GET", "/v1/jobs?limit=500&state=SUCCEEDED")["items"])
            if ended >= killed_at + ENDS_PER_KILL:
                killed_at = ended
                site.agent.kill()
                site.agent.start()

    reaper = threading.Thread(target=reap)
    reaper.start()
    try:
        return site.run(*MODULES)
    finally:
        is_over.set()
        reaper.join()
