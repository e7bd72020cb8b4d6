"""What a Flux cluster cannot take, or does not take now: where such jobs go, and what their users are told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from switchyard.errors import EXIT_REJECTED
from switchyard.model.job.job import State
from tests.acceptance.flux.flux_yard import flux_agent
from tests.acceptance.stage import Stage, staged
from tests.flux_bed import FluxInstance, FluxSpec, flux_running
from tests.processes import PATIENCE_S, until

pytestmark = [pytest.mark.flux, pytest.mark.xdist_group("flux-days")]

# This instance takes canonical jobspecs, too. One whose slot has no cores would stop all scheduling.
ANY_VERSION = '[ingest.validator]\nargs = ["--require-version=any"]'
CORE: dict[str, Any] = {"type": "core", "count": 1}
RANGE = {"min": 1, "max": 4, "operator": "+", "operand": 1}
TWO_NODES: dict[str, Any] = {"type": "node", "count": 2}


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stage, FluxInstance]]:
    """A server, a Flux cluster and a cordoned cluster `plain` of the local backend."""
    folder = tmp_path_factory.mktemp("flux-verdicts")
    with (
        flux_running(FluxSpec("wide", config=ANY_VERSION)) as flux,
        staged(folder) as stage,
        flux_agent(stage, flux["wide"]),
        stage.agent("plain", nodes=2),
    ):
        stage.yard("cluster", "cordon", "plain", check=True)
        yield stage, flux["wide"]


def submit_slot(stage: Stage, *held: dict[str, Any], options: tuple[str, ...] = ()) -> tuple[str, str, int]:
    """`yard submit` of a canonical jobspec with one slot: the job's id, what was printed, and the exit code."""
    slot = {"type": "slot", "label": "s", "count": 1, "with": list(held)}
    task = {"command": ["hostname"], "slot": "s", "count": {"per_slot": 1}}
    form = {"version": 9999, "resources": [slot], "tasks": [task], "attributes": {"system": {"duration": 60}}}
    file = stage.folder / "jobspec.json"
    file.write_text(json.dumps(form), encoding="utf-8")
    done = stage.yard("submit", "-o", "json", "-f", str(file), *options)
    return (json.loads(done.stdout)["id"] if done.stdout else ""), done.stdout + done.stderr, done.returncode


def test_a_jobspec_that_flux_cannot_run_goes_elsewhere_or_is_told_why(bed: tuple[Stage, FluxInstance]) -> None:
    stage, wide = bed
    _, text, code = submit_slot(stage, TWO_NODES, options=("--cluster", "wide"))
    assert (code, "a slot of 2 nodes is one task on several nodes" in text) == (EXIT_REJECTED, True), text
    assert "node → slot → core, gpu" in text, "and what Flux can run"
    job, text, code = submit_slot(stage, TWO_NODES)
    assert code == 0, text
    waiting = stage.job(job)
    assert (waiting["state"], "plain: cordoned" in waiting["reason"]) == (State.PENDING, True), waiting
    now = {verdict["cluster"]: verdict for verdict in stage.get(f"/v1/jobs/{job}/explain")["now"]}
    assert (now["wide"]["say"], now["wide"]["step"]) == ("no", "backend"), now
    assert stage.ended(stage.submit("true", cluster="wide"))["state"] == State.SUCCEEDED, "scheduling goes on"
    stage.yard("cluster", "uncordon", "plain", check=True)
    try:
        ended = stage.ended(job)
    finally:
        stage.yard("cluster", "cordon", "plain", check=True)
    assert (ended["state"], ended["cluster"], ended["attempt"]) == (State.SUCCEEDED, "plain", 1), ended
    assert "yard-" not in wide.flux("jobs", "-n", "-o", "{name}"), "Flux was never given it"


def test_jobs_wait_for_a_closed_queue_or_go_elsewhere_and_say_for_what(bed: tuple[Stage, FluxInstance]) -> None:
    stage, wide = bed

    def shows(job: str, *words: str) -> bool:
        text = stage.yard("show", job, check=True).stdout
        return all(word in text for word in words)

    def is_returned(job: str) -> bool:
        return "returned" in json.dumps(stage.get(f"/v1/jobs/{job}/events"))

    wide.flux("queue", "disable", "-m", "maintenance")
    pinned, free = stage.submit("true", cluster="wide"), stage.submit("true")
    try:
        until(lambda: is_returned(pinned) and is_returned(free), PATIENCE_S, "the queue gave both back")
        until(lambda: shows(pinned, "PENDING", "is disabled: maintenance"), PATIENCE_S, "its user sees why it waits")
        stage.yard("cluster", "uncordon", "plain", check=True)
        ended = stage.ended(free)
        assert (ended["state"], ended["cluster"]) == (State.SUCCEEDED, "plain"), ended
    finally:
        stage.yard("cluster", "cordon", "plain", check=True)
        wide.flux("queue", "enable")
    assert stage.ended(pinned, timeout_s=PATIENCE_S)["state"] == State.SUCCEEDED
    wide.flux("queue", "stop", "-m", "new switches")
    waiting = stage.submit("true", cluster="wide")
    try:
        until(lambda: shows(waiting, "SUBMITTED", "is stopped: new switches"), PATIENCE_S, "the reason is shown")
    finally:
        wide.flux("queue", "start")
    assert stage.ended(waiting, timeout_s=PATIENCE_S)["state"] == State.SUCCEEDED
    wide.flux("resource", "drain", "0-2", "disk")
    closed = stage.submit("true", cluster="wide")
    try:
        until(lambda: shows(closed, "SUBMITTED", "3 of 3 nodes", "3 drained"), PATIENCE_S, "the reason is shown")
    finally:
        wide.flux("resource", "undrain", "0-2")
    assert stage.ended(closed, timeout_s=PATIENCE_S)["state"] == State.SUCCEEDED


def test_a_range_of_cores_gets_no_more_than_a_rule_allows(bed: tuple[Stage, FluxInstance]) -> None:
    stage, wide = bed
    stage.post("/v1/projects", {"name": "lab"})
    scope, value = "project=lab", {"limits": {"cpu": "2"}}
    put = stage.call("PUT", f"/v1/attributes/task-resource-attribute?{scope}", value, headers={"If-None-Match": "*"})
    assert put.status == 200, put
    words = ("--project", "lab", "--cluster", "wide")
    _, text, code = submit_slot(stage, {**CORE, "count": 4}, options=words)
    assert (code, "cpu" in text) == (EXIT_REJECTED, True), text
    job, text, code = submit_slot(stage, {**CORE, "count": RANGE}, options=words)
    assert code == 0, text
    ended = stage.ended(job, timeout_s=PATIENCE_S)
    assert ended["state"] == State.SUCCEEDED, ended
    assert wide.flux("jobs", "-a", "-n", "-o", "{ncores}", ended["native_id"]).strip() == "1"
