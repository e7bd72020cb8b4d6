"""`pyflyte run --remote` and FlyteRemote, as they are installed by anybody: tasks and workflows on a local cluster."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.flyte.flyte_site import (
    DEV,
    PROJECT,
    FlyteSite,
    difference,
    flyte_site,
)
from tests.programs import call
from tests.soak import SOAKED
from tests.workflow.corpus import FOLDER

pytestmark = pytest.mark.timeout(340)  # each task starts flytekit
FLOW = """
from flytekit import task, workflow


@task
def add(a: int, b: int) -> int:
    print(f"adds {a} and {b}")
    return a + b


@workflow
def wf(a: int, b: int = 2) -> int:
    return add(a=a, b=b)
"""
# Of the corpus: those without files, branches, maps, gates, caches, dynamic workflows and launch plan nodes.
MODULES = ("01_scalars", "05_union", "13_retries", "14_failures", "24_overrides")
# What flytekit sends of these is in tests/workflow/test_compiler_corpus.py; such graphs run in test_flyte_kill.py.
MORE_MODULES = (
    *("02_diamond", "03_bindings", "04_attr_path", "07_subworkflow"),
    *("15_failure_policy", "26_imperative", "29_schedule"),
)


def test_pyflyte_runs_a_task_and_waits_for_its_value(tmp_path: Path) -> None:
    with flyte_site(tmp_path) as site:
        (tmp_path / "flows.py").write_text(FLOW)
        where = ["-p", PROJECT, "-d", DEV, "--image", "team/flows:1"]
        waiting = ["--wait", "--poll-interval", "1"]  # seconds; pyflyte's own are 30
        done = site.pyflyte("run", "--remote", *waiting, *where, "flows.py", "add", "--a", "3", "--b", "4")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "has succeeded" in done.stdout
        (execution,) = listed(site)
        assert (execution["closure"]["phase"], execution["spec"]["metadata"]["principal"]) == (
            "SUCCEEDED",
            "local-admin",
        )
        assert execution["spec"]["metadata"]["system_metadata"]["execution_cluster"] == "c1"
        data = site.doors.by_grpc("GetExecutionData", {"id": execution["id"]}).answer
        assert data["full_outputs"]["literals"]["o0"]["scalar"]["primitive"]["integer"] == "7"
        (job,) = site.doors.v1("GET", "/v1/jobs")["items"]
        assert job["labels"] == {"flyte/execution": execution["id"]["name"], "flyte/node": "flowsadd"}
        again = site.pyflyte("run", "--remote", *where, "flows.py", "wf", "--a", "3")
        assert again.returncode == 0, again.stdout + again.stderr
        assert_its_page_opens(site, again.stdout)


@pytest.mark.parametrize("modules", [MODULES, SOAKED(MORE_MODULES)], ids=["often", "soaked"])
def test_workflows_of_the_corpus_end_as_they_do_in_flyte(tmp_path: Path, modules: tuple[str, ...]) -> None:
    with flyte_site(tmp_path) as site:
        for module in modules:
            shutil.copy(FOLDER / f"{module}.py", tmp_path / "flows")
        site.register(bundle=False)
        results = site.run(*modules)
        assert [wrong for found in results if (wrong := difference(found))] == []
        assert {found["cluster"] for found in results} == {"c1"}


def assert_its_page_opens(site: FlyteSite, printed: str) -> None:
    """The address of Flyte's console that pyflyte prints leads to the page of the execution."""
    found = re.search(r"(http://\S+?)(?:\x1b\S*)? to see execution", printed)
    assert found, printed
    name = found[1].rpartition("/")[2]
    moved = call("GET", found[1])
    assert (moved.status, moved.headers["location"]) == (303, f"/executions/{PROJECT}/{DEV}/{name}"), found[1]
    page = call("GET", f"{site.doors.url}{moved.headers['location']}")
    assert (page.status, name in page.body.decode(), "flows.wf" in page.body.decode()) == (200, True, True)


def listed(site: FlyteSite) -> list[dict[str, Any]]:
    asked = {"id": {"project": PROJECT, "domain": DEV}, "limit": 9}
    found: list[dict[str, Any]] = site.doors.by_grpc("ListExecutions", asked).answer["executions"]
    return found
