"""Files travel with jobs through real agents, on this machine and on Slurm, and arrive whole whoever is killed."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from switchyard.model.job.job import State
from tests.acceptance.bed import LEDGER_LINE, Ledger
from tests.acceptance.files.job_files import outputs_of, read_tree, upload_tree
from tests.acceptance.slurm.slurm_stage import slurm_agent
from tests.acceptance.stage import Stage, staged
from tests.agent.files.builders import Executable, Plain
from tests.processes import until
from tests.programs import Agent
from tests.s3_service import REGION, s3_running
from tests.slurm_bed import SlurmBed
from tests.soak import SOAKED

pytestmark = pytest.mark.xdist_group("slurm")

TIMEOUT_S = 240.0
# Checks its input, runs once, and leaves: a large file of its own, a folder, a link, and nothing for one pattern.
SCRIPT = f"""
set -e
sha256sum -c --quiet sums
test -x tool && test "$(cat here)" = "$(cat data/deep/word)"
{LEDGER_LINE}
mkdir -p results/deep
{{ echo "$SWITCHYARD_JOB_ID $SWITCHYARD_ARRAY_INDEX"; cat large; }} > results/copy
if [ -e own ]; then cp own results/own; fi
echo "$SWITCHYARD_ARRAY_INDEX" > results/deep/index
ln -s deep/index results/latest
"""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with staged(tmp_path) as made:
        yield made


def input_files(large: bytes) -> Plain:
    word = b"a word\n"
    sums = f"{sha256(large).hexdigest()}  large\n{sha256(word).hexdigest()}  data/deep/word\n".encode()
    return {
        "large": large,
        "sums": sums,
        "tool": Executable(b"#!/bin/sh\n"),
        "here": "data/deep/word",
        "data": {"deep": {"word": word}, "empty": {}},
    }


def expected_output(job: str, index: str, large: bytes, own: bytes | None) -> Plain:
    results: Plain = {
        b"copy": f"{job} {index}\n".encode() + large,
        b"deep": {b"index": f"{index}\n".encode()},
        b"latest": "deep/index",
    }
    return {b"results": {**results, **({b"own": own} if own is not None else {})}}


def reap(agents: list[Agent], chance: random.Random, is_over: threading.Event, kills: int) -> None:
    """Kill agents at random moments and start them again, until all kills are done or the work is over."""
    while kills and not is_over.wait(chance.uniform(0.05, 1.0)):
        victim = chance.choice(agents)
        victim.kill()
        victim.start()
        kills -= 1


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("singles", "kills"), [(1, 4), SOAKED(3, 12)])  # jobs of each cluster; of both agents
def test_every_byte_arrives_and_each_job_runs_once_whoever_is_killed(
    stage: Stage, slurm: SlurmBed, request: pytest.FixtureRequest, singles: int, kills: int
) -> None:
    chance = random.Random(18)
    large = chance.randbytes(9 * 2**20) + bytes(8 * 2**20) + b"the end"
    tree = upload_tree(stage, input_files(large))
    own = {str(index): f"of {index}\n".encode() for index in range(3)}
    task_tree = upload_tree(stage, {index: {"own": data} for index, data in own.items()})
    ledger = Ledger(stage.folder)
    agents = [stage.agent("local", cores=4), slurm_agent(stage, slurm["alpha"])]
    for agent in agents:
        request.addfinalizer(agent.close)
    is_over = threading.Event()
    reaper = threading.Thread(target=reap, args=(agents, chance, is_over, kills))
    reaper.start()
    try:
        files = {"tree": tree, "out": ["results", "gone/*"]}
        spec = {"env": ledger.env, "files": files}
        jobs: dict[str, list[str]] = {}  # to the indexes of its tasks
        for cluster in ("local", "alpha"):
            for _ in range(singles):
                jobs[stage.submit("sh", "-c", SCRIPT, cluster=cluster, spec=spec)] = [""]
            array = {**spec, "files": {**files, "task_tree": task_tree}}
            jobs[stage.submit("sh", "-c", SCRIPT, cluster=cluster, spec=array, array="0-2")] = list(own)
        for job, indexes in jobs.items():
            ended = stage.ended(job, timeout_s=TIMEOUT_S)
            assert ended["state"] == State.SUCCEEDED, ended
            assert ledger.runs()[job] == len(indexes), "each ran once"
        for job, indexes in jobs.items():
            outputs = outputs_of(stage, job, len(indexes))
            assert [output["state"] for output in outputs] == ["ready"] * len(indexes), outputs
            assert all(output["missing"] == ["gone/*"] for output in outputs)
            by_index = {str(output.get("task", "")): output for output in outputs}
            assert sorted(by_index) == sorted(indexes)
            for index, output in by_index.items():
                found = read_tree(stage, job, output["root"])
                assert found == expected_output(job, index, large, own.get(index)), f"{job} {index}"
    finally:
        is_over.set()
        reaper.join()
    folders = [folder for agent in agents for folder in (agent.data / "work", agent.data / "output" / "work")]
    until(
        lambda: not [path for folder in folders if folder.exists() for path in folder.iterdir()],
        TIMEOUT_S,
        "the folders of all jobs are removed",
    )
    for agent in agents:
        assert list((agent.data / "files" / "cache" / "new").iterdir()) == []


def test_ends_of_all_kinds(stage: Stage, request: pytest.FixtureRequest) -> None:
    """Required output, failure, cancel, no tree, and a tree that is already in the cache."""
    request.addfinalizer(stage.agent("local").close)
    tree = upload_tree(stage, {"in": b"1"})
    begun = stage.folder / "begun"
    script = "cat in > out.txt"
    first = stage.submit("sh", "-c", script, spec={"files": {"tree": tree, "out": ["*.txt"], "out_required": True}})
    failed = stage.submit("sh", "-c", f"{script}; exit 3", spec={"files": {"tree": tree, "out": ["*.txt"]}})
    required = stage.submit("true", spec={"files": {"out": ["*.txt"], "out_required": True}})
    cancelled = stage.submit("sh", "-c", f"echo half > a.txt; touch {begun}; sleep 600", spec={"files": {"out": ["*"]}})
    assert stage.ended(first)["state"] == State.SUCCEEDED
    assert stage.ended(failed)["state"] == State.FAILED
    end = stage.ended(required)
    assert (end["state"], end["reason"]) == (
        State.FAILED,
        "it left no file for '*.txt', which its output files must have",
    )
    until(begun.exists, 60, "the job runs")
    stage.post(f"/v1/jobs/{cancelled}/cancel", {})
    assert stage.ended(cancelled)["state"] == State.CANCELLED
    for job, content in ((first, {b"out.txt": b"1"}), (failed, {b"out.txt": b"1"}), (cancelled, {b"a.txt": b"half\n"})):
        [output] = outputs_of(stage, job)
        assert read_tree(stage, job, output["root"]) == content
    [output] = outputs_of(stage, required)
    assert (output["state"], output.get("files", 0), output["missing"]) == ("ready", 0, ["*.txt"])


def test_an_object_store_that_goes_away_and_comes_back(tmp_path: Path) -> None:
    """Large objects come by signed addresses. While the store is away the job says so, and starts when it is back."""
    large = random.Random(19).randbytes(9 * 2**20)
    config = tmp_path / "config.yaml"
    with s3_running() as store:
        section: dict[str, object] = {
            "url": f"s3://{store.create_bucket()}/files",
            "endpoint": store.endpoint,
            "region": REGION,
        }
        section |= {"allow_http": True, "retries": 0, "timeout_s": 5}
        config.write_text(json.dumps({"storage": section}), encoding="utf-8")  # JSON is YAML
        with staged(tmp_path, extra=["--config", str(config)], env=store.credentials) as stage:
            tree = upload_tree(stage, {"in": large})
            store.kill()
            with stage.agent("local"):
                job = stage.submit("cp", "in", "out", spec={"files": {"tree": tree, "out": ["out"]}})
                waiting = stage.until_state(job, State.SUBMITTED)
                assert waiting["reason"].startswith("staging files"), waiting
                store.start()
                assert stage.ended(job, timeout_s=TIMEOUT_S)["state"] == State.SUCCEEDED
                [output] = outputs_of(stage, job)
                assert (output["state"], output["bytes"]) == ("ready", len(large)), output
                second = stage.submit("sha256sum", "in", spec={"files": {"tree": tree}})
                assert stage.ended(second)["state"] == State.SUCCEEDED
                assert stage.raw("logs", second)[0].decode().split()[0] == sha256(large).hexdigest()
