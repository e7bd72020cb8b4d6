"""Branches, failure nodes, gates and dynamic workflows of the corpus, by unmodified flytekit on a local cluster."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.acceptance.flyte_site import flyte_site
from tests.acceptance.test_flyte_runs import difference
from tests.workflow.corpus import FOLDER

pytestmark = pytest.mark.xdist_group("flyte-flow")
MODULES = ("06_conditional", "16_on_failure")


def test_workflows_with_control_flow_end_as_they_do_in_flyte(tmp_path: Path) -> None:
    with flyte_site(tmp_path) as site:
        for module in MODULES:
            shutil.copy(FOLDER / f"{module}.py", tmp_path / "flows")
        site.register()
        results = site.run(*MODULES)
        assert [wrong for found in results if (wrong := difference(found))] == []
