"""Job files: Flux's jobspec beside the plain form, and the schema that editors check a file by."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from switchyard import Client
from switchyard.errors import EXIT_OK, EXIT_REJECTED, EXIT_USAGE
from tests.acceptance.stage import Stage
from tests.model.jobspecs import SMALL, WHOLE
from tests.processes import PATIENCE_S
from tests.programs import call


@pytest.fixture(scope="module", autouse=True)
def _cluster(stage: Stage) -> Iterator[None]:
    with stage.agent("alpha", cores=8):
        yield


def jobspec(command: list[str], *, slots: int = 1, cores: int = 1, **system: object) -> dict[str, object]:
    return {
        "version": 1,
        "resources": [{"type": "slot", "count": slots, "label": "t", "with": [{"type": "core", "count": cores}]}],
        "tasks": [{"command": command, "slot": "t", "count": {"per_slot": 1}}],
        "attributes": {"system": {"duration": 0, **system}},
    }


def written(folder: Path, form: object, name: str = "job.yaml") -> str:
    file = folder / name
    file.write_text(json.dumps(form) if name.endswith("json") else yaml.safe_dump(form))
    return str(file)


@pytest.mark.parametrize("name", ["job.yaml", "job.json"])
def test_a_jobspec_runs(stage: Stage, tmp_path: Path, name: str) -> None:
    form = jobspec(
        ["sh", "-c", "echo $GREETING; pwd"],
        cores=2,
        duration=60.5,
        cwd=str(tmp_path),
        environment={"GREETING": "hello"},
        job={"name": "greet"},
    )
    done = stage.yard("submit", "--wait", "--timeout", "30", "-f", written(tmp_path, form, name))
    assert (done.returncode, done.stdout) == (EXIT_OK, f"hello\n{tmp_path}\n"), done.stderr
    job = next(job for job in stage.walk("/v1/jobs?spec=true", limit=100) if job["name"] == "greet")
    assert job["spec"]["resources"] == {"cores": 2, "time_limit": 61}


def test_what_flux_prints_is_planned_and_what_is_left_out_is_said(stage: Stage, tmp_path: Path) -> None:
    done = stage.yard("submit", "--plan", "-f", written(tmp_path, WHOLE))
    assert done.returncode == EXIT_REJECTED, "it asks for GPUs on two nodes"
    assert "note: " in done.stderr
    assert "attributes.system.queue is left out" in done.stderr


def test_it_may_come_from_a_pipe_and_flags_win_over_it(stage: Stage) -> None:
    form = jobspec(["sh", "-c", "exit 3"], job={"name": "piped"})
    done = stage.yard("submit", "--wait", "--timeout", "30", "--name", "mine", "-f", "-", stdin=json.dumps(form))
    assert done.returncode == 3
    assert any(job["name"] == "mine" for job in stage.walk("/v1/jobs", limit=100))
    done = stage.yard("submit", "--wait", "--timeout", "30", "-f", "-", "--", "echo", "other", stdin=json.dumps(form))
    assert done.stdout == "other\n"


def test_the_sdk_takes_one(client: Client) -> None:
    assert client.submit(jobspec(["echo", "hi"])).wait(timeout_s=PATIENCE_S).exit_code == 0


@pytest.mark.parametrize(
    ("form", "says"),
    [
        (SMALL | {"version": 2}, "version: this is version 2"),
        (
            SMALL | {"resources": [{"type": "node", "count": 1, "exclusive": "yes"}]},
            "resources[0].exclusive: expected true or false, not 'yes'",
        ),
        (SMALL | {"attributes": {"system": {"dependencies": [{"scheme": "after"}]}}}, "attributes.system.dependencies"),
        (SMALL | {"tasks": []}, "tasks: expected a list"),
    ],
)
def test_what_cannot_be_kept_is_refused_and_nothing_is_submitted(
    stage: Stage, tmp_path: Path, form: object, says: str
) -> None:
    before = len(stage.walk("/v1/jobs", limit=500))
    file = written(tmp_path, form)
    done = stage.yard("submit", "-f", file)
    assert done.returncode == EXIT_USAGE
    assert f"{file}: {says}" in done.stderr
    assert len(stage.walk("/v1/jobs", limit=500)) == before


def test_constraints_are_kept(stage: Stage, tmp_path: Path) -> None:
    form = SMALL | {"attributes": {"system": {"constraints": {"properties": ["amd"]}}}}
    done = stage.yard("submit", "--plan", "-f", written(tmp_path, form))
    assert done.returncode == EXIT_REJECTED
    assert "meets the constraint properties amd" in done.stdout


def test_the_api_itself_takes_the_plain_form_only(stage: Stage) -> None:
    assert stage.call("POST", "/v1/jobs", SMALL).status == 400


def test_the_schema_is_open_to_all_and_the_command_prints_the_same(stage: Stage) -> None:
    answer = call("GET", f"{stage.url}/v1/schema")
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json["$schema"].startswith("https://json-schema.org/")
    assert json.loads(stage.yard("schema", check=True).stdout) == answer.json
    assert "/v1/schema" in stage.get("/v1/openapi.json")["paths"]
