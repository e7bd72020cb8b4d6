"""Jobs with alternatives, from outside: a job gets the first set that a cluster can take, and is told which."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from switchyard import Client, State
from switchyard.errors import EXIT_REJECTED
from switchyard.model.job.job import ALTERNATIVES_MAX, JobSpec, Resources
from tests.acceptance.stage import Stage, staged
from tests.programs import start_agent

pytestmark = pytest.mark.xdist_group("hardware")

ASK = "h100:2 or a100:4"
TELL = ("sh", "-c", 'echo "set $YARD_ALTERNATIVE of $SWITCHYARD_CORES cores"')
GRAPHS: dict[str, dict[str, Any]] = {
    "ampere": {"core": 4, "gpu": 4, "gpu_type": "a100"},
    "plain": {"core": 4},
}
CONFIG = "task_resources: {limits: {gpu: 6}}\n"


@contextmanager
def an_agent(stage: Stage, name: str, each: dict[str, Any]) -> Iterator[None]:
    with start_agent(stage.folder, stage.url, name, graph={"nodes": 1, "each": each}):
        yield
    stage.yard("cluster", "rm", name, "--force", check=True)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("stage")
    (folder / "server.yaml").write_text(CONFIG)
    with staged(folder, extra=["--config", str(folder / "server.yaml")]) as made, ExitStack() as agents:
        for name, each in GRAPHS.items():
            agents.enter_context(start_agent(made.folder, made.url, name, graph={"nodes": 1, "each": each}))
        yield made


def ran(stage: Stage, *flags: str) -> tuple[str, int, str]:
    """Where a job ran, with which set, and what it was told."""
    job = stage.read("submit", *flags, "--", *TELL)["id"]
    ended = stage.until_state(job, State.SUCCEEDED)
    return ended["cluster"], ended["alternative"], stage.yard("logs", job).stdout


def test_a_job_gets_the_first_set_that_a_cluster_has(stage: Stage) -> None:
    assert ran(stage, "--gpu", ASK) == ("ampere", 2, "set 2 of 1 cores\n")
    assert ran(stage, "--gpu", "h100:2", "--or", "gpu=a100:1, cores=3") == ("ampere", 2, "set 2 of 3 cores\n")
    with an_agent(stage, "hopper", {"core": 4, "gpu": 2, "gpu_type": "h100"}):
        assert ran(stage, "--gpu", ASK) == ("hopper", 1, "set 1 of 1 cores\n")
        assert ran(stage, "--gpu", ASK, "--select", "random")[0] in ("ampere", "hopper")


def test_explain_plan_show_and_metrics_tell_the_set(stage: Stage) -> None:
    job = stage.read("submit", "--gpu", ASK, "--", "true")["id"]
    stage.until_state(job, State.SUCCEEDED)
    told = {row["cluster"]: row["reason"] for row in stage.read("explain", job)["plan"]["verdicts"]}
    assert told["ampere"] == (
        "h100:2: needs 2 gpu of type h100 per task; the cluster has 4 gpu of type a100, none of type h100; "
        "or a100:4: fits; holds 1 such task at once"
    )
    assert told["plain"].startswith("h100:2: needs 2 gpu of type h100 per task; best node has 0; or a100:4: needs 4")
    explained = stage.yard("explain", job).stdout
    assert "with alternative 2" in explained
    assert "alternative 2 of 2 on ampere: a100:4" in explained
    shown = stage.yard("show", job).stdout
    assert "2 gpus of type h100" in shown
    assert [line.endswith("(it has this one)") for line in shown.splitlines() if "4 gpus of type a100" in line] == [
        True
    ]
    assert stage.read("ls", "--limit", "1")[0]["alternative"] == 2
    planned = stage.yard("submit", "--plan", "--gpu", ASK, "--", "true")
    assert "would go to ampere with alternative 2" in planned.stdout
    metrics = stage.call("GET", "/metrics").body.decode()
    assert 'switchyard_alternatives_total{alternative="2",cluster="ampere"}' in metrics
    question = {"job": asked([{"gpus": 4, "gpu_type": "a100"}], {"cores": 64}), "now": False}
    fits = {row["cluster"]: row for row in stage.post("/v1/clusters/fit", question)["items"]}
    assert (fits["ampere"]["ever"], fits["plain"]["ever"]) == (True, False)
    assert fits["ampere"]["reason"] == "a100:4, 1 core: fits"
    assert fits["plain"]["reason"].startswith("no gpu, 64 cores: needs 64 core per task")


def asked(sets: list[dict[str, Any]], first: dict[str, Any] | None = None) -> dict[str, Any]:
    """A request with further sets after the first."""
    return {"spec": {"command": ["true"], "resources": first or {"cores": 3}, "alternatives": sets}}


def test_job_files_and_the_sdk_have_the_same_words(stage: Stage, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "command: [sh, -c, 'echo $YARD_ALTERNATIVE']\ngpus: 2\ngpu_type: h100\n"
        "alternatives: [{cores: 64}, 'gpu=a100:2, time_limit=1h']\n"
    )
    job = stage.read("submit", "-f", str(file))["id"]
    assert stage.until_state(job, State.SUCCEEDED)["alternative"] == 3
    sets = stage.job(job)["spec"]["alternatives"]
    filled = {"limits": {"gpus": 2}}  # by the rule that has a limit for GPUs
    assert sets == [{"cores": 64}, {"gpus": 2, "gpu_type": "a100", "time_limit": "1h", **filled}]
    with Client(stage.url) as client:
        handle = client.submit(["true"], gpus=1, gpu_type="h100", alternatives=[Resources(gpus=1, gpu_type="a100")])
        assert handle.wait().alternative == 2
        spec = client.job(handle.id).spec
        assert isinstance(spec, JobSpec)
        assert client.submit(spec).wait().alternative == 2


def test_a_job_that_no_cluster_could_run_says_why_for_each_set(stage: Stage) -> None:
    refused = stage.yard("submit", "--gpu", "zz9000:1 or yy8000:1", "--", "true")
    assert refused.returncode == EXIT_REJECTED
    assert "zz9000:1: ampere: needs 1 gpu of type zz9000" in refused.stderr
    assert "or yy8000:1: ampere: needs 1 gpu of type yy8000" in refused.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--gpu", "h100:2 or"), "a choice is missing beside `or`"),
        (("--gpu", "or h100:2"), "a choice is missing beside `or`"),
        (("--gpu", "h100 or or a100"), "a choice is missing beside `or`"),
        (("--gpu", "or"), "a choice is missing beside `or`"),
        (("--gpu", "h100:2 a100:4 or l4"), "write `or` between two choices, and one type in each"),
        (("--gpu", "h100:2,a100:4 or l4"), "2,a100:4"),
        (("--gpu", "h100:2 or h100:2"), "number 2 is the same as number 1"),
        (("--gpu", "h100:2 or\na100:4"), "a line end or another hidden character"),
        (("--gpu", "h100 or a100:0"), "'0'"),
        (("--gpu", " or ".join(f"h100:{count}" for count in range(1, 51))), "length <= 15"),
        (("--gpus", "1", "--or", ""), "is no NAME=VALUE"),
        (("--gpus", "1", "--or", "gpus=2,"), "is no NAME=VALUE"),
        (("--gpus", "1", "--or", "gpus=2,gpus=3"), "gpus is said twice"),
        (("--gpus", "1", "--or", "gpu=h100:2,gpus=3"), "gpus is said twice"),
        (("--gpus", "1", "--or", "speed=9"), "there is no 'speed'"),
        (("--gpus", "1", "--or", "gpu=:2"), "is no TYPE or TYPE:N"),
        (("--gpus", "1", "--or", "gpu_memory=40GB"), "say how many"),
        (("--gpus", "1", "--or", "cores=2\nx=1"), "a line end or another hidden character"),
        (("--or", "gpus=1"), "resources is empty"),
    ],
)
def test_alternatives_that_say_too_little_or_too_much_are_refused(
    stage: Stage, flags: tuple[str, ...], words: str
) -> None:
    refused = stage.yard("submit", *flags, "--", "true")
    assert refused.returncode not in (0, EXIT_REJECTED)
    assert words in refused.stderr, refused.stderr


SLOT = {"resources": [{"type": "slot", "count": 1, "label": "s", "with": [{"type": "core", "count": 1}]}]}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"alternatives": [{"cores": number} for number in range(4, 54)]}, f"length <= {ALTERNATIVES_MAX - 1}"),
        ({"alternatives": [{"cores": 4}, {"cores": 4}]}, "number 3 is the same as number 2"),
        ({"alternatives": [{"cores": 3}]}, "number 2 is the same as number 1"),
        ({"alternatives": [{}]}, "alternatives: number 2 is empty"),
        ({"alternatives": [{"tasks": 1}]}, "alternatives: number 2 is empty"),
        ({"alternatives": [{"gpus": 1, "gpu_type": "h100\na100"}]}, "gpu_type"),
        ({"alternatives": [{"gpus": 1, "gpu_type": "h100,a100"}]}, "gpu_type"),
        ({"alternatives": [{"gpu_type": "h100"}]}, "say how many"),
        ({"alternatives": "h100"}, "array"),
        ({"alternatives": ["gpu=h100"]}, "object"),
        ({"alternatives": [{"cores": 4, "alternatives": []}]}, "alternatives"),
        ({"alternatives": [{"cores": 4}], "demand": SLOT}, "`demand` says what is needed in its own way"),
        ({"alternatives": [{"cores": 4}], "pod": {"spec": {}}}, "`pod` says what is needed in its own way"),
        ({"alternatives": [{"gpus": 4}], "native": {"gpu_type": "a100"}}, "native.gpu_type would hold for all"),
    ],
)
def test_requests_with_wrong_alternatives_are_answered_with_what_to_write(
    stage: Stage, spec: dict[str, Any], words: str
) -> None:
    for path, body in (
        ("/v1/jobs", {"spec": {"command": ["true"], "resources": {"cores": 3}, **spec}}),
        ("/v1/plan", {"spec": {"command": ["true"], "resources": {"cores": 3}, **spec}}),
    ):
        answer = stage.call("POST", path, body)
        assert answer.status == 400, answer.body
        assert words in answer.json["detail"]
        assert "\n" not in answer.json["detail"]


def test_a_set_over_a_limit_is_refused_with_the_rule(stage: Stage) -> None:
    answer = stage.call("POST", "/v1/jobs", asked([{"gpus": 4, "gpu_type": "a100"}, {"gpus": 8}]))
    assert answer.status == 422, answer.body
    assert "alternative 3: gpu: asks for 8, and the limit is 6 (platform" in answer.json["detail"]
