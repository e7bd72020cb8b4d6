"""A ninth kind of attribute from a package of its own: API, command line, effective value, and the job it changes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.clients.document_steps import steps
from tests.acceptance.stage import Stage, staged
from tests.programs import isolated_env

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "examples" / "workflow-priority"
PAGE = ROOT / "docs" / "how-to" / "add-an-attribute-kind.md"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("stage")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-index"]
    asked = [*pip, "--no-build-isolation", "--target", str(folder / "kinds"), str(PACKAGE)]
    done = subprocess.run(asked, env=isolated_env(folder), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    with staged(folder, env={"PYTHONPATH": str(folder / "kinds")}) as made:
        yield made


def put(stage: Stage, query: str, priority: object) -> int:
    body = {"priority": priority}
    headers = {"If-None-Match": "*"}
    return stage.call("PUT", f"/v1/attributes/workflow-priority?{query}", body, headers=headers).status


def test_a_ninth_kind_is_set_seen_and_obeyed(stage: Stage, tmp_path: Path) -> None:
    kinds = {kind["name"]: kind["number"] for kind in stage.get("/v1/attribute-kinds")["items"]}
    assert (kinds["workflow-priority"], len(kinds)) == (10, 12)
    # By the API, at the domain; by the command line, which knows nothing of it, at the workflow.
    assert put(stage, "domain=production", 100) == 200
    file = tmp_path / "critical.yaml"
    file.write_text("project: default\ndomain: production\nworkflow: billing\npriority: 1000\n")
    stage.yard("update", "workflow-priority", "--attr-file", str(file), "--force", check=True)
    shown = stage.yard("get", "workflow-priority", "-p", "default", "-d", "production", "billing", check=True).stdout
    assert shown == "project: default\ndomain: production\nworkflow: billing\npriority: 1000\n"
    effective = stage.get(
        "/v1/attributes/workflow-priority/effective?domain=production&project=default&workflow=billing"
    )
    assert (effective["value"], effective["fields"][0]["level"]) == ({"priority": 1000}, "workflow")
    table = stage.yard("explain-policy", "-p", "default", "-d", "production", check=True).stdout
    assert ["workflow-priority", "priority", "100", "domain", "domain", "production"] in map(
        str.split, table.splitlines()
    )
    # And each job has it.
    for fields, priority in (
        ({"domain": "production", "workflow": "billing"}, 1000),
        ({"domain": "production", "workflow": "other"}, 100),
        ({"domain": "production"}, 100),
        ({"domain": "production", "workflow": "billing", "priority": 7}, 7),
        ({"domain": "development", "workflow": "billing"}, 0),
    ):
        assert stage.job(stage.submit("true", hold=True, **fields)).get("priority", 0) == priority
    job = stage.submit("true", hold=True, domain="production", workflow="billing")
    said = stage.yard("explain", job, check=True).stdout
    assert "workflow-priority" in said
    assert "1000" in said
    # Once more: by the rules of then.
    file.write_text(file.read_text().replace("1000", "2000"))
    stage.yard("update", "workflow-priority", "--attr-file", str(file), "--force", check=True)
    stage.yard("cancel", job, check=True)
    again = stage.yard("retry", job, "-o", "name", check=True).stdout.split()[-1]
    assert stage.job(again)["priority"] == 2000


@pytest.mark.parametrize("priority", ["high", 10**9, None, 1.5])
def test_its_own_fields_are_validated(stage: Stage, priority: object) -> None:
    assert put(stage, "domain=staging", priority) == 400


def test_it_is_removed_like_any_other(stage: Stage) -> None:
    assert put(stage, "project=default", 5) == 200
    stage.yard("delete", "workflow-priority", "-p", "default", "--force", check=True)
    assert stage.yard("get", "workflow-priority", "-p", "default").returncode == 3
    assert "attribute.delete" in stage.yard("history", "workflow-priority", "-p", "default", check=True).stdout


def test_the_page_builds_the_very_package(stage: Stage) -> None:
    written = [step.text for step in steps(PAGE.read_text(encoding="utf-8")) if step.text.startswith("cat >")]
    for file in ("pyproject.toml", "src/workflow_priority/__init__.py"):
        text = (PACKAGE / file).read_text(encoding="utf-8")
        assert any(f"workflow-priority/{file} <<" in each and text in f"{each}\n" for each in written), file
