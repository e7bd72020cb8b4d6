"""The order of a run with several workers: tests that wait beside tests that compute, and long tests first.

Tests of whole programs mostly wait: for a leader's term to end, for silence to be noticed, for Slurm. Tests within one
process compute. In the order of the files all workers would wait together first, with idle cores, and compute together
later. Here the run takes from three lanes at the same pace, measured in expected seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

HERE = Path(__file__).resolve().parent
SHARING = ('scope="module"', "xdist_group(")  # the second for files that use a module's fixture of a conftest.py

# Expected seconds of one test, by the longest prefix that fits. Rough is enough: a long test that begins last is what
# costs time, since the other workers have nothing left to do.
SECONDS = {
    "": 0.15,
    "acceptance/": 3.0,
    "acceptance/test_again": 10.0,
    "acceptance/test_arrays": 10.0,
    "acceptance/test_care": 15.0,
    "acceptance/test_clocks": 40.0,
    "acceptance/test_copied_agents": 10.0,
    "acceptance/test_cut_answers": 20.0,
    "acceptance/test_database_away": 25.0,
    "acceptance/test_docs_run": 9.0,
    "acceptance/test_files_over_http": 40.0,
    "acceptance/test_flyte_bad_tasks": 5.0,
    "acceptance/test_flyte_cache": 30.0,
    "acceptance/test_flyte_children": 30.0,
    "acceptance/test_flyte_clients": 6.0,
    "acceptance/test_flyte_data": 50.0,
    "acceptance/test_flyte_flow": 85.0,
    "acceptance/test_flyte_kill": 45.0,
    "acceptance/test_flyte_kubernetes": 150.0,
    "acceptance/test_flyte_maps": 45.0,
    "acceptance/test_flyte_runs": 90.0,
    "acceptance/test_flyte_slurm": 120.0,
    "acceptance/test_flyte_store_days": 25.0,
    "acceptance/test_flyte_tools": 60.0,
    "acceptance/test_flyte_two_servers": 60.0,
    "acceptance/test_half_open": 30.0,
    "acceptance/test_kill": 35.0,
    "acceptance/test_kubernetes_agent_pod": 120.0,
    "acceptance/test_kubernetes_jobs": 15.0,
    "acceptance/test_kubernetes_mixed": 160.0,
    "acceptance/test_kubernetes_two_servers": 40.0,
    "acceptance/test_moving": 10.0,
    "acceptance/test_openapi_fuzz": 0.5,
    "acceptance/test_paused_server": 25.0,
    "acceptance/test_pgbouncer": 25.0,
    "acceptance/test_queues": 8.0,
    "acceptance/test_restore": 22.0,
    "acceptance/test_slurm_days": 6.0,
    "acceptance/test_slurm_forgotten": 25.0,
    "acceptance/test_slurm_once": 50.0,
    "acceptance/test_tokens": 6.0,
    "acceptance/test_two_servers": 20.0,
    "acceptance/test_upload_limits": 30.0,
    "agent/": 0.5,
    "agent/slurm/test_cluster": 2.0,
    "agent/slurm/test_forgotten": 12.0,
    "agent/slurm/test_lost_state": 25.0,
    "agent/test_loop": 2.0,
    "kubernetes/": 6.0,
    "kubernetes/test_backend_troubles": 20.0,
    "kubernetes/test_container_starts": 30.0,
    "match/test_engines": 5.0,
    "service/test_array_machine": 15.0,
    "service/test_machine": 15.0,
    "simulation/": 20.0,
    "store/test_connections": 5.0,
    "test_kube_bed": 20.0,
    "tokens/": 5.0,
}
WAITING = ("acceptance/", "agent/slurm/", "agent/test_", "contracts/test_backends", "tokens/test_s", "server/test_stop")


def unit_of(nodeid: str) -> str:
    """What one worker runs as a whole: a file whose tests share what is made once per module, else one test."""
    file = nodeid.partition("::")[0]
    return file if _is_shared(file) else nodeid


def in_order(items: Iterable[T], name_of: Callable[[T], str]) -> list[T]:
    """The items in the order in which workers should take them. The items of one unit stay together and in order."""
    units: dict[str, list[T]] = {}
    for item in items:
        units.setdefault(unit_of(name_of(item)), []).append(item)
    lanes: dict[str, list[tuple[float, list[T]]]] = {}
    for unit, of_unit in units.items():
        lanes.setdefault(_lane(unit), []).append((len(of_unit) * seconds_of(unit), of_unit))
    placed: list[tuple[float, list[T]]] = []
    for lane in lanes.values():
        lane.sort(key=lambda row: -row[0])
        total = sum(seconds for seconds, _ in lane)
        befores = accumulate((seconds for seconds, _ in lane), initial=0.0)
        placed += [(before / total, of_unit) for before, (_, of_unit) in zip(befores, lane, strict=False)]
    placed.sort(key=lambda row: row[0])
    return [item for _, of_unit in placed for item in of_unit]


def seconds_of(nodeid: str) -> float:
    """The expected seconds of one test."""
    name = nodeid.removeprefix("tests/")
    return SECONDS[max((prefix for prefix in SECONDS if name.startswith(prefix)), key=len)]


def _lane(unit: str) -> str:
    if "::" not in unit:
        return "files"
    return "waiting" if unit.removeprefix("tests/").startswith(WAITING) else "computing"


@lru_cache(maxsize=1000)
def _is_shared(file: str) -> bool:
    path = HERE.parent / file
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return any(word in text for word in SHARING)
