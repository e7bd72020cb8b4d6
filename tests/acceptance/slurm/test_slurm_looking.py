"""What an operator of a Slurm cluster asks: is it well, and what are its nodes? Each illness is made for real."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.acceptance.stage import staged
from tests.processes import PATIENCE_S, until
from tests.programs import isolated_env, start_agent, yard
from tests.slurm_bed import SlurmBed, SlurmCluster

pytestmark = pytest.mark.xdist_group("slurm-looking")


@pytest.fixture
def beta(slurm: SlurmBed) -> Iterator[SlurmCluster]:
    yield slurm["beta"]
    slurm["beta"].heal()


def site_of(tmp: Path, cluster: SlurmCluster, **slurm: Any) -> str:
    file = tmp / "site.yaml"
    file.write_text(json.dumps({"slurm": {"bin": str(cluster.bin), "timeout_s": 10.0, **slurm}}), encoding="utf-8")
    return str(file)


def examined(tmp: Path, cluster: SlurmCluster, *args: str, **slurm: Any) -> dict[str, dict[str, Any]]:
    """What the doctor finds, by check; there is no server here, and that is not what these tests are about."""
    words = [
        "agent",
        "doctor",
        "--backend",
        "slurm",
        "--config",
        site_of(tmp, cluster, **slurm),
        "-o",
        "json",
        *args,
    ]
    done = yard(*words, env=isolated_env(tmp))
    return {each["check"]: each for each in json.loads(done.stdout)}


def test_without_an_agents_folder_the_rest_is_well(tmp_path: Path, slurm: SlurmBed) -> None:
    """As docs/how-to/add-a-slurm-cluster.md says, and the one of Flux."""
    found = examined(tmp_path, slurm["alpha"])
    unchecked = {check for check, finding in found.items() if finding["is_ok"] is None}
    assert unchecked == {"credential", "files", "accounts"}
    assert found["canary"]["is_ok"], found


def test_a_cluster_that_is_well_runs_the_canary(tmp_path: Path, slurm: SlurmBed) -> None:
    for name, gpus in (("alpha", 6), ("beta", 0)):
        (tmp_path / name).mkdir()
        found = examined(tmp_path, slurm[name], "--data", str(tmp_path / name))
        assert found["backend"]["is_ok"], found
        assert f"nodes 3, cores 12, GPUs {gpus}" in found["backend"]["detail"]
        assert found["canary"]["is_ok"], found
        assert "ran, and its output came back" in found["canary"]["detail"]
        assert found["files"]["is_ok"], found
        assert found["shared"]["is_ok"], "the small job sees the folder of jobs with files"
        assert list((tmp_path / name).iterdir()) == [], "nothing is left in the agent's folder"
        assert "yard-" not in slurm[name].run("squeue", "-h", "-o", "%j"), "nothing is left in the queue"


def test_a_closed_partition_is_named(tmp_path: Path, beta: SlurmCluster) -> None:
    beta.run("scontrol", "update", "PartitionName=main", "State=DOWN")
    found = examined(tmp_path, beta, "--wait", "3s")
    assert found["canary"]["is_ok"] is False
    assert "PartitionDown" in found["canary"]["detail"]
    assert "scontrol show partition" in found["canary"]["advice"]
    assert beta.run("squeue", "-h", "-o", "%j").strip() == "", "the canary was cancelled"


def test_a_full_cluster_is_no_fault(tmp_path: Path, beta: SlurmCluster) -> None:
    beta.run("sbatch", "-N3", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 600")
    found = examined(tmp_path, beta, "--wait", "3s")
    assert found["canary"].get("is_ok") is None
    assert "Nothing is wrong" in found["canary"]["advice"]


def test_a_controller_that_is_away_is_told(tmp_path: Path, beta: SlurmCluster) -> None:
    beta.stop("slurmctld")
    found = examined(tmp_path, beta)
    assert found["backend"]["is_ok"] is False
    assert "scontrol" in found["backend"]["detail"]
    assert "canary" not in found


def test_commands_that_are_not_there_are_told(tmp_path: Path, slurm: SlurmBed) -> None:
    found = examined(tmp_path, slurm["beta"], bin=str(tmp_path / "nothing"))
    assert found["backend"]["is_ok"] is False
    assert "cannot be run" in found["backend"]["detail"]


def test_output_that_cannot_be_written_is_told(tmp_path: Path, slurm: SlurmBed) -> None:
    found = examined(tmp_path, slurm["beta"], folder="/proc/no-such-folder")
    assert found["backend"]["is_ok"] is False
    assert "/proc/no-such-folder" in found["backend"]["detail"]


def test_every_node_tells_what_its_system_is(tmp_path: Path, beta: SlurmCluster) -> None:
    away = beta.spec.node_names[-1]
    beta.run("scontrol", "update", f"NodeName={away}", "State=DRAIN", "Reason=test")
    words = ["agent", "discover", "--per-node", "--backend", "slurm", "--config", site_of(tmp_path, beta)]
    done = yard(*words, env=isolated_env(tmp_path), check=True)
    found = yaml.safe_load(done.stdout)
    assert sorted(found["attach"]) == beta.spec.node_names[:-1], done.stderr
    for attached in found["attach"].values():
        assert attached[0]["type"] == "system"
        assert {"architecture", "kernel", "os"} <= set(attached[0])


def test_the_systems_of_nodes_are_set_as_a_subsystem(tmp_path: Path, beta: SlurmCluster) -> None:
    site = site_of(tmp_path, beta)
    words = ["agent", "discover", "--per-node", "--backend", "slurm", "--config", site, "-o", "json"]
    file = tmp_path / "system.json"
    file.write_text(yard(*words, env=isolated_env(tmp_path), check=True).stdout, encoding="utf-8")
    with staged(tmp_path) as stage:
        extra = ["--config", site]
        with start_agent(tmp_path, stage.url, "beta", graph=None, backend="slurm", extra=extra):
            stage.yard("cluster", "subsystem", "set", "beta", "system", str(file), check=True)
            assert "system" in stage.yard("cluster", "subsystem", "ls", "beta", check=True).stdout


def test_the_systems_of_nodes_are_asked_again_when_nodes_come_back(tmp_path: Path, beta: SlurmCluster) -> None:
    """The agent asks each node when it begins to take jobs."""

    def asked() -> Counter[str]:
        listed = [line.split() for line in beta.run("squeue", "-h", "-t", "all", "-o", "%j %N").splitlines()]
        return Counter(words[1] for words in listed if words[0] == "yard-discover" and len(words) > 1)

    def has_systems() -> bool:
        shapes = stage.read("cluster", "graph", "beta")["shapes"]
        return all(shape.get("attached") for shape in shapes if shape["type"] == "node")

    node = beta.spec.node_names[-1]
    extra = ["--config", site_of(tmp_path, beta, discover_nodes=True, state_s=0.5), "--look-every", "1s"]
    before = asked()
    with staged(tmp_path) as stage, start_agent(tmp_path, stage.url, "beta", graph=None, backend="slurm", extra=extra):
        until(lambda: asked() == before + Counter(beta.spec.node_names), PATIENCE_S, "all nodes were asked")
        until(has_systems, PATIENCE_S, "the systems are in the graph")
        beta.run("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=a new kernel")
        until(lambda: stage.get("/v1/clusters/beta")["load"]["values"]["nodes_closed"] == 1, PATIENCE_S, "it is closed")
        beta.run("scontrol", "update", f"NodeName={node}", "State=RESUME")
        until(lambda: asked() == before + Counter([*beta.spec.node_names, node]), PATIENCE_S, "it was asked again")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("slurm: {cnf: /x}", "unknown field `cnf`"),
        ("slurm: {timeout_s: 0}", "timeout_s"),
        ("slurm: {prefix: ssh a}", "folder"),
        ("allow: {users: ada}", "users"),
        ("rates: {main: {core: -1}}", "core"),
        ("[", "site.yaml"),
    ],
)
def test_a_wrong_site_file_stops_the_start(tmp_path: Path, slurm: SlurmBed, text: str, why: str) -> None:
    file = tmp_path / "site.yaml"
    file.write_text(text, encoding="utf-8")
    words = [
        "agent",
        "--cluster",
        "beta",
        "--backend",
        "slurm",
        "--config",
        str(file),
        "--data",
        str(tmp_path / "data"),
    ]
    done = yard(*words, env=isolated_env(tmp_path, url="http://127.0.0.1:9"))
    assert done.returncode != 0
    assert why in done.stderr, done.stderr
