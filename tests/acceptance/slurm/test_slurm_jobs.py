"""A Slurm cluster from the command line: what it has, what a job may ask of it, arrays, and what comes back."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from switchyard.model.job.job import State
from tests.acceptance.slurm.slurm_stage import END_S, Yard, slurm_yard
from tests.processes import until
from tests.slurm_bed import SlurmBed

pytestmark = pytest.mark.xdist_group("slurm-jobs")
os.umask(UMASK := os.umask(0))  # what the programs that the tests start have
SLOT = {"type": "slot", "count": 1, "label": "t", "with": [{"type": "core", "count": 1}]}


@pytest.fixture(scope="module")
def yard(slurm: SlurmBed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    with slurm_yard(tmp_path_factory.mktemp("jobs"), slurm, allow={"options": ["--nice", "--cpus-per-task"]}) as made:
        yield made


def submit(yard: Yard, *words: str) -> str:
    done = yard.stage.yard("submit", "-o", "name", *words)
    assert done.returncode == 0, done
    return str(done.stdout.strip())


def test_the_cluster_shows_its_nodes_gpus_and_how_busy_it_is(yard: Yard) -> None:
    def shown() -> dict[str, object]:
        return dict(json.loads(yard.stage.yard("cluster", "show", "alpha", "-o", "json").stdout))

    found = shown()
    assert (found["backend"], found["health"]) == ("slurm", "up")
    assert {"node": 3, "core": 12, "gpu": 6, "socket": 6}.items() <= found["totals"].items()  # type: ignore[attr-defined]
    until(lambda: "nodes_free" in json.dumps(shown()), END_S, "its state is told")


def test_flags_of_a_batch_system_reach_it(yard: Yard) -> None:
    flags = ["--account", "test", "--constraint", "plain", "--license", "matlab:1", "--gpus", "1", "--gpu-type", "a100"]
    flags += ["--exclusive", "--option=--nice=3", "--time-limit", "5m", "--ephemeral-storage", "1GiB", "--name", "a|b"]
    job = submit(yard, "--cluster", "alpha", *flags, "--", "sleep", "600")
    yard.stage.until_state(job, State.RUNNING, timeout_s=END_S)
    native, alpha = yard.native(job), yard.slurm["alpha"]
    wanted = {"Account": "test", "Features": "plain", "Licenses": "matlab:1", "Nice": "3", "TimeLimit": "00:05:00"}
    assert {name: alpha.field(native, name) for name in wanted} == wanted
    assert (alpha.field(native, "MinTmpDiskNode"), alpha.field(native, "NumCPUs")) == ("1G", "4")
    assert yard.stage.yard("cancel", job).returncode == 0
    assert yard.stage.ended(job, timeout_s=END_S)["state"] == State.CANCELLED
    assert "account=test" in yard.stage.yard("show", job).stdout


def test_a_job_has_the_umask_that_the_agent_was_started_with(yard: Yard) -> None:
    """Slurm gives a job the umask of its submit, and the agent keeps its own files from others."""
    job = submit(yard, "--cluster", "alpha", "--wait", "--", "sh", "-c", "umask")
    assert yard.stage.yard("logs", job).stdout.strip() == f"{UMASK:04o}"


@pytest.mark.parametrize(
    ("resources", "constraints", "nodes"),
    [
        ([{"type": "node", "count": 2, "with": [SLOT]}], {"properties": ["^fast"]}, "n[2-3]"),
        ([SLOT], {"ranks": ["2"]}, "n3"),
        ({"t": {"type": "node", "replicas": 3, "with": [{"type": "core", "count": 2}]}}, None, "n[1-3]"),
    ],
)
def test_what_a_jobspec_bounds_holds_where_it_runs(
    yard: Yard, tmp_path: Path, resources: Any, constraints: Any, nodes: str
) -> None:
    file = tmp_path / "job.yaml"
    task = {"command": ["sh", "-c", "echo $SLURM_JOB_NODELIST"], "slot": "t", "count": {"per_slot": 1}}
    if isinstance(resources, dict):
        task = {"command": task["command"], "resources": "t"}
    system = {"duration": 60, **({"constraints": constraints} if constraints else {})}
    form = {"version": 1, "resources": resources, "tasks": [task], "attributes": {"system": system}}
    file.write_text(json.dumps(form))
    job = submit(yard, "-f", str(file), "--cluster", "alpha")
    assert yard.stage.ended(job, timeout_s=END_S)["state"] == State.SUCCEEDED
    prefix = yard.slurm["alpha"].spec.node_names[0].removesuffix("n1")
    assert yard.stage.yard("logs", job).stdout == f"{prefix}{nodes}\n"


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--option=--dependency=singleton"], "does not allow the option --dependency"),
        (["--option=--uid=0"], "set by the agent itself"),
        (["--constraint", "no-such-feature"], "Invalid feature"),
    ],
)
def test_what_the_site_or_slurm_refuses_fails_with_its_words(yard: Yard, flags: list[str], reason: str) -> None:
    ended = yard.stage.ended(submit(yard, "--cluster", "alpha", *flags, "--", "true"), timeout_s=END_S)
    assert ended["state"] == State.FAILED
    assert reason in ended["reason"]


@pytest.mark.parametrize(
    ("flags", "mistake"),
    [
        (["--option=nice"], "options"),
        (["--option=--nice=a\nb"], "options"),
        (["--constraint", "a b"], "constraint"),
        (["--license", ""], "licenses"),
        (["--account", "x" * 600], "account"),
    ],
)
def test_malformed_words_are_refused_before_anything_is_stored(yard: Yard, flags: list[str], mistake: str) -> None:
    done = yard.stage.yard("submit", *flags, "--", "true")
    assert (done.returncode, mistake in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("cluster", ["alpha", "beta"])
def test_an_array_is_one_native_job_and_each_task_has_its_end(yard: Yard, cluster: str) -> None:
    text = 'echo "task $SWITCHYARD_ARRAY_INDEX"; exit $((SWITCHYARD_ARRAY_INDEX % 3))'
    job = submit(yard, "--cluster", cluster, "--array", "10-39", "--", "sh", "-c", text)
    assert yard.stage.ended(job, timeout_s=END_S)["state"] == State.FAILED
    tasks = yard.stage.walk(f"/v1/jobs/{job}/tasks", limit=100)
    ended = [(task["index"], task.get("exit_code")) for task in tasks]
    assert ended == [(index, index % 3) for index in range(10, 40)], json.dumps([task.get("reason") for task in tasks])
    assert [task.get("reason", "") for task in tasks[:6]] == ["exit code 1", "exit code 2", ""] * 2
    said = yard.slurm[cluster].run("squeue", "-h", "-t", "all", "-o", "%F %j")
    natives = {line.split()[0] for line in said.splitlines() if job in line}
    assert len(natives) == 1, said
    assert yard.stage.yard("logs", job, "--task", "17").stdout == "task 17\n"


def test_one_task_of_an_array_is_cancelled_alone(yard: Yard) -> None:
    job = submit(
        yard, "--cluster", "beta", "--array", "0-1", "--", "sh", "-c", "sleep $((2 + SWITCHYARD_ARRAY_INDEX * 600))"
    )
    yard.stage.until_state(job, State.RUNNING, timeout_s=END_S)
    assert yard.stage.yard("cancel", f"{job}[1]").returncode == 0
    yard.stage.ended(job, timeout_s=END_S)
    tasks = yard.stage.walk(f"/v1/jobs/{job}/tasks", limit=10)
    assert [task["state"] for task in tasks] == ["SUCCEEDED", "CANCELLED"], tasks


def test_a_task_that_the_site_ended_alone_says_so(yard: Yard) -> None:
    alpha, text = yard.slurm["alpha"], "[ $SWITCHYARD_ARRAY_INDEX = 0 ] || sleep 600"
    job = submit(yard, "--cluster", "alpha", "--array", "0-1", "--", "sh", "-c", text)

    def running() -> str:
        said = alpha.run("squeue", "-h", "-r", "-t", "RUNNING", "-o", "%F_%K %j").splitlines()
        return next((row.split()[0] for row in said if job in row and row.split()[0].endswith("_1")), "")

    until(running, END_S, "it has begun")
    alpha.run("scancel", running())
    yard.stage.ended(job, timeout_s=END_S)
    tasks = yard.stage.walk(f"/v1/jobs/{job}/tasks", limit=10)
    assert [(task["state"], task.get("reason", "")[:24]) for task in tasks] == [
        ("SUCCEEDED", ""),
        ("CANCELLED", "cancelled at the cluster"),
    ]


def test_one_task_of_an_array_is_tried_again_alone(yard: Yard) -> None:
    mark = yard.stage.folder / "tried"
    text = (
        f'echo "$SWITCHYARD_ATTEMPT"; [ $SWITCHYARD_ARRAY_INDEX != 1 ] || [ -e {mark} ] || {{ touch {mark}; exit 7; }}'
    )
    flags = ["--cluster", "beta", "--array", "0-2", "--retry", "1", "--backoff", "1s"]
    job = submit(yard, *flags, "--", "sh", "-c", text)
    assert yard.stage.ended(job, timeout_s=END_S)["state"] == State.SUCCEEDED
    tasks = yard.stage.walk(f"/v1/jobs/{job}/tasks", limit=10)
    assert {task["state"] for task in tasks} == {"SUCCEEDED"}
    said = yard.slurm["beta"].run("squeue", "-h", "-t", "all", "-o", "%F %j")
    assert len({row.split()[0] for row in said.splitlines() if job in row}) == 2, (
        "one for all, and one for the second try"
    )
    assert [yard.stage.yard("logs", job, "--task", task).stdout for task in "012"] == ["1\n", "2\n", "1\n"]


def test_what_it_used_is_shown(yard: Yard) -> None:
    ended = yard.stage.ended(submit(yard, "--cluster", "alpha", "--", "sleep", "3"), timeout_s=END_S)
    assert ended["usage"]["nodes"] in yard.slurm["alpha"].spec.node_names
    assert ended["usage"]["elapsed_s"] >= 2
    assert ended["usage"]["memory_bytes_max"] > 100_000
    assert "on nodes" in yard.stage.yard("show", ended["id"]).stdout


def test_what_slurm_gave_is_shown_and_compared_with_what_was_asked_for(yard: Yard) -> None:
    """Alpha's accounts count GPUs without their type, which only scontrol tells. An option gives fewer cores."""
    job = submit(yard, "--cluster", "alpha", "--gpus", "1", "--gpu-type", "a100", "--cores", "2", "--", "sleep", "600")
    yard.stage.until_state(job, State.RUNNING, timeout_s=END_S)
    given = yard.stage.job(job)["usage"]["allocated"]
    assert (given["cores"], given["gpus"], given["gpu_types"]) == (2.0, 1, ["a100"])
    assert "differs" not in given
    yard.stage.yard("cancel", job, check=True)
    ended = yard.stage.ended(job, timeout_s=END_S)["usage"]
    assert (ended["allocated"]["gpus"], ended["allocated"]["gpu_types"]) == (1, ["a100"])
    assert ended["nodes"]
    fewer = submit(yard, "--cluster", "alpha", "--cores", "2", "--option=--cpus-per-task=1", "--", "true")
    assert yard.stage.ended(fewer, timeout_s=END_S)["usage"]["allocated"]["differs"] == ["1 of 2 cores"]
    assert "it was given 1 of 2 cores" in yard.stage.yard("show", fewer).stdout
    assert (
        'switchyard_allocation_differences_total{cluster="alpha"} 1.0'
        in yard.stage.call("GET", "/metrics").body.decode()
    )
