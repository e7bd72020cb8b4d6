"""Tasks of Flyte that are lines of shell, without flytekit."""

from __future__ import annotations

from typing import Any

from tests.acceptance.flyte.flyte_site import DEV, PROJECT, FlyteSite
from tests.processes import PATIENCE_S, until

HERE = {"project": PROJECT, "domain": DEV}
DONE = ("SUCCEEDED", "FAILED", "ABORTED", "TIMED_OUT")
INTEGER = {"simple": "INTEGER"}


def an_id(kind: str, name: str) -> dict[str, str]:
    return {**HERE, "resource_type": kind, "name": name, "version": "v1"}


def register(site: FlyteSite, name: str, args: list[str], **more: Any) -> Any:
    outputs_of_task = more.pop("outputs", {"o0": INTEGER})
    inputs_of_task = more.pop("inputs", {})
    config = more.pop("data_config", {})
    template = {
        "id": an_id("TASK", name),
        "type": "python-task",
        "metadata": {"runtime": {"type": "FLYTE_SDK", "version": "1"}},
        "interface": {
            "inputs": {"variables": {word: {"type": kind} for word, kind in inputs_of_task.items()}},
            "outputs": {"variables": {word: {"type": kind} for word, kind in outputs_of_task.items()}},
        },
        "container": {
            "image": "team/shell:1",
            "args": args,
            "env": more.pop("env", []),
            **({"data_config": config} if config else {}),
        },
        **more,
    }
    said = site.doors.by_grpc("CreateTask", {"id": template["id"], "spec": {"template": template}})
    assert said.code == "OK", said
    return said


def closure_of(site: FlyteSite, name: str) -> dict[str, Any]:
    closure: dict[str, Any] = site.doors.by_grpc("GetExecution", {"id": {**HERE, "name": name}}).answer["closure"]
    return closure


def end_of(site: FlyteSite, name: str) -> dict[str, Any]:
    until(lambda: closure_of(site, name)["phase"] in DONE, PATIENCE_S, f"{name} has ended")
    return closure_of(site, name)
