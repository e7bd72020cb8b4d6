"""What a job really got: told by its cluster, shown with the job, and a warning where it is not what was asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from switchyard import State
from tests.acceptance.scripted import ScriptedAgent
from tests.acceptance.stage import SOON_S, Stage, waiting_for
from tests.processes import until
from tests.programs import YARD, Agent

DIFFERS = ["1 of 2 GPUs", "GPUs v100 instead of a100"]
GIVEN = {"cores": 2.0, "gpus": 1, "gpu_types": ["v100"], "gpu_ids": "3", "differs": DIFFERS}
METRIC = 'switchyard_allocation_differences_total{cluster="odd"}'


def test_a_local_job_has_the_gpus_that_its_agent_gave_to_it(stage: Stage, tmp_path: Path) -> None:
    """Of three GPUs of two types, to a job that asks for one type: while it runs, and after its end."""
    programs = tmp_path / "bin"
    programs.mkdir()
    rows = ["Tesla V100-PCIE-16GB, 16384", "NVIDIA A100-SXM4-80GB, 81920", "NVIDIA A100-SXM4-80GB, 81920"]
    (programs / "nvidia-smi").write_text("#!/bin/sh\n" + "".join(f"echo '{row}'\n" for row in rows))
    (programs / "nvidia-smi").chmod(0o755)
    env = {**stage.env, "PATH": f"{programs}:{stage.env['PATH']}"}
    words = ["--server", stage.url, "--cluster", "cards", "--backend", "local"]
    gate = tmp_path / "gate"
    with Agent([*YARD, "agent", *words, "--data", str(tmp_path / "cards")], tmp_path, name="cards", env=env) as agent:
        agent.wait_for(lambda: "cards" in stage.yard("cluster", "ls").stdout, SOON_S, "the cluster is there")
        job = stage.submit(
            "sh",
            "-c",
            f"echo $CUDA_VISIBLE_DEVICES; {waiting_for(gate)}",
            cluster="cards",
            spec={"resources": {"gpus": 2, "gpu_type": "a100"}},
        )
        stage.until_state(job, State.RUNNING)
        given = stage.job(job)["usage"]["allocated"]
        assert given == {"cores": 1.0, "gpus": 2, "gpu_types": ["a100"], "gpu_ids": "1,2"}
        gate.touch()
        ended = stage.ended(job)
        assert (ended["state"], ended["usage"]["allocated"]) == (State.SUCCEEDED, given)
        assert stage.yard("logs", job).stdout.strip() == given["gpu_ids"]
        shown = stage.yard("show", job).stdout
        assert "1 core, 2 gpus a100 (1,2)" in shown
        assert "warning" not in shown
        plain = stage.ended(stage.submit("true", cluster="cards"))
        assert plain["usage"]["allocated"] == {"cores": 1.0}


def odd_lease(agent: ScriptedAgent, stage: Stage, **fields: Any) -> tuple[str, dict[str, Any]]:
    spec = {"resources": {"cores": 2}, **fields.pop("spec", {})}
    job = stage.submit("true", cluster="odd", spec=spec, **fields)
    [lease] = agent.lease(want=2)
    return job, lease


@pytest.fixture(scope="module")
def odd(stage: Stage) -> ScriptedAgent:
    return ScriptedAgent(stage, "odd")


def test_less_than_was_asked_for_is_a_warning_an_event_and_a_count(stage: Stage, odd: ScriptedAgent) -> None:
    assert odd.sync()["takes_details"] is True
    job, lease = odd_lease(odd, stage)
    odd.report(lease, "RUNNING", usage={"nodes": "n7", "allocated": GIVEN})
    assert "was given 1 of 2 GPUs; GPUs v100 instead of a100" in stage.yard("show", job).stdout
    odd.report(lease, "SUCCEEDED", usage={"elapsed_s": 3, "nodes": "n7", "allocated": GIVEN})
    assert stage.job(job)["usage"] == {"elapsed_s": 3, "nodes": "n7", "allocated": GIVEN}
    assert "2 cores, 1 gpu v100 (3)" in stage.yard("show", job).stdout
    events = json.loads(stage.yard("events", job, "-o", "json").stdout)
    assert [event["reason"] for event in events if event["kind"] == "differs"] == ["; ".join(DIFFERS)]
    assert "was given 1 of 2 GPUs" in stage.yard("explain", job).stdout
    page = stage.call("GET", f"/jobs/{job}").body.decode()
    assert ("1 v100 (3)" in page, "It was given 1 of 2 GPUs; GPUs v100 instead of a100." in page) == (True, True)
    assert f"{METRIC} 1.0" in stage.call("GET", "/metrics").body.decode()


def test_an_attempt_that_is_tried_again_keeps_what_it_was_given(stage: Stage, odd: ScriptedAgent) -> None:
    job, lease = odd_lease(odd, stage, spec={"retry": {"limit": 1, "backoff": 1}})
    odd.report(lease, "RUNNING", usage={"nodes": "n7", "allocated": GIVEN})
    odd.report(lease, "FAILED", exit_code=3)
    until(
        lambda: stage.job(job)["state"] == State.PENDING or stage.job(job)["attempt"] == 2, SOON_S, "it is tried again"
    )
    assert "usage" not in stage.job(job), "what the next attempt gets is not known yet"
    assert "attempt 1 was given 1 of 2 GPUs" in stage.yard("explain", job).stdout
    [lease] = odd.lease()
    odd.report(lease, "SUCCEEDED")
    assert "warning" not in stage.yard("show", job).stdout


def test_a_task_of_an_array_has_it_among_the_events(stage: Stage, odd: ScriptedAgent) -> None:
    job, lease = odd_lease(odd, stage, array="0-1")
    odd.report(lease, "RUNNING", "SUCCEEDED", usage={"allocated": GIVEN})
    odd.report({**lease, "fence": lease["fence"] + 1}, "SUCCEEDED")
    stage.ended(job)
    events = json.loads(stage.yard("events", job, "-o", "json").stdout)
    assert [event["reason"] for event in events if event["kind"] == "task-differs"] == [f"task 0: {'; '.join(DIFFERS)}"]
    assert "odd gave task 0 less or other than asked" in stage.yard("explain", job).stdout
    tasks = json.loads(stage.yard("tasks", job, "-o", "json").stdout)
    assert [task.get("reason", "") for task in tasks] == ["", ""], "it is no failure"


@pytest.mark.parametrize(
    "allocated",
    [
        {"cores": -1},
        {"cores": "many"},
        {"gpus": 2**31},
        {"gpus": 1.5},
        {"memory_bytes": -1},
        {"gpu_types": [""]},
        {"gpu_types": ["x" * 65]},
        {"gpu_types": ["a100\nwarning: forged"]},
        {"gpu_types": ["t"] * 17},
        {"gpu_ids": "0" * 257},
        {"differs": ["w"] * 9},
        {"differs": ["w" * 257]},
        {"unknown": 1},
    ],
)
def test_a_report_that_breaks_the_form_is_refused_and_the_job_goes_on(
    stage: Stage, odd: ScriptedAgent, allocated: dict[str, Any]
) -> None:
    report = {"job": "0" * 26, "fence": 1, "seen": "SUCCEEDED", "usage": {"allocated": allocated}}
    assert odd.poll(reports=[report]).status == 400


def test_a_cluster_that_tells_nothing_gives_no_warning(stage: Stage, odd: ScriptedAgent) -> None:
    job, lease = odd_lease(odd, stage)
    odd.report(lease, "RUNNING")
    odd.report(lease, "SUCCEEDED", usage={"elapsed_s": 1, "nodes": "n1"})
    assert stage.job(job)["usage"] == {"elapsed_s": 1, "nodes": "n1"}
    shown = stage.yard("show", job).stdout
    assert ("was given" in shown, "warning" in shown) == (False, False)
