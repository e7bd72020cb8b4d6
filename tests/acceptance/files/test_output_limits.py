"""Output files over a limit of the server: what fits comes, the rest is named, and a raised limit brings it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from switchyard.errors import EXIT_ERROR
from switchyard.model.files.file_tree import FOLDER_DEPTH_MAX
from switchyard.model.job.job import State
from tests.acceptance.files.job_files import outputs_of, read_tree, yard_in
from tests.acceptance.stage import Stage, staged
from tests.processes import PATIENCE_S, until
from tests.soak import SOAKED

# Random content: four files of 100 kB, of which three fit into the limit.
SCRIPT = "mkdir results; for n in 1 2 3 4; do head -c 100000 /dev/urandom > results/f$n; done"
LIMIT, RAISED = 350_000, 10_000_000


def write_config(file: Path, **limits: int) -> list[str]:
    file.write_text(json.dumps({"files": limits}), encoding="utf-8")  # JSON is YAML
    return ["--config", str(file)]


def names(stage: Stage, job: str, output: dict[str, Any]) -> list[str]:
    results = read_tree(stage, job, output["root"]).get(b"results", {})
    assert isinstance(results, dict)
    return sorted(bytes(name).decode() for name in results)  # type: ignore[arg-type]


# The limit of a user and of a project have one more test each below.
@pytest.mark.parametrize("limit", [SOAKED("user_bytes"), SOAKED("project_bytes"), "tree_bytes"])
def test_what_fits_is_taken_the_rest_is_named_and_comes_when_the_limit_is_raised(tmp_path: Path, limit: str) -> None:
    config = tmp_path / "config.yaml"
    with staged(tmp_path, extra=write_config(config, **{limit: LIMIT})) as stage, stage.agent("local"):
        work = tmp_path / "work"
        work.mkdir()
        done = yard_in(stage, work, "submit", "--out", "results", "--wait", "--", "sh", "-c", SCRIPT)
        assert sorted(path.name for path in (work / "results").iterdir()) == ["f1", "f2", "f3"], done.stderr
        assert "not taken: results/f4: over the limit" in done.stderr
        assert f"set at `files.{limit}` in the server's config file; the agent tries again until" in done.stderr
        assert done.returncode == EXIT_ERROR, "a file that the job left is not here"
        job = stage.get("/v1/jobs?limit=1")["items"][0]["id"]
        assert stage.job(job)["state"] == State.SUCCEEDED
        assert "; not taken: results/f4: over the limit" in stage.yard("show", job, check=True).stdout

        write_config(config, **{limit: RAISED})
        stage.server.restart()
        [output] = until(
            lambda: [found for found in outputs_of(stage, job) if not found.get("skipped")],
            4 * PATIENCE_S,
            "the rest is there",
        )
        assert (names(stage, job, output), output["files"]) == (["f1", "f2", "f3", "f4"], 4)
        yard_in(stage, work, "fetch", job)
        assert (work / "results" / "f4").stat().st_size == 100_000
        usage = stage.get("/v1/files/usage?project=default")["project"]
        assert (usage["bytes"], usage["trees"]) == (400_000, 1), "the incomplete set is not counted as well"


def test_required_output_over_a_limit_fails_the_job_and_its_dependants_do_not_run(tmp_path: Path) -> None:
    extra = write_config(tmp_path / "config.yaml", project_bytes=LIMIT)
    with staged(tmp_path, extra=extra) as stage, stage.agent("local"):
        spec = {"files": {"out": ["results"], "out_required": True}}
        ran = stage.folder / "ran"
        job = stage.submit("sh", "-c", SCRIPT, spec=spec)
        dependant = stage.submit("touch", str(ran), after=[f"{job}:ok"])
        end = stage.ended(job)
        assert end["state"] == State.FAILED
        assert end["reason"].startswith(
            "output files could not be taken: results/f4: over the limit of project default"
        )
        assert stage.ended(dependant)["state"] != State.SUCCEEDED
        assert not ran.exists()
        [output] = outputs_of(stage, job)
        assert names(stage, job, output) == ["f1", "f2", "f3"], "what fits is there all the same"

        small = stage.submit("sh", "-c", "mkdir results; echo 1 > results/a", spec=spec)
        assert stage.ended(small)["state"] == State.SUCCEEDED
        assert outputs_of(stage, small)[0]["state"] == "ready", "the files are there when the job has ended"


def test_a_full_user_is_told_at_once_and_nothing_hangs(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    with staged(tmp_path, extra=write_config(config, user_bytes=1)) as stage, stage.agent("local"):
        job = stage.submit("sh", "-c", SCRIPT, spec={"files": {"out": ["results"]}})
        stage.ended(job)
        done = yard_in(stage, tmp_path, "fetch", job)
        assert done.returncode == EXIT_ERROR
        assert "files.user_bytes" in done.stderr
        write_config(config, user_bytes=RAISED)
        stage.server.restart()
        until(lambda: outputs_of(stage, job)[0].get("files") == 4, 4 * PATIENCE_S, "all files are there")


def test_folders_deeper_than_a_tree_may_be_are_left_out_and_named(tmp_path: Path) -> None:
    with staged(tmp_path) as stage, stage.agent("local"):
        deep = "/".join("d" * (FOLDER_DEPTH_MAX + 5))
        job = stage.submit(
            "sh", "-c", f"mkdir -p {deep}; echo 1 > {deep}/x; echo 2 > top", spec={"files": {"out": ["*"]}}
        )
        assert stage.ended(job)["state"] == State.SUCCEEDED
        [output] = outputs_of(stage, job)
        assert (output["state"], output["files"]) == ("ready", 1)
        assert output["skipped"][0].endswith("the server takes at most 128 folders in folders")
