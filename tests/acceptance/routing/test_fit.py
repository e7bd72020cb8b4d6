"""Would it fit? Asked of all clusters without submitting: ever and now, how often, and which level failed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from switchyard import Client, State
from switchyard.errors import EXIT_OK, EXIT_REJECTED, EXIT_USAGE
from tests.acceptance.stage import SOON_S, Fields, Stage, staged
from tests.processes import until

pytestmark = pytest.mark.xdist_group("fit")

BIG = [
    {"nodes": 12, "each": {"socket": 2, "core": 16, "gpu": 2, "memory": "64GiB"}, "hosts": "g[0-11]"},
    {"nodes": 4, "each": {"socket": 2, "core": 16, "memory": "64GiB"}, "hosts": "n[0-3]", "properties": {"amd": True}},
]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One cluster with an agent and four cores, a large one that was only described, one nobody described."""
    with staged(tmp_path_factory.mktemp("stage")) as made, made.agent("small", cores=4):
        for name in ("big", "bare"):
            made.post("/v1/clusters", {"name": name})
        assert made.call("PUT", "/v1/clusters/big/graph", BIG).status == 200
        yield made


def fits(stage: Stage, **resources: Any) -> dict[str, Fields]:
    answer = stage.post("/v1/clusters/fit", {"job": {"spec": {"command": ["x"], "resources": resources}}})
    return {each["cluster"]: each for each in answer["items"]}


def written(folder: Path, form: object) -> str:
    file = folder / "job.json"
    file.write_text(json.dumps(form))
    return str(file)


def test_how_often_it_fits_and_which_level_fails_by_how_much(stage: Stage) -> None:
    found = fits(stage, gpus=2, cores=2)
    assert (found["big"]["ever"], found["big"]["slots"]) == (True, 12)
    assert found["small"]["ever"] is False
    assert found["bare"]["ever"] is None
    too_many = fits(stage, gpus=4)["big"]
    assert (too_many["ever"], too_many["level"]) == (False, "gpu")
    assert (too_many["needs"], too_many["best"], too_many["places"]) == (4, 2, 12)
    for words in ("4 gpu", "best node has 2", "12 nodes have at least 2"):
        assert words in too_many["reason"], too_many


def test_ever_and_now_are_two_questions(stage: Stage, tmp_path: Path) -> None:
    assert fits(stage, cores=3)["small"] | {"health": ""} == {
        "cluster": "small",
        "ever": True,
        "slots": 1,
        "now": True,
        "health": "",
    }
    job = stage.submit("sh", "-c", f"while ! [ -e {tmp_path}/go ]; do sleep 0.1; done", cluster="small")
    stage.until_state(job, State.RUNNING)
    try:
        until(lambda: fits(stage, cores=4)["small"]["now"] is False, SOON_S, "the agent said what is taken")
        taken = fits(stage, cores=4)["small"]
        assert taken["ever"] is True
        assert "3" in taken["now_reason"]
        assert fits(stage, cores=3)["small"]["now"] is True
    finally:
        (tmp_path / "go").touch()
    stage.ended(job)
    until(lambda: fits(stage, cores=4)["small"]["now"] is True, SOON_S, "it is free again")
    assert fits(stage, cores=1)["big"]["now"] is False, "it has no agent"


JOBSPEC = {
    "version": 1,
    "resources": [
        {
            "type": "node",
            "count": 2,
            "with": [
                {
                    "type": "slot",
                    "count": 1,
                    "label": "t",
                    "with": [{"type": "socket", "count": 1, "with": [{"type": "core", "count": 8}]}],
                }
            ],
        }
    ],
    "tasks": [{"command": ["app"], "slot": "t", "count": {"per_slot": 1}}],
    "attributes": {"system": {"duration": 60}},
}
RAINBOW = {
    "version": 1,
    "resources": {"app": {"type": "node", "replicas": 3, "with": [{"type": "gpu", "count": 2}]}},
    "tasks": [{"command": ["app"], "resources": "app"}],
}


@pytest.mark.parametrize("form", [JOBSPEC, RAINBOW, {"tasks": 3, "gpus": 2}], ids=["canonical", "rainbow", "plain"])
@pytest.mark.parametrize("engine", ["shapes", "walk"])
def test_cli_takes_every_form_and_every_engine(stage: Stage, tmp_path: Path, form: Any, engine: str) -> None:
    file = written(tmp_path, form)
    done = stage.read("cluster", "fit", file, "--match-engine", engine)
    assert done["engine"] == engine
    said = {each["cluster"]: each["ever"] for each in done["items"]}
    assert said == {"big": True, "small": False, "bare": None}
    shown = stage.yard("cluster", "fit", file, check=True).stdout
    assert "It fits on 1 of 3 clusters" in shown
    only = stage.yard("cluster", "fit", file, "--only-fitting", "-o", "name", check=True).stdout
    assert only.split() == ["big"]


def test_cli_exits_as_a_rejected_job_where_it_fits_nowhere(stage: Stage, tmp_path: Path) -> None:
    done = stage.yard("cluster", "fit", written(tmp_path, {"gpus": 100}))
    assert done.returncode == EXIT_REJECTED
    assert "needs 100 gpu" in done.stdout


def test_jobspecs_run_as_jobs(stage: Stage, tmp_path: Path) -> None:
    """The forms that only a demand can keep: what runs is the command, where it may run is all of the demand."""
    slot = {"type": "slot", "count": 1, "label": "t", "with": [{"type": "core", "count": 2}]}
    form = {**JOBSPEC, "version": 9999, "resources": [{"type": "cluster", "count": 1, "with": [slot]}]}
    form["tasks"] = [{"command": ["echo", "canonical"], "slot": "t", "count": {"per_slot": 1}}]
    done = stage.yard("submit", "--wait", "--timeout", "600", "-f", written(tmp_path, form))
    assert (done.returncode, done.stdout) == (EXIT_OK, "canonical\n"), done.stderr
    rainbow = {**RAINBOW, "resources": {"app": {"type": "node", "replicas": 1, "with": [{"type": "core", "count": 4}]}}}
    rainbow["tasks"] = [{"command": ["echo", "rainbow"], "resources": "app"}]
    done = stage.yard("submit", "--wait", "--timeout", "600", "-f", written(tmp_path, rainbow))
    assert (done.returncode, done.stdout) == (EXIT_OK, "rainbow\n"), done.stderr


def test_constraints_bound_the_nodes(stage: Stage) -> None:
    def asked(constraints: Any) -> Any:
        system = {"duration": 0, "constraints": constraints}
        answer = stage.post("/v1/clusters/fit", {"jobspec": {**JOBSPEC, "attributes": {"system": system}}})
        return next(each["ever"] for each in answer["items"] if each["cluster"] == "big")

    assert asked({"properties": ["amd"]}) is True
    assert asked({"hostlist": ["n[0-1]"]}) is True
    assert asked({"hostlist": ["n0"]}) is False, "it asks for two nodes"
    assert asked({"and": [{"properties": ["amd"]}, {"hostlist": ["g[0-11]"]}]}) is False


def test_the_engine_is_chosen_recorded_and_bounded(stage: Stage, tmp_path: Path) -> None:
    file = written(tmp_path, {"command": ["true"]})
    assert stage.read("submit", "--plan", "-f", file)["engine"] == "shapes"
    assert stage.read("submit", "--plan", "--match-engine", "walk", "-f", file)["engine"] == "walk"
    job = stage.read("submit", "--match-engine", "walk", "-f", file)
    assert stage.get(f"/v1/jobs/{job['id']}/explain")["plan"]["engine"] == "walk"
    for words in (
        ("submit", "--match-engine", "psychic", "-f", file),
        ("submit", "--plan", "--match-engine", "psychic", "-f", file),
        ("cluster", "fit", "--match-engine", "psychic", file),
    ):
        done = stage.yard(*words)
        assert done.returncode == EXIT_USAGE
        assert "'psychic'" in done.stderr
        assert "shapes, walk" in done.stderr


def test_the_operator_chooses_the_engine_and_whom_users_may_name(tmp_path: Path) -> None:
    config = tmp_path / "yard.yaml"
    config.write_text("match: {engine: walk, allowed: [walk]}\n")
    with staged(tmp_path, extra=["--config", str(config)]) as stage:
        assert stage.post("/v1/clusters/fit", {"job": {"spec": {"command": ["x"]}}})["engine"] == "walk"
        answer = stage.call("POST", "/v1/clusters/fit", {"job": {"spec": {"command": ["x"]}}, "match_engine": "shapes"})
        assert (answer.status, answer.json["code"]) == (400, "unknown-name")


def test_sdk(client: Client) -> None:
    found = client.fit({"gpus": 2})
    assert found.fitting == 1
    assert [each.cluster for each in client.fit(JOBSPEC, only_fitting=True).items] == ["big"]
    assert client.fit(["true"], now=False).items[0].now is None


def test_answers_follow_the_graph(stage: Stage) -> None:
    """Without `now` answers are kept; a change of any cluster must show all the same."""

    def ever() -> Any:
        body = {"job": {"spec": {"command": ["x"], "resources": {"cores": 100}}}, "now": False}
        return {each["cluster"]: each["ever"] for each in stage.post("/v1/clusters/fit", body)["items"]}

    stage.post("/v1/clusters", {"name": "grows"})
    stage.call("PUT", "/v1/clusters/grows/graph", {"nodes": 1, "each": {"core": 99}})
    assert ever()["grows"] is False
    stage.call("PUT", "/v1/clusters/grows/graph", {"nodes": 1, "each": {"core": 100}})
    assert ever()["grows"] is True
    stage.yard("cluster", "rm", "grows", "--force", check=True)
    assert "grows" not in ever()
