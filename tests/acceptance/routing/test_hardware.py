"""GPUs and other devices by type: a job never runs on another type than the one it asks for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from switchyard import State
from switchyard.errors import EXIT_REJECTED, EXIT_USAGE
from tests.acceptance.stage import SOON_S, Stage, staged
from tests.processes import until
from tests.programs import Agent, start_agent

pytestmark = pytest.mark.xdist_group("hardware")

GRAPHS: dict[str, dict[str, Any]] = {
    "ampere": {"core": 4, "gpu": 4, "gpu_type": "a100"},
    "hopper": {"core": 4, "gpu": 4, "gpu_type": "NVIDIA-H100-80GB-HBM3"},
    "mixed": {"core": 4, "devices": ["gpu:l4:1", "gpu:t4:1", "gpu:a100_1g.5gb:2", "fpga:u280:1"]},
    "silent": {"core": 4, "gpu": 4},
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("stage")) as made, ExitStack() as agents:
        for name, each in GRAPHS.items():
            agents.enter_context(start_agent(made.folder, made.url, name, graph={"nodes": 1, "each": each}))
        yield made


def verdicts(stage: Stage, *flags: str) -> dict[str, str]:
    plan = json.loads(stage.yard("submit", "--plan", "-o", "json", *flags, "--", "true").stdout)
    return {row["cluster"]: row["reason"] for row in plan["verdicts"]}


def ran_on(stage: Stage, *flags: str) -> str:
    job = stage.read("submit", *flags, "--", "true")["id"]
    return str(stage.until_state(job, State.SUCCEEDED)["cluster"])


def test_a_job_for_an_h100_is_told_no_by_a_cluster_of_a100s(stage: Stage) -> None:
    told = verdicts(stage, "--gpus", "2", "--gpu-type", "h100")
    assert told["ampere"] == (
        "needs 2 gpu of type h100 per task; the cluster has 4 gpu of type a100, none of type h100"
    )
    assert "4 gpu whose type it does not tell" in told["silent"]
    assert ran_on(stage, "--gpus", "2", "--gpu-type", "h100") == "hopper"
    pinned = stage.yard("submit", "--gpu", "h100:2", "--cluster", "ampere", "true")
    assert pinned.returncode == EXIT_REJECTED
    assert "none of type h100" in pinned.stderr


@pytest.mark.parametrize(
    ("flags", "cluster"),
    [
        (("--gpu", "nvidia_h100_pcie:1"), "hopper"),
        (("--gpu", "a100"), "ampere"),
        (("--gpus", "1", "--gpu-memory", "80GB"), "hopper"),
        (("--gpu", "l4"), "mixed"),
        (("--gpu", "a100-mig-1g.5gb:2"), "mixed"),
        (("--device", "fpga:xilinx-u280"), "mixed"),
        (("--device", "gpu:l4", "--device", "gpu:t4"), "mixed"),
        (("--gpu", "h100", "--array", "0-2"), "hopper"),
    ],
)
def test_each_way_to_name_a_type_ends_on_that_type(stage: Stage, flags: tuple[str, ...], cluster: str) -> None:
    job = stage.read("submit", *flags, "--", "true")["id"]
    found = stage.until_state(job, State.SUCCEEDED)
    assert found.get("tasks_by_cluster", {found.get("cluster"): 1}).keys() == {cluster}


def test_other_forms_of_a_job_name_a_type_too(stage: Stage, tmp_path: Path) -> None:
    inside = [{"type": "core", "count": 1}, {"type": "gpu:h100", "count": 1}]
    jobspec = {
        "version": 1,
        "resources": [{"type": "slot", "count": 1, "label": "task", "with": inside}],
        "tasks": [{"command": ["true"], "slot": "task", "count": {"per_slot": 1}}],
        "attributes": {},
    }
    file = tmp_path / "job.json"
    file.write_text(json.dumps(jobspec))
    assert ran_on_file(stage, file) == "hopper"
    older = stage.submit("true", spec={"resources": {"gpus": 1}, "native": {"gpu_type": "a100"}})
    assert stage.until_state(older, State.SUCCEEDED)["cluster"] == "ampere"


def ran_on_file(stage: Stage, file: Path) -> str:
    job = stage.read("submit", "-f", str(file))["id"]
    return str(stage.until_state(job, State.SUCCEEDED)["cluster"])


def test_a_type_that_nobody_has_is_answered_with_the_nearest_names(stage: Stage) -> None:
    refused = stage.yard("submit", "--gpu", "h1000:2", "true")
    assert refused.returncode == EXIT_REJECTED
    assert "gpu of type h100 instead of h1000 (hopper)" in refused.stdout


@pytest.mark.parametrize("name", ["h 100", "h100\n", "h100;id", "x" * 65])
def test_a_type_with_blanks_line_ends_or_too_many_characters_is_refused(stage: Stage, name: str) -> None:
    for place in ({"resources": {"gpus": 1, "gpu_type": name}}, {"resources": {"devices": [f"fpga:{name}"]}}):
        answer = stage.call("POST", "/v1/jobs", {"spec": {"command": ["true"], **place}})
        assert answer.status == 400, answer.body
        assert "\n" not in answer.json["detail"]
    assert stage.yard("submit", "--gpu", name, "true").returncode != 0


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        ({"gpu_type": "h100"}, "say how many, as in `gpus: 1`"),
        ({"gpu_type": "h100", "gpus": 0}, "say how many, as in `gpus: 1`"),
        ({"gpus": 1, "gpu_memory": 40}, "write it with its unit, as in 80GB"),
        ({"devices": ["memory:2"]}, "write it as `memory`"),
        ({"devices": ["gpu:2"]}, "GPUs of any type are `gpus`"),
    ],
)
def test_devices_that_say_too_little_are_refused_with_what_to_write(
    stage: Stage, resources: dict[str, Any], words: str
) -> None:
    answer = stage.call("POST", "/v1/jobs", {"spec": {"command": ["true"], "resources": resources}})
    assert answer.status == 400
    assert words in answer.json["detail"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--gpu", ""), "the type is empty"),
        (("--gpu", ":2"), "the type is empty"),
        (("--gpus", "1", "--gpu-type", ""), "the type is empty"),
        (("--gpus", "2", "--gpu", "h100"), "leave out --gpus and --gpu-type"),
        (("--gpu", "h100:2", "--gpu-type", "a100"), "leave out --gpus and --gpu-type"),
        (("--gpus", "0", "--gpu-type", "h100"), "say how many"),
    ],
)
def test_flags_that_are_empty_or_contradict_each_other_are_refused(
    stage: Stage, flags: tuple[str, ...], words: str
) -> None:
    refused = stage.yard("submit", *flags, "true")
    assert (refused.returncode, words in refused.stderr) == (EXIT_USAGE, True), refused.stderr


def test_a_graph_whose_devices_say_too_little_is_refused(stage: Stage) -> None:
    for each in ({"gpu_type": "a100"}, {"devices": ["core:x:5"]}):
        stage.call("POST", "/v1/clusters", {"name": "vague"})
        assert stage.call("PUT", "/v1/clusters/vague/graph", {"nodes": 1, "each": each}).status == 400


def test_an_empty_type_in_a_jobspec_is_refused(stage: Stage, tmp_path: Path) -> None:
    slot = {"type": "slot", "count": 1, "label": "t", "with": [{"type": "gpu:", "count": 1}]}
    tasks = [{"command": ["true"], "slot": "t", "count": {"per_slot": 1}}]
    file = tmp_path / "empty.json"
    file.write_text(json.dumps({"version": 1, "resources": [slot], "tasks": tasks, "attributes": {}}))
    refused = stage.yard("submit", "-f", str(file))
    assert refused.returncode == EXIT_USAGE
    assert "is not the name of a type of GPU" in refused.stderr


def test_types_on_one_node_are_not_added_up_and_slices_are_no_whole_cards(stage: Stage) -> None:
    told = verdicts(stage, "--gpu", "l4:2")
    assert told["mixed"] == "needs 2 gpu of type l4 per task; best node has 1; 1 node has at least 1"
    told = verdicts(stage, "--gpu", "a100:1", "--cluster", "mixed")
    assert "2 gpu of type a100-mig-1g.5gb" in told["mixed"]


def test_a_cluster_whose_types_change_while_a_job_waits_is_judged_by_the_new_types(stage: Stage) -> None:
    stage.post("/v1/clusters", {"name": "changing"})

    def describe(gpu_type: str) -> None:
        graph = {"nodes": 1, "each": {"core": 4, "gpu": 2, "gpu_type": gpu_type}}
        assert stage.call("PUT", "/v1/clusters/changing/graph", graph).status == 200

    describe("b200")
    job = stage.submit("true", spec={"resources": {"gpus": 1, "gpu_type": "b200"}})
    assert stage.job(job)["state"] == State.PENDING, "the cluster is down"
    describe("b300")
    with stage.agent("changing", cores=4):  # its graph stays the described one or has no GPUs: both say no

        def is_refused() -> bool:
            shown = json.loads(stage.yard("explain", job, "-o", "json").stdout)
            return any(row["cluster"] == "changing" and row["say"] == "no" for row in shown["now"])

        until(is_refused, SOON_S, "the cluster says no")
        assert stage.job(job)["state"] in (State.PENDING, State.REJECTED)


def test_a_job_never_begins_on_a_cluster_whose_cards_changed_after_it_was_assigned(stage: Stage) -> None:
    def agent(gpu_type: str) -> Agent:
        each = {"core": 4, "gpu": 2, "gpu_type": gpu_type}
        return start_agent(stage.folder, stage.url, "swapped", graph={"nodes": 1, "each": each})

    ran = stage.folder / "ran-on-swapped"
    with agent("mi300x") as first:
        first.kill()
        spec = {"resources": {"gpus": 1, "gpu_type": "mi300x"}}
        job = stage.submit("touch", str(ran), spec=spec)
        assert (found := stage.job(job))["state"] == State.ASSIGNED, found
        assert found["cluster"] == "swapped"
    with agent("mi100"):
        returned = "its cluster has no gpu of type mi300x any more"
        until(lambda: returned in stage.yard("events", job).stdout, SOON_S, "the agent gives the job back")
        over_or_waits = (State.REJECTED, State.PENDING)  # no other cluster has the type; one that is down may have it
        until(lambda: stage.job(job)["state"] in over_or_waits, SOON_S, "the server decides anew")
        assert ran_on(stage, "--gpu", "mi100") == "swapped", "others begin there"
        assert not ran.exists()


def test_the_graph_of_an_operator_counts_whatever_the_agent_finds(stage: Stage) -> None:
    each = {"core": 4, "gpu": 2, "gpu_type": "p100"}
    with start_agent(stage.folder, stage.url, "relabelled", graph={"nodes": 1, "each": each}):
        told = {"nodes": 1, "each": {**each, "gpu_type": "gb200"}}
        assert stage.call("PUT", "/v1/clusters/relabelled/graph", told).status == 200
        assert ran_on(stage, "--gpu", "gb200") == "relabelled"


def test_what_is_free_is_told_by_type(stage: Stage) -> None:
    job = {"spec": {"command": ["x"], "resources": {"gpus": 1, "gpu_type": "h100"}}}
    found = {row["cluster"]: row for row in stage.post("/v1/clusters/fit", {"job": job})["items"]}
    assert [name for name, row in found.items() if row["ever"]] == ["hopper"]
    assert (found["hopper"]["now"], found["hopper"]["slots"]) == (True, 4)
