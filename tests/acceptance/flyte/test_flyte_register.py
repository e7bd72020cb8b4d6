"""`pyflyte register` and FlyteRemote, as they are installed by anybody, against a real server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.acceptance.flyte.flyte_site import sqlite_first
from tests.processes import PATIENCE_S
from tests.programs import isolated_env
from tests.server.flyte_doors import Doors, opened
from tests.warm_programs import FLYTEKIT_MODULES, run_script

CLIENT = Path(__file__).with_name("flytekit_entities.py")
PYFLYTE = Path(sys.executable).with_name("pyflyte")
PROJECT, DEV = "kit", "development"
FLOWS = """
from flytekit import CronSchedule, LaunchPlan, task, workflow


@task
def add(a: int, b: int) -> int:
    return a + b


@task
def double(n: int) -> int:
    return NUMBER * n


@workflow
def inner(n: int) -> int:
    return double(n=n)


@workflow
def wf(n: int = 1) -> tuple[int, int]:
    first = inner(n=n)
    return first, add(a=first, b=n)


nightly = CronSchedule(schedule="0 4 * * *")
doubled = LaunchPlan.get_or_create(wf, name="flows.doubled", default_inputs={"n": 7}, schedule=nightly)
"""


def flows(folder: Path, *, number: int = 2) -> None:
    (folder / "flows.py").write_text(FLOWS.replace("NUMBER", str(number)))


def pyflyte(folder: Path, doors: Doors, version: str, *more: str) -> subprocess.CompletedProcess[str]:
    """`pyflyte register` without an upload: there is no place for one."""
    admin: dict[str, Any] = {"endpoint": f"dns:///{doors.grpc}", "insecure": True}
    if doors.token:
        (folder / "token").write_text(doors.token)
        admin |= {"authType": "ExternalCommand", "command": ["cat", str(folder / "token")]}
    (folder / "flyte.yaml").write_text(yaml.safe_dump({"admin": admin}))
    where = ["--project", PROJECT, "--domain", DEV, "--version", version]
    argv = [
        str(PYFLYTE),
        "--config",
        "flyte.yaml",
        "register",
        "--copy",
        "none",
        "--image",
        "example/image:1",
        *where,
        *more,
    ]
    return run_script(
        [*argv, "flows.py"], env=isolated_env(folder), cwd=folder, timeout_s=PATIENCE_S, modules=FLYTEKIT_MODULES
    )


def told(folder: Path, story: str, doors: Doors) -> Any:
    argv = [str(CLIENT), story, json.dumps({"endpoint": doors.grpc, "insecure": True})]
    env = isolated_env(folder)
    done = run_script(argv, env=env, cwd=folder, timeout_s=PATIENCE_S, modules=FLYTEKIT_MODULES)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@sqlite_first
def test_pyflyte_registers_and_flyteremote_finds_it(tmp_path: Path, database_url: str) -> None:
    flows(tmp_path)
    with opened(tmp_path, database=database_url) as doors:
        doors.v1("POST", "/v1/projects", {"name": PROJECT})
        for _ in range(2):  # the same again is no error
            done = pyflyte(tmp_path, doors, "v1")
            assert done.returncode == 0, done.stdout + done.stderr
        assert_found(told(tmp_path, "look", doors))


def test_two_versions_are_listed_and_one_plan_is_active(tmp_path: Path, database_url: str) -> None:
    flows(tmp_path)
    with opened(tmp_path, database=database_url) as doors:
        doors.v1("POST", "/v1/projects", {"name": PROJECT})
        for version in ("v1", "v2"):
            done = pyflyte(tmp_path, doors, version)
            assert done.returncode == 0, done.stdout + done.stderr
        assert_lists(told(tmp_path, "lists", doors))
        assert told(tmp_path, "activate", doors) == [
            ["FlyteEntityNotExistException", []],
            ["v1", ["flows.doubled:v1"]],
            ["v2", ["flows.doubled:v2"]],
            ["FlyteEntityNotExistException", []],
        ]


def test_pyflyte_activates_what_it_registers(tmp_path: Path) -> None:
    flows(tmp_path)
    with opened(tmp_path) as doors:
        doors.v1("POST", "/v1/projects", {"name": PROJECT})
        done = pyflyte(tmp_path, doors, "v1", "--activate-launchplans")
        assert done.returncode == 0, done.stdout + done.stderr
        active = doors.by_grpc("ListActiveLaunchPlans", {"project": PROJECT, "domain": DEV, "limit": 9}).answer
        names = sorted(plan["id"]["name"] for plan in active["launch_plans"])
        assert names == ["flows.doubled", "flows.inner", "flows.wf"]


def assert_found(found: Any) -> None:
    missing = found.pop("missing")
    assert missing[:2] == ["FlyteEntityNotExistException", "NOT_FOUND"]
    assert "missing entity of type TASK" in missing[2]
    assert found.pop("no execution")[1] == "NOT_FOUND"
    assert found == {
        "task": ["v1", ["a", "b"], "example/image:1"],
        "newest": "v1",
        "workflow": [["n"], ["n0", "n1"], ["flows.inner"]],
        "plan": ["flows.wf", True, 7],
        "by version": ["flows.add", "flows.double"],
    }


def assert_lists(found: Any) -> None:
    bad = found.pop("bad filter")
    assert bad[:2] == ["FlyteInvalidInputException", "INVALID_ARGUMENT"]
    assert "'colour' is invalid filter" in bad[2]
    assert found == {
        "task ids": ["flows.add", "flows.double"],
        "workflow ids": ["flows.inner", "flows.wf"],
        "plan ids": ["flows.doubled", "flows.inner", "flows.wf"],
        "pages": ["flows.add", "flows.add"],
        "filtered": ["flows.double", "flows.double"],
        "versions": ["v2", "v1"],
    }


def test_flyteremote_registers_without_an_upload(tmp_path: Path) -> None:
    flows(tmp_path)
    with opened(tmp_path) as doors:
        doors.v1("POST", "/v1/projects", {"name": PROJECT})
        found = told(tmp_path, "register", doors)
        other = found.pop("other")
        assert other[:2] == ["FlyteInvalidInputException", "INVALID_ARGUMENT"]
        assert "different structure already exists" in other[2]
        assert "container.image: 'registry.example/team/image:1' → 'other/image:2'" in other[2]
        assert found == {"names": ["flows.add", "flows.wf", "flows.often", "r1"], "nodes": ["n0", "n1"]}


def test_changed_code_under_the_same_version_is_refused(tmp_path: Path) -> None:
    """Without a bundle, code that only differs inside a function is the same task; another interface is not."""
    flows(tmp_path)
    with opened(tmp_path) as doors:
        doors.v1("POST", "/v1/projects", {"name": PROJECT})
        assert pyflyte(tmp_path, doors, "v1").returncode == 0
        flows(tmp_path, number=3)
        assert pyflyte(tmp_path, doors, "v1").returncode == 0
        text = FLOWS.replace("NUMBER", "2").replace("def double(n: int) -> int", "def double(n: int) -> float")
        (tmp_path / "flows.py").write_text(text.replace("def inner(n: int) -> int", "def inner(n: int) -> float"))
        refused = pyflyte(tmp_path, doors, "v1")
        assert refused.returncode != 0
        assert "different structure already exists" in refused.stdout + refused.stderr


@pytest.mark.parametrize(("role", "is_registered"), [("view", False), ("submit", True)])
def test_who_may_submit_to_a_project_may_register_in_it(tmp_path: Path, role: str, is_registered: bool) -> None:
    flows(tmp_path)
    with opened(tmp_path, auth=True) as doors:
        doors.v1("POST", "/v1/projects", {"name": PROJECT})
        doors.v1("POST", "/v1/users", {"name": "ann"})
        grant = {"role": role, "to": "user", "subject": "ann", "on": "project", "object": PROJECT}
        doors.v1("POST", "/v1/grants", grant)
        ann = Doors(doors.url, doors.grpc, doors.v1("POST", "/v1/tokens", {"user": "ann"})["token"])
        done = pyflyte(tmp_path, ann, "v1")
        assert (done.returncode == 0) is is_registered
        assert is_registered or "This needs the role submit on project kit" in done.stdout + done.stderr
        asked = {"project": PROJECT, "domain": DEV, "limit": 9}
        names = ann.by_grpc("ListTaskIds", asked).answer.get("entities", [])
        assert len(names) == (2 if is_registered else 0)
