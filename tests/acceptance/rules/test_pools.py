"""Pools and cluster labels from outside: the server's file, and what a submit makes of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from switchyard import Client
from switchyard.errors import EXIT_REJECTED, EXIT_USAGE
from tests.acceptance.rules.pools import WORK, laid_out, plan, steps, write
from tests.acceptance.stage import SOON_S, Stage, staged
from tests.processes import until
from tests.programs import YARD, Program, isolated_env

pytestmark = pytest.mark.xdist_group("pools")

# As the RFC has it: tabs before some weights, and the second cluster out of line.
SAMPLE = """\
    clusters:
       poolNameClusterMap:
        pool_1:
        - id: flyte-1-k8s
          weight: 1
        - id: flyte-2-k8s
\t      weight: 2
        pool_2:
        - id: flyte-3-k8s
\t      weight: 6
        - id : flyte-4-k8s
\t      weight: 99
      labelClusterMap:
        production:
        - id: flyte-1-k8s
          weight: 1
      clusterConfigs:
      - name: flyte-1-k8s
        endpoint: 127.0.0.1
        enabled: true
        auth:
          type: file_path
          tokenPath: /etc/…
          certPath: /etc/…
    - name: flyte-2-k8s
        endpoint: 127.0.0.2
        enabled: true
...
"""
MENDED = (
    SAMPLE.replace("\t      weight", "          weight")
    .replace("       poolNameClusterMap", "      poolNameClusterMap")
    .replace("    - name: flyte-2", "      - name: flyte-2")
)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with laid_out(tmp_path_factory.mktemp("pools")) as made:
        yield made


def refused_start(folder: Path, text: str) -> str:
    """What a server says that does not start with this file."""
    argv = [*YARD, "server", "--data", str(folder / "data"), "--http", "127.0.0.1:1", "--config", write(folder, text)]
    with Program(argv, folder, name="refused", env=isolated_env(folder)) as program:
        assert program.wait() == EXIT_USAGE, program.tail()
        return program.log


# --- the file


def test_the_sample_of_the_rfc_is_refused_with_line_and_column(tmp_path: Path) -> None:
    said = refused_start(tmp_path, SAMPLE)
    assert "line 7, column 1" in said


def test_the_sample_with_its_indentation_mended_loads(tmp_path: Path) -> None:
    with staged(tmp_path, extra=["--config", write(tmp_path, MENDED)]) as made:
        pools = {
            pool["name"]: {each["id"]: each["weight"] for each in pool["members"]} for pool in made.read("pool", "ls")
        }
        assert pools == {
            "pool_1": {"flyte-1-k8s": 1, "flyte-2-k8s": 2},
            "pool_2": {"flyte-3-k8s": 6, "flyte-4-k8s": 99},
        }
        assert "key=clusters.clusterConfigs[].auth" in made.server.log, "a key without use is said"
        assert made.health("flyte-1-k8s") == "down"
        assert "flyte-4-k8s" in made.server.log, "a member that nobody knows is said"
        answer = made.call("POST", "/v1/jobs", WORK | {"pool": "pool_2"})
        assert (answer.status, answer.json["next_step"]) == (400, "Known pools: pool_1.")
        assert made.submitted("true", pool="pool_1")["state"] == "PENDING"
        with made.agent("flyte-3-k8s"):
            assert plan(made, pool="pool_2")["chosen"] == "flyte-3-k8s"


def test_every_mistake_of_a_file_is_listed_at_once(tmp_path: Path) -> None:
    said = refused_start(
        tmp_path,
        """\
clusters:
  clusterConfigs: [{name: a}, {name: a}, {name: fit}]
  poolNameClusterMap:
    p: [{id: a, weight: -1}, {id: a}, {id: nobody}]
    q: [{id: a, weight: .inf}, {id: a, weight: .nan}]
  labelClusterMap: {l: [{id: nowhere, weight: 1.0e+99}]}
  defaultExecutionLabel: far
  clusterPoolAssignments: {mars: {pool: none}}
""",
    )
    for mistake in (
        "clusterConfigs: 'a' is given twice",
        "poolNameClusterMap.p[0].weight",
        "poolNameClusterMap.q[0].weight",
        "poolNameClusterMap.q[1].weight",
        "labelClusterMap.l[0].weight",
        "poolNameClusterMap.p: 'a' is given twice",
        "poolNameClusterMap.p: 'nobody' is not in clusterConfigs",
        "labelClusterMap.l: 'nowhere' is not in clusterConfigs",
    ):
        assert mistake in said, (mistake, said)


def test_names_that_lead_nowhere_are_listed_at_once(tmp_path: Path) -> None:
    said = refused_start(
        tmp_path,
        """\
clusters:
  clusterConfigs: [{name: a}, {name: a}, {name: fit}]
  poolNameClusterMap: {p: [{id: nobody}]}
  defaultExecutionLabel: far
  clusterPoolAssignments: {mars: {pool: none}}
""",
    )
    for mistake in (
        "'a' is given twice",
        "no cluster can be called fit",
        "'nobody' is not in clusterConfigs",
        "defaultExecutionLabel: labelClusterMap has no label 'far'",
        "clusterPoolAssignments.mars: there is no such domain",
        "there is no pool 'none'",
    ):
        assert mistake in said, (mistake, said)


def test_a_cluster_of_the_file_is_there_and_an_agent_takes_it_over(stage: Stage) -> None:
    assert stage.health("late") == "down"
    waiting = stage.submitted("true", pool="late")
    assert (waiting["state"], "no agent has joined" in waiting["reason"]) == ("PENDING", True)
    before = stage.get("/v1/clusters/late")["id"]
    with stage.agent("late"):
        ended = stage.ended(waiting["id"])
        assert (ended["state"], ended["cluster"]) == ("SUCCEEDED", "late")
        assert stage.get("/v1/clusters/late")["id"] == before


def test_a_cluster_that_is_not_enabled_is_cordoned_until_an_operator_says_otherwise(tmp_path: Path) -> None:
    text = "clusters: {clusterConfigs: [{name: dark, enabled: false}], poolNameClusterMap: {p: [{id: dark}]}}"
    with staged(tmp_path, extra=["--config", write(tmp_path, text)]) as made:
        with made.agent("dark", wait=False) as agent:
            agent.wait_for(lambda: made.get("/v1/clusters/dark").get("totals"), SOON_S, "it says what it has")
            assert made.health("dark") == "cordoned"
            held = made.submitted("true", pool="p")
            assert (held["state"], "does not enable it" in held["reason"]) == ("PENDING", True)
            made.yard("cluster", "uncordon", "dark", check=True)
            assert made.ended(held["id"])["state"] == "SUCCEEDED"
            made.server.restart()
            until(lambda: made.health("dark") == "up", SOON_S, "a restart does not undo what an operator did")


# --- at submit

ROWS: list[tuple[str, list[str], set[str], dict[str, str]]] = [
    ("pool", ["--pool", "ab"], {"a", "b"}, {"c": "pool"}),
    ("label", ["--cluster-label", "bc"], {"b", "c"}, {"a": "label"}),
    ("cluster", ["--cluster", "a"], {"a"}, {"b": "pin", "c": "pin"}),
    ("pool and label", ["--pool", "ab", "--cluster-label", "bc"], {"b"}, {"a": "label", "c": "pool"}),
    ("pool and cluster", ["--pool", "ab", "--cluster", "b"], {"b"}, {"a": "pin", "c": "pool"}),
    ("label and cluster", ["--cluster-label", "bc", "--cluster", "c"], {"c"}, {"a": "label", "b": "pin"}),
    ("zero weight", ["--cluster-label", "zero"], {"b"}, {"a": "weight", "c": "label"}),
    ("the pool weighs", ["--pool", "ab", "--cluster-label", "zero"], {"a", "b"}, {"c": "pool"}),
    ("the domain's pool", ["--domain", "staging"], {"b"}, {"a": "pool", "c": "pool"}),
    ("nothing in common", ["--pool", "ab", "--cluster", "c"], set(), {"a": "pin", "b": "pin", "c": "pool"}),
]


@pytest.mark.parametrize(("flags", "able", "no"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_what_is_chosen_at_submit_applies_together(
    stage: Stage, flags: list[str], able: set[str], no: dict[str, str]
) -> None:
    done = stage.yard("submit", "--plan", *flags, "-o", "json", "--", "true")
    assert done.returncode == (0 if able else EXIT_REJECTED), done.stderr
    fields = dict(zip(flags[::2], flags[1::2], strict=True))
    words = {"--pool": "pool", "--cluster-label": "cluster_label", "--cluster": "cluster", "--domain": "domain"}
    found = plan(stage, **{words[flag]: value for flag, value in fields.items()})
    said = {name: step for name, step in steps(found).items() if name in "abc"}
    assert {name for name, step in said.items() if step == "match"} == able
    assert {name: step for name, step in said.items() if step != "match"} == no
    assert found["chosen"] in (able or [None])


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--pool", "nope"], "Known pools: ab, bound, c, dark, ghost, late."),
        (["--cluster-label", "nope"], "Known labels: a, bc, zero."),
        (["--cluster", "nope"], "Known clusters: a, b, c, dark, late."),
        (["--pool", "ghost"], "Known pools: ab, bound, c, dark, late."),
    ],
)
def test_an_unknown_name_is_an_error_that_lists_the_known_ones(stage: Stage, flags: list[str], says: str) -> None:
    before = len(stage.walk("/v1/jobs", limit=500))
    done = stage.yard("submit", *flags, "--", "true")
    assert done.returncode == EXIT_USAGE
    assert says in done.stderr
    assert len(stage.walk("/v1/jobs", limit=500)) == before, "nothing is stored"


def test_another_pool_than_the_one_it_is_bound_to_is_refused(stage: Stage) -> None:
    answer = stage.call("POST", "/v1/jobs", WORK | {"domain": "staging", "pool": "ab"})
    assert answer.status == 422
    assert "asks for 'ab', and its scope is bound to 'bound' (platform config, domain staging)" in answer.json["detail"]


def test_an_empty_intersection_is_rejected_with_each_clusters_reason(stage: Stage) -> None:
    with Client(stage.url) as client:
        made = client.submit(["true"], pool="c", cluster_label="a").refresh()
    assert made.state == "REJECTED"
    for part in ("c: not under label a", "a: not in pool c", "b: not in pool c"):
        assert part in made.reason
    said = stage.yard("explain", made.id, check=True).stdout
    assert "not under label a" in said
    assert "label bc (c)" in said or "pool ab (a)" in said


def test_the_shares_of_a_plan_follow_the_weights(stage: Stage) -> None:
    count = 100  # tests/route/test_draw.py draws thousands
    drawn = Counter(plan(stage, pool="ab")["chosen"] for _ in range(count))
    assert set(drawn) == {"a", "b"}
    # One degree of freedom: a fair draw is above 26 once in three million runs.
    assert (drawn["b"] - count * 3 / 4) ** 2 / (count * 3 / 16) < 26, drawn
