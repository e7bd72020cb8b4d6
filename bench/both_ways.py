"""Jobs through Switchyard and by hand, in turn: how long it takes until the last one has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tests.programs import Server, call

from switchyard.model.job.job import State
from switchyard.model.job.lifecycle import FINAL_STATES

END_S = 900.0
LOOK_S = 0.25  # between two looks at who is left, both ways: looking takes from the same cores
LIVE = "&".join(f"state={state}" for state in State if state not in FINAL_STATES)


def bulk(server: Server, cluster: str, program: str, count: int) -> float:
    """The seconds of so many jobs, submitted in one request."""
    job = {"spec": {"command": [program]}, "cluster": cluster}
    begun = time.monotonic()
    answer = call("POST", f"{server.url}/v1/jobs/bulk", {"jobs": [job] * count})
    assert answer.status in (200, 201), answer.body
    return until_all_ended(server, cluster, begun)


def array(server: Server, cluster: str, program: str, count: int) -> float:
    """The seconds of an array of so many tasks."""
    job = {"spec": {"command": [program]}, "cluster": cluster, "array": f"0-{count - 1}"}
    begun = time.monotonic()
    answer = call("POST", f"{server.url}/v1/jobs", job)
    assert answer.status == 201, answer.body
    return until_all_ended(server, cluster, begun)


def until_all_ended(server: Server, cluster: str, begun: float) -> float:
    """In how many seconds from `begun` every job of the cluster has its end."""

    def is_done() -> bool:
        return not call("GET", f"{server.url}/v1/jobs?cluster={cluster}&{LIVE}&limit=1").json["items"]

    return seconds_until(is_done, begun, "every job has its end")


def seconds_until(is_done: Callable[[], bool], begun: float, what: str) -> float:
    """In how many seconds from `begun` it is done."""
    while not is_done():
        assert time.monotonic() - begun < END_S, f"not within {END_S:g} s: {what}"
        time.sleep(LOOK_S)
    return time.monotonic() - begun


def alternate(plain: Callable[[], float], ours: Callable[[], float], rounds: int) -> tuple[list[float], list[float]]:
    """The seconds by hand and through Switchyard, in the order by hand, through, through, by hand."""
    by_hand: list[float] = []
    through: list[float] = []
    for _ in range(rounds):
        by_hand.append(plain())
        through += [ours(), ours()]
        by_hand.append(plain())
    return by_hand, through


def spread(times_s: Sequence[float]) -> str:
    """The mean, the fastest and the slowest."""
    return f"{sum(times_s) / len(times_s):.1f} ({min(times_s):.1f} to {max(times_s):.1f})"
