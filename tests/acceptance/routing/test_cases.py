"""The known cases of another scheduler's matching, through our own doors: graphs in, demands in, answers out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from switchyard.errors import EXIT_OK, EXIT_REJECTED
from tests.acceptance.stage import Stage, staged
from tests.match.known_cases import DATA, forms_of

pytestmark = pytest.mark.xdist_group("cases")


def cluster_of(case: dict[str, Any]) -> str:
    """Cases with the same graph and subsystems share a cluster."""
    return "-".join([case["graph"], *sorted(case.get("subsystems", {}).values())])


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("stage")) as made:
        for name, case in {cluster_of(case): case for case in DATA["cases"]}.items():
            main, subsystems = forms_of(case)
            made.post("/v1/clusters", {"name": name})
            assert made.call("PUT", f"/v1/clusters/{name}/graph", main).status == 200
            for each, graph in subsystems.items():
                assert made.call("PUT", f"/v1/clusters/{name}/subsystems/{each}", graph).status == 200
        yield made


@pytest.mark.parametrize("case", DATA["cases"], ids=lambda case: f"{case['id']} {case['title']}")
def test_every_door_gives_the_right_answer(stage: Stage, case: dict[str, Any]) -> None:
    cluster = cluster_of(case)
    for engine in ("shapes", "walk"):
        answer = stage.post("/v1/clusters/fit", {"jobspec": case["jobspec"], "match_engine": engine})
        found = next(each for each in answer["items"] if each["cluster"] == cluster)
        assert (found["ever"], found.get("slots")) == (case["satisfied"], case["slots"]), found
        assert case["satisfied"] or found["reason"]
        few = stage.post("/v1/clusters/fit", {"jobspec": case["jobspec"], "match_engine": engine, "only_fitting": True})
        assert few["fitting"] == answer["fitting"], "the index and the single answers agree"
    spec = {"command": ["x"], "demand": case["jobspec"]}
    plan = stage.post("/v1/plan", {"spec": spec, "cluster": cluster})
    assert plan["outcome"] == ("hold" if case["satisfied"] else "reject"), "it has no agent, so what fits waits"


@pytest.mark.parametrize("chosen", ["sat-021", "sat-023", "sat-025", "sat-028", "sat-060", "sat-071"])
def test_a_file_of_the_form_is_a_job_file(stage: Stage, tmp_path: Path, chosen: str) -> None:
    case = next(case for case in DATA["cases"] if case["id"] == chosen)
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(case["jobspec"]))
    done = stage.yard("cluster", "fit", str(file), "-o", "json")
    answer = json.loads(done.stdout)
    assert done.returncode == (EXIT_OK if answer["fitting"] else EXIT_REJECTED)
    found = next(each for each in answer["items"] if each["cluster"] == cluster_of(case))
    assert (found["ever"], found.get("slots")) == (case["satisfied"], case["slots"])
