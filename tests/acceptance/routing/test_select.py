"""How one cluster is selected of those that can run a job, from outside: algorithms, their options, clusters' state."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from switchyard import Client
from switchyard.errors import EXIT_USAGE
from switchyard.model.job.job import State
from tests.acceptance.stage import SOON_S, Fields, Stage, staged
from tests.processes import until
from tests.programs import isolated_env, yard

pytestmark = pytest.mark.xdist_group("select")

CHEAPEST = """\
priorities:
- priority: 1
  steps:
  - filter: nodes_wanted <= 4 && site != 'closed'
  - calc: total=cost_per_node_hour * nodes_wanted
  - sort_ascending: total
  - select: first
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Three clusters of 8, 4 and 2 cores; what `a` costs its own agent says, the others were told by hand."""
    folder = tmp_path_factory.mktemp("stage")
    site = folder / "site.yaml"
    site.write_text("cost_per_node_hour: 5\nsite: north\nhas_tape: true\n")
    with (
        staged(folder) as made,
        made.agent("a", cores=8, extra=["--state", str(site)]),
        made.agent("b"),
        made.agent("c", cores=2),
    ):
        made.yard("cluster", "set-state", "b", "cost_per_node_hour=3", "site=south", check=True)
        made.yard("cluster", "set-state", "c", "cost_per_node_hour=1.5", "site=closed", check=True)
        yield made


def constraint(*steps: Fields) -> Fields:
    return {"name": "constraint", "options": {"priorities": [{"priority": 1, "steps": list(steps)}]}}


def plan(stage: Stage, select: Fields | None, **fields: Any) -> Fields:
    body = {"spec": {"command": ["true"]}, **fields, **({"select": select} if select else {})}
    made: Fields = stage.post("/v1/plan", body)
    return made


def reasons(found: Fields) -> dict[str, tuple[str, str, str]]:
    return {each["cluster"]: (each["say"], each["step"], each.get("reason", "")) for each in found["verdicts"]}


def state_of(stage: Stage, cluster: str) -> dict[str, Any]:
    return {each["name"]: each["value"] for each in stage.get(f"/v1/clusters/{cluster}")["state"]}


def test_constraint_by_cli_file_and_parameters_picks_the_cheapest_and_says_why(stage: Stage, tmp_path: Path) -> None:
    options = tmp_path / "cheapest.yaml"
    options.write_text(CHEAPEST)
    flags = ["--select", "constraint", "--select-options", str(options), "--parameter", "nodes_wanted=2"]
    found = stage.read("submit", "--plan", *flags, "--", "true")
    assert (found["chosen"], found["algorithm"]) == ("b", "constraint")
    said = reasons(found)
    assert said["b"][:2] == ("yes", "select")
    assert "constraint, priority 1: first of 2 by total = 6" in said["b"][2]
    assert said["c"][:2] == ("wait", "select")
    assert "step 1 (filter nodes_wanted <= 4 && site != 'closed'): is false" in said["c"][2]
    job = stage.yard("submit", *flags, "-o", "name", "--", "true", check=True).stdout.strip()
    assert stage.ended(job)["cluster"] == "b"
    explained = stage.read("explain", job)
    assert explained["plan"]["algorithm"] == "constraint"
    assert reasons(explained["plan"])["c"] == said["c"]
    text = stage.yard("explain", job, check=True).stdout
    assert "Selected by constraint." in text
    assert "first of 2 by total = 6" in text


def test_the_sdk_and_a_job_file_say_the_same(stage: Stage, tmp_path: Path) -> None:
    steps = [{"sort_descending": "cost_per_node_hour"}, {"select": "first"}]
    with Client(stage.url) as client:
        assert client.plan("true", select=constraint(*steps)).chosen == "a"
        assert client.plan("true", select="least-loaded").algorithm == "least-loaded"
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps({"command": ["true"], "select": constraint(*steps), "parameters": {"x": 1}}))
    assert stage.read("submit", "--plan", "-f", str(file))["chosen"] == "a"


def test_a_jobspec_brings_its_parameters(stage: Stage, tmp_path: Path) -> None:
    spec = {
        "version": 1,
        "resources": {"work": {"type": "node", "replicas": 1, "with": [{"type": "core", "count": 1}]}},
        "tasks": [{"command": ["true"], "resources": "work"}],
        "attributes": {"parameter": {"wanted": "south"}},
    }
    file, options = tmp_path / "spec.json", tmp_path / "options.yaml"
    file.write_text(json.dumps(spec))
    options.write_text("priorities: [{priority: 1, steps: [{filter: site == wanted}, {select: first}]}]")
    flags = ["--select", "constraint", "--select-options", str(options)]
    assert stage.read("submit", "--plan", *flags, "-f", str(file))["chosen"] == "b"


def test_random_draws_each(stage: Stage) -> None:
    found = [plan(stage, {"name": "random"}) for _ in range(60)]
    assert {each["algorithm"] for each in found} == {"random"}
    assert set(Counter(each["chosen"] for each in found)) == {"a", "b", "c"}


def test_many_at_once_are_selected_each_by_its_own_parameters(stage: Stage) -> None:
    job = {"spec": {"command": ["true"]}, "select": constraint({"filter": "site == where"}), "labels": {"run": "many"}}
    jobs = [{**job, "parameters": {"where": where}} for where in ("north", "south", "closed") * 20]
    made = stage.post("/v1/jobs/bulk", {"jobs": jobs})
    assert [item["job"]["cluster"] for item in made["items"]] == ["a", "b", "c"] * 20
    many = [{**job, "parameters": {"where": str(number)}} for number in range(300)]
    refused = stage.call("POST", "/v1/jobs/bulk", {"jobs": many})
    assert (refused.status, "300 different selections" in refused.json["detail"]) == (400, True)
    for item in made["items"]:
        stage.ended(item["job"]["id"])


def test_least_loaded_goes_where_the_largest_share_is_free(stage: Stage) -> None:
    holding = [stage.submit("sleep", "600", cluster=name, spec={"resources": {"cores": cores}}) for name, cores in
               (("a", 6), ("b", 1), ("c", 2))]  # fmt: skip
    for job in holding:
        stage.until_state(job, State.RUNNING)
    until(lambda: state_of(stage, "b").get("free_cores") == 3, SOON_S, "b says that 3 cores are free")
    until(lambda: state_of(stage, "a").get("free_cores") == 2, SOON_S, "a says that 2 cores are free")
    found = plan(stage, {"name": "least-loaded"})
    assert found["chosen"] == "b"
    assert "least loaded: 3 of 4 cores free, 0 queued" in reasons(found)["b"][2]
    for job in holding:
        stage.yard("cancel", job, check=True)
        stage.ended(job)


def test_nobody_passes_the_job_waits_with_reasons_and_goes_when_the_state_changes(stage: Stage) -> None:
    made = stage.submitted("true", select=constraint({"filter": "open_for_tests == true"}, {"select": "first"}))
    assert made["state"] == "PENDING"
    assert "no clusters passed selection (constraint)" in made["reason"]
    assert "a: priority 1, step 1 (filter open_for_tests == true): there is no 'open_for_tests'" in made["reason"]
    said = reasons(stage.read("explain", made["id"])["plan"])
    assert {name: each[:2] for name, each in said.items()} == dict.fromkeys("abc", ("wait", "select"))
    stage.yard("cluster", "set-state", "c", "open_for_tests=true", check=True)
    assert stage.ended(made["id"])["cluster"] == "c"
    stage.yard("cluster", "set-state", "c", "open_for_tests=", check=True)
    assert "open_for_tests" not in state_of(stage, "c")


def test_what_one_job_reckons_no_other_sees(stage: Stage) -> None:
    making = constraint({"calc": "leak=1"}, {"select": "first"})
    assert plan(stage, making)["outcome"] == "assign"
    assert plan(stage, constraint({"filter": "leak == 1"}))["outcome"] == "hold"
    assert "leak" not in state_of(stage, "a")
    naked = stage.call("POST", "/v1/plan", {"spec": {"command": ["true"]}, "select": {"name": "constraint"}})
    assert (naked.status, naked.json["code"]) == (400, "malformed")
    assert "requires priorities" in naked.json["detail"]
    assert plan(stage, None)["algorithm"] == "weighted"


def test_a_retry_selects_as_the_job_did(stage: Stage) -> None:
    first = stage.submit("true", select=constraint({"filter": "site == where"}), parameters={"where": "south"})
    assert stage.ended(first)["cluster"] == "b"
    again = stage.post(f"/v1/jobs/{first}/retry", {})["id"]
    assert stage.ended(again)["cluster"] == "b"


BAD: list[tuple[str, Any, str, str]] = [
    ("an unknown algorithm", {"name": "fastest"}, "unknown-name", "'fastest'"),
    ("an option of one that has none", {"name": "soonest", "options": {"by": 1}}, "malformed", "takes none"),
    ("no name", {}, "malformed", "name"),
    ("a field nobody knows", {"name": "random", "seed": 1}, "malformed", "seed"),
    ("an option nobody knows", {"name": "random", "options": {"seed": 1}}, "malformed", "takes none"),
    ("too many options", {"name": "random", "options": {str(n): 1 for n in range(100)}}, "malformed", "length"),
    ("options too large", {"name": "random", "options": {"x": "y" * 20_000}}, "malformed", "16384 bytes"),
    ("a step cut short", constraint({"filter": "x >"}), "malformed", "step 1 (filter x >)"),
    ("an attribute", constraint({"filter": "x.__class__ == 1"}), "malformed", "no attributes"),
    ("a call", constraint({"filter": "open('f') == 1"}), "malformed", "undefined function open"),
    ("a loop", constraint({"calc": "x=while true do"}), "malformed", "unexpected 'true'"),
    ("2,000 variables", constraint({"filter": "+".join(f"v{n}" for n in range(2000))}), "malformed", "at most"),
    ("10,000 variables", constraint({"filter": "+".join(f"v{n}" for n in range(10_000))}), "malformed", "16384 bytes"),
    ("200 steps", constraint(*[{"filter": "true"}] * 200), "malformed", "steps; at most"),
    ("10,000 steps", constraint(*[{"filter": "true"}] * 10_000), "malformed", "16384 bytes"),
    ("a filter that is a number", constraint({"filter": "cost_per_node_hour"}), "bad-request", "cluster a: filter"),
    ("deep", constraint({"filter": "(" * 500 + "x" + ")" * 500}), "malformed", "nested deeper"),
]  # fmt: skip


@pytest.mark.parametrize(("_title", "select", "code", "said"), BAD, ids=[row[0] for row in BAD])
def test_bad_selections_are_refused_and_nothing_is_stored(
    stage: Stage, _title: str, select: Any, code: str, said: str
) -> None:
    before = len(stage.walk("/v1/jobs", limit=500))
    answer = stage.call("POST", "/v1/jobs", {"spec": {"command": ["true"]}, "select": select})
    assert (answer.status, answer.json["code"]) == (400, code)
    assert said in answer.json["detail"]
    assert len(stage.walk("/v1/jobs", limit=500)) == before


def test_division_by_zero_drops_that_cluster_alone(stage: Stage) -> None:
    found = plan(stage, constraint({"calc": "y=1/(cost_per_node_hour - 3)"}, {"select": "last"}))
    assert found["chosen"] == "c"
    assert "step 1 (calc y=1/(cost_per_node_hour - 3)): division by zero" in reasons(found)["b"][2]


BAD_VALUES: list[tuple[Any, str]] = [
    ({"a b": 1}, "not"),
    ({"": 1}, "not"),
    ({"x": [1]}, "Expected"),
    ({"x": {"y": 1}}, "Expected"),
    ({"x": "a\nb"}, "Control characters"),
    ({"x": "y" * 300}, "length"),
    ({"x": 2**70}, "9223372036854775807"),
    ({f"v{n}": 1 for n in range(65)}, "length"),
]


@pytest.mark.parametrize(("values", "_said"), BAD_VALUES)
def test_bad_values_are_refused_as_parameters_and_as_state(stage: Stage, values: Any, _said: str) -> None:
    job = stage.call("POST", "/v1/jobs", {"spec": {"command": ["true"]}, "parameters": values})
    state = stage.call("PATCH", "/v1/clusters/c", {"state": values})
    assert (job.status, job.json["code"]) == (state.status, state.json["code"]) == (400, "malformed")


def test_a_cluster_shows_what_is_known_with_age_and_source(stage: Stage) -> None:
    values = {each["name"]: each for each in stage.get("/v1/clusters/a")["state"]}
    assert {name: values[name]["value"] for name in ("cost_per_node_hour", "site", "has_tape", "free_cores")} == {
        "cost_per_node_hour": 5, "site": "north", "has_tape": True, "free_cores": 8,
    }  # fmt: skip
    assert values["site"]["by"].startswith("agent a")
    assert values["site"]["at_us"] > 0
    shown = stage.yard("cluster", "show", "a", check=True).stdout
    assert "cost_per_node_hour" in shown
    assert "stale" not in shown
    assert "state" not in stage.get("/v1/clusters")["items"][0]


def test_the_site_s_file_is_read_again_and_a_broken_one_changes_nothing(stage: Stage) -> None:
    site = stage.folder / "site.yaml"
    before, log = site.read_text(), stage.folder / "agent-a-agent.log"
    syncs = log.read_text().count("event=synced")
    site.write_text("cost_per_node_hour: 6\nsite: north\nhas_tape: true\n")
    until(lambda: state_of(stage, "a")["cost_per_node_hour"] == 6, SOON_S, "the agent says the new cost")
    site.write_text("cost_per_node_hour: [")
    until(lambda: "event=state-file" in log.read_text(), SOON_S, "the agent says that it cannot read the file")
    assert state_of(stage, "a")["cost_per_node_hour"] == 6
    site.write_text(before)
    until(lambda: state_of(stage, "a")["cost_per_node_hour"] == 5, SOON_S, "and the old one again")
    assert log.read_text().count("event=synced") == syncs, "it is a word, and not all that the agent holds"


def test_by_hand_wins_over_the_agent_until_taken_away(stage: Stage) -> None:
    set_ = stage.read("cluster", "set-state", "a", "cost_per_node_hour=9")
    value = next(each for each in set_["state"] if each["name"] == "cost_per_node_hour")
    assert (value["value"], value["by"]) == (9, "local-admin")
    stage.yard("cluster", "set-state", "a", "cost_per_node_hour=", check=True)
    assert state_of(stage, "a")["cost_per_node_hour"] == 5


def test_the_cli_says_what_goes_together(stage: Stage) -> None:
    alone = stage.yard("submit", "--select-option", "a=1", "--", "true")
    assert (alone.returncode, "go with --select" in alone.stderr) == (EXIT_USAGE, True)
    assert stage.yard("cluster", "set-state", "a", "novalue").returncode == EXIT_USAGE


def config(tmp_path: Path, text: str) -> list[str]:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    return ["--config", str(file)]


def test_the_server_s_own_choice_holds_where_a_job_does_not_say_and_old_news_are_ignored(tmp_path: Path) -> None:
    """The agent is stopped: what it said grows older than the bound, is marked, and by this config not used."""
    text = """\
selection:
  name: constraint
  stale: ignore
  stale_after: 1s
  options:
    priorities:
    - {priority: 1, steps: [{filter: free_cores >= 1}, {select: first}]}
    - {priority: 2, steps: [{calc: seen=false}, {filter: "!seen"}, {select: last}]}
"""
    with staged(tmp_path, extra=config(tmp_path, text)) as made, made.agent("a") as agent, made.agent("b"):

        def is_stale() -> bool:
            return any(each.get("is_stale") for each in made.get("/v1/clusters/a")["state"])

        agent.pause()
        until(is_stale, SOON_S, "what a said is marked as stale")
        assert "stale" in made.yard("cluster", "show", "a", check=True).stdout
        found = plan(made, None, cluster="a")
        assert (found["chosen"], found["algorithm"]) == ("a", "constraint")
        assert "priority 2" in reasons(found)["a"][2]
        assert plan(made, {"name": "constraint"}, cluster="a")["chosen"] == "a"
        assert plan(made, {"name": "weighted"})["algorithm"] == "weighted"
        agent.resume()


BAD_CONFIG = [
    ("name: fastest", "There is no selection algorithm 'fastest'"),
    ("name: constraint", "requires priorities"),
    ("{name: random, options: {seed: 1}}", "no option 'seed'"),
    ("{name: constraint, options: {priorities: [{steps: [{shuffle: x}]}]}}", "there is no step 'shuffle'"),
    ("stale: maybe", "selection.stale"),
    ("stale_after: soon", "is not a duration"),
]


@pytest.mark.parametrize(("section", "said"), BAD_CONFIG)
def test_a_wrong_section_stops_the_start(tmp_path: Path, section: str, said: str) -> None:
    indent = section if section.startswith("{") else f"\n  {section}"
    flags = ["--no-auth", "--http", "127.0.0.1:0", "--data", str(tmp_path)]
    done = yard("server", *flags, *config(tmp_path, f"selection: {indent}\n"), env=isolated_env(tmp_path))
    assert done.returncode == EXIT_USAGE
    assert said in done.stderr
