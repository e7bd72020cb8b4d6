"""Images that do not run everywhere: what they need is asked of the nodes, and a no has its reason."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from switchyard import Client
from switchyard.errors import EXIT_NOT_FOUND, EXIT_REJECTED, EXIT_USAGE
from tests.acceptance.stage import Stage, staged
from tests.layouts import Layout
from tests.processes import PATIENCE_S

pytestmark = pytest.mark.xdist_group("compat")

OLD = {"architecture": "x86_64", "kernel": "4.18.0", "gpu-driver": "470.82.01", "mpi": "4.1.4"}
NEW = {"architecture": "x86_64", "kernel": "6.1.0", "gpu-driver": "535.129.03", "cuda": "12.2", "mpi": "5.0.1"}
ARM = {"architecture": "aarch64", "kernel": "6.1.0", "gpu-driver": "535.129.03"}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Three clusters whose nodes differ in their systems alone."""
    rules = 'images: [{match: "*", run: host}]'
    with (
        staged(tmp_path_factory.mktemp("stage")) as made,
        made.agent("old", extra=made.site("old", rules)),
        made.agent("new", extra=made.site("new", rules)),
        made.agent("arm", extra=made.site("arm", rules)),
    ):
        for name, system in (("old", OLD), ("new", NEW), ("arm", ARM)):
            body = {"attach": {"node0": [{"type": "system", "os": "linux", **system}]}}
            answer = made.call("PUT", f"/v1/clusters/{name}/subsystems/system", body)
            assert answer.status == 200, answer.body
        yield made


def verdicts(plan: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["cluster"]: (each["say"], each.get("reason", "")) for each in plan["verdicts"]}


def test_an_image_on_disk_is_refused_by_some_and_taken_by_another(stage: Stage, tmp_path: Path) -> None:
    """Its architecture stands in its configuration, the driver it needs in a compatibility artifact."""
    layout = Layout(tmp_path / "image")
    image = layout.image("amd64", tag="v1")
    name = layout.write(image, layout.artifact(image, [{"field": "gpu-driver", "min": "535"}]))
    job = stage.read("submit", "--image", f"{name}:v1", "--", "echo", "it runs")
    ended = stage.ended(job["id"])
    assert (ended["state"], ended["cluster"]) == ("SUCCEEDED", "new")
    explained = stage.read("explain", job["id"])
    said = verdicts(explained["plan"])
    assert said["new"][0] == "yes"
    assert said["old"][0] == said["arm"][0] == "no"
    assert "gpu-driver" in said["old"][1]
    assert "535" in said["old"][1]
    assert "architecture" in said["arm"][1]
    assert "x86_64" in said["arm"][1]


def test_nobody_has_it(stage: Stage, tmp_path: Path) -> None:
    layout = Layout(tmp_path / "image")
    image = layout.image("riscv64")
    done = stage.yard("submit", "--image", layout.write(image), "--", "true")
    assert done.returncode == EXIT_REJECTED
    assert "architecture" in done.stdout


@pytest.mark.parametrize(
    ("needs", "takers"),
    [
        ('[{"field": "architecture", "equals": "amd64"}]', {"old", "new"}),
        ('[{"field": "architecture", "equals": "arm64"}]', {"arm"}),
        ('[{"field": "kernel", "min": "5"}]', {"new", "arm"}),
        ('[{"field": "kernel", "max": "4.18"}]', {"old"}),
        ('[{"field": "kernel", "min": "4.0", "max": "7"}]', {"old", "new", "arm"}),
        ('[{"field": "mpi", "min": "4.1.0", "max": "4.1"}]', {"old"}),
        ('[{"field": "cuda", "min": "12.0"}]', {"new"}),
        ('[{"field": "cuda", "min": "12.10"}]', set()),
        ('[{"field": "kernel", "equals": "6.1.0"}, {"field": "cuda", "min": 12}]', {"new"}),
        ('[{"field": "gpu-driver", "min": "535.129.3"}]', {"new", "arm"}),
        ('[{"field": "unheard-of", "equals": true}]', set()),
        ("[]", {"old", "new", "arm"}),
    ],
)
def test_file_of_needs(stage: Stage, tmp_path: Path, needs: str, takers: set[str]) -> None:
    file = tmp_path / "needs.yaml"
    file.write_text(f"compatibility: {needs}")
    done = stage.yard("submit", "--plan", "--compatibility", str(file), "-o", "json", "--", "true")

    said = verdicts(json.loads(done.stdout))
    assert {name for name, (say, _) in said.items() if say == "yes"} == takers, said


def test_job_file_and_sdk_say_it_too(stage: Stage, client: Client, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text('command: [echo, hi]\ncompatibility: [{field: gpu-driver, min: "500"}, {field: cuda, min: "12.2"}]')
    assert stage.read("submit", "--plan", "-f", str(file))["chosen"] == "new"
    job = client.submit(["echo", "hi"], compatibility=[{"field": "architecture", "equals": "aarch64"}])
    assert job.wait(timeout_s=PATIENCE_S).cluster == "arm"
    layout = Layout(tmp_path / "image")
    assert client.plan("true", image=layout.write(layout.image("arm64"))).chosen == "arm"


def test_needs_go_with_a_jobspec(stage: Stage) -> None:
    jobspec = {
        "version": 1,
        "resources": [{"type": "node", "count": 1, "with": [{"type": "core", "count": 2}]}],
    }
    spec = {"command": ["true"], "demand": jobspec, "compatibility": [{"field": "kernel", "min": "5"}]}
    said = verdicts(stage.post("/v1/plan", {"spec": spec}))
    assert {name for name, (say, _) in said.items() if say == "yes"} == {"new", "arm"}, said
    loose = {"version": 1, "resources": [{"type": "core", "count": 2}]}
    answer = stage.call("POST", "/v1/plan", {"spec": {**spec, "demand": loose}})
    assert (answer.status, answer.json["code"]) == (400, "malformed")


@pytest.mark.parametrize(
    "needs",
    [
        [{"field": "kernel"}],
        [{"field": "kernel", "equals": "6", "max": "7"}],
        [{"field": "kernel", "min": 6.1}],
        [{"field": "kernel", "min": ["6"]}],
        [{"field": "kernel", "equals": {"a": 1}}],
        [{"field": "", "equals": "6"}],
        [{"field": "kernel", "equals": ""}],
        [{"field": 7, "equals": "6"}],
        [{"field": "kernel", "equals": "6", "other": 1}],
        [{"field": "kernel", "min": "6"}] * 65,
        {"kernel": "6"},
        "kernel",
    ],
)
def test_needs_that_are_none(stage: Stage, tmp_path: Path, needs: Any) -> None:

    answer = stage.call("POST", "/v1/jobs", {"spec": {"command": ["true"], "compatibility": needs}})
    assert (answer.status, answer.json["code"]) == (400, "malformed")
    file = tmp_path / "needs.json"
    file.write_text(json.dumps(needs))
    done = stage.yard("submit", "--compatibility", str(file), "--", "true")
    assert done.returncode == EXIT_USAGE, done.stdout
    assert done.stderr.startswith("error: ")


def test_images_that_are_none(stage: Stage, tmp_path: Path) -> None:
    assert stage.yard("submit", "--image", f"oci:{tmp_path}", "--", "true").returncode == EXIT_NOT_FOUND
    layout = Layout(tmp_path / "image")
    image = layout.image()
    (layout.path / "blobs/sha256" / image["digest"].partition(":")[2]).write_text("{}")
    done = stage.yard("submit", "--image", layout.write(image), "--", "true")
    assert done.returncode == EXIT_USAGE
    assert "changed" in done.stderr
