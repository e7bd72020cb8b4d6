"""Workflows of the corpus on a real Slurm cluster, by unmodified flytekit. Agent and server are killed in turn."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections import Counter
from pathlib import Path

import pytest

from switchyard.model.cluster.idset import IdSet
from tests.acceptance.flyte.flyte_site import RUNS_S, SLURM_DEFAULTS, FlyteSite, difference, flyte_site, host_rule
from tests.acceptance.slurm.slurm_stage import SITE
from tests.slurm_bed import SlurmBed
from tests.soak import SOAKED
from tests.workflow.corpus import FOLDER

pytestmark = pytest.mark.timeout(RUNS_S)
BUNDLED = ("21_files",)  # its code comes with the job; that of the others is there
MODULES = (*BUNDLED, "09_map")
MORE_MODULES = (
    *("01_scalars", "11_dynamic", "04_attr_path", "05_union", "07_subworkflow"),
    *("16_on_failure", "26_imperative", "27_checkpoint"),
)
LOOK_S = 0.5
NOTE = "$FLYTE_INTERNAL_EXECUTION_ID $SWITCHYARD_JOB_ID $FLYTE_ATTEMPT_NUMBER ${SWITCHYARD_ARRAY_INDEX:--}"


@pytest.mark.parametrize(
    ("modules", "ends"), [(MODULES, 2), SOAKED((*MODULES, *MORE_MODULES), 12)], ids=["often", "soaked"]
)
def test_workflows_of_the_corpus_end_on_slurm_as_they_do_in_flyte(
    tmp_path: Path, slurm: SlurmBed, modules: tuple[str, ...], ends: int
) -> None:
    """`ends`: of jobs, between two kills."""
    cluster, notes = slurm["alpha"], tmp_path / "notes"
    (tmp_path / "data").mkdir()
    notes.touch()
    sections = {
        "images": [{**host_rule(), "path": str(noting_programs(tmp_path / "programs", notes))}],
        "data": {"folder": str(tmp_path / "data")},
        "slurm": {**SITE, "bin": str(cluster.bin)},
    }
    try:
        with flyte_site(tmp_path, cluster="alpha", backend="slurm", site=sections, config=SLURM_DEFAULTS) as site:
            for module in modules:
                shutil.copy(FOLDER / f"{module}.py", tmp_path / "flows")
            site.register(modules=BUNDLED)
            site.register(modules=modules[len(BUNDLED) :], bundle=False)
            results, kills = run_with_kills(site, modules, ends_per_kill=ends)
            assert [wrong for found in results if (wrong := difference(found))] == []
            assert {found["cluster"] for found in results} == {"alpha"}
            jobs = site.doors.v1("GET", "/v1/jobs?limit=500")["items"]
            assert {job["cluster"] for job in jobs} == {"alpha"}
            assert set(kills) == {"agent", "server"}
            each_task_ran_once(jobs, notes.read_text().splitlines())
    finally:
        cluster.heal()


def noting_programs(folder: Path, notes: Path) -> Path:
    """flytekit's programs, of which those that run a task's function append a line to `notes` first."""
    folder.mkdir()
    for name in ("pyflyte-fast-execute", "pyflyte-execute", "pyflyte-map-execute"):
        note = f'echo "{NOTE}" >> {notes}\n' if name != "pyflyte-fast-execute" else ""
        program = folder / name
        program.write_text(f'#!/bin/sh\n{note}exec {host_rule()["path"]}/{name} "$@"\n')
        program.chmod(0o755)
    return folder


def each_task_ran_once(jobs: list[dict[str, object]], lines: list[str]) -> None:
    """Each element of each job has one line, of the right execution. What was stopped may have none."""
    by_id = {str(job["id"]): job for job in jobs}
    ran: Counter[tuple[str, ...]] = Counter()
    for line in lines:
        execution, job_id, attempt, index = line.split()
        labels = by_id[job_id]["labels"]
        assert isinstance(labels, dict)
        assert labels["flyte/execution"] == execution
        ran[execution, labels["flyte/node"], attempt, index] += 1
    assert {what: count for what, count in ran.items() if count != 1} == {}, "execution, node, attempt and element"
    tasks = {(job_id, index) for _, job_id, _, index in map(str.split, lines)}
    done = [job for job in jobs if job["state"] == "SUCCEEDED"]
    ended = [(str(job["id"]), str(job.get("array") or "").partition("%")[0]) for job in done]
    wanted = {(job_id, str(index)) for job_id, array in ended for index in (IdSet.parse(array) if array else ["-"])}
    assert wanted <= tasks, "all that have succeeded have run"


def run_with_kills(
    site: FlyteSite, modules: tuple[str, ...], *, ends_per_kill: int
) -> tuple[list[dict[str, object]], Counter[str]]:
    """Run all cases while agent and server are killed in turn, each time after some jobs have ended.

    Returns the results, and how often each was killed.
    """
    is_over, kills = threading.Event(), Counter[str]()

    def reap() -> None:
        killed_at, victims = 0, itertools.cycle(("agent", "server"))
        while not is_over.wait(LOOK_S):
            ended = len(site.doors.v1("GET", "/v1/jobs?limit=500&state=SUCCEEDED")["items"])
            if ended < killed_at + ends_per_kill:
                continue
            killed_at, victim = ended, next(victims)
            if victim == "agent":
                site.agent.kill()
                site.agent.start()
            else:
                site.server.kill()
                site.server.restart()
            kills[victim] += 1

    reaper = threading.Thread(target=reap)
    reaper.start()
    try:
        return site.run(*modules), kills
    finally:
        is_over.set()
        reaper.join()
