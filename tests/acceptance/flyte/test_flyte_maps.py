"""Map tasks: one array for all elements, on a local cluster. Those of flytekit, and many bad days by lines of shell."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.flyte.flyte_site import RUNS_S, FlyteSite, difference, flyte_site, sqlite_first
from tests.acceptance.flyte.shell_flows import (
    HERE,
    INTS,
    an_error,
    bound,
    ended,
    good,
    jobs_of,
    map_node,
    nodes_of,
    outputs_of,
    start,
    task,
    tasks_of,
    workflow,
)
from tests.processes import PATIENCE_S, until
from tests.soak import SOAKED
from tests.workflow.corpus import FOLDER

pytestmark = pytest.mark.timeout(340)  # each task starts flytekit
INDEX = "$FLYTE_K8S_ARRAY_INDEX"
ELEMENTS_MAX = 100_000  # of one map
NO_SLEEP_S = PATIENCE_S * 10  # nobody waits for it


@pytest.mark.parametrize(("module", "maps"), [("09_map", 3), SOAKED("10_map_partial", 4)])  # partial: below, in shell
def test_maps_of_the_corpus_end_as_they_do_in_flyte(tmp_path: Path, module: str, maps: int) -> None:
    with flyte_site(tmp_path) as site:
        shutil.copy(FOLDER / f"{module}.py", tmp_path / "flows")
        site.register(bundle=False)
        results = site.run(module)
        assert [wrong for found in results if (wrong := difference(found))] == []
        arrays = [job for job in site.doors.v1("GET", "/v1/jobs")["items"] if job.get("array")]
        assert len(arrays) == maps, "one array for each map that is not empty"


def test_maps_on_good_and_bad_days(tmp_path: Path) -> None:
    """One site for all: each case is an execution of its own."""
    with flyte_site(tmp_path) as site:
        for case in (
            retried_elements,
            a_failed_map,
            a_stopped_map,
            an_element_over_its_time,
            too_few_successes,
            lists_that_differ,
            a_ratio_that_is_none,
        ):
            case(site)


@pytest.mark.slow  # seconds of processor time; the bound is in tests/workflow/test_maps.py, too
def test_a_map_of_a_hundred_thousand_elements(tmp_path: Path) -> None:
    with flyte_site(tmp_path) as site:
        a_huge_map(site)


def a_map(site: FlyteSite, name: str, script: str, *, inner: Any = None, retries: int = 0, **array: Any) -> None:
    task(site, name, script, inputs={"n": INTS}, output=INTS, retries={"retries": retries})
    node = map_node("n0", name, [bound("n", "", "n")], inner=inner, **array)
    good(workflow(site, name, [node], inputs={"n": INTS}, outputs={"o": (INTS, "n0", "o0")}))


def retried_elements(site: FlyteSite) -> None:
    """Elements 1 and 3 fail at first, 3 once more. Each is tried again alone."""
    fails = f"{{ [ {INDEX} = 1 ] || [ {INDEX} = 3 ]; }} && [ $FLYTE_ATTEMPT_NUMBER = 0 ]"
    more = f"[ {INDEX} = 3 ] && [ $FLYTE_ATTEMPT_NUMBER = 1 ]"
    error = an_error("once more", is_recoverable=True)
    a_map(site, "again", f"if {{ {fails}; }} || {{ {more}; }}; then {error}; fi; give {INDEX}", retries=2)
    good(start(site, "again", "again", {"n": [0] * 5}))
    assert ended(site, "again")["phase"] == "SUCCEEDED"
    assert outputs_of(site, "again") == {"o": [0, 1, 2, 3, 4]}
    assert [job["array"] for job in sorted(jobs_of(site, "again"), key=lambda job: job["id"])] == ["0-4", "1,3", "3"]
    attempts = tasks_of(site, "again", "n0")
    assert [one["closure"]["phase"] for one in attempts] == ["SUCCEEDED"] * 3
    assert nodes_of(site, "again")["n0"]["metadata"]["is_array"]
    elements = attempts[-1]["closure"]["metadata"]["external_resources"]
    assert [(one.get("index", 0), one["phase"], one.get("retry_attempt", 0)) for one in elements] == [
        *((0, "SUCCEEDED", 0), (1, "SUCCEEDED", 1), (2, "SUCCEEDED", 0), (3, "SUCCEEDED", 2), (4, "SUCCEEDED", 0)),
    ]


def a_failed_map(site: FlyteSite) -> None:
    """The failure of one element ends the others, also those that have not begun."""
    error = an_error("unlucky", is_recoverable=False)
    a_map(site, "failing", f"if [ {INDEX} = 1 ]; then {error}; fi; sleep {NO_SLEEP_S}")
    good(start(site, "failing", "failing", {"n": [0] * 50}))
    over = ended(site, "failing")
    assert over["phase"] == "FAILED"
    assert "Element 1: unlucky" in over["error"]["message"]
    (job,) = jobs_of(site, "failing")
    assert job["state"] == "CANCELLED", "the execution is not over before its array"


def a_stopped_map(site: FlyteSite) -> None:
    a_map(site, "stopped", f"sleep {NO_SLEEP_S}", parallelism=2)
    good(start(site, "stopped", "stopped", {"n": [0] * 9}))
    until(lambda: any(job["state"] == "RUNNING" for job in jobs_of(site, "stopped")), PATIENCE_S, "it runs")
    (job,) = jobs_of(site, "stopped")
    assert job["array"] == "0-8%2" or job["tasks"]["live"] <= 2
    good(site.doors.by_grpc("TerminateExecution", {"id": {**HERE, "name": "stopped"}}))
    assert ended(site, "stopped")["phase"] == "ABORTED"
    assert nodes_of(site, "stopped")["n0"]["closure"]["phase"] == "ABORTED"
    (job,) = jobs_of(site, "stopped")
    assert job["state"] == "CANCELLED"


def an_element_over_its_time(site: FlyteSite) -> None:
    script = f"if [ {INDEX} = 0 ]; then sleep {NO_SLEEP_S}; fi; give {INDEX}"
    a_map(site, "slow", script, inner={"timeout": "1s"}, min_successes=1)
    good(start(site, "slow", "slow", {"n": [0, 0]}))
    assert ended(site, "slow")["phase"] == "SUCCEEDED"
    assert outputs_of(site, "slow") == {"o": [None, 1]}


def too_few_successes(site: FlyteSite) -> None:
    a_map(site, "greedy", f"give {INDEX}", min_successes=3)
    good(start(site, "greedy", "greedy", {"n": [0, 0]}))
    assert "min_successes is 3" in ended(site, "greedy")["error"]["message"]


def lists_that_differ(site: FlyteSite) -> None:
    task(site, "two", "give 1", inputs={"a": INTS, "b": INTS}, output=INTS)
    node = map_node("n0", "two", [bound("a", "", "a"), bound("b", "", "b")])
    good(workflow(site, "two", [node], inputs={"a": INTS, "b": INTS}, outputs={"o": (INTS, "n0", "o0")}))
    good(start(site, "two", "two", {"a": [1], "b": [1, 2]}))
    over = ended(site, "two")
    assert (over["phase"], over["error"]["code"]) == ("FAILED", "InvalidArrayLength")
    assert jobs_of(site, "two") == []


def a_ratio_that_is_none(site: FlyteSite) -> None:
    for word, ratio in (("nan", "NaN"), ("high", 1.5)):
        a_map(site, word, "give 1", min_success_ratio=ratio)
        said = start(site, word, word, {"n": [1]})
        assert (said.code, "min_success_ratio" in said.message) == ("UNIMPLEMENTED", True)


def a_huge_map(site: FlyteSite) -> None:
    """100,000 elements are one array, which stops at once; one more is refused by its size."""
    a_map(site, "huge", f"sleep {NO_SLEEP_S}")
    good(start(site, "huge", "huge", {"n": [1] * ELEMENTS_MAX}))
    until(lambda: [job["state"] for job in jobs_of(site, "huge")] == ["RUNNING"], PATIENCE_S, "it runs")
    good(site.doors.by_grpc("TerminateExecution", {"id": {**HERE, "name": "huge"}}))
    assert ended(site, "huge")["phase"] == "ABORTED"
    good(start(site, "larger", "huge", {"n": [1] * (ELEMENTS_MAX + 1)}))
    assert f"the most is {ELEMENTS_MAX}" in ended(site, "larger")["error"]["message"]
    assert jobs_of(site, "larger") == []


@sqlite_first
def test_a_killed_server_repeats_no_element(tmp_path: Path, database_url: str) -> None:
    with flyte_site(tmp_path, database=database_url) as site:
        notes = tmp_path / "notes"
        notes.touch()
        error = an_error("once more", is_recoverable=True)
        fails = f"if [ {INDEX} = 7 ] && [ $FLYTE_ATTEMPT_NUMBER = 0 ]; then {error}; fi"
        a_map(site, "killed", f"echo {INDEX}.$FLYTE_ATTEMPT_NUMBER >> {notes}; {fails}; give {INDEX}", retries=1)
        good(start(site, "killed", "killed", {"n": [0] * 12}))
        for count in (0, 5, 12):
            until(lambda count=count: len(noted(notes)) >= count, RUNS_S, f"{count} elements have run")
            site.server.kill()
            site.server.restart()
        assert ended(site, "killed", RUNS_S)["phase"] == "SUCCEEDED"
        assert outputs_of(site, "killed") == {"o": list(range(12))}
        assert Counter(noted(notes)) == Counter([*(f"{index}.0" for index in range(12)), "7.1"])
        assert len(jobs_of(site, "killed")) == 2


def noted(file: Path) -> list[str]:
    return file.read_text().splitlines()
