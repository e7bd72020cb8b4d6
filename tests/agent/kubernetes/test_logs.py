"""Output of pods in the agent's folder: its bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchyard.agent.backends.kubernetes.logs import LogCollector, PodRef
from tests.agent.kubernetes.api_peer import ApiPeer, streams
from tests.processes import PATIENCE_S, until

POD = PodRef("default-development", "j-1", "main")
LINES = [b"2026-01-02T03:04:%02d.000000000Z line %02d\n" % (number, number) for number in range(10)]  # 8 bytes each
NOTICE = b"\n--- output beyond 20 bytes is dropped ---\n"


def taken(peer: ApiPeer, folder: Path, *, bytes_max: int) -> tuple[bytes, str]:
    """The output of an ended pod, and what is wrong with it."""
    api, problems = peer.api(), []
    collector = LogCollector(api, folder, bytes_max=bytes_max)
    collector.start()

    def is_finished() -> bool:
        problem = collector.finish("j", POD)
        if problem is not None:
            problems.append(problem)
        return problem is not None

    try:
        until(is_finished, PATIENCE_S, "the output is taken")
        return collector.read("j", offset=0, size=10_000).data, problems[0]
    finally:
        collector.stop()
        api.close()


@pytest.mark.parametrize(
    ("bytes_max", "output", "problem"),
    [
        (80, b"".join(b"line %02d\n" % number for number in range(10)), ""),
        (20, b"line 00\nline 01\nline" + NOTICE, "the last 60 bytes of its output were dropped"),
    ],
    ids=["fits", "too-long"],
)
def test_output_on_the_agents_disk_is_bounded(tmp_path: Path, bytes_max: int, output: bytes, problem: str) -> None:
    peer = ApiPeer(tmp_path, streams(*LINES))
    try:
        for _ in range(2):  # again, as after a crash before the end was recorded
            assert taken(peer, tmp_path / "output", bytes_max=bytes_max) == (output, problem)
    finally:
        peer.close()
