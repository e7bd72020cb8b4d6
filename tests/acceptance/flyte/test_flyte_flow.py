"""Branches, failure nodes, gates and dynamic workflows of the corpus, by unmodified flytekit on a local cluster."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.flyte.flyte_site import RUNS_S, FlyteSite, difference, flyte_site
from tests.acceptance.flyte.shell_flows import good
from tests.soak import SOAKED
from tests.workflow.corpus import FOLDER

MODULES = ("11_dynamic", "16_on_failure")
# Branches are in tests/workflow/test_engine_branches.py, gates in test_flyte_clients.py; "patient" is as deep.
MORE_MODULES = ("06_conditional", "12_dynamic_deep", "18_gates")
# A dynamic workflow that makes another one at its second attempt, inside a sub-workflow.
DYNAMIC = """
import os
from pathlib import Path

from flytekit import dynamic, task, workflow
from flytekit.exceptions.user import FlyteRecoverableException


@task
def zero(n: int) -> int:
    return 0


@task
def second_time(file: str) -> int:
    if not os.path.exists(file):
        Path(file).touch()
        raise FlyteRecoverableException("not yet")
    return 7


@dynamic(retries=1)
def patient(file: str) -> int:
    if not os.path.exists(file):
        zero(n=1)  # a node that the second attempt does not make
    return second_time(file=file)


@workflow
def within(file: str) -> int:
    return patient(file=file)


@workflow
def again(file: str) -> int:
    return within(file=file)


CASES = [
    {"run": "again", "inputs": {"file": FILE}, "phase": "SUCCEEDED", "outputs": {"o0": 7}},
]
"""


@pytest.mark.timeout(RUNS_S)
@pytest.mark.parametrize("modules", [MODULES, SOAKED(MORE_MODULES)], ids=["often", "soaked"])
def test_workflows_with_control_flow_end_as_they_do_in_flyte(tmp_path: Path, modules: tuple[str, ...]) -> None:
    with flyte_site(tmp_path) as site:
        for module in modules:
            shutil.copy(FOLDER / f"{module}.py", tmp_path / "flows")
        mark = str(tmp_path / "tried")
        (tmp_path / "flows" / "patient.py").write_text(DYNAMIC.replace("FILE", repr(mark)))
        assert_as_in_flyte(site, *modules, "patient")


def assert_as_in_flyte(site: FlyteSite, *modules: str) -> None:
    site.register(bundle=False)
    results = site.run(*modules)
    assert [wrong for found in results if (wrong := difference(found))] == []
    for execution in site.doors.v1("GET", "/v1/executions?limit=500")["items"]:
        ids = {field: execution[field] for field in ("project", "domain", "name")}
        assert set(begun_nodes(site, ids)) <= set(drawn_nodes(site, ids)), ids


def begun_nodes(site: FlyteSite, execution: dict[str, str], parent: str = "") -> Iterator[str]:
    """The nodes of an execution that Flyte's clients see, at every depth."""
    asked = {"workflow_execution_id": execution, "unique_parent_id": parent, "limit": 100}
    for node in good(site.doors.by_grpc("ListNodeExecutions", asked)).answer.get("node_executions", []):
        yield node["id"]["node_id"]
        if node["metadata"].get("is_parent_node"):
            yield from begun_nodes(site, execution, node["id"]["node_id"])


def drawn_nodes(site: FlyteSite, execution: dict[str, str]) -> list[str]:
    address = "/v1/executions/{project}/{domain}/{name}/nodes?limit=500".format(**execution)
    return [node["id"] for node in site.doors.v1("GET", address)["items"]]
