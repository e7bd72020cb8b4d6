"""One caller holds no other up: the event loop's longest pause under each request that is meant to cause one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile import CHEAP_S, HOSTILE, Hostile, Target, measure
from tests.programs import call, start_server
from tests.services import Postgres
from tests.store.prepared import migrated

pytestmark = pytest.mark.xdist_group("loop_pauses")

# Of CPU time, so that a busy machine does not count. The aim is 50 ms, and `python -m bench pauses` measures it; a slow
# machine may need some times as much.
PAUSE_S = 0.25
# Another row goes through the same reader, or through the same handler with as much.
LATER = {
    "job: 2,700,000 empty words",
    "job: 500,000 variables",
    "job: 1,000,000 objects",
    "job: text with escapes",
    "job: large by right",
    "answer: the API's description",
    "job: 16 KiB of objects",
    "plan: 1,000,000 objects",
    "quotes: 500,000 variables",
    "bulk: 60 MiB of numbers",
    "user: 1 MiB of fields",
    "pool: 1 MiB of members",
    "http: 5,000 parameters",
    "http: 4 times 5,000 requests in a row",
}
EACH = [pytest.param(each, id=each.name, marks=[pytest.mark.slow] if each.name in LATER else []) for each in HOSTILE]
ON_POSTGRES = [each for each in HOSTILE if each.name in ("job: 1,000,000 objects, 4 at once", "bulk: 20,000 jobs")]


def joined(url: str) -> Target:
    request = {"cluster": "bench", "name": "hostile", "journal": "hostile", "backend": "fake"}
    answer = call("POST", f"{url}/v1/agents/join", request)
    assert answer.status == 201, answer.body
    credential = answer.json["credential"]
    graph = {"shapes": [{"type": "core"}, {"type": "node", "children": [[0, 1000]]}]}
    told = {"incarnation": "hostile", "inventory": [], "graph": graph}
    assert call("POST", f"{url}/v1/agents/poll", told, token=credential).status == 200
    return Target(url, credential)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with start_server(tmp_path_factory.mktemp("pauses"), is_warm=False) as server:  # it measures pauses to 10 ms
        yield joined(server.url)


def refuse_pause(target: Target, hostile: Hostile) -> None:
    seen = measure(target, hostile, below_s=PAUSE_S)
    assert set(seen.statuses) <= hostile.may
    assert len(seen.statuses) == hostile.at_once
    assert seen.pause.cpu_s < PAUSE_S, f"the loop stood still for {seen.pause}"
    assert seen.cheap_s < CHEAP_S, "another's cheap request waited"


@pytest.mark.parametrize("hostile", EACH)
def test_a_hostile_request_does_not_stop_the_loop(target: Target, hostile: Hostile) -> None:
    refuse_pause(target, hostile)


@pytest.mark.slow  # what reads requests does not know the database, and writes are not made in the loop
@pytest.mark.parametrize("hostile", ON_POSTGRES, ids=lambda each: each.name)
def test_nor_on_postgresql(postgres: Postgres, tmp_path: Path, hostile: Hostile) -> None:
    with start_server(tmp_path, database=migrated(postgres), is_warm=False) as server:
        refuse_pause(joined(server.url), hostile)
