"""Cached tasks: hits, misses, and equal tasks at once of which one runs."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.flyte.flyte_site import RUNS_S, FlyteSite, difference, flyte_site, sqlite_first
from tests.acceptance.flyte.shell_flows import (
    INT,
    an_error,
    constant,
    ended,
    good,
    jobs_of,
    nodes_of,
    plan,
    start,
    task,
    task_node,
    workflow,
)
from tests.processes import until
from tests.workflow.corpus import FOLDER

pytestmark = pytest.mark.timeout(340)  # each task starts flytekit
CACHED: dict[str, Any] = {"discoverable": True, "discovery_version": "1"}
SERIAL: dict[str, Any] = {**CACHED, "cache_serializable": True}


@pytest.mark.slow  # flytekit sends no more than the tasks of the next test do
def test_cached_tasks_of_the_corpus_end_as_they_do_in_flyte(tmp_path: Path) -> None:
    with flyte_site(tmp_path) as site:
        for module in ("19_cache", "20_cache_serial"):
            shutil.copy(FOLDER / f"{module}.py", tmp_path / "flows")
        site.register(bundle=False)
        results = site.run("20_cache_serial", "19_cache")
        assert [wrong for found in results if (wrong := difference(found))] == []


def test_the_cache_on_good_and_bad_days(tmp_path: Path) -> None:
    with flyte_site(tmp_path) as site:
        for case in (
            a_hit_and_an_overwrite,
            one_after_the_other,
            a_failed_task_is_not_cached,
            a_holder_that_fails_lets_the_next_one_run,
        ):
            case(site, tmp_path)


def a_flow(site: FlyteSite, name: str, script: str, *, nodes: int = 1, **metadata: Any) -> None:
    task(site, name, script, inputs={"n": INT}, **metadata)
    good(workflow(site, name, [task_node(f"n{number}", name, [constant("n", 1)]) for number in range(nodes)]))


def statuses(site: FlyteSite, name: str) -> list[str]:
    nodes = nodes_of(site, name).values()
    return sorted(one["closure"].get("task_node_metadata", {}).get("cache_status", "") for one in nodes)


def a_hit_and_an_overwrite(site: FlyteSite, folder: Path) -> None:
    notes = folder / "hits"
    a_flow(site, "hit", f"echo ran >> {notes}; give 1", **CACHED)
    plan(site, "anew", "hit", overwrite_cache=True)
    for name, launched, is_anew, status, runs in (
        ("first", "hit", False, "CACHE_POPULATED", 1),
        ("second", "hit", False, "CACHE_HIT", 1),
        ("third", "hit", True, "CACHE_POPULATED", 2),
        ("fourth", "anew", False, "CACHE_POPULATED", 3),
        ("fifth", "hit", False, "CACHE_HIT", 3),
    ):
        good(start(site, name, launched, overwrite_cache=is_anew))
        assert ended(site, name)["phase"] == "SUCCEEDED"
        assert (statuses(site, name), len(noted(notes))) == ([status], runs)
    assert jobs_of(site, "second") == []
    key = nodes_of(site, "fifth")["n0"]["closure"]["task_node_metadata"]["catalog_key"]
    assert key["source_task_execution"]["node_execution_id"]["execution_id"]["name"] == "fourth"


def one_after_the_other(site: FlyteSite, folder: Path) -> None:
    """The second node begins in the step that stores the outputs of the first one."""
    notes = folder / "twice"
    task(site, "twice", f"echo ran >> {notes}; give 1", inputs={"n": INT}, **CACHED)
    nodes = [task_node(f"n{number}", "twice", [constant("n", 1)]) for number in range(2)]
    good(workflow(site, "twice", [nodes[0], {**nodes[1], "upstream_node_ids": ["n0"]}]))
    good(start(site, "twice", "twice"))
    assert ended(site, "twice")["phase"] == "SUCCEEDED"
    assert (statuses(site, "twice"), noted(notes)) == (["CACHE_HIT", "CACHE_POPULATED"], ["ran"])


def a_failed_task_is_not_cached(site: FlyteSite, folder: Path) -> None:
    a_flow(site, "fails", an_error("bad", is_recoverable=False), **CACHED)
    for name in ("fails-1", "fails-2"):
        good(start(site, name, "fails"))
        assert ended(site, name)["phase"] == "FAILED"
        assert len(jobs_of(site, name)) == 1


def a_holder_that_fails_lets_the_next_one_run(site: FlyteSite, folder: Path) -> None:
    """Three at once: the first one fails, with a retry that keeps the key; the second one runs, the third has a hit."""
    notes = folder / "holders"
    error = an_error("bad", is_recoverable=True)
    script = f"echo $FLYTE_INTERNAL_EXECUTION_ID >> {notes}; [ $(wc -l < {notes}) -gt 2 ] || {{ {error}; }}; give 1"
    a_flow(site, "holder", script, retries={"retries": 1}, **SERIAL)
    names = ("holder-1", "holder-2", "holder-3")
    for name in names:
        good(start(site, name, "holder"))
    phases = sorted(ended(site, name)["phase"] for name in names)
    assert phases == ["FAILED", "SUCCEEDED", "SUCCEEDED"]
    assert sorted(Counter(noted(notes)).values()) == [1, 2]
    assert sorted(statuses(site, name)[0] for name in names) == ["CACHE_HIT", "CACHE_MISS", "CACHE_POPULATED"]


@sqlite_first
def test_a_killed_server_holds_no_key_for_ever(tmp_path: Path, database_url: str) -> None:
    with flyte_site(tmp_path, database=database_url) as site:
        notes = tmp_path / "notes"
        notes.touch()
        a_flow(site, "serial", f"echo ran >> {notes}; sleep 3; give 1", nodes=4, **SERIAL)
        good(start(site, "killed", "serial"))
        for count in (0, 1):
            until(lambda count=count: len(noted(notes)) >= count, RUNS_S, f"{count} tasks have run")
            site.server.kill()
            site.server.restart()
        assert ended(site, "killed", RUNS_S)["phase"] == "SUCCEEDED"
        assert noted(notes) == ["ran"]
        assert statuses(site, "killed") == [*["CACHE_HIT"] * 3, "CACHE_POPULATED"]


def noted(file: Path) -> list[str]:
    return file.read_text().splitlines()
