"""The 30 workflows of `tests/data/flyte_workflows` as flytekit sends them, and what Flyte's compiler made of them."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flyteidl.admin import launch_plan_pb2, task_pb2, workflow_pb2

from tests.processes import PATIENCE_S
from tests.programs import isolated_env

FOLDER = Path(__file__).parent.parent / "data" / "flyte_workflows"
CLIENT = Path(__file__).with_name("corpus_client.py")
PROJECT, DOMAIN, VERSION = "corpus", "development", "v1"
CLASSES = {
    "TaskSpec": task_pb2.TaskSpec,
    "WorkflowSpec": workflow_pb2.WorkflowSpec,
    "LaunchPlan": launch_plan_pb2.LaunchPlan,
}


@dataclass(frozen=True)
class Sent:
    """One entity that flytekit would register."""

    kind: str
    message: Any

    @property
    def id(self) -> Any:
        return self.message.id if self.kind == "LaunchPlan" else self.message.template.id

    @property
    def request(self) -> tuple[str, Any]:
        """The call and its request."""
        if self.kind == "TaskSpec":
            return "CreateTask", task_pb2.TaskCreateRequest(id=self.id, spec=self.message)
        if self.kind == "WorkflowSpec":
            return "CreateWorkflow", workflow_pb2.WorkflowCreateRequest(id=self.id, spec=self.message)
        return "CreateLaunchPlan", launch_plan_pb2.LaunchPlanCreateRequest(id=self.id, spec=self.message.spec)


@cache
def sent_by_flytekit(project: str = PROJECT, domain: str = DOMAIN, version: str = VERSION) -> tuple[Sent, ...]:
    """All entities of the corpus in the order of registration. 30_reference refers to version `base`."""
    with TemporaryDirectory() as folder:
        for file in sorted(FOLDER.glob("*.py")):
            shutil.copy(file, folder)
        reference = Path(folder, "30_reference.py")
        text = reference.read_text().replace('"PROJECT"', f'"{project}"').replace('"DOMAIN"', f'"{domain}"')
        reference.write_text(text)
        argv = [sys.executable, str(CLIENT), folder, project, domain, version]
        env = isolated_env(Path(folder))
        done = subprocess.run(
            argv, env=env, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    assert done.returncode == 0, done.stderr[-4000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return tuple(Sent(kind, CLASSES[kind].FromString(base64.b64decode(body))) for kind, body in lines)


@cache
def compiled_by_flyte() -> dict[str, Any]:
    golden: dict[str, Any] = json.loads((FOLDER / "compiled.json").read_text())
    return golden


def with_names_only(value: Any) -> Any:
    """proto3's JSON with ids cut to their names, as Flyte's results are kept."""
    if isinstance(value, list):
        return [with_names_only(item) for item in value]
    if not isinstance(value, dict):
        return value
    is_id = "resource_type" in value and "name" in value
    cut = ("project", "domain", "version") if is_id else ()
    return {key: with_names_only(inner) for key, inner in value.items() if key not in cut}
