"""flytectl itself: its commands against one server with a local cluster.

No package index has flytectl, so most machines do not have it: `make test-flytectl` runs these tests.
`test_flyte_clients.py` makes its calls everywhere.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.acceptance.flyte.flyte_site import DEV, PROJECT, PYFLYTE, RUNS_S, FlyteSite, flyte_site
from tests.acceptance.flyte.shell_flows import (
    INT,
    an_error,
    ended,
    good,
    jobs_of,
    outputs_of,
    task,
    task_node,
    workflow,
)
from tests.processes import PATIENCE_S, free_port
from tests.programs import isolated_env, start_server

FLYTECTL = shutil.which("flytectl")
pytestmark = [
    pytest.mark.flytectl,
    pytest.mark.xdist_group("flytectl"),
    pytest.mark.timeout(RUNS_S),
]
CONFIG = {
    "clusters": {
        "clusterConfigs": [{"name": "c1", "endpoint": "c1"}],
        "labelClusterMap": {"fast": [{"id": "c1", "weight": 1}]},
    }
}
HERE = ("-p", PROJECT, "-d", DEV)
NO_SLEEP_S = PATIENCE_S * 10  # nobody waits for it
# Opens what flytectl wants to have opened, as a browser does. flytectl listens a moment after it has called this.
BROWSER = """#!/bin/sh
exec curl --silent --show-error --location --retry 20 --retry-connrefused --output {page} "$1"
"""
FLOWS = """
from flytekit import CronSchedule, LaunchPlan, task, workflow


@task
def add(a: int, b: int = 2) -> int:
    return a + b


@workflow
def wf(a: int, word: str = "hey") -> int:
    return add(a=add(a=a), b=1)


daily = LaunchPlan.get_or_create(wf, "daily", default_inputs={"a": 3}, schedule=CronSchedule(schedule="0 3 * * *"))
"""
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "task-resource-attribute": {"defaults": {"cpu": "1"}, "limits": {"cpu": "2"}},
    "cluster-resource-attribute": {"attributes": {"quota": "7"}},
    "execution-queue-attribute": {"tags": ["default"]},
    "execution-cluster-label": {"value": "fast"},
    "plugin-override": {"overrides": [{"task_type": "python", "plugin_id": ["x"], "missing_plugin_behavior": 1}]},
    "workflow-execution-config": {"max_parallelism": 5},
}


@dataclass(frozen=True)
class Ctl:
    site: FlyteSite

    def run(self, *words: str, where: tuple[str, ...] = HERE, is_refused: bool = False) -> str:
        """What a command prints."""
        assert FLYTECTL is not None, "there is no command flytectl in the PATH"
        done = subprocess.run(
            [FLYTECTL, "--config", "ctl.yaml", *words, *where],
            env=isolated_env(self.site.folder),
            cwd=self.site.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert (done.returncode != 0) == is_refused, (words, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout + done.stderr

    def read(self, *words: str) -> Any:
        return json.loads(self.run(*words, "-o", "json"))

    def write(self, name: str, content: Any) -> str:
        (self.site.folder / name).write_text(yaml.safe_dump(content))
        return name


@pytest.fixture(scope="module")
def ctl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ctl]:
    with flyte_site(tmp_path_factory.mktemp("flytectl"), config=CONFIG) as site:
        made = Ctl(site)
        made.write("ctl.yaml", {"admin": {"endpoint": f"dns:///{site.doors.grpc}", "insecure": True}})
        site.doors.v1("PUT", "/v1/pools/pool_1", {"members": [{"id": "c1", "weight": 1}]}, **{"If-None-Match": "*"})
        task(site, "sleeps", f"sleep {NO_SLEEP_S}", inputs={})
        good(workflow(site, "long", [task_node("n0", "sleeps")]))
        task(site, "gives", "give 4", inputs={})
        task(site, "fails", an_error("unlucky", is_recoverable=False), inputs={})
        second = task_node("n1", "fails", upstream_node_ids=["n0"])
        good(workflow(site, "bad", [task_node("n0", "gives"), second]))
        good(workflow(site, "small", [task_node("n0", "gives")], outputs={"o": (INT, "n0", "o0")}))
        yield made


def test_projects(ctl: Ctl) -> None:
    assert "0.1" in ctl.run("version", where=())
    ctl.run("create", "project", "--id", "made", "--name", "Made", "--labels", "team=a", where=())
    for words in (["--description", "told"], ["--archive"], ["--activate"]):
        ctl.run("update", "project", "-p", "made", *words, "--force", where=())
    shown = ctl.run("get", "project", "--filter.fieldSelector=project.name=Made", where=())
    assert "told" in shown


@pytest.mark.parametrize("scope", [{}, {"workflow": "small"}])
def test_attributes(ctl: Ctl, scope: dict[str, str]) -> None:
    for kind, value in ATTRIBUTES.items():
        if scope and kind == "cluster-resource-attribute":
            continue  # nobody reads those of a workflow, so they are refused
        file = ctl.write(f"{kind}.yaml", {"project": PROJECT, "domain": "staging", **scope, **value})
        where = ("-p", PROJECT, "-d", "staging")
        ctl.run("update", kind, "--attrFile", file, "--force", where=())
        shown = json.loads(ctl.run("get", kind, *scope.values(), where=where))
        assert shown["project"] == PROJECT, shown
        ctl.run("delete", kind, "--attrFile", file, where=())
        assert "not found" in ctl.run("get", kind, *scope.values(), where=where, is_refused=True)


def test_packages_are_registered_and_run(ctl: Ctl) -> None:
    """The code of a fast package is uploaded unpacked, whatever its name says."""
    site, source = ctl.site, ctl.site.folder / "source"
    source.mkdir()
    (source / "ops.py").write_text(FLOWS)
    package(site.folder, source)
    for version, more in (("v1", []), ("v1", []), ("v2", ["--enableSchedule"])):
        assert "Failed" not in ctl.run("register", "files", "--archive", "code.tgz", "--version", version, *more)
    assert ctl.read("get", "launchplan", "daily", "--version", "v2")["closure"]["state"] == "ACTIVE"
    for kind, name in (("task", "ops.add"), ("workflow", "ops.wf"), ("launchplan", "daily")):
        assert name in ctl.run("get", kind)
        assert ctl.read("get", kind, name, "--latest")["id"]["version"] == "v2"
        prefix = "launch_plan" if kind == "launchplan" else kind
        assert name in ctl.run("get", kind, f"--filter.fieldSelector={prefix}.name={name}")
    assert "start_node" in ctl.run("get", "workflow", "ops.wf", "--version", "v1", "-o", "dot")
    ctl.run("update", "launchplan", "daily", "--version", "v1", "--activate", "--force")
    ctl.run("update", "launchplan", "daily", "--version", "v1", "--deactivate", "--force")
    for kind in ("task-meta", "workflow-meta", "launchplan-meta"):
        ctl.run("update", kind, "ops.add" if kind == "task-meta" else "ops.wf", "--description", "told", "--force")
    ctl.run("get", "launchplan", "ops.wf", "--version", "v1", "--execFile", "run.yaml")
    file = yaml.safe_load((site.folder / "run.yaml").read_text())
    ctl.write("run.yaml", {**file, "inputs": {"a": 4, "word": "x"}, "envs": {"A": "1", "B": "2"}})
    for _ in range(2):  # the same request is the same execution
        ctl.run("create", "execution", "--execFile", "run.yaml", "--clusterPool", "pool_1", "packed")
    assert ended(site, "packed", RUNS_S)["phase"] == "SUCCEEDED"
    assert outputs_of(site, "packed") == {"o0": 7}
    assert {job["pool"] for job in jobs_of(site, "packed")} == {"pool_1"}


def package(folder: Path, source: Path) -> None:
    words = ["--pkgs", "ops", "package", "--image", "team/flows:1", "--fast", "--source", str(source)]
    done = subprocess.run(
        [str(PYFLYTE), *words, "-o", str(folder / "code.tgz")],
        env=isolated_env(folder),
        cwd=source,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def launch(ctl: Ctl, plan: str, name: str) -> None:
    file = ctl.write(f"{plan}.yaml", {"workflow": plan, "version": "v1", "inputs": {}})
    ctl.run("create", "execution", "--execFile", file, name)


def test_executions(ctl: Ctl) -> None:
    for plan in ("small", "bad", "long"):
        launch(ctl, plan, f"of-{plan}")
    assert ended(ctl.site, "of-small")["phase"] == "SUCCEEDED"
    assert ended(ctl.site, "of-bad")["phase"] == "FAILED"
    shown = ctl.run("get", "execution", "of-bad", "--details")
    for text in ("n0 - SUCCEEDED", "n1 - FAILED", "Task Type - python-task", "Logs :", "o0: 4"):
        assert text in shown, shown
    selector = "execution.phase in (SUCCEEDED;FAILED),execution.name contains of-"
    listed = ctl.run("get", "execution", f"--filter.fieldSelector={selector}", "--filter.limit=10")
    assert ("of-small" in listed, "of-bad" in listed, "of-long" in listed) == (True, True, False)
    ctl.run("create", "execution", "--relaunch", "of-small", "again")
    ctl.run("create", "execution", "--recover", "of-bad", "mended")
    assert (ended(ctl.site, "again")["phase"], ended(ctl.site, "mended")["phase"]) == ("SUCCEEDED", "FAILED")
    assert "n0 - RECOVERED" in ctl.run("get", "execution", "mended", "--details")
    ctl.run("delete", "execution", "of-long")
    assert ended(ctl.site, "of-long")["phase"] == "ABORTED"
    ctl.run("delete", "execution", "of-long", is_refused=True)
    ctl.run("update", "execution", "of-small", "--archive", "--force")
    assert "of-small" not in ctl.run("get", "execution")
    ctl.run("update", "execution", "of-small", "--activate", "--force")
    assert ctl.read("get", "execution", "of-small")["closure"]["phase"] == "SUCCEEDED"
    refused = ctl.write("none.yaml", {"workflow": "small", "version": "v1", "inputs": {}, "clusterPool": "none"})
    assert "none" in ctl.run("create", "execution", "--execFile", refused, "--clusterPool", "none", is_refused=True)


def test_a_sign_in_by_a_browser_ends_with_the_advice(tmp_path: Path) -> None:
    port, page = free_port(), tmp_path / "page.html"
    with start_server(tmp_path, auth=True, extra=["--grpc", f"127.0.0.1:{port}"]):
        admin = {"endpoint": f"dns:///127.0.0.1:{port}", "insecure": True, "authType": "Pkce"}
        (tmp_path / "ctl.yaml").write_text(yaml.safe_dump({"admin": admin}))
        browser = tmp_path / "xdg-open"
        browser.write_text(BROWSER.format(page=page))
        browser.chmod(0o755)
        assert FLYTECTL is not None
        env = isolated_env(tmp_path)
        done = subprocess.run(
            [FLYTECTL, "--config", "ctl.yaml", "get", "project"],
            env={**env, "PATH": f"{tmp_path}:{env['PATH']}"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    said = done.stdout + done.stderr
    assert (done.returncode != 0, "panic" in said) == (True, False), said
    assert "set authType: ExternalCommand" in said
    assert "yard token create" in page.read_text(), "the browser says the same, and how to get a token"
