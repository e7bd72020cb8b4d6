"""A batch system that does not answer, behind an agent that lives: its cluster is down, says why, and comes back.

What no agent has leased and what was leased but surely not handed over goes to another cluster. What runs stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from switchyard.model.job.job import State
from tests.acceptance.stage import END_S, SOON_S, Stage
from tests.processes import until

pytestmark = pytest.mark.xdist_group("silent-batch-system")

OUTAGE = "outage: {silent_after_s: 2, give_back_after_s: 3}\n"
SILENCE = "The fake cluster does not answer"
WHY = "the controller is gone"
HOUR = {"env": {"FAKE_RUN_S": "3600"}}


@dataclass
class Outage:
    """Jobs of the cluster `mute` when its batch system fell silent."""

    file: Path  # the batch system is silent while it is there
    running: str
    unleased: str
    leased: str


@pytest.fixture(scope="module")
def outage(stage: Stage) -> Iterator[Outage]:
    extra = stage.site("mute", OUTAGE)
    with stage.agent("mute", cores=2, backend="fake", extra=extra) as mute:
        running = stage.submit("x", spec=HOUR)
        stage.until_state(running, State.RUNNING)
        unleased = stage.submit("true", spec={"resources": {"cores": 2}})  # one core is taken
        file = mute.data / "silence"
        file.write_text(WHY)
        leased = stage.submit("true")
        made = Outage(file, running, unleased, leased)
        assert [stage.job(job)["cluster"] for job in (unleased, leased)] == ["mute", "mute"]
        until(lambda: stage.health("mute") == "down", SOON_S, "the silence is told")
        yield made


def test_the_cluster_is_down_and_says_why(stage: Stage, outage: Outage) -> None:
    [listed] = [line for line in stage.yard("cluster", "ls", check=True).stdout.splitlines() if "mute" in line]
    assert "down" in listed
    assert f"{SILENCE}: {WHY} (for " in listed
    shown = stage.yard("cluster", "show", "mute", check=True).stdout
    assert f"down ({SILENCE})" in shown
    assert f"{SILENCE}: {WHY} (for " in shown
    assert "1 running, 0 queued, when it last answered" in shown
    assert shown.count("when it last answered") == 2, "of the jobs, and of what is free"
    cluster = stage.get("/v1/clusters/mute")
    assert cluster["load"]["silent_s"] >= 2
    page = stage.call("GET", "/clusters").body.decode()
    assert SILENCE in page


def test_a_job_for_it_waits_and_every_command_tells_why(stage: Stage, outage: Outage) -> None:
    pinned = stage.submitted("true", cluster="mute")
    assert pinned["state"] == "PENDING"
    assert f"mute: down: {SILENCE}" in pinned["reason"]
    explained = stage.yard("explain", pinned["id"], check=True).stdout
    assert f"down: {SILENCE}: {WHY}" in explained
    assert "bring the batch system of mute back" in explained
    assert SILENCE in stage.yard("wait", pinned["id"], "--timeout", "1").stderr
    running = stage.job(outage.running)
    assert (running["state"], running["cluster"]) == ("RUNNING", "mute")
    assert running["reason"] == f"{SILENCE}, so nothing new is known of the job"
    assert running["reason"] in stage.yard("explain", outage.running, check=True).stdout
    stage.yard("cancel", pinned["id"], check=True)


def test_what_has_not_begun_goes_elsewhere_and_the_rest_stays(stage: Stage, outage: Outage) -> None:
    returned = stage.until_state(outage.leased, State.PENDING)
    assert returned["attempt"] >= 1
    with stage.agent("well", cores=2, backend="fake"):
        for job in (outage.leased, outage.unleased):
            assert stage.ended(job)["cluster"] == "well"
        assert stage.ended(stage.submit("true"))["cluster"] == "well"
        events = stage.walk(f"/v1/jobs/{outage.leased}/events", limit=50)
        assert any(f"{SILENCE}: {WHY} (for " in event.get("reason", "") for event in events)
        pinned = stage.submit("true", cluster="mute")
        outage.file.unlink()
        until(lambda: stage.health("mute") == "up", SOON_S, "it answers again")
        assert stage.ended(pinned, timeout_s=END_S)["cluster"] == "mute"
    running = stage.job(outage.running)
    assert (running["state"], running["attempt"], running.get("reason", "")) == ("RUNNING", 1, "")
