"""Explain, history and statistics, from outside: why a job waits, what would let it run, what was decided when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard.errors import EXIT_REJECTED, EXIT_USAGE
from switchyard.model.job.job import State
from tests.acceptance.rules.pools import write
from tests.acceptance.stage import SOON_S, Fields, Stage, staged
from tests.processes import until
from tests.programs import call

CONFIG = """\
clusters:
  clusterConfigs: [{name: small}, {name: large}, {name: away}]
  poolNameClusterMap:
    main: [{id: small}, {id: away}]
    burst: [{id: large}]
  labelClusterMap: {near: [{id: small}]}
queues: [{name: narrow, attributes: [narrow], limits: {running: 1}}]
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("explain")
    with (
        staged(folder, extra=["--config", write(folder, CONFIG)]) as made,
        made.agent("small", cores=4),
        made.agent("large", cores=16, nodes=2),
    ):
        yield made


def explain(stage: Stage, job: str) -> Fields:
    found: Fields = stage.read("explain", job)
    return found


def test_a_rejected_job_is_told_every_single_change_that_would_let_it_run(stage: Stage) -> None:
    """The cluster that is away has told nothing yet, so it is kept out of this by the label."""
    rejected = stage.submitted("true", spec={"resources": {"cores": 6, "tasks": 2}}, pool="main", cluster_label="near")
    assert rejected["state"] == "REJECTED"
    found = explain(stage, rejected["id"])
    assert "--cores 2 instead of 6 (small)" in found["hints"]
    for hint in ("--cores 2 instead of 6 (small)",):
        option, value = hint.split()[:2]
        done = stage.yard(
            "submit", "--plan", "--pool", "main", "--cluster-label", "near", "-n", "2", option, value, "--", "true"
        )
        assert done.returncode == 0, done.stdout
    rules = {(used["kind"], used["level"]) for used in found["policy"]["values"]}
    assert ("cluster-assignment", "request") in rules


def test_another_pool_is_named_when_it_would_help(stage: Stage) -> None:
    waiting = stage.submitted("true", spec={"resources": {"cores": 10}}, pool="main")
    assert waiting["state"] == "PENDING", "away has not told what it has"
    found = explain(stage, waiting["id"])
    assert "pool burst (large)" in found["hints"]
    assert "start an agent on away" in found["hints"]
    now = {verdict["cluster"]: (verdict["say"], verdict["step"]) for verdict in found["now"]}
    assert now == {"small": ("no", "match"), "large": ("no", "pool"), "away": ("wait", "health")}
    assert all(verdict["since_us"] for verdict in found["now"])
    stage.yard("cancel", waiting["id"], check=True)


def test_a_plan_says_the_same_before_and_stores_nothing(stage: Stage) -> None:
    before = stage.walk("/v1/jobs", limit=500)
    done = stage.yard("submit", "--plan", "--cluster", "small", "-c", "6", "--", "true")
    assert done.returncode == EXIT_REJECTED
    assert "without naming a cluster (large)" in done.stdout
    assert "--cores 4 instead of 6 (small)" in done.stdout
    plan = stage.read("submit", "--plan", "--pool", "burst", "--", "true")
    assert (plan["chosen"], plan["hints"]) == ("large", [])
    assert plan["policy"]["values"]
    assert stage.walk("/v1/jobs", limit=500) == before


def test_each_other_answer_is_kept_with_its_time_and_cause(stage: Stage) -> None:
    stage.yard("cluster", "cordon", "small", "--reason", "new disks", check=True)
    try:
        job = stage.submit("true", cluster_label="near")
        stage.yard("cluster", "cordon", "small", "--reason", "new racks", check=True)
        until(lambda: "new racks" in stage.job(job)["reason"], SOON_S, "the reason of now")
    finally:
        stage.yard("cluster", "uncordon", "small", check=True)
    stage.ended(job)
    history = explain(stage, job)["history"]
    assert [each["what"] for each in history] == ["accepted", "waits", "assigned"]
    assert [each["at_us"] for each in history] == sorted(each["at_us"] for each in history)
    assert history[1]["reason"] == "waits for small: cordoned: new racks"
    assert history[2] == history[2] | {"cluster": "small", "reason": "until now small: cordoned: new racks"}
    text = stage.yard("explain", job, check=True).stdout
    assert "History:" in text
    assert "✔ small" in text, "an ended job is explained, too"


def test_a_place_in_a_limited_queue_is_explained(stage: Stage, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    first = stage.submit("sh", "-c", f"until [ -e {gate} ]; do sleep 0.05; done", tags=["narrow"], pool="burst")
    try:
        stage.until_state(first, State.RUNNING)
        second = stage.submit("true", tags=["narrow"], pool="burst")
        third = stage.submit("true", tags=["narrow"], pool="burst")
        found = explain(stage, third)
        assert explain(stage, second)["hints"] == ["1 more place in queue narrow (1 of 1 are taken)"]
        assert found["hints"] == ["2 more places in queue narrow (1 of 1 are taken)"]
        standing = found["standing"]
        assert (standing["queue"], standing["ahead"], standing["limit"], standing["running"]) == ("narrow", 1, 1, 1)
        assert "Queue narrow: number 2 (1 ahead of it)" in stage.yard("explain", third, check=True).stdout
        gauges = stage.call("GET", "/metrics").body.decode()
        assert 'switchyard_queue_limit{queue="narrow"} 1.0' in gauges
    finally:
        gate.touch()
    for job in (first, second, third):
        assert stage.ended(job)["state"] == "SUCCEEDED"


def test_statistics_are_drawn_from_what_is_stored(stage: Stage) -> None:
    stage.ended(stage.submit("true", pool="burst"))
    found = stage.read("stats", "routes", "--since", "1h")
    jobs = stage.walk("/v1/jobs", limit=500)
    assert found["jobs"] == len(jobs)
    on_large = sum(job.get("cluster") == "large" for job in jobs)
    assert next(bar["assigned"] for bar in found["by"]["cluster"] if bar["name"] == "large") == on_large
    text = stage.yard("stats", "routes", "--by", "cluster", "--by", "reason", check=True).stdout
    assert "By cluster" in text
    assert "By pool" not in text
    assert "rejected: match" in text
    assert "\x1b" not in text, "no colours into a pipe"


@pytest.mark.parametrize(
    "args",
    [
        ("stats",),
        ("stats", "routes", "--by", "weather"),
        ("stats", "routes", "--since", "soon"),
        ("explain", "no-code"),
    ],
)
def test_what_cannot_be_counted_is_said(stage: Stage, args: tuple[str, ...]) -> None:
    assert stage.yard(*args).returncode == EXIT_USAGE


def test_a_job_that_a_rule_rejects_says_so_and_is_counted_so(stage: Stage) -> None:
    job = stage.submit("true", cluster="away", spill=["reject after 1s"])
    reason = "it has not begun after 1s: rule `reject after 1s` (the request)"
    assert stage.ended(job)["reason"] == reason
    assert reason in " ".join(stage.yard("explain", job, check=True).stdout.split("History:")[0].split())
    assert "rejected: spill" in stage.yard("stats", "routes", "--by", "reason", check=True).stdout
    metrics = stage.call("GET", "/metrics").body.decode()
    assert 'switchyard_route_refusals_total{code="rejected",step="spill"} 1.0' in metrics


@pytest.mark.parametrize("query", ["since_s=0", "since_s=-1", "since_s=x", "by=cluster"])
def test_a_bad_question_is_refused(stage: Stage, query: str) -> None:
    assert call("GET", f"{stage.url}/v1/stats/routes?{query}").status == 400
