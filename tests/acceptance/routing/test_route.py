"""Where jobs go and why, from outside: verdicts, plans, cordons, clusters that fall silent, and an even spread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from switchyard.errors import EXIT_REJECTED
from switchyard.model.job.job import State
from tests.acceptance.stage import SOON_S, Fields, Stage, staged
from tests.processes import until

pytestmark = pytest.mark.xdist_group("route")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Three equal clusters."""
    with staged(tmp_path_factory.mktemp("stage")) as made, made.agent("a"), made.agent("b"), made.agent("c"):
        yield made


def verdicts(explained: Fields, part: str = "now") -> dict[str, tuple[str, str]]:
    found = explained["now"] if part == "now" else explained["plan"]["verdicts"]
    return {verdict["cluster"]: (verdict["say"], verdict.get("reason", "")) for verdict in found}


def test_a_plan_decides_as_a_submit_would_and_stores_nothing(stage: Stage) -> None:
    before = (stage.walk("/v1/jobs", limit=500), stage.walk("/v1/events", limit=500))
    plan = stage.read("submit", "--plan", "-c", "2", "--", "true")
    assert plan["chosen"] in ("a", "b", "c")
    assert plan["outcome"] == "assign"
    assert {verdict["cluster"]: verdict["say"] for verdict in plan["verdicts"]} == dict.fromkeys("abc", "yes")
    shown = stage.yard("submit", "--plan", "-c", "2", "--", "true", check=True).stdout
    assert "Nothing was submitted" in shown
    too_big = stage.yard("submit", "--plan", "-c", "5", "--", "true")
    assert too_big.returncode == EXIT_REJECTED
    assert too_big.stdout.count("needs 5 core per task; best node has 4") >= 3
    assert (stage.walk("/v1/jobs", limit=500), stage.walk("/v1/events", limit=500)) == before


def test_explain_shows_every_verdict_and_what_would_help(stage: Stage) -> None:
    rejected = stage.submitted("true", spec={"resources": {"cores": 6}})
    assert rejected["state"] == "REJECTED"
    explained = stage.read("explain", rejected["id"])
    assert verdicts(explained, "plan") == dict.fromkeys(
        "abc", ("no", "needs 6 core per task; best node has 4; 1 node has at least 4")
    )
    assert any("--cores 4 instead of 6" in hint for hint in explained["hints"]), explained["hints"]
    pinned = stage.submit("true", cluster="b")
    ended = stage.ended(pinned)
    assert ended["cluster"] == "b"
    said = verdicts(stage.read("explain", pinned), "plan")
    assert said["b"][0] == "yes"
    assert said["a"] == said["c"] == ("no", "the request names other clusters")
    text = stage.yard("explain", pinned, check=True).stdout
    assert "✔ b" in text


def test_a_cordoned_cluster_gets_nothing_until_it_is_uncordoned(stage: Stage) -> None:
    stage.yard("cluster", "cordon", "a", "--reason", "new disks", check=True)
    try:
        assert stage.health("a") == "cordoned"
        for _ in range(20):
            assert stage.post("/v1/plan", {"spec": {"command": ["true"]}})["chosen"] in ("b", "c")
        held = stage.submitted("echo", "at last", cluster="a")
        assert held["state"] == "PENDING"
        assert "cordoned: new disks" in held["reason"]
        assert verdicts(stage.get(f"/v1/jobs/{held['id']}/explain"))["a"] == ("wait", "cordoned: new disks")
    finally:
        stage.yard("cluster", "uncordon", "a", check=True)
    ended = stage.ended(held["id"])
    assert (ended["state"], ended["cluster"]) == ("SUCCEEDED", "a")
    kinds = [event["kind"] for event in stage.walk(f"/v1/jobs/{held['id']}/events", limit=50)]
    assert kinds == ["accepted", "assigned", "leased", "running", "succeeded"]


def test_what_waits_in_line_at_a_cordoned_cluster_is_not_handed_over(stage: Stage, tmp_path: Path) -> None:
    """Also where there is nowhere else to go: those it has go on, those it does not have yet do not begin."""
    gate = tmp_path / "gate"
    block: dict[str, Any] = {"spec": {"resources": {"cores": 4}}, "cluster": "b"}
    running = stage.submit("sh", "-c", f"until [ -e {gate} ]; do sleep 0.05; done", **block)
    stage.until_state(running, State.RUNNING)
    waiting = stage.submit("touch", str(tmp_path / "ran"), **block)
    assert stage.job(waiting)["state"] == "ASSIGNED"
    stage.yard("cluster", "cordon", "a", "b", "c", "--reason", "all stop", check=True)
    try:
        gate.touch()
        assert stage.ended(running)["state"] == "SUCCEEDED"
        # The agent has room now and has asked again; a wrong lease would be there at once.
        until(lambda: stage.get("/v1/clusters/b")["load"].get("running", 0) == 0, SOON_S, "b is idle")
        assert stage.job(waiting).get("leased_us") is None
        assert verdicts(stage.get(f"/v1/jobs/{waiting}/explain"))["b"] == ("wait", "cordoned: all stop")
    finally:
        stage.yard("cluster", "uncordon", "a", "b", "c", check=True)
    assert stage.ended(waiting)["state"] == "SUCCEEDED"


def test_jobs_are_spread_evenly_over_equal_clusters(stage: Stage) -> None:
    count = 99  # tests/route/test_draw.py draws thousands
    drawn = Counter(stage.post("/v1/plan", {"spec": {"command": ["true"]}})["chosen"] for _ in range(count))
    assert set(drawn) == set("abc")
    # Two degrees of freedom: a fair draw is above 30 once in three million runs.
    assert sum((seen - count / 3) ** 2 / (count / 3) for seen in drawn.values()) < 30, drawn


def test_the_same_job_would_be_drawn_to_the_same_cluster_again(stage: Stage) -> None:
    jobs = [stage.submitted("true") for _ in range(10)]
    assert {job["cluster"] for job in jobs} <= set("abc")
    for job in jobs:
        assert stage.ended(job["id"])["cluster"] == job["cluster"]
        assert stage.get(f"/v1/jobs/{job['id']}/explain")["plan"]["chosen"] == job["cluster"]
